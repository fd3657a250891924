"""debezium: JSON as Debezium's connector for MySQL writes it, one message per change, with its schema in it.

    key    {"payload":{"id":7},"schema":{…}}
    value  {"payload":{"source":{…,"commit_ts":445644800000000005,…},"ts_ms":…,"transaction":null,"op":"u",
            "before":{…},"after":{"id":7,"sku":"A-1",…}},"schema":{…}}

All but the values and the timestamps is the same for every row of a table and is prepared once. The words of the format
stay inside this module and its neighbours ``debezium_*``. Runs on executors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from tidemill.columnar.encoded import Encoded, Keys
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.config.values import boolean_of
from tidemill.flow.encoder import debezium_schema as schemas
from tidemill.flow.encoder.debezium_columns import field_schema, is_quoted, prepared
from tidemill.flow.encoder.debezium_ddl import ddl_word, table_changes
from tidemill.flow.encoder.debezium_defaults import null_value
from tidemill.flow.encoder.json_text import plain
from tidemill.flow.encoder.large import COMPRESSION_OPTION, Compression, all_compressed, compressed
from tidemill.flow.encoder.names import schema_name
from tidemill.flow.encoder.port import Message, Option, Partitions
from tidemill.flow.mounter.zones import zone_table
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, TableInfo
from tidemill.model.ts import Ts, physical_ms

_LETTERS = {RowOp.INSERT: "c", RowOp.UPDATE: "u", RowOp.DELETE: "d"}


@dataclass(frozen=True, slots=True)
class Debezium:
    """The protocol, for queues. DDLs and watermarks go to every partition."""

    name: ClassVar = "debezium"
    options: ClassVar[Mapping[str, Option]] = {
        "enable-tidb-extension": Option(
            "enable_tidb_extension",
            boolean_of,
            "false",
            "Fields of the schema name TiDB's type, and there are watermarks.",
        ),
        "debezium-disable-schema": Option(
            "disable_schema",
            boolean_of,
            "false",
            "Messages hold the payload only, without its schema.",
            "sink.debezium-disable-schema",
        ),
        "debezium-output-old-value": Option(
            "output_old_value",
            boolean_of,
            "true",
            "An update holds the old row too.",
            "sink.debezium.output-old-value",
        ),
        "debezium-keep-nulls": Option(
            "keep_nulls",
            boolean_of,
            "false",
            "NULL is null in columns with a default too, where TiCDC writes the default.",
        ),
        **COMPRESSION_OPTION,
    }

    enable_tidb_extension: bool = False
    disable_schema: bool = False
    output_old_value: bool = True
    keep_nulls: bool = False
    large_message_handle_compression: Compression = Compression.NONE
    cluster_id: str = "default"  # names the source, and begins the names of schemas
    time_zone: str = "UTC"  # in which TIMESTAMPs are mounted; messages have them in UTC

    def encoder(self, built_ms: int) -> "DebeziumEncoder":
        return DebeziumEncoder(self, built_ms)

    def ddl(self, event: DdlEvent, built_ms: int) -> Message | None:
        """None for kinds of DDLs that the protocol has no word for."""
        if ddl_word(event.type) is None:
            return None
        ts, schema = event.finished_ts, plain(event.schema)
        value = (
            f"{self._source(event.schema, event.table, str(physical_ms(ts)), str(ts))}"
            f',"ts_ms":{built_ms},"databaseName":{schema},"schemaName":null,"ddl":{plain(event.query)},'
            f'"tableChanges":{table_changes(event)}}}'
        )
        key = f'{{"payload":{{"databaseName":{schema}}}'
        return Message(self._closed(value, schemas.DDL_VALUE), ts, self._closed(key, schemas.DDL_KEY))

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        """None without the extension, which alone has watermarks."""
        if not self.enable_tidb_extension:
            return None
        value = (
            f'{self._source("", "", str(physical_ms(ts)), str(ts))},"ts_ms":{built_ms},"transaction":null,"op":"m"}}'
        )
        return Message(
            self._closed(value, schemas.watermark_value(self.cluster_id)),
            ts,
            self._closed('{"payload":{}', schemas.watermark_key(self.cluster_id)),
        )

    def row_tail(self, table: TableInfo) -> str:
        """What closes a row's value behind its payload."""
        columns = [*table.stored_columns, *(column for column in table.columns if column.is_virtual)]
        return self._tail(schemas.row_value(self._schema_name(table), self._fields(columns)))

    def key_tail(self, table: TableInfo, columns: Sequence[ColumnInfo]) -> str:
        return self._tail(schemas.row_key(self._schema_name(table), self._fields(columns)))

    def row_head(self, table: TableInfo) -> tuple[str, str, str]:
        """A row's value up to its build time, around the commit-ts in milliseconds and as it is."""
        first, second, third = self._source(table.schema, table.name, "\0", "\0").split("\0")
        return first, second, third + ',"ts_ms":'

    def _source(self, schema: str, table: str, ms: str, ts: str) -> str:
        cluster = plain(self.cluster_id)
        return (
            f'{{"payload":{{"source":{{"version":"2.4.0.Final","connector":"TiCDC","name":{cluster},"ts_ms":{ms},'
            f'"snapshot":"false","db":{plain(schema)},"table":{plain(table)},"server_id":0,"gtid":null,"file":"",'
            f'"pos":0,"row":0,"thread":0,"query":null,"commit_ts":{ts},"cluster_id":{cluster}}}'
        )

    def _schema_name(self, table: TableInfo) -> str:
        return schema_name(self.cluster_id, table.schema, table.name)

    def _fields(self, columns: Sequence[ColumnInfo]) -> str:
        return ",".join(field_schema(column, is_extended=self.enable_tidb_extension) for column in columns)

    def _tail(self, schema: str) -> str:
        return "}" if self.disable_schema else f',"schema":{schema}}}'

    def _closed(self, text: str, schema: str) -> bytes:
        document = (text + self._tail(schema)).encode("utf-8", "replace")
        return compressed(document, self.large_message_handle_compression)


