"""decode.<protocol>: changes a second on one core, from messages back to rows, beside orjson over the same bytes.

The messages are those that our encoders make of the rows of ``encode.``. The floor (orjson, for Avro fastavro) only
turns bytes into dicts: no reader that works row by row could be faster than it. Seconds are of one core's time; rounds
of the two alternate, and each figure is a median.
"""

import io
import statistics
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from bench.encode import _BATCH, _SAMPLE, _WIDE_BATCH, _one_core, _rows, _timed, documents
from tests.flow.reader.simple_avro_schema import SCHEMA
from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder import Avro, CanalJson, Debezium, LongForm, OpenProtocol, QueueProtocol, Simple
from tidemill.flow.encoder.simple import Format
from tidemill.flow.reader import Received
from tidemill.flow.reader.port import Reader
from tidemill.flow.reader.registry import reader_for
from tidemill.model.row import RowBatch, sliced
from tidemill.testing.schema_registry import StandInRegistry

_ROUNDS = 5

Parse = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    protocol: QueueProtocol
    parse: Parse  # the floor's work on one document
    alone: QueueProtocol | None = None  # makes a message of each row, where ``protocol`` does not


def bench_decode() -> list[dict[str, Any]]:
    with StandInRegistry() as registry, _one_core():
        avro = Avro(registry.uri, enable_tidb_extension=True, topic="bench")
        cases = [
            _Case("decode.open_protocol", OpenProtocol(), orjson.loads, OpenProtocol(max_batch_size=1)),
            _Case("decode.canal_json", CanalJson(enable_tidb_extension=True), orjson.loads),
            _Case("decode.simple", Simple(), orjson.loads),
            _Case("decode.simple_avro", Simple(encoding_format=Format.AVRO), _simple_avro),
            _Case("decode.debezium", Debezium(), orjson.loads),
            _Case("decode.avro", avro, _Records(registry)),
            _Case("decode.long_form", LongForm(), orjson.loads),
        ]
        narrow, wide = _rows("bench-narrow", _BATCH), _rows("bench-wide", _WIDE_BATCH)
        return [
            _measured(case, case.name + suffix, rows)
            for case in cases
            for suffix, rows in (("", narrow), ("_wide", wide))
        ]


def _measured(case: _Case, name: str, rows: RowBatch) -> dict[str, Any]:
    received = _received(case.protocol.encoder(1).encode(rows))
    reader = _reader(case.protocol, rows)
    if sum(len(seen.rows) for seen in reader.read(received).rows) != len(rows):
        raise AssertionError(f"{name}: the reader does not give back all rows")
    sample = sliced(rows, 0, min(len(rows), _SAMPLE))
    some = documents((case.alone or case.protocol).encoder(1).encode(sample))
    seconds, floor_seconds = [], []
    for _ in range(_ROUNDS):
        seconds.append(_timed(lambda: reader.read(received)))
        floor_seconds.append(_timed(lambda: [case.parse(document) for document in some]))
    value, floor = len(rows) / statistics.median(seconds), len(sample) / statistics.median(floor_seconds)
    return {"name": name, "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}


def _reader(protocol: QueueProtocol, rows: RowBatch) -> Reader:
    """One that knows the table, where rows do not tell of it."""
    reader = reader_for(protocol)
    if isinstance(protocol, Simple):
        reader.read(Received(pa.array([None], pa.binary()), pa.array([protocol.bootstrap(rows.table, 1).value])))
    return reader


def _received(encoded: Encoded) -> Received:
    keys: Sequence[bytes | None] = encoded.message_keys() or [None] * len(encoded)
    has_value = encoded.has_value
    values = [
        message if has_value is None or has_value[number] else None for number, message in enumerate(encoded.messages())
    ]
    return Received(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def _simple_avro(message: bytes) -> object:
    return fastavro.schemaless_reader(io.BytesIO(message), SCHEMA, None)


class _Records:
    """By the schemas that the registry has."""

    def __init__(self, registry: StandInRegistry) -> None:
        self._registry = registry
        self._schemas: dict[int, Any] = {}

    def __call__(self, message: bytes) -> object:
        (number,) = struct.unpack_from(">I", message, 1)
        if number not in self._schemas:
            self._schemas[number] = fastavro.parse_schema(orjson.loads(self._registry.texts[number]))
        return fastavro.schemaless_reader(io.BytesIO(message[5:]), self._schemas[number], None)


if __name__ == "__main__":
    for line in bench_decode():
        print(line)
