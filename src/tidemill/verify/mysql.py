"""MySQL, MariaDB and TiDB as the side that is checked: its tables, and their rows in the form of the comparison.

Every column is asked for so that its text is exact: FLOAT and DOUBLE as doubles, BIT, ENUM and SET as numbers,
TIMESTAMP in UTC. A TiDB is read as of the downstream ts of a sync point, if there is one; the others have no
past, and are read as they are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pymysql

from tidemill.errors import SinkError, UsageError
from tidemill.model.row import arrow_type
from tidemill.model.table import INTEGER_TYPES, ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.creation import LONG_TEXT
from tidemill.sinks.mysql.failures import number_of, remedy, text_of
from tidemill.sinks.mysql.generation import SCHEMA
from tidemill.sinks.mysql.session import Flavor, SessionSettings, ask, closed, driver_session, examine, open_session
from tidemill.sinks.mysql.uri import MysqlOptions
from tidemill.tidb.lexer import literal, quoted
from tidemill.tidb.mysql_type import elements_text
from tidemill.verify.forms import Comparison
from tidemill.verify.resultset import select

_DOUBLE_BITS = 53  # A TiDB makes a SET's number a DOUBLE first: it rounds larger ones, and refuses the largest (1690)
_VARIABLE = frozenset({ColumnType.VARCHAR, ColumnType.VARSTRING})
_AS_NUMBER = frozenset({ColumnType.BIT, ColumnType.ENUM, ColumnType.SET})


@dataclass(frozen=True, slots=True)
class MysqlSource:
    """Rows of one table. ``where`` is empty, or a condition on its key."""

    settings: SessionSettings
    comparison: Comparison
    snapshot_ts: int | None = None  # of a TiDB downstream
    where: str = ""

    def read(self) -> Iterator[pa.RecordBatch]:
        with reading(self.settings, self.comparison.table, self.snapshot_ts) as session:
            yield from session.rows(self.comparison, self.where)


class reading:
    """A session that reads one table; PyMySQL's errors leave it as ours."""

    def __init__(self, settings: SessionSettings, table: TableInfo, snapshot_ts: int | None) -> None:
        self._settings, self._table, self._snapshot_ts = settings, table, snapshot_ts
        self._session: Any = None

    def __enter__(self) -> "reading":
        try:
            self._session = open_session(self._settings)
            if self._snapshot_ts is not None:
                ask(self._session, f"SET @@tidb_snapshot = '{self._snapshot_ts}'")
        except (pymysql.err.MySQLError, OSError) as error:
            self.__exit__()
            raise self._translated(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            closed(self._session)

    def rows(self, comparison: Comparison, where: str = "") -> Iterator[pa.RecordBatch]:
        columns = comparison.table.stored_columns
        downstream = self._settings.downstream
        is_tidb = downstream is not None and downstream.flavor is Flavor.TIDB
        wanted = ",".join(selected(column, is_tidb=is_tidb) for column in columns)
        statement = f"SELECT {wanted} FROM {place_of(self._table)}" + (f" WHERE {where}" if where else "")
        try:
            for texts in select(self._session, statement):
                typed = [_typed(t, f.type) for t, f in zip(texts, comparison.schema, strict=True)]
                yield comparison.settled(typed)
        except (pymysql.err.MySQLError, OSError) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> SinkError:
        place, number, said = self._settings.options.place, number_of(error), text_of(error)
        return SinkError(
            f"cannot read {self._table.full_name} at {place}: {said} (error {number}). {remedy(error, 'SELECT there')}"
        )


def place_of(table: TableInfo) -> str:
    return f"{quoted(table.schema)}.{quoted(table.name)}"


def selected(column: ColumnInfo, *, is_tidb: bool) -> str:
    """The expression that gives the column's values exactly."""
    shown = quoted(column.name)
    if is_tidb and column.type is ColumnType.SET and len(column.elems) > _DOUBLE_BITS:
        members = (each.replace("'", "''") for each in column.elems)  # our sessions have no backslash escapes
        return " | ".join(f"((FIND_IN_SET('{each}', {shown}) > 0) << {at})" for at, each in enumerate(members))
    if column.type in _AS_NUMBER:
        return f"CAST({shown} AS UNSIGNED)"
    if column.type in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return f"{shown}+0e0"
    if column.type is ColumnType.YEAR or column.flag & ColumnFlag.ZEROFILL:
        return f"{shown}+0"
    return shown


def _typed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.binary():
        return texts
    plain = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers(), texts.null_count, texts.offset)
    if kind == pa.string():
        return plain
    return plain.cast(pa.float64()).cast(kind) if kind == pa.float32() else plain.cast(kind)


@dataclass(frozen=True, slots=True)
class SyncPoint:
    primary_ts: Ts
    secondary_ts: int  # 0: the downstream has no ts of its own


