"""What a copy of keys reads, and what it leaves to the stream."""

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.e2e.rawkv import Loop, Writer
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import InvariantError
from tidemill.model.keys import KeyRange
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.ts import Ts
from tidemill.source.keyrange import KeySource, open_keys
from tidemill.source.scan.keys import KeyScan
from tidemill.upstream.pd import PdClient

KEYS = KeyRange(b"a", b"x", safe_interval_seconds=0.2, span_count=3)


async def planned(upstream: EmbeddedUpstream, ts: Ts) -> tuple[KeySource, list[KeyScan]]:
    async with PdClient(upstream.pd_address) as pd:
        source = await (await open_keys(pd, KEYS)).divided(pd)
        tables = source.tables(ts)
        found = [await source.copy_parts(pd, table, table.id, ts, "UTC") for table in tables]
        return source, [part for parts in found for part in parts]


def read(part: KeyScan) -> dict[bytes, tuple[bytes | None, int]]:
    return {key: change for rows in part.read() for key, change in changes(rows).items()}


def changes(rows: RowBatch) -> dict[bytes, tuple[bytes | None, int]]:
    put = zip(*(rows.new.column(name).to_pylist() for name in ("key", "value", "expire_seconds")), strict=True)
    gone = dict.fromkeys(rows.old.column("key").to_pylist(), (None, 0))
    assert (rows.op == RowOp.DELETE).sum() == len(gone)
    return {key: (value, expiry) for key, value, expiry in put} | gone


def test_a_copy_has_the_last_change_of_each_key_up_to_its_ts_and_nothing_above() -> None:
    with EmbeddedUpstream.start(stores=2, api_version=2, resolved_interval_seconds=0.05) as upstream, Loop() as loop:
        writer = Writer(loop, upstream, 1)
        for key in (b"b", b"d", b"f"):
            upstream.split(b"r\0\0\0" + key)
        before = {b"aa": b"1", b"ab": b"1", b"c": b"1", b"d": b"", b"e": b"1", b"g": b"1", b"x": b"1"}
        loop.call(writer.client.batch_put(before))
        loop.call(writer.client.batch_put({b"e": b"2"}, ttl_seconds=5000))
        loop.call(writer.client.batch_delete([b"c"]))
        _, everything = asyncio.run(planned(upstream, Ts(upstream.tso())))
        ts = Ts(max(int(rows.commit_ts.max()) for part in everything for rows in part.read()))
        loop.call(writer.client.batch_put({b"aa": b"2", b"h": b"1"}))
        loop.call(writer.client.batch_delete([b"g"]))
        source, parts = asyncio.run(planned(upstream, ts))
        assert [bounds[0] for bounds in source.parts] == [b"a", b"b", b"d"]
        assert all(one.end == next_one.start for one, next_one in pairwise(parts))
        found = {key: change for part in parts for key, change in read(part).items()}
        ends = found.pop(b"e")
        assert ends[0] == b"2"
        assert ends[1] > 0
        assert found == {b"ab": (b"1", 0), b"c": (None, 0), b"d": (b"", 0)}
        half = replace(parts[0], start=source.keyspace.logical(b"ab"))
        assert read(half) == {b"ab": (b"1", 0)}
        writer.close()


def test_a_copy_waits_for_writes_below_its_ts_that_are_still_on_their_way() -> None:
    """The stream begins above it, and would not bring them."""
    with EmbeddedUpstream.start(api_version=2, resolved_interval_seconds=0.05) as upstream, Loop() as loop:
        writer = Writer(loop, upstream, 1)
        loop.call(writer.client.batch_put({b"b": b"1"}))
        upstream.delay_apply(1.5)
        written = threading.Thread(target=lambda: loop.call(writer.client.batch_put({b"c": b"1"})))
        written.start()
        while not upstream.cluster.in_flight.raw_writes():
            threading.Event().wait(0.01)
        _, parts = asyncio.run(planned(upstream, Ts(upstream.tso())))
        found = {key: change for part in parts for key, change in read(part).items()}
        written.join()
        writer.close()
    assert found == {b"b": (b"1", 0), b"c": (b"1", 0)}


def test_parts_are_never_read_together() -> None:
    with EmbeddedUpstream.start(api_version=2) as upstream:
        source, _ = asyncio.run(planned(upstream, Ts(1)))
    with pytest.raises(InvariantError, match="would be read together"):
        source.span_of([1, 2])
