"""What ``/metrics`` answers: read from the port when it is asked for, so that nothing is told of what is gone."""

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tidemill.api.metrics import STATES, Kind, metric
from tidemill.api.operations import Operations
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import TidemillError
from tidemill.model.cluster import CaptureInfo, ChangefeedInfo, FeedState, UpstreamAccess
from tidemill.model.ts import Ts, compose, physical_ms

Sample = tuple[str, tuple[str, ...], float]
_READING_SECONDS = 5.0  # Prometheus itself waits for 10


class Metrics:
    """Of one capture. ``read`` gives Prometheus' text."""

    def __init__(self, operations: Operations, clock: Clock = SYSTEM_CLOCK) -> None:
        self._operations, self._clock = operations, clock
        self._owned_seconds = 0.0
        self._owner_since: float | None = None

    async def read(self) -> bytes:
        """What cannot be found out is left out: a capture that is in trouble still tells the rest."""
        samples: list[Sample] = []
        try:
            async with asyncio.timeout(_READING_SECONDS):
                samples += await self._of_cluster()
        except (TidemillError, TimeoutError):
            pass
        samples.append(("ticdc_owner_ownership_counter", (), self._owned_seconds))
        registry = CollectorRegistry()
        registry.register(_Samples(samples))
        return generate_latest(registry) + generate_latest(REGISTRY)

    async def _of_cluster(self) -> list[Sample]:
        is_owner = (await self._operations.server.status()).is_owner
        self._count(is_owner)
        if not is_owner:
            return []
        infos = await self._operations.changefeeds.all()
        captures = await self._operations.cluster.captures()
        try:
            now_ts = await self._operations.server.tso(UpstreamAccess())
        except TidemillError:
            now_ts = compose(int(self._clock.now() * 1000))
        return [
            ("tidemill_captures", (), float(len(captures))),
            *(sample for info in infos for sample in _of_feed(info, now_ts, captures)),
        ]

    def _count(self, is_owner: bool) -> None:
        now = self._clock.monotonic()
        if self._owner_since is not None:
            self._owned_seconds += now - self._owner_since
        self._owner_since = now if is_owner else None


def _of_feed(info: ChangefeedInfo, now_ts: Ts, captures: Iterable[CaptureInfo]) -> Iterator[Sample]:
    feed = (info.key.namespace, info.key.id)
    yield "ticdc_owner_status", feed, float(STATES.index(info.state.value))
    yield "ticdc_owner_checkpoint_ts", feed, float(physical_ms(info.checkpoint_ts))
    yield "ticdc_owner_resolved_ts", feed, float(physical_ms(info.resolved_ts))
    yield "ticdc_owner_current_pd_ts", feed, float(physical_ms(now_ts))
    yield "ticdc_scheduler_table", feed, float(sum(len(task.tables) for task in info.tasks))
    tables = {task.capture_id: len(task.tables) for task in info.tasks}
    for capture in captures:
        yield "ticdc_scheduler_capture_table", (*feed, capture.address), float(tables.get(capture.id, 0))
    if info.state in (FeedState.FINISHED, FeedState.REMOVED):
        return  # it does not fall behind any more
    yield "ticdc_owner_checkpoint_ts_lag", feed, _seconds(info.checkpoint_ts, now_ts)
    yield "ticdc_owner_resolved_ts_lag", feed, _seconds(info.resolved_ts, now_ts)
    for stage, seconds in stage_lags(info, now_ts):
        yield "tidemill_stage_lag_seconds", (*feed, stage), seconds
    now_seconds = physical_ms(now_ts) / 1000
    for each in info.hindrances:
        since = 0.0 if each.since is None else max(0.0, now_seconds - each.since.timestamp())
        yield "tidemill_held_back_seconds", (*feed, each.cause.value), since


def stage_lags(info: ChangefeedInfo, now_ts: Ts) -> list[tuple[str, float]]:
    """Of each stage its part of the checkpoint's lag; no part is below zero, and together they are the whole."""
    checkpoint = min(info.checkpoint_ts, now_ts)
    sorted_ts = min(max(info.resolved_ts, checkpoint), now_ts)
    pulled_ts = min(max(info.puller_resolved_ts, sorted_ts), now_ts)
    return [
        ("puller", _seconds(pulled_ts, now_ts)),
        ("sorter", _seconds(sorted_ts, pulled_ts)),
        ("sink", _seconds(checkpoint, sorted_ts)),
    ]


def _seconds(behind: int, ahead: int) -> float:
    return max(0, physical_ms(ahead) - physical_ms(behind)) / 1000


class _Samples(Collector):
    """A counter keeps its name: TiCDC's have no ``_total``, which Prometheus' own client would add."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for name, values, value in self._samples:
            described = metric(name)
            kind = "gauge" if described.kind is Kind.GAUGE else "unknown"
            family = families.setdefault(name, Family(name, described.help, kind))
            family.add_sample(name, dict(zip(described.labels, values, strict=True)), value)
        yield from families.values()
