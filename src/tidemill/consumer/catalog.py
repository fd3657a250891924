"""Tables as the DDLs of a topic have made them, for sinks that keep tables by id: files and lakes. Pure.

    DDL, as a message tells of it ──► Catalog.after ──► the event that the sink runs, and the catalog behind it
    rows, in the form of their messages ──► Catalog.form_of ──► the table that they are of

Messages have no ids, and most tell less of a table than its DDLs did: no lengths, no elements of an ENUM, no defaults.
So the statements are read. A table keeps its id through everything but TRUNCATE, a column through a new name or type.
A table that no DDL has told of, since the topic begins behind it, is what its first rows say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tidemill.consumer.ddl import event_of
from tidemill.consumer.tables import Place, has_several_keys, table_place
from tidemill.errors import CorruptDataError, SinkError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import DdlSeen
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts, show
from tidemill.tidb.table_statements import (
    AddColumn,
    AddKey,
    Change,
    ChangeColumn,
    DropColumn,
    DropKey,
    Key,
    MovesRows,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetDefault,
    altered,
    created,
    database,
    subject,
)

_FIRST_ID = 1
_UNKNOWN_DECIMAL = (65, 30)  # its text holds any
_NAMED = frozenset({ColumnType.ENUM, ColumnType.SET})
_OF_VIEWS = frozenset({ActionType.CREATE_VIEW, ActionType.DROP_VIEW})
_BACK = frozenset({ActionType.RECOVER_TABLE})
_MOVING = frozenset(
    {ActionType.EXCHANGE_PARTITION, ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION}
)


@dataclass(frozen=True)
class Catalog:
    tables: Mapping[Place, TableInfo] = field(default_factory=dict)
    dropped: Mapping[Place, TableInfo] = field(default_factory=dict)  # the last of each name: it may come back
    next_id: int = _FIRST_ID
    sees_rows_alone: bool = (
        False  # the sink cannot follow what no row tells of: moved table partitions, computed values
    )
    needs_elements: bool = False  # it writes the names of ENUM and SET values

    # What a DDL does.

    def after(self, seen: DdlSeen, seq: int) -> tuple[DdlEvent, "Catalog"]:
        """The DDL as sinks run it, and the tables behind it. Raises SinkError where this sink cannot follow."""
        if not seen.schema:
            seen = replace(seen, schema=database(seen.query))
        event = event_of(seen, seq)
        here = table_place(seen.schema, seen.table)
        if event.type == ActionType.DROP_SCHEMA:
            gone = {place: info for place, info in self.tables.items() if place[0] == here[0]}
            return event, self._without(gone)
        if not seen.table:
            return event, self
        if event.type in _OF_VIEWS:
            return replace(event, table_info=_bare(seen, is_view=True)), self
        if event.type == ActionType.DROP_TABLE:
            known = self.tables.get(here)
            behind = self._without({here: known}) if known is not None else self
            return replace(event, table_info=known or _bare(seen)), behind
        if event.type in _BACK:
            written = subject(seen.query)
            was = table_place(written[0] or seen.schema, written[1])
            found = self.dropped.get(was, self.dropped.get(here))
            if found is not None:
                back = replace(found, schema=seen.schema, name=seen.table, version_ts=seen.ts)
                return replace(event, table_info=back), self._with(here, back)
        if event.type == ActionType.TRUNCATE_TABLE and here in self.tables:
            before = self.tables[here]
            info = replace(before, id=self.next_id, version_ts=seen.ts, update_ts=seen.ts)
            return _changed(event, before, info), replace(self._with(here, info), next_id=self.next_id + 1)
        creation = created(seen.query)
        if creation is not None:
            return self._create(event, seen, creation.changes, creation.like)
        return self._alter(event, seen)

    def _create(
        self, event: DdlEvent, seen: DdlSeen, changes: Sequence[Change], like: tuple[str, str] | None
    ) -> tuple[DdlEvent, "Catalog"]:
        here = table_place(seen.schema, seen.table)
        maker = _Maker(self.next_id)
        columns: tuple[ColumnInfo, ...] = ()
        indexes: tuple[IndexInfo, ...] = ()
        if like is not None:
            model = self.tables.get(table_place(like[0] or seen.schema, like[1]))
            if model is not None:
                columns = tuple(replace(c, id=maker.id()) for c in model.columns)
                indexes = model.indexes
        info = TableInfo(maker.id(), 0, seen.schema, seen.table, seen.ts, columns, indexes)
        info = maker.told(maker.changed(info, changes), seen.table_info)
        if not info.columns:
            return replace(event, table_info=_bare(seen)), self
        no_older = tuple(replace(c, origin_default=None, origin_default_bit=None) for c in info.columns)
        info = replace(info, columns=no_older, update_ts=seen.ts)
        behind = replace(self._with(here, info), next_id=maker.next_id)
        return replace(event, type=int(ActionType.CREATE_TABLE), table_info=info), behind

    def _alter(self, event: DdlEvent, seen: DdlSeen) -> tuple[DdlEvent, "Catalog"]:
        written = subject(seen.query)
        was = table_place(written[0] or seen.schema, written[1]) if written[1] else table_place(seen.schema, seen.table)
        if was not in self.tables:
            was = table_place(seen.schema, seen.table)
        before = self.tables.get(was)
        if before is None:
            if seen.table_info is not None:
                return self._create(event, seen, (), None)
            return replace(event, table_info=_bare(seen)), self
        changes = altered(seen.query, before.charset)
        self._refuse_unseen(event, before, changes)
        maker = _Maker(self.next_id)
        info = maker.told(maker.changed(replace(before, version_ts=seen.ts), changes), seen.table_info)
        there = table_place(info.schema, info.name)
        if there == was:
            info = replace(info, update_ts=seen.ts)
        kept = {place: table for place, table in self.tables.items() if place != was}
        behind = replace(self, tables={**kept, there: info}, next_id=maker.next_id)
        event = replace(event, schema=info.schema, table=info.name, type=_kind(event.type, changes))
        if was != there:
            event = replace(event, pre_schema=before.schema, pre_table=before.name)
        return _changed(event, before, info), behind

    def _refuse_unseen(self, event: DdlEvent, table: TableInfo, changes: Sequence[Change]) -> None:
        if not self.sees_rows_alone:
            return
        computed = [c.column.name for c in changes if isinstance(c, AddColumn) and c.is_computed]
        moves = event.type in _MOVING or any(isinstance(change, MovesRows) for change in changes)
        if not computed and not moves:
            return
        why = (
            "rows of a table partition come or go with it, and messages do not say which"
            if moves
            else f"older rows get a value in column {computed[0]!r} that was computed upstream, and no message tells it"
        )
        raise SinkError(
            f"the DDL on table {table.full_name} of {show(event.finished_ts)} cannot be followed from a topic into "
            f"this sink: {why}. Nothing was written behind it. Write this sink by a changefeed of its own, or start "
            "anew from a topic that begins behind the DDL."
        )

    def _with(self, place: Place, info: TableInfo) -> "Catalog":
        dropped = {there: table for there, table in self.dropped.items() if there != place}
        return replace(self, tables={**self.tables, place: info}, dropped=dropped)

    def _without(self, gone: Mapping[Place, TableInfo]) -> "Catalog":
        left = {place: info for place, info in self.tables.items() if place not in gone}
        return replace(self, tables=left, dropped={**self.dropped, **gone})

    def has_several_keys(self, places: Iterable[Place]) -> bool:
        """Whether one of these tables has, so that its rows may meet across partitions."""
        return any(has_several_keys(self.tables[place]) for place in places if place in self.tables)

    # What rows say.

    def form_of(self, seen: TableInfo, first_ts: Ts) -> tuple[TableInfo, "Catalog"]:
        """The table that rows are of whose messages say ``seen``, the first of them at ``first_ts``."""
        here = table_place(seen.schema, seen.name)
        known = self.tables.get(here)
        names = {column.name.lower() for column in known.columns} if known is not None else set()
        if known is not None and all(column.name.lower() in names for column in seen.stored_columns):
            return known, self
        maker = _Maker(self.next_id)
        if known is None:
            info = replace(seen, id=maker.id(), schema_id=0, version_ts=Ts(first_ts - 1), columns=(), partitions=())
        else:  # an online DDL that has not been told yet: a column has its new name already
            info = replace(known, version_ts=Ts(first_ts - 1))
        new = [column for column in seen.stored_columns if column.name.lower() not in names]
        for column in new:
            if self.needs_elements and column.type in _NAMED and not column.elems:
                raise CorruptDataError(
                    f"column {column.name!r} of table {seen.full_name} is an {column.type.name}, of which messages "
                    "tell the number alone, and the topic does not have the table's CREATE TABLE. Begin with a topic "
                    "that has, or use protocol simple, or canal-json files."
                )
        added = tuple(_widest(replace(column, id=maker.id())) for column in new)
        info = replace(info, columns=_placed((*info.columns, *added)))
        return info, replace(self, tables={**self.tables, here: info}, next_id=maker.next_id)

    # What is saved.

    @cached_property
    def document(self) -> dict[str, Any]:
        return {
            "next_id": self.next_id,
            "tables": [document_of(info) for info in self.tables.values()],
            "dropped": [document_of(info) for info in self.dropped.values()],
        }

    def loaded(self, document: Mapping[str, Any] | None) -> "Catalog":
        """As it was saved; what the sink wants stays."""
        if document is None:
            return self
        tables, dropped = (
            {table_place(info.schema, info.name): info for info in map(table_of, document[name])}
            for name in ("tables", "dropped")
        )
        return replace(self, tables=tables, dropped=dropped, next_id=int(document["next_id"]))


@dataclass(slots=True)
class _Maker:
    """Gives ids while it changes a table."""

    next_id: int

    def id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def changed(self, info: TableInfo, changes: Sequence[Change]) -> TableInfo:
        for change in changes:
            info = self._one(info, change)
        return info

    def told(self, info: TableInfo, told: TableInfo | None) -> TableInfo:
        """With what a message says of its form, which knows more than the statement."""
        if told is None or told.is_view:
            return info
        known = {column.name.lower(): column for column in info.columns}
        columns = []
        for column in told.columns:
            before = known.get(column.name.lower())
            origin = (before.origin_default, before.origin_default_bit) if before is not None else (None, None)
            columns.append(
                replace(
                    column,
                    id=before.id if before is not None else self.id(),
                    origin_default=origin[0],
                    origin_default_bit=origin[1],
                )
            )
        return replace(
            info, columns=_placed(columns), indexes=told.indexes, pk_is_handle=told.pk_is_handle, partitions=()
        )

    def _one(self, info: TableInfo, change: Change) -> TableInfo:
        columns = list(info.columns)
        match change:
            case AddColumn(column, after):
                if _find(columns, column.name) is not None:
                    return info  # IF NOT EXISTS
                _insert(columns, replace(column, id=self.id()), after, len(columns))
            case DropColumn(name):
                columns = [each for each in columns if each.name.lower() != name.lower()]
            case ChangeColumn(name, column, after):
                at = _find(columns, name)
                if at is None:
                    return info
                old = columns.pop(at)
                columns = [each for each in columns if each.name.lower() != column.name.lower()]
                keys = old.flag & int(ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY)
                keys |= int(ColumnFlag.NOT_NULL) if old.flag & ColumnFlag.PRI_KEY else 0
                origin = (old.origin_default, old.origin_default_bit)
                column = replace(
                    column, id=old.id, flag=column.flag | keys, origin_default=origin[0], origin_default_bit=origin[1]
                )
                _insert(columns, column, after, min(at, len(columns)))
                return _recolumned(info, columns, {name.lower(): column.name})
            case RenameColumn(name, to):
                columns = [each for each in columns if each.name.lower() != to.lower() or name.lower() == to.lower()]
                columns = [replace(each, name=to) if each.name.lower() == name.lower() else each for each in columns]
                return _recolumned(info, columns, {name.lower(): to})
            case SetDefault(name, default):
                columns = [replace(c, default=default) if c.name.lower() == name.lower() else c for c in columns]
            case AddKey(key):
                return _keyed(info, key)
            case DropKey(name):
                return _unkeyed(info, name)
            case RenameKey(name, to):
                indexes = [replace(i, name=to) if i.name.lower() == name.lower() else i for i in info.indexes]
                return replace(info, indexes=tuple(indexes))
            case RenameTo(schema, name):
                return replace(info, schema=schema or info.schema, name=name)
            case MovesRows():
                return info
        return _recolumned(info, columns, {})


def _bare(seen: DdlSeen, *, is_view: bool = False) -> TableInfo:
    """A table of which no more is known than its name."""
    return TableInfo(0, 0, seen.schema, seen.table, seen.ts, (), is_view=is_view)


def _changed(event: DdlEvent, before: TableInfo, after: TableInfo) -> DdlEvent:
    return replace(event, table_info=after, pre_table_info=before)


def _kind(told: int, changes: Sequence[Change]) -> int:
    """The kind of a DDL where the protocol does not tell."""
    if told != ActionType.NONE or not changes:
        return told
    if any(isinstance(change, RenameTo) for change in changes):
        return int(ActionType.RENAME_TABLE)
    if len(changes) > 1:
        has_new = all(isinstance(change, AddColumn | AddKey) for change in changes)
        return int(ActionType.ADD_COLUMNS if has_new else ActionType.MULTI_SCHEMA_CHANGE)
    match changes[0]:
        case AddColumn():
            return int(ActionType.ADD_COLUMN)
        case DropColumn():
            return int(ActionType.DROP_COLUMN)
        case AddKey(key):
            return int(ActionType.ADD_PRIMARY_KEY if key.is_primary else ActionType.ADD_INDEX)
        case DropKey(name):
            return int(ActionType.DROP_PRIMARY_KEY if name.upper() == "PRIMARY" else ActionType.DROP_INDEX)
        case RenameKey():
            return int(ActionType.RENAME_INDEX)
        case SetDefault():
            return int(ActionType.SET_DEFAULT_VALUE)
        case _:
            return int(ActionType.MODIFY_COLUMN)


def _widest(column: ColumnInfo) -> ColumnInfo:
    """A column of which rows alone have told."""
    if column.type is ColumnType.NEWDECIMAL and column.flen < 0:
        return replace(column, flen=_UNKNOWN_DECIMAL[0], decimal=_UNKNOWN_DECIMAL[1])
    return column


def _find(columns: Sequence[ColumnInfo], name: str) -> int | None:
    return next((at for at, column in enumerate(columns) if column.name.lower() == name.lower()), None)


def _insert(columns: list[ColumnInfo], column: ColumnInfo, after: str | None, else_at: int) -> None:
    behind = _find(columns, after) if after else None
    columns.insert(0 if after == "" else behind + 1 if behind is not None else else_at, column)


def _placed(columns: Sequence[ColumnInfo]) -> tuple[ColumnInfo, ...]:
    return tuple(replace(column, offset=at) for at, column in enumerate(columns))


def _recolumned(info: TableInfo, columns: Sequence[ColumnInfo], renamed: Mapping[str, str]) -> TableInfo:
    """With these columns; keys go by names. A key that has lost a column keeps the others."""
    places = {column.name.lower(): at for at, column in enumerate(columns)}
    indexes = []
    for index in info.indexes:
        parts = []
        for part in index.columns:
            name = info.columns[part.offset].name.lower()
            at = places.get(renamed.get(name, name).lower())
            parts += [replace(part, offset=at)] if at is not None else []
        indexes += [replace(index, columns=tuple(parts))] if parts else []
    return replace(info, columns=_placed(columns), indexes=tuple(indexes))


def _keyed(info: TableInfo, key: Key) -> TableInfo:
    places = [_find(info.columns, name) for name, _ in key.columns]
    if None in places or not places:
        return info  # a key over an expression, which no message has
    offsets = [place for place in places if place is not None]
    lengths = [length for _, length in key.columns]
    name = key.name or _free(info, key.columns[0][0])
    if any(index.name.lower() == name.lower() for index in info.indexes):
        return info  # IF NOT EXISTS
    number = 1 + max((index.id for index in info.indexes), default=0)
    parts = tuple(IndexColumn(offset, length) for offset, length in zip(offsets, lengths, strict=True))
    index = IndexInfo(number, name, parts, key.is_unique or key.is_primary, key.is_primary)
    flag = 0
    if key.is_primary:
        flag = int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
    elif key.is_unique and len(parts) == 1:
        flag = int(ColumnFlag.UNIQUE_KEY)
    columns = tuple(replace(c, flag=c.flag | flag) if c.offset in offsets else c for c in info.columns)
    return replace(info, columns=columns, indexes=(*info.indexes, index))


def _unkeyed(info: TableInfo, name: str) -> TableInfo:
    gone = [index for index in info.indexes if index.name.lower() == name.lower()]
    indexes = tuple(index for index in info.indexes if index not in gone)
    offsets = {part.offset for index in gone if index.is_primary for part in index.columns}
    keep = ~int(ColumnFlag.PRI_KEY)
    columns = tuple(replace(c, flag=c.flag & keep) if c.offset in offsets else c for c in info.columns)
    return replace(info, columns=columns, indexes=indexes)


def _free(info: TableInfo, name: str) -> str:
    taken = {index.name.lower() for index in info.indexes}
    free, number = name, 1
    while free.lower() in taken:
        number += 1
        free = f"{name}_{number}"
    return free


_BYTES = ("default_bit", "origin_default_bit")


def document_of(info: TableInfo) -> dict[str, Any]:
    """As JSON has it."""
    document = asdict(info)
    for column in document["columns"]:
        column |= {name: column[name].hex() for name in _BYTES if column[name] is not None}
    return document


def table_of(document: Mapping[str, Any]) -> TableInfo:
    return TableInfo(
        **{
            **document,
            "version_ts": Ts(int(document["version_ts"])),
            "update_ts": Ts(int(document["update_ts"])),
            "columns": tuple(_column_of(column) for column in document["columns"]),
            "indexes": tuple(
                IndexInfo(**{**index, "columns": tuple(IndexColumn(**part) for part in index["columns"])})
                for index in document["indexes"]
            ),
            "partitions": (),
            "view_columns": (),
        }
    )


def _column_of(document: Mapping[str, Any]) -> ColumnInfo:
    raw = {name: bytes.fromhex(document[name]) for name in _BYTES if document[name] is not None}
    return ColumnInfo(**{**document, **raw, "type": ColumnType(document["type"]), "elems": tuple(document["elems"])})
