"""avro: Avro's binary form, one message per change, with schemas in a Confluent registry.

    key, value   00 | number of the schema, 4 bytes | the record

The key holds the columns of the handle key, the value those of the new row. A delete has a key and no value. Nothing
tells of DDLs, and resolved-ts are told on request only: the schema in the registry is what readers follow. Schemas are
registered on executors, when the first rows under them are encoded. Runs on executors.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar.avro_binary import NEW, OLD, BinaryColumn, Kind, Record, RecordBuilder, run
from tidemill.columnar.decimal_bytes import unscaled
from tidemill.columnar.encoded import Encoded, Keys
from tidemill.config.values import boolean_of, number_from, word_of
from tidemill.errors import InvariantError, SinkError, SinkUriError
from tidemill.flow.encoder.avro_schema import FieldShape, Modes, decimal_shape, record_schema, shape_of
from tidemill.flow.encoder.elements import enum_names, set_names
from tidemill.flow.encoder.json_text import quoted
from tidemill.flow.encoder.port import Message, Option, Partitions
from tidemill.flow.encoder.schema_registry import SchemaRegistry, registry_uri, require_registry
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.security import Security
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

_OVERHEAD = 36  # of a record in Kafka, at most
_PRECISE, _LONG, _STRING = "precise", "long", "string"


@dataclass(frozen=True, slots=True)
class Avro:
    """The protocol, for queues whose topics hold one table each."""

    name: ClassVar = "avro"
    options: ClassVar[Mapping[str, Option]] = {
        "schema-registry": Option(
            "schema_registry",
            registry_uri,
            "",
            "Address of the Confluent schema registry; may hold user and password.",
            "sink.schema-registry",
        ),
        "schema-registry-ca": Option(
            "registry_ca", str, "", "File with the certificate of the authority that the registry's own is signed by."
        ),
        "schema-registry-cert": Option("registry_cert", str, "", "File with our own certificate for the registry."),
        "schema-registry-key": Option("registry_key", str, "", "File with its key."),
        "enable-tidb-extension": Option(
            "enable_tidb_extension", boolean_of, "false", "Values carry the kind of change and its commit-ts."
        ),
        "avro-decimal-handling-mode": Option(
            "decimal_handling_mode",
            word_of(_PRECISE, _STRING),
            _PRECISE,
            "DECIMAL as bytes of the logical type `decimal`, or as a string.",
            "sink.kafka-config.codec-config.avro-decimal-handling-mode",
        ),
        "avro-bigint-unsigned-handling-mode": Option(
            "bigint_unsigned_handling_mode",
            word_of(_LONG, _STRING),
            _LONG,
            "BIGINT UNSIGNED as a long, negative above 2^63-1, or as a string.",
            "sink.kafka-config.codec-config.avro-bigint-unsigned-handling-mode",
        ),
        "avro-enable-watermark": Option(
            "enable_watermark",
            boolean_of,
            "false",
            "Messages of DDLs and resolved-ts, in no schema, for tests of readers. Needs enable-tidb-extension.",
            "sink.kafka-config.codec-config.avro-enable-watermark",
        ),
        "max-message-bytes": Option(
            "max_message_bytes", number_from(1, most=1 << 30), "10485760", "Bytes of a message, at most."
        ),
    }

    schema_registry: str = field(default="", repr=False)  # it may hold a password
    registry_ca: str = ""
    registry_cert: str = ""
    registry_key: str = ""
    enable_tidb_extension: bool = False
    decimal_handling_mode: str = _PRECISE
    bigint_unsigned_handling_mode: str = _LONG
    enable_watermark: bool = False
    max_message_bytes: int = 10 << 20
    namespace: str = "default"  # of the changefeed; begins the names of records
    topic: str = ""  # which names the subjects; see ``for_topic``

    def __post_init__(self) -> None:
        require_registry(self.schema_registry)
        if bool(self.registry_cert) != bool(self.registry_key) or (self.registry_cert and not self.registry_ca):
            raise SinkUriError(
                "schema-registry-cert and schema-registry-key belong together and need schema-registry-ca. "
                "Give all three."
            )
        if self.enable_watermark and not self.enable_tidb_extension:
            raise SinkUriError("avro-enable-watermark needs enable-tidb-extension=true. Add it, or take the first out.")

    def for_topic(self, topic: str) -> Self:
        """For the messages of one topic: their schemas are registered under its name."""
        return replace(self, topic=topic)

    @property
    def registry(self) -> SchemaRegistry:
        security = Security(self.registry_ca, self.registry_cert, self.registry_key)
        return SchemaRegistry(self.schema_registry, security)

    @property
    def modes(self) -> Modes:
        return Modes(self.decimal_handling_mode == _PRECISE, self.bigint_unsigned_handling_mode == _LONG)

    def subject(self, suffix: str) -> str:
        if not self.topic:
            raise InvariantError("avro was to encode rows of no topic in particular. This is a bug; report it.")
        return self.topic.replace(".", "_") + suffix

    def encoder(self, built_ms: int) -> "AvroEncoder":
        return AvroEncoder(self)

    def ddl(self, event: DdlEvent, built_ms: int) -> Message | None:
        if not (self.enable_tidb_extension and self.enable_watermark):
            return None
        text = (
            f'{{"query":{quoted(event.query)},"type":{event.type},"schema":{quoted(event.schema)},'
            f'"table":{quoted(event.table)},"commitTs":{event.finished_ts}}}'
        )
        return Message(b"\1" + text.encode(), event.finished_ts)

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        if not (self.enable_tidb_extension and self.enable_watermark):
            return None
        return Message(struct.pack(">BQ", 2, ts), ts)


class AvroEncoder:
    """One message per change, in order. Keeps the records, and the numbers of the schemas, of the table it met last."""

    def __init__(self, protocol: Avro) -> None:
        self._protocol = protocol
        self._table: TableInfo | None = None
        self._shapes: list[FieldShape] = []
        self._key: Record | None = None
        self._value: Record | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if self._value is None or self._table is not rows.table:
            self._meet(rows.table)
        assert self._value is not None  # _meet made it
        columns, shapes = rows.table.stored_columns, self._shapes

        def prepare(place: int, values: pa.Array) -> BinaryColumn:
            return _prepared(columns[place], shapes[place], values)

        encoded = run(self._value, rows, prepare)
        keys = run(self._key, rows, prepare) if self._key is not None else None
        _check_sizes(rows.table, keys, encoded, self._protocol.max_message_bytes)
        return replace(
            encoded,
            keys=Keys(keys.payload, keys.ends) if keys is not None else None,
            partitions=partitions,
            has_value=rows.op != RowOp.DELETE,
        )

    def _meet(self, table: TableInfo) -> None:
        protocol, modes, registry = self._protocol, self._protocol.modes, self._protocol.registry
        columns = table.stored_columns
        offsets = {column.offset for column in table.handle_key}
        places = [place for place, column in enumerate(columns) if column.offset in offsets]
        self._shapes = [shape_of(column, modes) for column in columns]
        self._key = None
        if places:
            schema = record_schema(table, [columns[place] for place in places], protocol.namespace, modes)
            self._key = _key_record(_header(registry, protocol.subject("-key"), schema), places, self._shapes)
        schema = record_schema(table, columns, protocol.namespace, modes, is_extended=protocol.enable_tidb_extension)
        header = _header(registry, protocol.subject("-value"), schema)
        self._value = _value_record(header, self._shapes, protocol.enable_tidb_extension)
        self._table = table


def _header(registry: SchemaRegistry, subject: str, schema: str) -> bytes:
    return struct.pack(">BI", 0, registry.number_of(subject, schema))


def _key_record(header: bytes, places: list[int], shapes: list[FieldShape]) -> Record:
    builder = RecordBuilder()
    for op in RowOp:
        builder.literal(header)
        for place in places:
            builder.cell(place, OLD if op is RowOp.DELETE else NEW, shapes[place].branch)
        builder.end_change()
    return builder.build()


def _value_record(header: bytes, shapes: list[FieldShape], is_extended: bool) -> Record:
    builder = RecordBuilder()
    for letter in (b"\2c", b"\2u"):
        builder.literal(header)
        for place, shape in enumerate(shapes):
            builder.cell(place, NEW, shape.branch)
        if is_extended:
            builder.literal(letter)
            builder.commit_ts()
            builder.commit_ms()
        builder.end_change()
    builder.end_change()  # a delete has no value
    return builder.build()


def _prepared(column: ColumnInfo, shape: FieldShape, values: pa.Array) -> BinaryColumn:
    match column.type:
        case ColumnType.ENUM:
            return BinaryColumn(enum_names(column.elems, values), Kind.BYTES)
        case ColumnType.SET:
            return BinaryColumn(set_names(column.elems, values), Kind.BYTES)
        case ColumnType.BIT:
            return BinaryColumn(_bits(values), Kind.BYTES)
        case ColumnType.NEWDECIMAL if shape.is_decimal:
            return BinaryColumn(unscaled(values, decimal_shape(column)[1]), Kind.BYTES)
    match shape.type:
        case "int" | "long":
            return BinaryColumn(values.view(pa.int64()), Kind.LONG)
        case "float":
            return BinaryColumn(finite(values), Kind.FIXED4)
        case "double":
            return BinaryColumn(finite(values), Kind.FIXED8)
    return BinaryColumn(values if values.type != pa.uint64() else pc.cast(values, pa.string()), Kind.BYTES)


def finite(values: pa.Array) -> pa.Array:
    """Infinity and what is no number are 0, as in TiCDC: MySQL has none."""
    finite = pc.is_finite(values)
    return values if pc.all(finite, min_count=0).as_py() else pc.if_else(finite, values, pa.scalar(0, values.type))


def _bits(values: pa.Array) -> pa.Array:
    """The highest byte first, without zeros in front, but one byte at least."""
    count = len(values)
    numbers = np.frombuffer(values.buffers()[1], "<u8", count, 8 * values.offset) if count else np.empty(0, "<u8")
    sizes = np.ones(count, np.int32)
    for size in range(1, 8):
        sizes += numbers >= np.uint64(1) << np.uint64(8 * size)
    raw = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    kept = raw[np.arange(8) >= 8 - sizes[:, None]]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if values.null_count else None
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _check_sizes(table: TableInfo, keys: Encoded | None, values: Encoded, most: int) -> None:
    sizes = np.diff(values.ends, prepend=0) + _OVERHEAD
    if keys is not None:
        sizes += np.diff(keys.ends, prepend=0)
    if len(sizes) and int(sizes.max()) > most:
        raise SinkError(
            f"a row of table {table.full_name} becomes a message of {int(sizes.max())} bytes, above max-message-bytes "
            f"({most}). Raise it, in the sink URI and for the topic, or leave the table's large columns out."
        )
