"""A cluster of captures that lives in memory and does at once what it is asked: the fake of ``api.operations``.

    cluster = FakeCluster(captures=3)
    cluster.operations(0)              what the first capture's faces are given; it is the owner
    cluster.add_table("shop", "orders")
    cluster.captures[1].is_away = True

Its upstream's time is what ``clock`` says. A changefeed that runs is where the upstream is, unless it was told to stay:
``cluster.hold(key, hindrance)``.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.admission import can_pause, can_resume, not_found, resume_point, start_of, updated
from tidemill.errors import (
    CaptureNotFoundError,
    OwnerNotFoundError,
    SchedulerRefusedError,
    TableIneligibleError,
    UpstreamUnavailableError,
)
from tidemill.model.cluster import (
    NEVER,
    AdminJob,
    CaptureInfo,
    CaptureTables,
    ChangefeedInfo,
    ChangefeedUpdate,
    FeedState,
    Hindrance,
    MetadataEntry,
    NewChangefeed,
    ProcessorInfo,
    RunningError,
    ServerStatus,
    TableEligibility,
    TableName,
    UpstreamAccess,
    VerifyTables,
)
from tidemill.model.schedule import CaptureId, ChangefeedKey, Liveness, TableId
from tidemill.model.ts import Ts, compose

UPSTREAM_ID = 7_178
VERSION = "v8.5.0"
_CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class FakeCapture:
    info: CaptureInfo
    liveness: Liveness = Liveness.ALIVE
    log_level: str = "info"


@dataclass(slots=True)
class Feed:
    """``held``: what keeps its checkpoint where it is."""

    info: ChangefeedInfo
    placement: dict[TableId, CaptureId] = field(default_factory=dict)
    held: Hindrance | None = None


class FakeCluster:
    def __init__(self, captures: int = 1, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self._clock = clock
        self.captures = [
            FakeCapture(CaptureInfo(CaptureId(f"capture-{n}"), f"127.0.0.1:{8300 + n}", n == 0, "default", VERSION))
            for n in range(captures)
        ]
        self.feeds: dict[ChangefeedKey, Feed] = {}
        self.tables: list[tuple[TableName, bool]] = []  # and whether it has a key
        self.safepoint_ts = Ts(0)
        self.is_upstream_away = False
        self.resolved_locks: list[tuple[int, Ts]] = []

    def operations(self, capture: int) -> "FakeOperations":
        return FakeOperations(self, self.captures[capture])

    def now_ts(self) -> Ts:
        if self.is_upstream_away:
            raise UpstreamUnavailableError("PD at 127.0.0.1:2379 does not answer. Check that it runs.")
        return compose(int(self._clock() * 1000))

    def add_table(self, schema: str, table: str, *, has_key: bool = True) -> TableId:
        table_id = TableId(100 + 2 * len(self.tables))
        self.tables.append((TableName(schema, table, table_id), has_key))
        for feed in self.feeds.values():
            self._place(feed)
        return table_id

    def elect(self, capture: int) -> None:
        for at, each in enumerate(self.captures):
            each.info = replace(each.info, is_owner=at == capture)

    def hold(self, key: ChangefeedKey, hindrance: Hindrance) -> None:
        feed = self.feed(key)
        feed.info = self.seen(feed)
        feed.held = hindrance

    def fail(self, key: ChangefeedKey, error: RunningError) -> None:
        feed = self.feed(key)
        feed.info = replace(self.seen(feed), state=FeedState.FAILED, admin_job=AdminJob.STOP, error=error)

    def feed(self, key: ChangefeedKey) -> Feed:
        if key not in self.feeds:
            raise not_found(key, self.feeds)
        return self.feeds[key]

    def capture(self, capture_id: CaptureId) -> FakeCapture:
        for each in self.captures:
            if each.info.id == capture_id:
                return each
        raise CaptureNotFoundError(f"no capture has the id {capture_id!r}. Ask for the list of captures.")

    def seen(self, feed: Feed) -> ChangefeedInfo:
        """As it stands now."""
        info = feed.info
        if info.state.is_running and feed.held is None:
            at_ts = max(info.checkpoint_ts, self.now_ts())
            if info.target_ts != NEVER and at_ts >= info.target_ts:
                at_ts = info.target_ts
                info = replace(info, state=FeedState.FINISHED, admin_job=AdminJob.FINISH)
            info = replace(info, checkpoint_ts=at_ts, resolved_ts=at_ts, puller_resolved_ts=at_ts)
        hindrances = (feed.held,) if feed.held is not None and info.state.is_running else ()
        tasks = _tasks(feed.placement) if info.state is FeedState.NORMAL else ()
        feed.info = info
        return replace(info, tasks=tasks, hindrances=hindrances)

    def create(self, new: NewChangefeed) -> ChangefeedInfo:
        start_ts = start_of(new, self.feeds, self.now_ts(), self.safepoint_ts)
        keyless = [f"{t.schema}.{t.table}" for t, has_key in self.tables if not has_key]
        if keyless and new.config.get("ignore-ineligible-table") is False:
            raise TableIneligibleError(
                f"cannot create changefeed {new.key.id!r}: these tables have no key: {', '.join(keyless)}. Give them "
                "one, or let them be left out with ignore-ineligible-table = true."
            )
        info = ChangefeedInfo(
            new.key, UPSTREAM_ID, new.sink_uri, _CREATED, start_ts, new.target_ts, new.config, FeedState.NORMAL,
            AdminJob.NONE, VERSION, start_ts + 1, start_ts, start_ts,
        )  # fmt: skip
        self.feeds[new.key] = Feed(info)
        self._place(self.feeds[new.key])
        return info

    def balance(self, feed: Feed) -> None:
        feed.placement.clear()
        self._place(feed)

    def _place(self, feed: Feed) -> None:
        able = [each.info.id for each in self.captures if each.liveness is Liveness.ALIVE]
        for table, has_key in self.tables:
            if has_key and able and table.id not in feed.placement:
                counts = {each: sum(at == each for at in feed.placement.values()) for each in able}
                feed.placement[table.id] = min(able, key=lambda each: (counts[each], each))


def _tasks(placement: Mapping[TableId, CaptureId]) -> tuple[CaptureTables, ...]:
    by_capture: dict[CaptureId, list[TableId]] = {}
    for table, capture in sorted(placement.items()):
        by_capture.setdefault(capture, []).append(table)
    return tuple(CaptureTables(capture, tuple(tables)) for capture, tables in sorted(by_capture.items()))


class FakeOperations:
    """Of one capture of the cluster."""

    def __init__(self, cluster: FakeCluster, capture: FakeCapture) -> None:
        self.server = _Server(cluster, capture)
        self.changefeeds = _Changefeeds(cluster, capture)
        self.cluster = _Cluster(cluster, capture)


class _Server:
    def __init__(self, cluster: FakeCluster, capture: FakeCapture) -> None:
        self._cluster, self._capture = cluster, capture

    async def status(self) -> ServerStatus:
        info = self._capture.info
        return ServerStatus(VERSION, "", info.id, info.cluster_id, 4711, info.is_owner, self._capture.liveness)

    async def owner(self) -> CaptureInfo | None:
        return next((each.info for each in self._cluster.captures if each.info.is_owner), None)

    async def check_ready(self) -> None:
        pass

    async def set_log_level(self, level: str) -> None:
        self._capture.log_level = level

    async def config(self) -> Mapping[str, Any]:
        return {"addr": self._capture.info.address, "cluster-id": self._capture.info.cluster_id}

    async def debug_state(self) -> Mapping[str, Any]:
        return {"capture": self._capture.info.id, "changefeeds": [str(key) for key in sorted(self._cluster.feeds)]}

    async def tso(self, upstream: UpstreamAccess) -> Ts:
        return self._cluster.now_ts()

    async def verify_tables(self, request: VerifyTables) -> TableEligibility:
        tables = self._cluster.tables
        return TableEligibility(tuple(t for t, has_key in tables if has_key), tuple(t for t, k in tables if not k))


class _OwnersPart:
    def __init__(self, cluster: FakeCluster, capture: FakeCapture) -> None:
        self._all, self._capture = cluster, capture

    @property
    def _cluster(self) -> FakeCluster:
        if not self._capture.info.is_owner:
            raise OwnerNotFoundError(f"capture {self._capture.info.id} is not the owner. Ask the one that is.")
        return self._all


class _Changefeeds(_OwnersPart):
    async def all(self, namespace: str | None = None) -> tuple[ChangefeedInfo, ...]:
        keys = sorted(key for key in self._cluster.feeds if namespace in (None, key.namespace))
        return tuple(self._cluster.seen(self._cluster.feeds[key]) for key in keys)

    async def get(self, key: ChangefeedKey) -> ChangefeedInfo:
        return self._cluster.seen(self._cluster.feed(key))

    async def create(self, new: NewChangefeed) -> ChangefeedInfo:
        return self._cluster.create(new)

    async def update(self, key: ChangefeedKey, update: ChangefeedUpdate) -> ChangefeedInfo:
        feed = self._cluster.feed(key)
        new, info = updated(feed.info, update), feed.info
        feed.info = replace(
            info,
            sink_uri=info.sink_uri if new.sink_uri is None else new.sink_uri,
            target_ts=info.target_ts if new.target_ts is None else new.target_ts,
            config=info.config if new.config is None else new.config,
        )
        return await self.get(key)

    async def pause(self, key: ChangefeedKey) -> None:
        feed = self._cluster.feed(key)
        if can_pause(feed.info.state):
            info = self._cluster.seen(feed)
            feed.info = replace(info, state=FeedState.STOPPED, admin_job=AdminJob.STOP, epoch=info.epoch + 1)

    async def resume(self, key: ChangefeedKey, overwrite_ts: Ts | None = None) -> None:
        feed = self._cluster.feed(key)
        at_ts = resume_point(feed.info, overwrite_ts, self._cluster.now_ts(), self._cluster.safepoint_ts)
        if can_resume(feed.info.state):
            start_ts = feed.info.start_ts if overwrite_ts is None else at_ts
            feed.info = replace(
                feed.info, state=FeedState.NORMAL, admin_job=AdminJob.NONE, error=None, warning=None,
                start_ts=start_ts, checkpoint_ts=at_ts, resolved_ts=at_ts,
            )  # fmt: skip

    async def remove(self, key: ChangefeedKey) -> None:
        self._cluster.feed(key)
        del self._cluster.feeds[key]

    async def tables(self, key: ChangefeedKey, capture_id: CaptureId) -> tuple[TableId, ...]:
        feed = self._cluster.feed(key)
        self._cluster.capture(capture_id)
        return tuple(sorted(table for table, at in feed.placement.items() if at == capture_id))

    async def move_table(self, key: ChangefeedKey, table: TableId, capture_id: CaptureId) -> None:
        feed = self._cluster.feed(key)
        target = self._cluster.capture(capture_id)
        if table not in feed.placement:
            raise SchedulerRefusedError(f"changefeed {key.id!r} has no table {table}. Query it for its tables.")
        if target.liveness is not Liveness.ALIVE:
            raise SchedulerRefusedError(f"capture {capture_id!r} is stopping. Choose another one.")
        feed.placement[table] = capture_id

    async def rebalance(self, key: ChangefeedKey) -> None:
        self._cluster.balance(self._cluster.feed(key))


class _Cluster(_OwnersPart):
    async def check_health(self) -> None:
        _ = self._cluster

    async def captures(self) -> tuple[CaptureInfo, ...]:
        return tuple(each.info for each in self._cluster.captures)

    async def drain(self, capture_id: CaptureId) -> int:
        target = self._cluster.capture(capture_id)
        if target.info.is_owner:
            raise SchedulerRefusedError(
                f"cannot drain {capture_id!r}: it is the owner. Let it resign first (tidemill capture resign)."
            )
        target.liveness = Liveness.STOPPING
        left = 0
        for feed in self._cluster.feeds.values():
            theirs = [table for table, at in feed.placement.items() if at == capture_id]
            left += len(theirs)
            for table in theirs:
                del feed.placement[table]
            await asyncio.sleep(0)
            self._cluster._place(feed)
        return left

    async def resign(self) -> None:
        captures = self._cluster.captures
        owner = next(at for at, each in enumerate(captures) if each.info.is_owner)
        self._cluster.elect((owner + 1) % len(captures))

    async def processors(self, namespace: str | None = None) -> tuple[ProcessorInfo, ...]:
        found = []
        for key in sorted(self._cluster.feeds):
            if namespace in (None, key.namespace) and self._cluster.feeds[key].info.state.is_running:
                holders = sorted(set(self._cluster.feeds[key].placement.values()))
                found += [ProcessorInfo(key, holder) for holder in holders]
        return tuple(found)

    async def metadata(self) -> tuple[MetadataEntry, ...]:
        base = "/tidb/cdc/default"
        owner = [MetadataEntry(f"{base}/__cdc_meta__/capture/{each.info.id}", "{}") for each in self._cluster.captures]
        feeds = [MetadataEntry(f"{base}/{key.namespace}/changefeed/info/{key.id}", "{}") for key in self._cluster.feeds]
        return tuple(sorted(owner + feeds, key=lambda entry: entry.key))

    async def resolve_lock(self, region_id: int, ts: Ts, upstream: UpstreamAccess) -> None:
        self._cluster.resolved_locks.append((region_id, ts))

    async def delete_gc_safepoint(self, upstream: UpstreamAccess) -> None:
        self._cluster.safepoint_ts = Ts(0)
