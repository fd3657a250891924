"""TiCDC's open protocol read back: messages of several rows, from TiCDC, of either generation, or from us.

Keys say what an event is and whose; values hold the columns, each with its type and flags. All of that is between
the values, so it is understood once per shape (``documents``). The order of members does not matter, nor which of
those that may be left out are. Runs on executors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import Longs
from tidemill.flow.reader import cells as c
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.compression import Compression, decompressed
from tidemill.flow.reader.documents import NO_JSON, Found, Refused, Shapes
from tidemill.flow.reader.frames import Frames, taken_apart
from tidemill.flow.reader.port import Events, Received, RowsSeen
from tidemill.flow.reader.shape import Hole, Path, UnclearError, parse
from tidemill.flow.reader.tables import ColumnSeen, TablesSeen
from tidemill.flow.reader.weave import Part, part_of, weave
from tidemill.model.event import AdminSeen, DdlSeen, Mark, MeetSeen, ResolvedSeen, Unreadable
from tidemill.model.row import RowOp, arrow_type
from tidemill.model.table import STRING_TYPES, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

_ROW, _DDL, _RESOLVED = 1, 2, 3
_ADMIN = 4  # ours: TiCDC has no such event
_BINARY, _HANDLE, _GENERATED, _PRIMARY, _UNIQUE, _MULTIPLE, _NULLABLE, _UNSIGNED = (1 << n for n in range(8))
_BASE64 = frozenset({ColumnType.TINYBLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.BLOB})


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose a row is, and how much of it is there."""

    schema: str
    table: str
    physical_id: int
    is_partial: bool
    claim: str


@dataclass(frozen=True, slots=True)
class _Key:
    kind: int
    owner: _Owner
    ts_hole: int


@dataclass(frozen=True, slots=True)
class _Value:
    op: RowOp
    columns: tuple[ColumnSeen, ...]
    new: dict[str, int]  # holes by column
    old: dict[str, int]


class OpenProtocolReader:
    """Reads one partition."""

    def __init__(self, compression: Compression = Compression.NONE) -> None:
        self._compression = compression
        self._keys = Shapes(_is_key_hole, _describe_key)
        self._values = Shapes(_is_value_hole, _describe_value)
        self._tables = TablesSeen()

    def read(self, received: Received) -> Events:
        frames = taken_apart(received)
        frames = replace(frames, values=decompressed(frames.values, self._compression))
        marks: list[tuple[int, Mark]] = [(message, Unreadable(why)) for message, why in frames.wrong]
        owners: dict[_Owner, list[Longs]] = {}
        commit_ts = np.zeros(len(frames.keys), np.uint64)
        for signature, events in frames.keys.groups():
            found, refused = self._keys.find(frames.keys, events, signature)
            marks += _refusals(frames, refused, "the key of an event")
            for each in found:
                self._sort_out(frames, each, commit_ts, owners, marks)
        rows: list[RowsSeen] = []
        for owner, some in owners.items():
            events = some[0] if len(some) == 1 else np.sort(np.concatenate(some))
            rows += self._rows(frames, owner, events, commit_ts, marks)
        return Events(rows, sorted(marks, key=lambda mark: mark[0]))

    def _sort_out(
        self,
        frames: Frames,
        keys: Found[_Key],
        commit_ts: npt.NDArray[np.uint64],
        owners: dict[_Owner, list[Longs]],
        marks: list[tuple[int, Mark]],
    ) -> None:
        events = keys.rows
        stamps, is_bad = c.hole_numbers(frames.keys, keys, keys.meaning.ts_hole)
        if is_bad.any():
            refused = [Refused(event, "its ts is no whole number of 64 bits") for event in events[is_bad].tolist()]
            marks += _refusals(frames, refused, "the key of an event")
            events, stamps = events[~is_bad], stamps[~is_bad]
        commit_ts[events] = stamps
        owner = keys.meaning.owner
        if keys.meaning.kind == _ROW:
            owners.setdefault(owner, []).append(events)
            return
        for event in events.tolist():
            ts = Ts(int(commit_ts[event]))
            marks.append((int(frames.message[event]), _mark(keys.meaning.kind, ts, owner, frames.values[event])))

    def _rows(
        self,
        frames: Frames,
        owner: _Owner,
        events: Longs,
        commit_ts: npt.NDArray[np.uint64],
        marks: list[tuple[int, Mark]],
    ) -> list[RowsSeen]:
        found, refused = self._values.find(frames.values, events, (owner.schema, owner.table))
        by_table: dict[int, tuple[TableInfo, list[Part]]] = {}
        for each in found:
            table = self._tables.get(owner.schema, owner.table, each.meaning.columns, owner.physical_id)
            value = each.meaning
            by_table.setdefault(id(table), (table, []))[1].append(part_of(table, each, value.op, value.new, value.old))
        rows = []
        for table, parts in by_table.values():
            woven = weave(table, owner.physical_id, frames.values.data, parts, commit_ts, _decode)
            refused += [Refused(event, "a value is not of its column's type") for event in woven.bad]
            if len(woven.rows):
                message = frames.message[woven.rows]
                rows.append(RowsSeen(woven.batch, message, owner.is_partial, owner.claim, woven.rows))
        marks += _refusals(frames, refused, f"a row of table {owner.schema}.{owner.table}")
        return rows


def _refusals(frames: Frames, refused: Sequence[Refused], what: str) -> list[tuple[int, Mark]]:
    return [(int(frames.message[each.row]), Unreadable(f"{what} cannot be read: {each.why}")) for each in refused]


