"""rawkv-json and rawkv-avro: a message for each change of a key, for queues.

    key    the user's key, its bytes as they are
    value  {"key":"azE=","value":"djE=","ts":445644800000000006,"op":"put","expiry":1700000100}, or the same as Avro

All changes of a key are in one partition. After a restart older versions of a key may be missing, or come again behind
newer ones; so of a key the change with the highest ts counts. JSON tells the resolved-ts to each partition:
{"ts":445644800000000009,"op":"resolved"}. Runs on executors.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import orjson
import pyarrow as pa

from tidemill.columnar.avro_binary import NEW, OLD, BinaryColumn, Kind, Record, RecordBuilder, run
from tidemill.columnar.encoded import Encoded, Keys
from tidemill.errors import InvariantError, UsageError
from tidemill.flow.encoder.avro import Avro
from tidemill.flow.encoder.port import Message, Option, Partitions
from tidemill.flow.encoder.raw_json import RawJson, RawJsonEncoder
from tidemill.flow.encoder.schema_registry import SchemaRegistry, require_registry
from tidemill.flow.rawkv import is_of_keys
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.security import Security
from tidemill.model.ts import Ts

AVRO_SCHEMA = orjson.dumps(
    {
        "type": "record",
        "name": "KeyChange",
        "namespace": "tidemill",
        "fields": [
            {"name": "key", "type": "bytes"},
            {"name": "value", "type": ["null", "bytes"]},
            {"name": "ts", "type": "long"},
            {"name": "op", "type": "string"},
            {"name": "expiry", "type": "long"},
        ],
    }
).decode()
_KEY, _VALUE, _EXPIRY = range(3)  # columns of the table that a part of a keyspace is
_REGISTRY = ("schema-registry", "schema-registry-ca", "schema-registry-cert", "schema-registry-key")


@dataclass(frozen=True, slots=True)
class RawJsonQueue:
    """The protocol, for queues."""

    name: ClassVar = RawJson.name
    options: ClassVar[Mapping[str, Option]] = {}

    def encoder(self, built_ms: int) -> "RawJsonQueueEncoder":
        return RawJsonQueueEncoder()

    def ddl(self, event: DdlEvent, built_ms: int) -> Message | None:
        return None

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        return Message(b'{"ts":%d,"op":"resolved"}' % ts, ts)


class RawJsonQueueEncoder:
    def __init__(self) -> None:
        self._values = RawJsonEncoder(b"")

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        return replace(self._values.encode(rows), keys=_keys(rows), partitions=partitions)


@dataclass(frozen=True, slots=True)
class RawAvro:
    """The protocol, for queues. It tells no resolved-ts."""

    name: ClassVar = "rawkv-avro"
    options: ClassVar[Mapping[str, Option]] = {name: Avro.options[name] for name in _REGISTRY}

    schema_registry: str = field(default="", repr=False)  # it may hold a password
    registry_ca: str = ""
    registry_cert: str = ""
    registry_key: str = ""
    topic: str = ""  # which names the subject; see ``for_topic``

    def __post_init__(self) -> None:
        require_registry(self.schema_registry)

    def for_topic(self, topic: str) -> Self:
        return replace(self, topic=topic)

    @property
    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.schema_registry, Security(self.registry_ca, self.registry_cert, self.registry_key))

    def encoder(self, built_ms: int) -> "RawAvroEncoder":
        if not self.topic:
            raise InvariantError("rawkv-avro was to encode keys of no topic in particular. This is a bug; report it.")
        number = self.registry.number_of(f"{self.topic.replace('.', '_')}-value", AVRO_SCHEMA)
        return RawAvroEncoder(struct.pack(">BI", 0, number))

    def ddl(self, event: DdlEvent, built_ms: int) -> Message | None:
        return None

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        return None


class RawAvroEncoder:
    """``header``: Confluent's, with the schema's number."""

    def __init__(self, header: bytes) -> None:
        self._record = _record(header)

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if not is_of_keys(rows.table):
            raise UsageError(
                f"protocol {RawAvro.name} is for keys and values, and {rows.table.full_name} is a table. Choose avro."
            )
        return replace(run(self._record, rows, _prepared), keys=_keys(rows), partitions=partitions)


def _record(header: bytes) -> Record:
    builder = RecordBuilder()
    for op in RowOp:
        is_delete = op is RowOp.DELETE
        builder.literal(header)
        builder.cell(_KEY, OLD if is_delete else NEW)
        if is_delete:
            builder.literal(b"\0")  # the union's first branch: null
        else:
            builder.cell(_VALUE, NEW, 1)
        builder.commit_ts()
        builder.literal(b"\x0cdelete" if is_delete else b"\x06put")  # a string: its length, doubled, and itself
        if is_delete:
            builder.literal(b"\0")
        else:
            builder.cell(_EXPIRY, NEW)
        builder.end_change()
    return builder.build()


def _prepared(place: int, values: pa.Array) -> BinaryColumn:
    if place == _EXPIRY:
        return BinaryColumn(values.view(pa.int64()), Kind.LONG)
    return BinaryColumn(values, Kind.BYTES)


def _keys(rows: RowBatch) -> Keys:
    """Each change's key, of the new row or of the deleted one."""
    is_delete = rows.op == RowOp.DELETE
    order = np.where(is_delete, len(rows.new) + np.cumsum(is_delete) - 1, np.cumsum(~is_delete) - 1)
    keys = pa.concat_arrays([rows.new.column(_KEY), rows.old.column(_KEY)]).take(pa.array(order))
    _, offsets, payload = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    body = payload if payload is not None else pa.py_buffer(b"")
    return Keys(body.slice(int(ends[0])), ends[1:] - ends[0])
