"""canal-json: one JSON object a change, every value a string or null.

    {"id":0,"database":"shop","table":"item","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":[{…}],"data":[{…}],"_tidb":{"commitTs":…}}

All but the values and the timestamps is the same for every row of a table and is prepared once.
The words of the format (``es``, ``ts``, ``sqlType``, …) stay inside this module. Runs on executors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, SqlType, TextColumn, run
from tidemill.errors import SinkError
from tidemill.flow.encoder.json_text import quoted
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, TableInfo
from tidemill.model.ts import Ts, physical_ms
from tidemill.tidb.mysql_type import full_mysql_type, java_type, mysql_type

_QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class CanalJsonOptions:
    enable_tidb_extension: bool = False  # carry commit-ts, and watermarks
    only_output_updated_columns: bool = False  # "old" holds only what an update changed
    delete_only_output_handle_key_columns: bool = False
    content_compatible: bool = False  # as the original Canal: full types, and only updated columns in "old"
    terminator: bytes = b"\r\n"  # after each message; empty where messages travel one by one

    @property
    def old_has_only_changes(self) -> bool:
        return self.only_output_updated_columns or self.content_compatible


class CanalJsonEncoder:
    """Encodes batches of rows; remembers what is fixed for the table it met last.

    ``built_ms`` is the build time that every message carries.
    """

    def __init__(self, options: CanalJsonOptions, built_ms: int) -> None:
        self._options = options
        self._built_ms = built_ms
        self._table: TableInfo | None = None
        self._program: Program | None = None

    def __reduce__(self) -> tuple[type["CanalJsonEncoder"], tuple[CanalJsonOptions, int]]:
        return type(self), (self._options, self._built_ms)

    def encode(self, rows: RowBatch) -> Encoded:
        """One message a change, in order."""
        if self._program is None or self._table is not rows.table:
            self._program, self._table = _row_program(rows.table, self._options), rows.table
        return run(self._program, rows, _prepare, self._built_ms)

    def encode_ddl(self, event: DdlEvent) -> bytes:
        """The message of a DDL, with terminator."""
        extension = f'"commitTs":{event.finished_ts}'
        return self._notice(event.schema, event.table, ddl_word(event.type), event.finished_ts, event.query, extension)

    def encode_watermark(self, ts: Ts) -> bytes | None:
        """The message that says all up to ``ts`` has been sent; None without the extension, which alone has it."""
        if not self._options.enable_tidb_extension:
            return None
        return self._notice("", "", "TIDB_WATERMARK", ts, None, f'"watermarkTs":{ts}')

    def _notice(self, schema: str, table: str, word: str, ts: Ts, query: str | None, extension: str) -> bytes:
        is_ddl = "false" if query is None else "true"
        text = (
            f'{{"id":0,"database":{quoted(schema)},"table":{quoted(table)},"pkNames":null,"isDdl":{is_ddl},'
            f'"type":"{word}","es":{physical_ms(ts)},"ts":{self._built_ms},"sql":{quoted(query or "")},'
            '"sqlType":null,"mysqlType":null,"data":null,"old":null'
        )
        if self._options.enable_tidb_extension:
            text += f',"_tidb":{{{extension}}}'
        return text.encode() + b"}" + self._options.terminator


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


def _row_program(table: TableInfo, options: CanalJsonOptions) -> Program:
    builder = ProgramBuilder()
    everything = tuple(enumerate(table.stored_columns))
    for op in RowOp:
        columns = _deleted_columns(table, options) if op is RowOp.DELETE else everything
        image = OLD if op is RowOp.DELETE else NEW
        builder.literal(_head(table, op))
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
            builder.literal(b"}")
        builder.literal(b"}" + options.terminator)
        builder.end_change()
    return builder.build()


def _head(table: TableInfo, op: RowOp) -> bytes:
    # In the order of the table's columns, not of the key's: so TiCDC writes them.
    keys = ",".join(quoted(c.name) for c in sorted(table.primary_key, key=lambda column: column.offset))
    return (
        f'{{"id":0,"database":{quoted(table.schema)},"table":{quoted(table.name)},"pkNames":[{keys}],'
        f'"isDdl":false,"type":"{op.name}","es":'
    ).encode()


def _deleted_columns(table: TableInfo, options: CanalJsonOptions) -> Sequence[tuple[int, ColumnInfo]]:
    columns = tuple(enumerate(table.stored_columns))
    if not options.delete_only_output_handle_key_columns:
        return columns
    keys = {column.offset for column in table.handle_key}
    if not keys:
        raise SinkError(
            f"cannot encode deletes of table {table.full_name} with delete-only-output-handle-key-columns: it has no "
            "handle key. Give the table a primary key, or take the option out of the sink URI."
        )
    return [(place, column) for place, column in columns if column.offset in keys]


def _sql_type(place: int, column: ColumnInfo) -> SqlType:
    name, kind = quoted(column.name), java_type(column)
    return SqlType(place, f"{name}:{kind.code}".encode(), kind.limit, f"{name}:{kind.promoted}".encode())


def _mysql_types(columns: Sequence[tuple[int, ColumnInfo]], options: CanalJsonOptions) -> bytes:
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


def _prepare(_place: int, values: pa.Array) -> TextColumn:
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
