"""More changes at once than 32-bit offsets reach: 2 GiB and more in one delivery, from the stream to batches."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill._pb import cdcpb_pb2
from tidemill.flow.sorter import Sorter, read_slices
from tidemill.model.progress import Extent
from tidemill.model.ts import MAX_TS, Ts
from tidemill.upstream.feed import wire
from tidemill.upstream.feed.matcher import Matcher
from tidemill.upstream.feed.spill import Spill

pytestmark = [pytest.mark.soak, pytest.mark.slow]

ROWS, ROW_BYTES, TOGETHER = 180_000, 12 << 10, 600
Row = cdcpb_pb2.Event.Row


def key(number: int) -> bytes:
    return b"%08d" % number


def messages() -> Iterator[bytes]:
    """A scan that brings the first half of each change, and the second half: all of them wait for its end."""
    for kind in (1, 2):
        for first in range(0, ROWS, TOGETHER):
            rows = [
                Row(
                    type=kind,
                    start_ts=11,
                    commit_ts=0 if kind == 1 else 12 + number,
                    op_type=1,
                    key=key(number),
                    value=key(number) * (ROW_BYTES // 8) if kind == 1 else b"",
                    generation=1,
                )
                for number in range(first, first + TOGETHER)
            ]
            yield entries(rows)


def entries(rows: list[Row]) -> bytes:
    event = cdcpb_pb2.Event(region_id=1, request_id=1, entries=cdcpb_pb2.Event.Entries(entries=rows))
    data: bytes = cdcpb_pb2.ChangeDataEvent(events=[event]).SerializeToString()
    return data


def check(batch: pa.RecordBatch, first: int) -> int:
    """Each value holds its key over and over; returns the number behind the last."""
    assert batch.nbytes < 1 << 30
    numbers = np.arange(first, first + len(batch))
    assert batch.column("key").to_pylist() == [key(n) for n in numbers.tolist()]
    values = batch.column("value")
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(batch) + 1]
    words = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(len(batch), -1, 8)
    assert words.shape[1] == ROW_BYTES // 8
    expected = np.frombuffer(b"".join(key(n) for n in numbers.tolist()), np.uint8).reshape(len(batch), 1, 8)
    assert (words == expected).all()
    return first + len(batch)


def test_a_delivery_above_two_gib_arrives_whole(tmp_path: Path) -> None:
    matcher = Matcher(spill=Spill(tmp_path))
    matcher.register(1, 1, Ts(10))
    for message in messages():
        assert matcher.process(wire.parse([message])).batches == []
    matched = matcher.process(wire.parse([entries([Row(type=5)])]))
    assert sum(batch.nbytes for _, batch in matched.batches) > 1 << 31
    sorter = Sorter(tmp_path / "segments")
    sorter.open_span(1, Ts(10))

    async def pour() -> None:
        for _, batch in matched.batches:
            await sorter.add(1, batch)

    try:
        asyncio.run(pour())
        matched.batches.clear()
        sorter.advance(1, Ts(MAX_TS - 1))
        (plan,) = sorter.plan(Extent(Ts(10), Ts(MAX_TS - 1)))
        number = 0
        for batch in read_slices(plan):
            number = check(batch, number)
        assert number == ROWS
    finally:
        sorter.close()