class DebeziumEncoder:
    """One message per change, in order. ``built_ms`` is the build time that every message carries."""

    def __init__(self, protocol: Debezium, built_ms: int) -> None:
        self._protocol = protocol
        self._built_ms = built_ms
        self._zone = zone_table(protocol.time_zone)
        self._table: TableInfo | None = None
        self._programs: tuple[Program, Program] | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if self._programs is None or self._table is not rows.table:
            self._programs = _key_program(rows.table, self._protocol), _value_program(rows.table, self._protocol)
            self._table = rows.table
        columns = rows.table.stored_columns

        def prepare(place: int, values: pa.Array) -> TextColumn:
            return prepared(columns[place], values, self._zone)

        of_keys, of_values = self._programs
        compression = self._protocol.large_message_handle_compression
        keys = all_compressed(run(of_keys, rows, prepare), compression)
        encoded = all_compressed(run(of_values, rows, prepare, self._built_ms), compression)
        return replace(encoded, keys=Keys(keys.payload, keys.ends), partitions=partitions)


def _key_program(table: TableInfo, protocol: Debezium) -> Program:
    builder = ProgramBuilder()
    offsets = {column.offset for column in table.handle_key}
    columns = [(place, column) for place, column in enumerate(table.stored_columns) if column.offset in offsets]
    tail = protocol.key_tail(table, [column for _, column in columns])
    for op in RowOp:
        builder.literal(b'{"payload":')
        _add_image(builder, columns, OLD if op is RowOp.DELETE else NEW, protocol)
        builder.literal(tail.encode())
        builder.end_change()
    return builder.build()


def _value_program(table: TableInfo, protocol: Debezium) -> Program:
    builder = ProgramBuilder()
    columns = tuple(enumerate(table.stored_columns))
    head, tail = protocol.row_head(table), protocol.row_tail(table)
    for op in RowOp:
        builder.literal(head[0].encode())
        builder.commit_ms()
        builder.literal(head[1].encode())
        builder.commit_ts()
        builder.literal(head[2].encode())
        builder.built_ms()
        builder.literal(f',"transaction":null,"op":"{_LETTERS[op]}",'.encode())
        if op is RowOp.INSERT:
            builder.literal(b'"before":null,')
        elif op is RowOp.DELETE:
            builder.literal(b'"after":null,')
        if op is RowOp.DELETE or (op is RowOp.UPDATE and protocol.output_old_value):
            builder.literal(b'"before":')
            _add_image(builder, columns, OLD, protocol)
        if op is RowOp.UPDATE and protocol.output_old_value:
            builder.literal(b",")
        if op is not RowOp.DELETE:
            builder.literal(b'"after":')
            _add_image(builder, columns, NEW, protocol)
        builder.literal(("}" + tail).encode())
        builder.end_change()
    return builder.build()


def _add_image(
    builder: ProgramBuilder, columns: Sequence[tuple[int, ColumnInfo]], image: int, protocol: Debezium
) -> None:
    builder.literal(b"{")
    for number, (place, column) in enumerate(columns):
        before = ("," if number else "") + plain(column.name) + ":"
        null = "null" if protocol.keep_nulls else null_value(column)
        quote = '"' if is_quoted(column) else ""
        builder.cell(place, image, (before + quote).encode(), (before + null).encode())
    builder.literal(b"}")
