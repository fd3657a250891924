"""TiCDC's simple protocol: one message per change, whose columns are described by messages of their own.

    {"version":1,"database":"shop","table":"item","tableID":108,"type":"INSERT","commitTs":…,"buildTs":…,
     "schemaVersion":445600000000000001,"data":{"id":"7","qty":null,…}}

A row names the version of its schema, which a DDL or a BOOTSTRAP message has given, or will give. Every value is text
or null, but for TIMESTAMPs, which come with their time zone. Messages have no keys; the first use of a table makes the
sink send its schema, see ``Bootstraps``. Avro's form of the same is in ``simple_avro``. The words of the format stay
inside ``simple*.py``. Runs on executors.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Self

import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.avro_binary import Record
from tidemill.columnar.avro_binary import run as run_avro
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.config.values import boolean_of, word_of
from tidemill.errors import SinkError
from tidemill.flow.encoder import simple_avro
from tidemill.flow.encoder.canal_json import ddl_word
from tidemill.flow.encoder.framing import OVERHEAD
from tidemill.flow.encoder.json_text import compact, quoted
from tidemill.flow.encoder.large import (
    LARGE_OPTIONS,
    LAYOUT_ALONE,
    LargeMessages,
    fitted,
    key_columns,
    location_place,
)
from tidemill.flow.encoder.port import Bootstraps, Message, Option, Partitions, QueueEncoder, Store
from tidemill.flow.encoder.simple_schema import table_schema
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

VERSION = 1
_QUOTE = ord('"')
_QUOTE_AND_BRACE = _QUOTE | ord("}") << 8


class Format(StrEnum):
    JSON = "json"
    AVRO = "avro"


def _count(text: str) -> int:
    """A negative one counts as 0, which switches off."""
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        raise ValueError("a whole number")
    return max(int(text), 0)


_FORMAT = word_of(*Format)


@dataclass(frozen=True, slots=True)
class Simple(LargeMessages):
    """The protocol, for queues. DDLs and resolved-ts go to every partition."""

    name: ClassVar = "simple"
    options: ClassVar[Mapping[str, Option]] = {
        "encoding-format": Option(
            "encoding_format", lambda text: Format(_FORMAT(text)), "json", "The form of messages: `json` or `avro`."
        ),
        "send-bootstrap-interval-in-sec": Option(
            "send_bootstrap_interval_in_sec",
            _count,
            "120",
            "Seconds after which the schema of a table with changes is sent again. 0: schemas are not sent.",
            "sink.send-bootstrap-interval-in-sec",
            is_number=True,
        ),
        "send-bootstrap-in-msg-count": Option(
            "send_bootstrap_in_msg_count",
            _count,
            "10000",
            "Rows of a table after which its schema is sent again. 0: schemas are not sent.",
            "sink.send-bootstrap-in-msg-count",
            is_number=True,
        ),
        "send-bootstrap-to-all-partition": Option(
            "send_bootstrap_to_all_partition",
            boolean_of,
            "true",
            "Schemas go to every partition, not only to the first.",
            "sink.send-bootstrap-to-all-partition",
        ),
        "send-all-bootstrap-at-start": Option(
            "send_all_bootstrap_at_start",
            boolean_of,
            "false",
            "The schemas of all tables are sent when the changefeed starts.",
            "sink.send-all-bootstrap-at-start",
        ),
        **LARGE_OPTIONS,
    }

    encoding_format: Format = Format.JSON
    send_bootstrap_interval_in_sec: int = 120
    send_bootstrap_in_msg_count: int = 10000
    send_bootstrap_to_all_partition: bool = True
    send_all_bootstrap_at_start: bool = False
    time_zone: str = "UTC"  # of TIMESTAMPs; no option of its own, see ``of_changefeed``

    def of_changefeed(self, zone: str) -> Self:
        return replace(self, time_zone=zone)

    def encoder(self, built_ms: int, store: Store | None = None) -> QueueEncoder:
        return SimpleEncoder(self, built_ms, store)

    @property
    def is_avro(self) -> bool:
        return self.encoding_format is Format.AVRO

    def ddl(self, event: DdlEvent, built_ms: int) -> Message:
        tables = {"tableSchema": event.table_info, "preTableSchema": event.pre_table_info}
        schemas = {member: table_schema(table) for member, table in tables.items() if table is not None}
        word, ts = ddl_word(event.type), event.finished_ts
        if self.is_avro:
            both = [schemas.get(member) for member in tables]
            value = self.compressed(simple_avro.ddl(VERSION, word, event.query, ts, built_ms, both))
        else:
            value = self.compressed(compact(_notice(word, ts, built_ms, event.query, schemas)).encode())
        if len(value) + OVERHEAD > self.max_message_bytes:
            raise SinkError(
                f"the DDL that finished at {event.finished_ts} on {event.schema}.{event.table} becomes a message of "
                f"{len(value) + OVERHEAD} bytes, above max-message-bytes ({self.max_message_bytes}). Raise it, in the "
                "sink URI and for the topic."
            )
        return Message(value, event.finished_ts)

    def resolved(self, ts: Ts, built_ms: int) -> Message:
        if self.is_avro:
            return Message(self.compressed(simple_avro.watermark(VERSION, ts, built_ms)), ts)
        return Message(self.compressed(compact(_notice("WATERMARK", ts, built_ms)).encode()), ts)

    @property
    def bootstraps(self) -> Bootstraps | None:
        if not (self.send_bootstrap_interval_in_sec and self.send_bootstrap_in_msg_count):
            return None
        return Bootstraps(
            self.send_bootstrap_interval_in_sec,
            self.send_bootstrap_in_msg_count,
            self.send_bootstrap_to_all_partition,
            self.send_all_bootstrap_at_start,
        )

    def bootstrap(self, table: TableInfo, built_ms: int) -> Message:
        schema = table_schema(table)
        partition = None if self.send_bootstrap_to_all_partition else 0
        if self.is_avro:
            value = simple_avro.bootstrap(VERSION, built_ms, schema)
        else:
            value = compact(_notice("BOOTSTRAP", Ts(0), built_ms, schemas={"tableSchema": schema})).encode()
        return Message(self.compressed(value), Ts(0), partition=partition)


def _notice(
    kind: str, ts: Ts, built_ms: int, query: str = "", schemas: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Anything that is not a row."""
    sql = {"sql": query} if query else {}
    return {"version": VERSION, "type": kind, **sql, "commitTs": ts, "buildTs": built_ms, **schemas}