def _is_key_hole(path: Path) -> Hole | None:
    return Hole.SCALAR if path in (("ts",), ("rid",)) else None


def _describe_key(content: Any, holes: list[Path]) -> _Key:
    kind = content["t"]
    if kind not in (_ROW, _DDL, _RESOLVED, _ADMIN):
        raise UnclearError("its type is none of 1 (row), 2 (DDL), 3 (resolved) and 4 (admin)")
    if ("ts",) not in holes:
        raise UnclearError("it has no ts")
    claim = _text(content, "ccl")
    is_partial = content.get("ohk") is True or bool(claim)
    schema, table = _text(content, "scm"), _text(content, "tbl")
    if kind == _ROW and not (schema and table):
        raise UnclearError("it names no schema or no table")
    owner = _Owner(schema, table, int(content.get("ptn") or 0), is_partial, claim)
    return _Key(kind, owner, holes.index(("ts",)))


def _text(content: Any, member: str) -> str:
    found = content.get(member, "")
    if not isinstance(found, str):
        raise UnclearError(f"its member {member} is no string")
    return found


def _mark(kind: int, ts: Ts, owner: _Owner, value: bytes) -> Mark:
    if kind == _RESOLVED:
        return ResolvedSeen(ts)
    return _ddl(ts, owner, value) if kind == _DDL else _admin(ts, owner, value)


def _admin(ts: Ts, owner: _Owner, value: bytes) -> Mark:
    try:
        content = parse(value)
        if content.get("meet") is True:
            return MeetSeen(ts, owner.schema, owner.table)
        partitions, epoch = content["partition"], content["epoch"]
    except (ValueError, KeyError, TypeError, AttributeError):
        partitions = epoch = None
    if type(partitions) is not int or type(epoch) is not int or partitions < 1 or epoch < 1:
        return Unreadable("the value of an admin event cannot be read: it has no number of partitions, or no epoch")
    return AdminSeen(partitions, epoch, ts)


def _ddl(ts: Ts, owner: _Owner, value: bytes) -> Mark:
    try:
        content = parse(value)
        query, kind = content["q"], content.get("t")
    except ValueError:
        return Unreadable(f"the value of a DDL cannot be read: {NO_JSON}")
    except (KeyError, TypeError, AttributeError):
        return Unreadable("the value of a DDL cannot be read: it has no query")
    if not isinstance(query, str) or not isinstance(kind, int | None):
        return Unreadable("the value of a DDL cannot be read: its query is no string, or its type no number")
    return DdlSeen(ts, owner.schema, owner.table, query, kind)


def _is_value_hole(path: Path) -> Hole | None:
    return Hole.SCALAR if path == ("p", "v") or (len(path) == 3 and path[2] == "v") else None


def _describe_value(content: Any, holes: list[Path]) -> _Value:
    """A delete if there is a ``d``, an update if there are ``u`` and ``p``, else an insert."""
    places = {path: hole for hole, path in enumerate(holes)}
    deleted, new, old = (content.get(member) or {} for member in "dup")
    if deleted:
        return _Value(RowOp.DELETE, _columns(deleted), {}, _holes("d", deleted, places))
    if not new:
        raise UnclearError("it holds no columns")
    columns = _columns(new)
    if content.get("p") is None:
        return _Value(RowOp.INSERT, columns, _holes("u", new, places), {})
    # Newer TiCDCs write type and value of a column that became null straight into ``p``, without its name.
    old = {name: column for name, column in old.items() if isinstance(column, dict)}
    if not old.keys() <= new.keys():
        raise UnclearError("its old row has columns that its new one has not")
    return _Value(RowOp.UPDATE, columns, _holes("u", new, places), _holes("p", old, places))


def _columns(image: dict[str, Any]) -> tuple[ColumnSeen, ...]:
    return tuple(_column(name, column) for name, column in image.items())


def _column(name: str, column: dict[str, Any]) -> ColumnSeen:
    try:
        kind = ColumnType(column["t"])
    except ValueError:
        raise UnclearError(f"column {name} is of an unknown type") from None
    is_handle = column.get("h") is True
    # Producers of long ago wrote no flags: then a column is nullable unless it is of the handle key.
    flags = column.get("f", 0 if is_handle else _NULLABLE)
    return ColumnSeen(
        name,
        kind,
        is_binary=bool(flags & _BINARY) and kind in STRING_TYPES,
        is_unsigned=bool(flags & _UNSIGNED),
        is_nullable=bool(flags & _NULLABLE),
        is_handle=is_handle or bool(flags & _HANDLE),
        is_primary=bool(flags & _PRIMARY),
        is_unique=bool(flags & _UNIQUE),
        is_multiple=bool(flags & _MULTIPLE),
        is_generated=bool(flags & _GENERATED),
    )


def _holes(member: str, image: dict[str, Any], places: dict[Path, int]) -> dict[str, int]:
    found = {name: places.get((member, name, "v"), -1) for name in image}
    for name, hole in found.items():
        if hole < 0:
            raise UnclearError(f"column {name} has no value, or one that is no string, number or null")
    return found


def _decode(column: ColumnInfo, cells: Cells) -> pa.Array:
    kind = arrow_type(column)
    if pa.types.is_integer(kind):
        return c.integers(cells, is_unsigned=kind == pa.uint64())
    if pa.types.is_floating(kind):
        return c.floats(cells, kind)
    if column.type in _BASE64:
        return c.base64_bytes(cells) if column.is_binary else c.base64_texts(cells)
    return c.go_quoted_bytes(cells) if kind == pa.binary() else c.texts(cells)
