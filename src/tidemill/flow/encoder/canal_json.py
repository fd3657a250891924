"""canal-json: one JSON object per change, every value a string or null.

    {"id":0,"database":"shop","table":"item","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{…}],"data":[{…}],"_tidb":{"commitTs":…}}

All but the values and the timestamps is the same for every row of a table and is prepared once.
The words of the format (``es``, ``ts``, ``sqlType``, …) stay inside this module. Runs on executors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, SqlType, TextColumn, run
from tidemill.config.values import boolean_of
from tidemill.flow.encoder.handle_key import deleted_columns
from tidemill.flow.encoder.json_text import quoted
from tidemill.flow.encoder.large import key_columns, location_place
from tidemill.flow.encoder.port import Message, Option, Partitions
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, TableInfo
from tidemill.model.ts import Ts, physical_ms
from tidemill.tidb.mysql_type import full_mysql_type, java_type, mysql_type

_QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class CanalJson:
    """The protocol as files have it; ``CanalJsonQueue`` is that of queues."""

    name: ClassVar = "canal-json"
    extension: ClassVar = ".json"
    is_positional: ClassVar = False
    options: ClassVar[Mapping[str, Option]] = {
        "enable-tidb-extension": Option(
            "enable_tidb_extension", boolean_of, "false", "Messages carry the commit-ts in a field `_tidb`."
        ),
        "content-compatible": Option(
            "content_compatible",
            boolean_of,
            "false",
            "As the original Canal writes: full types, and `old` with changed columns only.",
            "sink.content-compatible",
        ),
        "only-output-updated-columns": Option(
            "only_output_updated_columns",
            boolean_of,
            "false",
            "The field `old` of an update holds changed columns only.",
            "sink.only-output-updated-columns",
        ),
        "delete-only-output-handle-key-columns": Option(
            "delete_only_output_handle_key_columns",
            boolean_of,
            "false",
            "A delete holds the columns of the handle key only.",
            "sink.delete-only-output-handle-key-columns",
        ),
    }

    enable_tidb_extension: bool = False  # carry commit-ts, and watermarks
    only_output_updated_columns: bool = False  # "old" holds only what an update changed
    delete_only_output_handle_key_columns: bool = False
    content_compatible: bool = False  # as the original Canal: full types, and only updated columns in "old"

    @property
    def has_commit_ts(self) -> bool:
        return self.enable_tidb_extension

    @property
    def old_has_only_changes(self) -> bool:
        return self.only_output_updated_columns or self.content_compatible

    def header(self, table: TableInfo, terminator: bytes) -> bytes:
        return b""

    def encoder(self, built_ms: int, terminator: bytes = b"") -> "CanalJsonEncoder":
        return CanalJsonEncoder(self, built_ms, terminator)

    def ddl(self, event: DdlEvent, built_ms: int) -> Message:
        ts = event.finished_ts
        head = _head(event.schema, event.table, "null", ddl_word(event.type), is_ddl=True)
        return Message(self._notice(head, ts, built_ms, event.query, f'"commitTs":{ts}'), ts, partition=0)

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        """None without the extension, which alone has watermarks."""
        if not self.enable_tidb_extension:
            return None
        head = _head("", "", "null", "TIDB_WATERMARK")
        return Message(self._notice(head, ts, built_ms, "", f'"watermarkTs":{ts}'), ts)

    def _notice(self, head: str, ts: Ts, built_ms: int, query: str, extension: str) -> bytes:
        text = (
            f'{head}{physical_ms(ts)},"ts":{built_ms},"sql":{quoted(query)},'
            '"sqlType":null,"mysqlType":null,"data":null,"old":null'
        )
        return f'{text},"_tidb":{{{extension}}}}}'.encode() if self.enable_tidb_extension else f"{text}}}".encode()


class CanalJsonEncoder:
    """One message per change, in order. ``built_ms`` is the build time that every message carries."""

    def __init__(self, protocol: CanalJson, built_ms: int, terminator: bytes) -> None:
        self._protocol = protocol
        self._built_ms = built_ms
        self._terminator = terminator
        self._table: TableInfo | None = None
        self._program: Program | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if self._program is None or self._table is not rows.table:
            self._program, self._table = row_program(rows.table, self._protocol, self._terminator), rows.table
        encoded = run(self._program, rows, prepare, self._built_ms)
        return encoded if partitions is None else replace(encoded, partitions=partitions)


def ddl_word(action: int) -> str:
    """canal's word for a kind of DDL; QUERY for all that it has none for, and for kinds of newer TiDBs."""
    return _DDL_WORDS.get(action, "QUERY")


