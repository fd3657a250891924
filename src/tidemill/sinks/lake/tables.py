"""The tables of a lake as they came to be: names, columns and versions. Pure; kept in ``_tidemill/tables/``.

A lake table outlives what DDL does to the one upstream. Its columns are only ever added, renamed or widened: a column
that is dropped upstream, or gets a type that does not hold the old values, stays under a name that says so. Each row
carries the version of the schema that it was written under, and each version here says in which lake column each
column of the table stood, and what rows older than a column have in it. So the table as of any ts can be read
from what the lake holds now.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from tidemill.errors import InvariantError, SinkError
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.lake.changes import SYSTEM_COLUMNS, FileColumn
from tidemill.sinks.lake.columns import default_of, holds_exactly, lake_type, type_named

FORMAT = 3


@dataclass(frozen=True, slots=True)
class Naming:
    """What kinds of lake differ in."""

    can_rename: bool  # a column keeps its identity under a new name
    can_widen: bool  # decimal(10,2) may become decimal(12,2), float double
    forbidden: str = ""  # characters that no column name may hold

    def legal(self, name: str) -> str:
        return "".join("_" if char in self.forbidden else char for char in name)


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """``id`` is Iceberg's field id. Ids are never used again."""

    id: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class VersionColumn:
    """Where one version of the table keeps a column: ``id`` and ``name`` are TiDB's, ``lake`` a LakeColumn's id.

    ``default`` is what rows older than the column have in it, as text; None: null.
    """

    id: int
    name: str
    lake: int
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """In force for changes above ``ts``. An interim one is written under while an online DDL is not yet done."""

    ts: int
    schema: str
    table: str
    key: tuple[str, ...]
    columns: tuple[VersionColumn, ...]
    is_interim: bool = False


@dataclass(frozen=True, slots=True)
class LakeTable:
    id: str  # for good
    location: str  # a folder below the root, for good
    table_id: int  # TiDB's, which changes when the table is truncated
    schema: str
    name: str
    columns: tuple[LakeColumn, ...]
    versions: tuple[Version, ...]
    physical_ids: tuple[int, ...]
    mixed_ids: tuple[int, ...] = ()  # partitions whose older rows carry the ids of those that they were made of
    dropped_ts: int | None = None
    created_ts: int = 0

    @property
    def lake_name(self) -> str:
        return self.name if self.dropped_ts is None else f"{self.name}__dropped_{self.dropped_ts}"

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, id: int) -> LakeColumn:
        return next(c for c in self.columns if c.id == id)

    def version(self, ts: int) -> Version | None:
        return next((v for v in self.versions if v.ts == ts), None)

    def version_at(self, ts: int) -> Version:
        """The one that readers at ``ts`` see."""
        settled = [v for v in self.versions if not v.is_interim]
        return max((v for v in settled if v.ts <= ts), key=lambda v: v.ts, default=settled[0])

    def file_columns(self, table: TableInfo) -> tuple[FileColumn, ...]:
        """The columns of a data file with rows of ``table``, of which there must be a version."""
        version = self.version(table.version_ts)
        if version is None:
            raise InvariantError(f"the lake table {self.full_name} has no version {table.version_ts}")
        places = {c.id: place for place, c in enumerate(table.stored_columns)}
        sources = {c.lake: places[c.id] for c in version.columns}
        is_written = {c.id for c in self.columns[: len(SYSTEM_COLUMNS)]} | set(sources)
        return tuple(
            FileColumn(c.name, c.type, c.id, sources.get(c.id, -1)) for c in self.columns if c.id in is_written
        )


@dataclass(frozen=True, slots=True)
class Evolution:
    """A lake table after a change of schema, and why its rows must be read anew, if so."""

    table: LakeTable
    rescan: str = ""


def new_table(table: TableInfo, id: str, location: str, naming: Naming, *, created_ts: int = 0) -> LakeTable:
    system = tuple(LakeColumn(at, name, str(kind)) for at, (name, kind) in enumerate(SYSTEM_COLUMNS.items(), 1))
    empty = LakeTable(
        id, location, table.id, table.schema, table.name, system, (), table.physical_ids, created_ts=created_ts
    )
    columns: list[VersionColumn] = []
    for column in table.stored_columns:
        empty, lake_id = _with_column(empty, naming.legal(column.name), str(lake_type(column)))
        columns.append(VersionColumn(column.id, column.name, lake_id))
    return _with_version(empty, table, tuple(columns), is_interim=False)


