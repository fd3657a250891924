"""decode.<protocol>: changes a second on one core, from messages back to rows, beside orjson over the same bytes.

The messages are those that our encoders make of the rows of ``encode.``. The floor only turns bytes into dicts: no
reader that works row by row could be faster than it. Seconds are of one core's time; rounds of the two alternate, and
each figure is a median.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from bench.encode import _one_core, _rows, _timed
from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder import CanalJson, OpenProtocol
from tidemill.flow.encoder.port import QueueProtocol
from tidemill.flow.reader import Received
from tidemill.flow.reader.registry import READERS
from tidemill.model.row import RowBatch

_SAMPLE = 8192  # messages that the floor decodes in a round
_ROUNDS = 5
_CHANGES = 65_536
_PROTOCOLS: dict[str, tuple[QueueProtocol, QueueProtocol]] = {  # and one that makes a message of each row
    "decode.open_protocol": (OpenProtocol(), OpenProtocol(max_batch_size=1)),
    "decode.canal_json": (CanalJson(enable_tidb_extension=True), CanalJson(enable_tidb_extension=True)),
}


def bench_decode() -> list[dict[str, Any]]:
    with _one_core():
        rows = _rows("bench-narrow", _CHANGES)
        return [_measured(name, rows, *protocols) for name, protocols in _PROTOCOLS.items()]


def _measured(name: str, rows: RowBatch, protocol: QueueProtocol, alone: QueueProtocol) -> dict[str, Any]:
    received = _received(protocol.encoder(1).encode(rows))
    reader = READERS[protocol.name]()
    if sum(len(seen.rows) for seen in reader.read(received).rows) != len(rows):
        raise AssertionError(f"{name}: the reader does not give back all rows")
    documents = [text for part in _texts(alone.encoder(1).encode(rows)) for text in part[:_SAMPLE]]
    seconds, floor_seconds = [], []
    for _ in range(_ROUNDS):
        seconds.append(_timed(lambda: reader.read(received)))
        floor_seconds.append(_timed(lambda: [orjson.loads(document) for document in documents]))
    value, floor = len(rows) / statistics.median(seconds), _SAMPLE / statistics.median(floor_seconds)
    return {"name": name, "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}


def _received(encoded: Encoded) -> Received:
    keys: Sequence[bytes | None] = encoded.message_keys() or [None] * len(encoded)
    return Received(pa.array(keys, pa.binary()), pa.array(encoded.messages(), pa.binary()))


def _texts(encoded: Encoded) -> list[list[bytes]]:
    """The documents of messages of one row each: their keys without frames, if there are any, and their values."""
    keys = encoded.message_keys()
    if keys is None:
        return [encoded.messages()]
    return [[key[16:] for key in keys], [value[8:] for value in encoded.messages()]]


if __name__ == "__main__":
    for line in bench_decode():
        print(line)