_DDL_WORDS: dict[int, str] = {
    ActionType.CREATE_TABLE: "CREATE",
    ActionType.DROP_TABLE: "ERASE",
    ActionType.TRUNCATE_TABLE: "TRUNCATE",
    ActionType.RENAME_TABLE: "RENAME",
    ActionType.RENAME_TABLES: "RENAME",
    ActionType.ADD_INDEX: "CINDEX",
    ActionType.ADD_FOREIGN_KEY: "CINDEX",
    ActionType.ADD_PRIMARY_KEY: "CINDEX",
    ActionType.DROP_INDEX: "DINDEX",
    ActionType.DROP_FOREIGN_KEY: "DINDEX",
    ActionType.DROP_PRIMARY_KEY: "DINDEX",
    **dict.fromkeys(
        (
            ActionType.ADD_COLUMN,
            ActionType.ADD_COLUMNS,
            ActionType.DROP_COLUMN,
            ActionType.DROP_COLUMNS,
            ActionType.MODIFY_COLUMN,
            ActionType.REBASE_AUTO_ID,
            ActionType.SET_DEFAULT_VALUE,
            ActionType.MODIFY_TABLE_COMMENT,
            ActionType.RENAME_INDEX,
            ActionType.ADD_TABLE_PARTITION,
            ActionType.DROP_TABLE_PARTITION,
            ActionType.TRUNCATE_TABLE_PARTITION,
            ActionType.REORGANIZE_PARTITION,
            ActionType.ALTER_TABLE_PARTITIONING,
            ActionType.REMOVE_PARTITIONING,
            ActionType.MODIFY_TABLE_CHARSET,
            ActionType.ALTER_INDEX_VISIBILITY,
            ActionType.MULTI_SCHEMA_CHANGE,
        ),
        "ALTER",
    ),
}


def row_program(table: TableInfo, options: CanalJson, terminator: bytes, mark: str = "") -> Program:
    """``mark`` is the member of ``_tidb`` that says that messages hold the handle key only: ``onlyHandleKey``, or
    ``claimCheckLocation`` with where the whole message lies."""
    builder = ProgramBuilder()
    everything = tuple(key_columns(table) if mark else enumerate(table.stored_columns))
    for op in RowOp:
        by_key = op is RowOp.DELETE and options.delete_only_output_handle_key_columns
        columns = deleted_columns(table, everything) if by_key else everything
        image = OLD if op is RowOp.DELETE else NEW
        # Keys in the order of the table's columns, not of the key's: so TiCDC writes them.
        keys = ",".join(quoted(c.name) for c in sorted(table.primary_key, key=lambda column: column.offset))
        builder.literal(_head(table.schema, table.name, f"[{keys}]", op.name).encode())
        builder.commit_ms()
        builder.literal(b',"ts":')
        builder.built_ms()
        builder.literal(b',"sql":"","sqlType":{')
        builder.sql_types(image, [_sql_type(place, column) for place, column in columns])
        builder.literal(b'},"mysqlType":{' + _mysql_types(columns, options) + b'},"old":')
        if op is RowOp.UPDATE:
            _add_image(builder, columns, OLD, options.old_has_only_changes)
        else:
            builder.literal(b"null")
        builder.literal(b',"data":')
        _add_image(builder, columns, image, False)
        if options.enable_tidb_extension:
            builder.literal(b',"_tidb":{"commitTs":')
            builder.commit_ts()
            if mark == "onlyHandleKey":
                builder.literal(b',"onlyHandleKey":true')
            elif mark:
                builder.cell(location_place(table), image, f',"{mark}":"'.encode(), b"")
            builder.literal(b"}")
        builder.literal(b"}" + terminator)
        builder.end_change()
    return builder.build()


def _head(schema: str, table: str, keys: str, word: str, *, is_ddl: bool = False) -> str:
    """All up to the first ts."""
    return (
        f'{{"id":0,"database":{quoted(schema)},"table":{quoted(table)},"pkNames":{keys},'
        f'"isDdl":{str(is_ddl).lower()},"type":"{word}","es":'
    )


def _sql_type(place: int, column: ColumnInfo) -> SqlType:
    name, kind = quoted(column.name), java_type(column)
    return SqlType(place, f"{name}:{kind.code}".encode(), kind.limit, f"{name}:{kind.promoted}".encode())


def _mysql_types(columns: Sequence[tuple[int, ColumnInfo]], options: CanalJson) -> bytes:
    word = full_mysql_type if options.content_compatible else mysql_type
    return ",".join(f"{quoted(column.name)}:{quoted(word(column))}" for _, column in columns).encode()


def _add_image(
    builder: ProgramBuilder, columns: Sequence[tuple[int, ColumnInfo]], image: int, only_changes: bool
) -> None:
    builder.literal(b"[{")
    for number, (place, column) in enumerate(columns):
        name = ("," if number and not only_changes else "") + quoted(column.name) + ":"
        builder.cell(place, image, name.encode() + b'"', name.encode() + b"null", only_if_changed=only_changes)
    builder.literal(b"}]")


def prepare(_place: int, values: pa.Array) -> TextColumn:
    kind = values.type
    if kind == pa.int64():
        return TextColumn(values, Kind.INT, _QUOTE)
    if kind == pa.uint64():
        return TextColumn(values, Kind.UINT, _QUOTE)
    if pa.types.is_floating(kind):
        return TextColumn(float_text.positional(values), Kind.RAW, _QUOTE)
    if kind == pa.binary():
        return TextColumn(values, Kind.JSON_LATIN1, _QUOTE)
    return TextColumn(values, Kind.JSON_TEXT, _QUOTE)