def evolve(lake: LakeTable, table: TableInfo, naming: Naming, *, is_added: bool, is_interim: bool = False) -> Evolution:
    """Take ``table`` as the newest version. ``is_added`` says that columns with new ids have just been added, and so
    have their default in older rows; otherwise their values upstream were computed, and nobody told us.
    """
    before = lake.versions[-1] if is_interim else lake.version_at(1 << 63)
    known: dict[int, VersionColumn] = {}
    for version in lake.versions:
        known |= {c.id: c for c in version.columns}
    current = {c.id for c in before.columns}
    why = ""
    ids = {c.name: c.id for c in before.columns}
    if {ids[name] for name in before.key} != {c.id for c in table.handle_key} and not is_interim:
        why = "its handle key has changed"
    columns: list[VersionColumn] = []
    kept = {c.id for c in table.stored_columns}
    if not is_interim:
        lake = _set_aside(lake, [c for c in before.columns if c.id not in kept], naming, table.version_ts)
    for column in table.stored_columns:
        wanted = lake_type(column)
        found = known.get(column.id)
        if found is None or column.id not in current:
            default, fits = _default(column) if is_added else (None, True)
            if not is_interim and not (is_added and fits):
                why = why or f"column {column.name!r} has new values"
            if found is not None and lake.column(found.lake).type == str(wanted):
                # Written under an interim version already; it gets its proper name now.
                lake_id = found.lake
                lake = lake if is_interim else _renamed(lake, lake_id, naming.legal(column.name), naming)
            else:
                lake, lake_id = _with_column(
                    lake, _interim_name(column.name, table.version_ts, is_interim, naming), str(wanted)
                )
            columns.append(VersionColumn(column.id, column.name, lake_id, default))
            continue
        held = type_named(lake.column(found.lake).type)
        lake_id = found.lake
        if held != wanted and not holds_exactly(held, wanted):
            is_exact = holds_exactly(wanted, held)
            why = why or ("" if is_exact else f"column {column.name!r} has another type")
            if is_exact and naming.can_widen and held != pa.int64():
                lake = _retyped(lake, lake_id, str(wanted))
            else:
                lake = _set_aside(lake, [found], naming, table.version_ts)
                lake, lake_id = _with_column(lake, naming.legal(column.name), str(wanted))
        elif not is_interim and found.name != column.name:
            if naming.can_rename:
                lake = _renamed(lake, lake_id, naming.legal(column.name), naming)
            else:
                lake, lake_id = _with_column(lake, naming.legal(column.name), str(wanted))
        columns.append(VersionColumn(column.id, column.name, lake_id, found.default))
    lake = _with_version(lake, table, tuple(columns), is_interim=is_interim)
    return Evolution(lake, why)


def _default(column: Any) -> tuple[str | None, bool]:
    value, fits = default_of(column)
    return value_text(value), fits


def value_text(value: pa.Scalar) -> str | None:
    """A value as text that a cast to its type reads back; bytes in base64."""
    if not value.is_valid:
        return None
    if pa.types.is_binary(value.type):
        return base64.b64encode(value.as_py()).decode()
    if pa.types.is_timestamp(value.type):
        return str(value.cast(pa.timestamp("us")).as_py())
    if value.type == pa.float32():
        return repr(float(str(value.as_py())))
    return str(value.as_py())


def _key(table: TableInfo) -> tuple[str, ...]:
    return tuple(c.name for c in table.handle_key)


def _with_version(
    lake: LakeTable, table: TableInfo, columns: tuple[VersionColumn, ...], *, is_interim: bool
) -> LakeTable:
    version = Version(int(table.version_ts), table.schema, table.name, _key(table), columns, is_interim)
    others = tuple(v for v in lake.versions if v.ts != version.ts)
    versions = tuple(sorted((*others, version), key=lambda v: v.ts))
    if is_interim:
        return replace(lake, versions=versions)
    return replace(
        lake,
        versions=versions,
        table_id=table.id,
        schema=table.schema,
        name=table.name,
        physical_ids=table.physical_ids,
    )


def _with_column(lake: LakeTable, name: str, kind: str) -> tuple[LakeTable, int]:
    id = max((c.id for c in lake.columns), default=0) + 1
    free = _free_name(lake, name)
    return replace(lake, columns=(*lake.columns, LakeColumn(id, free, kind))), id


