"""flow.latency_*, flow.quiet_*: seconds from a transaction's commit to its being durable in files, and where they go.

The upstream and its writer are a process of their own. Everything has its defaults; the upstream announces
resolved-ts once a second, as TiKV does.

    flow.quiet_latency_p50, p99   one transaction of one row a second
    flow.latency_p50, p99         at half load: half of the rows a second that writer, upstream and changefeed
                                  manage together on this machine when the writer does not wait
    flow.latency_rate             that half, in rows/s; its floor is the whole

    ..._part.resolved      until the upstream has resolved the transaction and the batch before is done
    ..._part.spark_ask     ours: until the driver takes the batch
    ..._part.spark_plan    ours: what it consists of
    ..._part.spark_run     Spark's: the job around the tasks
    ..._part.pipeline      ours: sort, mount, encode, write, fsync in the tasks
    ..._part.commit        ours: the state of the changefeed, with its fsync

Parts are means over the transactions, so that they add up to the mean. Where several tasks worked at the same time,
``pipeline`` is what they worked together, but at most all of the time.
"""

import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.flow import CANAL_JSON, warm_up
from bench.writer import Commit, Writer, writer
from tidemill.capture.batches import BatchTrace
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.spark.session import open_session

Result = dict[str, Any]

_QUIET_SECONDS = 60.0
_LOADED_SECONDS = 30.0
_WHOLE_SECONDS = 12.0  # without waiting, to find out what the whole load is
_ROWS = 100  # a transaction, under load
_SETTLED = 3  # seconds before the clock starts: the query is up, kernels are compiled


def bench_quiet(seconds: float = _QUIET_SECONDS) -> list[Result]:
    def measure(feed: Changefeed, source: Writer) -> list[Result]:
        return _summary("flow.quiet_latency", *_write(feed, source, seconds, 1.0, 1))

    return _with_changefeed(measure)


def bench_half_load(whole_seconds: float = _WHOLE_SECONDS, seconds: float = _LOADED_SECONDS) -> list[Result]:
    def measure(feed: Changefeed, source: Writer) -> list[Result]:
        commits, traces = _write(feed, source, whole_seconds, 0.0, _ROWS)
        whole = len(commits) * _ROWS / (traces[-1].durable_at - commits[0].at)
        rate = whole / 2
        results = _summary("flow.latency", *_write(feed, source, seconds, rate / _ROWS, _ROWS))
        return [*results, _result("flow.latency_rate", rate, "rows/s", whole)]

    return _with_changefeed(measure)


def _with_changefeed(measure: Callable[[Changefeed, Writer], list[Result]]) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name, writer() as source:
        folder = Path(name)
        spark = open_session(scratch=folder / "spark")
        try:
            warm_up(folder)
            options = RunOptions(
                pd=source.pd, sink_uri=f"file://{folder / 'live'}?{CANAL_JSON}", data_dir=folder / "live-data"
            )
            feed = Changefeed(options)
            try:
                feed.start()
                _write(feed, source, _SETTLED, 1.0, 1)
                return measure(feed, source)
            finally:
                feed.close(is_finished=True)
        finally:
            spark.stop()


def _write(
    feed: Changefeed,
    source: Writer,
    seconds: float,
    transactions: float,
    rows: int,
) -> tuple[list[Commit], list[BatchTrace]]:
    """Let so much be written; the commits, and the traces of the batches that made them durable."""
    source.begin(seconds, transactions, rows)
    taken: dict[int, BatchTrace] = {}  # gathered on the way: the processor keeps the latest only
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        feed.poll(0.2)
        taken |= {trace.to_ts: trace for trace in list(feed.processor.main.lane.pacer.traces)}
    commits = source.commits()
    while max(taken, default=0) < commits[-1].ts:
        feed.poll(0.02)
        taken |= {trace.to_ts: trace for trace in list(feed.processor.main.lane.pacer.traces)}
    return commits, [trace for ts, trace in sorted(taken.items()) if ts >= commits[0].ts]


def _summary(name: str, commits: Sequence[Commit], traces: Sequence[BatchTrace]) -> list[Result]:
    samples = [split(commit, traces[bisect_left(traces, commit.ts, key=lambda t: t.to_ts)]) for commit in commits]
    totals = sorted(sum(sample.values()) for sample in samples)
    parts = {part: statistics.fmean(sample[part] for sample in samples) for part in samples[0]}
    return [
        _result(f"{name}_p50", statistics.median(totals), "s"),
        _result(f"{name}_p99", totals[min(len(totals) - 1, int(len(totals) * 0.99))], "s"),
        *(_result(f"{name}_part.{part}", value, "s") for part, value in parts.items()),
    ]


def split(commit: Commit, trace: BatchTrace) -> dict[str, float]:
    """What a transaction's seconds from commit to durable went to. They add up.

    The commit's own moment is when the upstream had answered, and the batch may have been ready before that.
    """
    ready = max(trace.ready_at, commit.at)
    offered = max(trace.offered_at, commit.at)
    running = trace.written_at - trace.planned_at
    return {
        "resolved": ready - commit.at,
        "spark_ask": offered - ready,
        "spark_plan": trace.planned_at - offered,
        "spark_run": max(0.0, running - trace.pipeline_seconds),
        "pipeline": min(running, trace.pipeline_seconds),
        "commit": trace.durable_at - trace.written_at,
    }


def _result(name: str, value: float, unit: str, floor: float | None = None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}
