"""rawkv.flow and rawkv.lag_*: keys of RawKV from one cluster into another.

    rawkv.flow          keys/s from the change stream's scan until all are in the other cluster;
                        floor: the same keys put there by a bare client
    rawkv.lag_p50, p99  seconds that the checkpoint is behind, under half of the load that a bare client brings to the
                        source; the default safe interval, 3 s, is in it
    rawkv.lag_part.*    of what the lag is made, on average: upstream, sorter, sink

Both clusters are processes of their own, and announce resolved-ts once a second, as TiKV does.
"""

import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.flow import warm_up
from bench.store import running_upstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions, Status
from tidemill.model.keys import KeyRange
from tidemill.model.ts import Ts
from tidemill.spark.session import open_session
from tidemill.upstream.keyspace import raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache

Result = dict[str, Any]
Pairs = Mapping[bytes, bytes]

_KEYS = int(os.environ.get("BENCH_RAWKV_KEYS", "300000"))
_BATCH = 1000
_LAG_SECONDS = 30.0
_SETTLED_SECONDS = 5.0
_LOOK_SECONDS = 0.2


def bench_rawkv() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        api = ("--api-version", "2")
        for side in ("here", "there"):
            (folder / side).mkdir()
        with running_upstream(folder / "here", *api) as source, running_upstream(folder / "there", *api) as target:
            spark = open_session(scratch=folder / "spark")
            try:
                warm_up(folder)
                start_ts = KeyRange().before(asyncio.run(_now(source)))
                load_seconds = asyncio.run(_put(source, _pairs(_KEYS)))
                floor_seconds = asyncio.run(_put(target, _pairs(_KEYS)))
                options = RunOptions(
                    pd=source, sink_uri=f"tikv://{target}", data_dir=folder / "data", start_ts=start_ts, keys=KeyRange()
                )
                seconds = _flow(options, asyncio.run(_now(source)))
                value, floor = _KEYS / seconds, _KEYS / floor_seconds
                flow = _result("rawkv.flow", value, "keys/s", floor)
                return [flow, *_lag(options, source, _KEYS / load_seconds / 2)]
            finally:
                spark.stop()


def _flow(options: RunOptions, end_ts: Ts) -> float:
    with _changefeed(options) as feed:
        began = time.monotonic()
        while feed.owner.owned.checkpoint_ts < end_ts:
            feed.poll()
        return time.monotonic() - began


def _lag(options: RunOptions, source: str, keys_per_second: float) -> list[Result]:
    stop, seen = threading.Event(), list[Status]()
    writer = threading.Thread(target=lambda: asyncio.run(_write(source, keys_per_second, stop)))
    with _changefeed(options) as feed:
        writer.start()
        try:
            ends = time.monotonic() + _SETTLED_SECONDS + _LAG_SECONDS
            while time.monotonic() < ends:
                feed.poll(_LOOK_SECONDS)
                seen.append(feed.status())
        finally:
            stop.set()
            writer.join()
    counted = seen[int(len(seen) * _SETTLED_SECONDS / (_SETTLED_SECONDS + _LAG_SECONDS)) :]
    lags = sorted(each.lag_seconds for each in counted)
    parts = [each.lag for each in counted if each.lag is not None]
    return [
        _result("rawkv.lag_p50", statistics.median(lags), "s"),
        _result("rawkv.lag_p99", lags[min(len(lags) - 1, int(len(lags) * 0.99))], "s"),
        _result("rawkv.lag_rate", keys_per_second, "keys/s"),
        *(
            _result(f"rawkv.lag_part.{name}", statistics.fmean(getattr(each, name) for each in parts), "s")
            for name in ("upstream", "sorter", "sink")
        ),
    ]


@contextmanager
def _changefeed(options: RunOptions) -> Iterator[Changefeed]:
    feed = Changefeed(options)
    try:
        feed.start()
        yield feed
        feed.drain()
    finally:
        feed.close()


async def _now(pd: str) -> Ts:
    async with PdClient(pd) as client:
        return await client.get_ts()


async def _put(pd: str, pairs: Pairs) -> float:
    async with PdClient(pd) as client:
        raw = RawClient(RegionCache(client), keyspace=raw_v2(), max_calls=4)
        try:
            began = time.monotonic()
            await raw.batch_put(pairs)
            return time.monotonic() - began
        finally:
            await raw.close()


async def _write(pd: str, keys_per_second: float, stop: threading.Event) -> None:
    async with PdClient(pd) as client:
        raw = RawClient(RegionCache(client), keyspace=raw_v2(), max_calls=4)
        try:
            began, number = time.monotonic(), 0
            while not stop.is_set():
                await raw.batch_put({b"live/%08d" % (number * _BATCH + n): b"x" * 100 for n in range(_BATCH)})
                number += 1
                await asyncio.sleep(max(0.0, began + number * _BATCH / keys_per_second - time.monotonic()))
        finally:
            await raw.close()


def _pairs(count: int) -> Pairs:
    return {b"key/%08d" % number: b"%0100d" % number for number in range(count)}


def _result(name: str, value: float, unit: str, floor: float | None = None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}