def _interim_name(name: str, ts: Ts, is_interim: bool, naming: Naming) -> str:
    return naming.legal(name) + (f"__from_{ts}" if is_interim else "")


def _free_name(lake: LakeTable, name: str) -> str:
    """Engines compare column names without case."""
    taken = {c.name.lower() for c in lake.columns}
    free, number = name, 1
    while free.lower() in taken:
        number += 1
        free = f"{name}__{number}"
    return free


def _renamed(lake: LakeTable, id: int, name: str, naming: Naming) -> LakeTable:
    if not naming.can_rename or lake.column(id).name == name:
        return lake
    others = replace(lake, columns=tuple(c for c in lake.columns if c.id != id))
    free = _free_name(others, name)
    return replace(lake, columns=tuple(replace(c, name=free) if c.id == id else c for c in lake.columns))


def _retyped(lake: LakeTable, id: int, kind: str) -> LakeTable:
    return replace(lake, columns=tuple(replace(c, type=kind) if c.id == id else c for c in lake.columns))


def _set_aside(lake: LakeTable, columns: Iterable[VersionColumn], naming: Naming, ts: Ts) -> LakeTable:
    """Columns that the table no longer has keep their values, under a name that leaves the old one free."""
    for column in columns:
        name = lake.column(column.lake).name
        if "__until_" not in name:
            lake = _renamed(lake, column.lake, f"{naming.legal(column.name)}__until_{ts}", naming)
    return lake


@dataclass(frozen=True, slots=True)
class Journal:
    """All tables of a lake, and the last DDL that they reflect: (finished-ts, seq)."""

    tables: tuple[LakeTable, ...] = ()
    ddl: tuple[int, int] = (0, 0)
    changefeed: str = ""
    cluster: str = ""

    def live(self, schema: str, name: str) -> LakeTable | None:
        return next((t for t in self.tables if (t.schema, t.name, t.dropped_ts) == (schema, name, None)), None)

    def by_table_id(self, table_id: int, *, is_dropped: bool = False) -> LakeTable | None:
        found = [t for t in self.tables if t.table_id == table_id and (t.dropped_ts is not None) == is_dropped]
        return found[-1] if found else None

    def named_at(self, schema: str, name: str, ts: int) -> LakeTable | None:
        """The lake table that was ``schema.name`` at ``ts``."""
        for table in reversed(self.tables):
            version = table.version_at(ts)
            is_there = table.created_ts <= ts and (table.dropped_ts is None or ts < table.dropped_ts)
            if is_there and (version.schema, version.table) == (schema, name):
                return table
        return None

    def put(self, table: LakeTable) -> "Journal":
        if any(t.id == table.id for t in self.tables):
            return replace(self, tables=tuple(table if t.id == table.id else t for t in self.tables))
        return replace(self, tables=(*self.tables, table))

    def free_location(self, wanted: str, id: str) -> str:
        taken = {t.location for t in self.tables}
        return wanted if wanted not in taken else f"{wanted}-{id}"

    def free_id(self, table_id: int, ts: int) -> str:
        taken = {t.id for t in self.tables}
        return str(table_id) if str(table_id) not in taken else f"{table_id}-{ts}"


def table_document(table: LakeTable) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(table)}


def read_table(document: Mapping[str, Any]) -> LakeTable:
    """Raises SinkError where another version wrote it."""
    check_format(document)
    return lake_table({name: value for name, value in document.items() if name != "format"})


def check_format(document: Mapping[str, Any], also: tuple[int, ...] = ()) -> None:
    if document.get("format") not in (FORMAT, *also):
        raise SinkError(
            f"the lake's journal in _tidemill has format {document.get('format')!r}; this version reads {FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )


def lake_table(fields: Mapping[str, Any]) -> LakeTable:
    return LakeTable(
        **{
            **fields,
            "columns": tuple(LakeColumn(**c) for c in fields["columns"]),
            "versions": tuple(
                Version(
                    **{
                        **v,
                        "key": tuple(v["key"]),
                        "columns": tuple(VersionColumn(**c) for c in v["columns"]),
                    }
                )
                for v in fields["versions"]
            ),
            "physical_ids": tuple(fields["physical_ids"]),
            "mixed_ids": tuple(fields["mixed_ids"]),
        }
    )
