"""flow.idle_changefeeds.*: twenty changefeeds in one process into the blackhole, on one Spark session.

    .cpu       CPU milliseconds a second that each takes while nothing happens upstream, Spark's share included
    .memory    MB (PSS of all processes) that each adds to the first
    .lag_p99   seconds that the checkpoints of the others lie behind while one catches up with a million rows;
               floor: the same while all are idle

The upstream is a process of its own and announces resolved-ts once a second, as TiKV does.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.data import grow
from bench.flow import upstream
from bench.measured import MB, cpu_seconds, family, pss_bytes
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.model.ts import Ts

Result = dict[str, Any]

_FEEDS = 20
_ROWS = 1_000_000
_SETTLE_SECONDS = 5.0
_IDLE_SECONDS = 20.0
_LOOK_SECONDS = 0.2


def bench_idle() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name, ExitStack() as opened:
        folder = Path(name)
        history = grow("bench-narrow", _ROWS, folder / "history")
        ends = json.loads((history.parent / "meta.json").read_text())
        pd, process = opened.enter_context(upstream(folder / "upstream", history))
        feeds = [_open(opened, RunOptions(pd, "blackhole://", folder / "0"))]
        _lags(feeds, _after(_SETTLE_SECONDS))
        one_bytes = sum(map(pss_bytes, _ours(process.pid)))
        feeds += [_open(opened, RunOptions(pd, "blackhole://", folder / str(n))) for n in range(1, _FEEDS)]
        _lags(feeds, _after(_SETTLE_SECONDS))
        all_bytes = sum(map(pss_bytes, _ours(process.pid)))
        cpu = sum(map(cpu_seconds, _ours(process.pid)))
        began = time.monotonic()
        idle = _lags(feeds, _after(_IDLE_SECONDS))
        used = (sum(map(cpu_seconds, _ours(process.pid))) - cpu) / (time.monotonic() - began)
        start_ts, target_ts = Ts(ends["bootstrap_ts"]), Ts(ends["end_ts"])
        loaded = _open(opened, RunOptions(pd, "blackhole://", folder / "loaded", start_ts, target_ts))
        beside = _lags(feeds, lambda: loaded.poll(0.0))
    return [
        _result("flow.idle_changefeeds.cpu", used / _FEEDS * 1000, "CPU ms/s"),
        _result("flow.idle_changefeeds.memory", (all_bytes - one_bytes) / (_FEEDS - 1) / MB, "MB"),
        _result("flow.idle_changefeeds.lag_p99", _p99(beside), "s", _p99(idle)),
    ]


def _open(opened: ExitStack, options: RunOptions) -> Changefeed:
    feed = Changefeed(options)
    opened.callback(feed.close, is_finished=True)
    feed.start()
    return feed


def _lags(feeds: list[Changefeed], is_over: Callable[[], bool]) -> list[float]:
    """How far the checkpoints lie behind the present, looked at again and again."""
    lags = []
    while not is_over():
        time.sleep(_LOOK_SECONDS)
        for feed in feeds:
            feed.poll(0.0)
            lags.append(feed.status().lag_seconds)
    return lags


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _ours(upstream_pid: int) -> list[int]:
    return [pid for pid in family(os.getpid()) if pid != upstream_pid]


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _result(name: str, value: float, unit: str, floor: float | None = None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}