class SimpleEncoder:
    """One message per change, in order. ``built_ms`` is the build time that every message carries."""

    def __init__(self, protocol: Simple, built_ms: int, store: Store | None) -> None:
        self._protocol = protocol
        self._built_ms = built_ms
        self._store = store
        self._table: TableInfo | None = None
        self._physical_id = 0
        self._program: Program | Record | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if self._program is None or self._table is not rows.table or self._physical_id != rows.physical_id:
            self._program = self._made(rows)
            self._table, self._physical_id = rows.table, rows.physical_id
        values = self._run(self._program, rows)
        (fitting,) = fitted(self._protocol, rows, (values,), LAYOUT_ALONE, self._shorter, self._store)
        return fitting if partitions is None else replace(fitting, partitions=partitions)

    def _shorter(self, rows: RowBatch) -> tuple[Encoded]:
        return (self._run(self._made(rows, is_short=True), rows),)

    def _made(self, rows: RowBatch, *, is_short: bool = False) -> Program | Record:
        table, protocol = rows.table, self._protocol
        if not protocol.is_avro:
            return _row_program(table, rows.physical_id, protocol, is_short=is_short)
        return simple_avro.row_record(
            table,
            rows.physical_id,
            _columns(table, is_short=is_short),
            version=VERSION,
            built_ms=self._built_ms,
            zone=protocol.time_zone,
            is_short=is_short,
            location=location_place(table) if is_short and protocol.has_claim_checks else None,
        )

    def _run(self, program: Program | Record, rows: RowBatch) -> Encoded:
        columns = rows.table.stored_columns
        if isinstance(program, Record):
            return self._protocol.all_compressed(run_avro(program, rows, lambda _, cells: simple_avro.prepare(cells)))
        stamps = {place for place, column in enumerate(columns) if column.type is ColumnType.TIMESTAMP}
        values = run(program, rows, lambda place, cells: _prepare(cells, place in stamps), self._built_ms)
        return self._protocol.all_compressed(values)


def by_name(table: TableInfo) -> list[tuple[int, ColumnInfo]]:
    """The stored columns in the order of their names' bytes, each with its place."""
    places = enumerate(table.stored_columns)
    return sorted(places, key=lambda each: each[1].name.encode("utf-8", "surrogateescape"))


def _columns(table: TableInfo, *, is_short: bool) -> list[tuple[int, ColumnInfo]]:
    """Those that go out."""
    keys = {place for place, _ in key_columns(table)} if is_short else set()
    return [each for each in by_name(table) if not is_short or each[0] in keys]


def _row_program(table: TableInfo, physical_id: int, protocol: Simple, *, is_short: bool = False) -> Program:
    builder = ProgramBuilder()
    columns = _columns(table, is_short=is_short)
    names = f'"database":{quoted(table.schema)},"table":{quoted(table.name)},"tableID":{physical_id}'
    version = f',"schemaVersion":{table.update_ts}' if table.update_ts else ""
    for op in RowOp:
        builder.literal(f'{{"version":{VERSION},{names},"type":"{op.name}","commitTs":'.encode())
        builder.commit_ts()
        builder.literal(b',"buildTs":')
        builder.built_ms()
        builder.literal(version.encode())
        if is_short:
            if protocol.has_claim_checks:
                image = OLD if op is RowOp.DELETE else NEW
                builder.cell(location_place(table), image, b',"claimCheckLocation":"', b"")
            builder.literal(b',"handleKeyOnly":true')
        if op is not RowOp.DELETE:
            _add_image(builder, b',"data":{', columns, NEW, protocol.time_zone)
        if op is not RowOp.INSERT:
            _add_image(builder, b',"old":{', columns, OLD, protocol.time_zone)
        builder.literal(b"}")
        builder.end_change()
    return builder.build()


def _add_image(
    builder: ProgramBuilder, opening: bytes, columns: Sequence[tuple[int, ColumnInfo]], image: int, zone: str
) -> None:
    builder.literal(opening)
    for number, (place, column) in enumerate(columns):
        name = ("," if number else "") + quoted(column.name) + ":"
        is_stamp = column.type is ColumnType.TIMESTAMP
        before = f'{name}{{"location":{quoted(zone)},"value":"' if is_stamp else f'{name}"'
        builder.cell(place, image, before.encode(), f"{name}null".encode())
    builder.literal(b"}")


def _prepare(values: pa.Array, is_stamp: bool) -> TextColumn:
    kind = values.type
    if kind == pa.int64():
        return TextColumn(values, Kind.INT, _QUOTE)
    if kind == pa.uint64():
        return TextColumn(values, Kind.UINT, _QUOTE)
    if pa.types.is_floating(kind):
        return TextColumn(float_text.positional(values), Kind.RAW, _QUOTE)
    if kind == pa.binary():
        return TextColumn(values, Kind.BASE64, _QUOTE)
    return TextColumn(values, Kind.JSON_TEXT, _QUOTE_AND_BRACE if is_stamp else _QUOTE)