class MysqlDownstream:
    """What the driver asks."""

    def __init__(self, options: MysqlOptions) -> None:
        self.options = options
        with driver_session(SessionSettings(options), "connect") as session:
            self._examined = examine(session)
        self.settings = SessionSettings(options, self._examined, "+00:00")

    @property
    def flavor(self) -> Flavor:
        return self._examined.flavor

    def columns(
        self, tables: Sequence[TableInfo], snapshot_ts: int | None = None
    ) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
        """By (schema, table) as the upstream spells them: column, in small letters → (data_type, column_type)."""
        wanted = {(t.schema.lower(), t.name.lower()): (t.schema, t.name) for t in tables}
        schemas = sorted({t.schema for t in tables})
        found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
        with driver_session(self.settings, "read what tables there are") as session:
            if snapshot_ts is not None:
                ask(session, f"SET @@tidb_snapshot = '{snapshot_ts}'")
            for schema in schemas:
                for table, column, kind, full in ask(
                    session,
                    "SELECT table_name, column_name, data_type, column_type FROM information_schema.columns "
                    "WHERE table_schema = %s",
                    (schema,),
                ):
                    key = wanted.get((schema.lower(), str(table).lower()))
                    if key is not None:
                        found.setdefault(key, {})[str(column).lower()] = (_text(kind).lower(), _text(full))
        return found

    def sync_point(self, changefeed: str | None = None) -> SyncPoint | None:
        """The newest one of the changefeed of that name; without a name there has to be but one changefeed."""
        condition, arguments = ("WHERE changefeed = %s", (changefeed,)) if changefeed is not None else ("", ())
        with driver_session(self.settings, "read the sync points") as session:
            try:
                rows = ask(
                    session,
                    f"SELECT changefeed, primary_ts, secondary_ts FROM `{SCHEMA}`.`syncpoint_v1` {condition} "
                    "ORDER BY CAST(primary_ts AS UNSIGNED)",
                    arguments,
                )
            except pymysql.err.MySQLError as error:
                if number_of(error) in (1146, 1049, 1142, 1044):
                    return None
                raise
        writers = sorted({str(row[0]) for row in rows})
        if len(writers) > 1:
            raise UsageError(
                f"{len(writers)} changefeeds have recorded sync points at {self.options.place}. Say which one is to be "
                "checked by its --data-dir."
            )
        return SyncPoint(Ts(int(rows[-1][1])), int(rows[-1][2])) if rows else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


_TYPES: Mapping[ColumnType, tuple[str, ...]] = {
    ColumnType.TINY: ("tinyint",),
    ColumnType.SHORT: ("smallint",),
    ColumnType.INT24: ("mediumint",),
    ColumnType.LONG: ("int",),
    ColumnType.LONGLONG: ("bigint",),
    ColumnType.FLOAT: ("float",),
    ColumnType.DOUBLE: ("double",),
    ColumnType.NEWDECIMAL: ("decimal",),
    ColumnType.TIMESTAMP: ("timestamp",),
    ColumnType.DATETIME: ("datetime",),
    ColumnType.DATE: ("date",),
    ColumnType.NEWDATE: ("date",),
    ColumnType.DURATION: ("time",),
    ColumnType.YEAR: ("year",),
    ColumnType.BIT: ("bit",),
    ColumnType.ENUM: ("enum",),
    ColumnType.SET: ("set",),
    ColumnType.JSON: ("json", "longtext"),
    ColumnType.VECTOR: ("vector", "longtext"),
    ColumnType.VARCHAR: ("varchar", "varbinary"),
    ColumnType.VARSTRING: ("varchar", "varbinary"),
    ColumnType.STRING: ("char", "binary", "uuid", "inet6"),
    ColumnType.TINYBLOB: ("tinytext", "tinyblob"),
    ColumnType.BLOB: ("text", "blob"),
    ColumnType.MEDIUMBLOB: ("mediumtext", "mediumblob"),
    ColumnType.LONGBLOB: ("longtext", "longblob"),
}


# MariaDB keeps such members, but its catalog is in a character set that has no such characters.
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")


def type_differs(column: ColumnInfo, data_type: str, column_type: str) -> str:
    """In words, what of the downstream's column is of another type; empty: nothing."""
    became = "blob" if column.is_binary else "text"
    if data_type == became and column.flen >= LONG_TEXT and column.type in _VARIABLE:
        return ""  # where the row would have been too long
    if data_type not in _TYPES.get(column.type, (data_type,)):
        return f"it is {_TYPES[column.type][0]} upstream and {data_type} downstream"
    if column.type in INTEGER_TYPES and column.is_unsigned != ("unsigned" in column_type.lower()):
        return f"it is {'unsigned' if column.is_unsigned else 'signed'} upstream and {column_type} downstream"
    if column.type in (ColumnType.ENUM, ColumnType.SET):
        wanted = elements_text(column)
        escaped = ",".join(map(literal, column.elems))  # as MariaDB prints them
        printed = {wanted, escaped, *(_BEYOND_BMP.sub("?", text) for text in (wanted, escaped))}
        if column_type not in {f"{data_type}({text})" for text in printed}:
            return f"it is {data_type}({wanted}) upstream and {column_type} downstream"
    return ""


def is_readable(column: ColumnInfo, data_type: str, column_type: str) -> bool:
    """Whether its values can be compared all the same: numbers with numbers, text with text."""
    same = _TYPES.get(column.type, (data_type,))
    if column.type in INTEGER_TYPES:
        return data_type in _INTEGERS and (not column.is_unsigned or "unsigned" in column_type.lower())
    if column.type in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return data_type in ("float", "double")
    held = arrow_type(column)
    return (
        data_type in same
        or (held == pa.string() and data_type in _TEXTS)
        or (held == pa.binary() and data_type in _BLOBS)
    )


_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BLOBS = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
