"""encode.<protocol>: changes a second on one core, beside others that turn the same messages, as dicts, into bytes.

The rows are those of ``bench-narrow`` (four columns) and ``bench-wide`` (sixty), decoded, repeated until they fill a
batch of the size that the sorter hands on: inserts, a quarter updates, a tenth deletes. The floor (orjson, for Avro
fastavro) only turns dicts into bytes: its message dicts are there before the clock starts, which no real encoder would
find. Where rows share messages, the floor has the documents of each row by itself, without frames. Seconds are of one
core's time; rounds of the two alternate, and each figure is a median.
"""

import io
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from bench.data import TABLE_ID
from tests.flow.reader.simple_avro_schema import SCHEMA
from tests.histories import load
from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder import Avro, CanalJson, Debezium, LongForm, OpenProtocol, QueueProtocol, Simple
from tidemill.flow.encoder.simple import Format
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.row import RowBatch, sliced
from tidemill.model.ts import Ts
from tidemill.testing.schema_registry import StandInRegistry

_BATCH = 1 << 16
_WIDE_BATCH = 1 << 13  # of messages that carry their schema, 10 KB each
_SAMPLE = 8192  # changes that the floor encodes in a round
_ROUNDS = 7
_BUILT_MS = 1_700_000_000_123


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    protocol: QueueProtocol
    history: str
    batch: int
    floor: Callable[[Sequence[bytes]], Callable[[], object]]  # of these messages
    alone: QueueProtocol | None = None  # makes a message of each row, where ``protocol`` does not


def bench_encode() -> list[dict[str, Any]]:
    with StandInRegistry() as registry, _one_core():
        avro = Avro(registry.uri, enable_tidb_extension=True, topic="bench")

        def of_avro(messages: Sequence[bytes]) -> Callable[[], object]:
            return _fastavro(registry, messages)

        found = []
        for name, protocol, floor, alone in (
            ("encode.open_protocol", OpenProtocol(), _orjson, OpenProtocol(max_batch_size=1)),
            ("encode.canal_json", CanalJson(enable_tidb_extension=True), _orjson, None),
            ("encode.simple", Simple(), _orjson, None),
            ("encode.simple_avro", Simple(encoding_format=Format.AVRO), _simple_avro, None),
            ("encode.debezium", Debezium(), _orjson, None),
            ("encode.avro", avro, of_avro, None),
            ("encode.long_form", LongForm(), _orjson, None),
        ):
            for suffix, history, batch in (("", "bench-narrow", _BATCH), ("_wide", "bench-wide", _WIDE_BATCH)):
                found.append(_measured(_Case(name + suffix, protocol, history, batch, floor, alone)))
        return found


def _measured(case: _Case) -> dict[str, Any]:
    rows = _rows(case.history, case.batch)
    encoder = case.protocol.encoder(_BUILT_MS)
    messages = documents((case.alone or case.protocol).encoder(_BUILT_MS).encode(sliced(rows, 0, _SAMPLE)))
    floor_work = case.floor(messages)
    seconds, floor_seconds = [], []
    for _ in range(_ROUNDS):
        seconds.append(_timed(lambda: encoder.encode(rows)))
        floor_seconds.append(_timed(floor_work))
    value = len(rows) / statistics.median(seconds)
    floor = min(len(rows), _SAMPLE) / statistics.median(floor_seconds)
    return {"name": case.name, "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}


def documents(encoded: Encoded) -> list[bytes]:
    """Of messages of one row each: their keys, if there are any, and their values, without frames."""
    keys, values = encoded.message_keys() or [], [message for message in encoded.messages() if message]
    if encoded.changes is not None:  # the open protocol's
        return [key[16:] for key in keys] + [value[8:] for value in values]
    return [key for key in keys if key] + values


def _orjson(messages: Sequence[bytes]) -> Callable[[], object]:
    dicts = [orjson.loads(message) for message in messages]
    written, wanted = sum(len(orjson.dumps(message)) for message in dicts), sum(map(len, messages))
    if abs(written - wanted) > wanted // 50:  # but for how characters and numbers are spelled
        raise AssertionError(f"encode: orjson writes {written} bytes where the encoder writes {wanted}")
    return lambda: [orjson.dumps(message) for message in dicts]


def _simple_avro(messages: Sequence[bytes]) -> Callable[[], object]:
    dicts: list[Any] = [
        fastavro.schemaless_reader(io.BytesIO(message), SCHEMA, None, return_record_name=True) for message in messages
    ]

    def write_all() -> int:
        out = io.BytesIO()
        for message in dicts:
            fastavro.schemaless_writer(out, SCHEMA, message)
        return out.tell()

    if write_all() != sum(map(len, messages)):
        raise AssertionError("encode.simple_avro: the encoder and fastavro write different messages")
    return write_all


def _fastavro(registry: StandInRegistry, messages: Sequence[bytes]) -> Callable[[], object]:
    numbers: list[int] = [struct.unpack_from(">I", message, 1)[0] for message in messages]
    schemas = {number: fastavro.parse_schema(orjson.loads(registry.texts[number])) for number in set(numbers)}
    dicts: list[tuple[Any, Any]] = [
        (schemas[number], fastavro.schemaless_reader(io.BytesIO(message[5:]), schemas[number], None))
        for number, message in zip(numbers, messages, strict=True)
    ]

    def write_all() -> bytes:
        out = io.BytesIO()
        for schema, message in dicts:
            fastavro.schemaless_writer(out, schema, message)
        return out.getvalue()

    if write_all() != b"".join(message[5:] for message in messages):
        raise AssertionError("encode.avro: the encoder and fastavro write different messages")
    return write_all


def _rows(name: str, changes_wanted: int) -> RowBatch:
    history = load(name)
    store = SchemaStore.from_snapshot(history.meta_at(history.bootstrap_ts), Ts(history.bootstrap_ts))
    store.apply(history.job_changes())
    table = store.table(TABLE_ID, history.end_ts)
    if table is None:
        raise AssertionError(f"{name} has no table {TABLE_ID}: restore it from the repository")
    changes = history.row_changes(TABLE_ID)
    batch = pa.Table.from_batches([changes] * (changes_wanted // len(changes) + 1)).slice(0, changes_wanted)
    return mount(table, TABLE_ID, batch.combine_chunks().to_batches()[0])


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@contextmanager
def _one_core() -> Iterator[None]:
    """Nothing runs beside the thread that is measured, Arrow's own threads included."""
    allowed, threads = os.sched_getaffinity(0), pa.cpu_count()
    os.sched_setaffinity(0, {min(allowed)})
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        pa.set_cpu_count(threads)


if __name__ == "__main__":
    for line in bench_encode():
        print(line)
