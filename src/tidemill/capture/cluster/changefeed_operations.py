"""What users ask the owner about changefeeds. See ``operations``."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Any, Protocol

from tidemill.capture.cluster.changes import Changes
from tidemill.capture.cluster.feeds import Feeds
from tidemill.capture.cluster.hindrances import hindrances, starting
from tidemill.capture.cluster.options import ServerOptions, run_options
from tidemill.capture.cluster.owning import OwnedFeed
from tidemill.capture.cluster.server import Serving
from tidemill.capture.cluster.taking_over import continued, starting_at, state_of
from tidemill.capture.downstream import Downstream, check_overlaps
from tidemill.capture.etcd.home import EtcdHome
from tidemill.capture.metadata import ChangefeedState
from tidemill.capture.options import RunOptions
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.admission import not_found, resume_point, start_of, updated
from tidemill.errors import (
    CaptureNotFoundError,
    DeletionUnfinishedError,
    SchedulerRefusedError,
    TidemillError,
    UpdateRefusedError,
    UsageError,
)
from tidemill.model.cluster import (
    AdminJob,
    CaptureTables,
    ChangefeedInfo,
    ChangefeedUpdate,
    FeedState,
    NewChangefeed,
    UpstreamAccess,
)
from tidemill.model.schedule import CaptureId, ChangefeedKey, TableId
from tidemill.model.ts import Ts
from tidemill.sinks import differences
from tidemill.source.keyrange import open_keys
from tidemill.upstream.gc import GcHold, let_go
from tidemill.upstream.pd import PdClient

_CREATING_TTL_SECONDS = 3600
_PAUSABLE = {FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING}
_RESUMABLE = {FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED}
_REMOVAL_SECONDS = 30.0
_POLL_SECONDS = 0.1


class Asked(Protocol):
    """The server that is asked, and the owner that it is."""

    @property
    def serving(self) -> Serving: ...

    @property
    def feeds(self) -> Feeds: ...

    async def beside(self, call: Any, *args: Any) -> Any: ...

    def pd(self, upstream: UpstreamAccess | None = None) -> AbstractAsyncContextManager[PdClient]: ...


class ChangefeedOperations:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    @property
    def _changes(self) -> Changes:
        _ = self._asked.feeds  # only the owner answers
        return Changes(self._asked.serving.client, self._asked.serving.keys)

    async def all(self, namespace: str | None = None) -> tuple[ChangefeedInfo, ...]:
        found = await self._asked.beside(self._changes.all)
        infos = [await self._seen(info) for info in found if namespace in (None, info.key.namespace)]
        return tuple(sorted(infos, key=lambda info: info.key))

    async def get(self, key: ChangefeedKey) -> ChangefeedInfo:
        info, _ = await self._asked.beside(self._changes.read, key)
        return await self._seen(info)

    async def _seen(self, info: ChangefeedInfo) -> ChangefeedInfo:
        """With how far it is."""
        feed = self._asked.feeds.owned.get(info.key)
        if feed is None or feed.owner is None:
            at_ts = await self._asked.beside(self._changes.checkpoint_ts, info)
            why = (starting(info, feed),) if info.state.is_running else ()
            return replace(info, checkpoint_ts=at_ts, resolved_ts=at_ts, hindrances=why)
        at_ts = max(feed.checkpoint_ts, info.start_ts)
        return replace(
            info,
            checkpoint_ts=at_ts,
            resolved_ts=max(at_ts, feed.resolved_ts),
            puller_resolved_ts=max(at_ts, feed.resolved_ts),
            tasks=_tasks(feed) if info.state is FeedState.NORMAL else (),
            hindrances=hindrances(feed),
        )

    async def create(self, new: NewChangefeed) -> ChangefeedInfo:
        changes = self._changes
        state = state_of(new)
        others = await self._asked.beside(changes.all)
        existing = [info.key for info in others]
        known = state is not None and new.key in existing and await self._asked.beside(changes.name, new.key)
        if state is not None and known == state.changefeed_id:
            return await self.get(new.key)  # it was asked for before, and the answer was lost
        async with self._asked.pd(new.upstream) as pd:
            now_ts, safepoint_ts = await pd.get_ts(), await _safepoint(pd)
            at_ts = start_of(starting_at(new, state), existing, now_ts, safepoint_ts)
            options = self._asked.serving.options
            start_ts = at_ts if state is None else state.start_ts
            draft = changes.draft(new, start_ts, pd.cluster_id)
            wanted = run_options(options, draft)
            place = Downstream.of(wanted).place  # refuses what cannot be
            check_overlaps(wanted, _readable(options, others))
            if wanted.keys is not None:
                await open_keys(pd, wanted.keys)  # refuses a keyspace that is not there, and API V1
            if wanted.keys is not None and state is None:
                at_ts = new.start_ts or wanted.keys.before(at_ts)
                draft = changes.draft(new, at_ts, pd.cluster_id)
            if state is not None:
                state = continued(state, new.key, pd.cluster_id, place)
            hold = GcHold(pd, await self._name(new.key, state), _CREATING_TTL_SECONDS)
            await hold.hold(at_ts)
            info: ChangefeedInfo = await self._asked.beside(changes.create, draft, state)
            return info

    async def _name(self, key: ChangefeedKey, state: ChangefeedState | None) -> str:
        """By which the upstream knows it."""
        if state is not None:
            return state.changefeed_id
        serving = self._asked.serving
        home = EtcdHome(serving.client, serving.keys, key, None, serving.options.folder(key))
        return str(await self._asked.beside(home.changefeed_id))

    async def update(self, key: ChangefeedKey, update: ChangefeedUpdate) -> ChangefeedInfo:
        info, revision = await self._asked.beside(self._changes.read, key)
        new = updated(info, update)
        if new.upstream is not None and new.upstream != UpstreamAccess():
            raise UpdateRefusedError(f"cannot update changefeed {key.id!r}: it stays with its upstream.")
        after = replace(
            info,
            sink_uri=info.sink_uri if new.sink_uri is None else new.sink_uri,
            target_ts=info.target_ts if new.target_ts is None else new.target_ts,
            config=info.config if new.config is None else new.config,
        )
        options = self._asked.serving.options
        place, before = (Downstream.of(run_options(options, each)).place for each in (after, info))
        if differences(before, place):
            raise UpdateRefusedError(
                f"cannot update changefeed {key.id!r}: it would write to another place ({differences(before, place)}). "
                "Create another changefeed that starts at the checkpoint of this one."
            )
        if not await self._asked.beside(self._changes.write, after, revision):
            raise UpdateRefusedError(f"changefeed {key.id!r} was changed by somebody else meanwhile. Try again.")
        return await self.get(key)

    async def pause(self, key: ChangefeedKey) -> None:
        await self._asked.beside(self._changes.set_state, key, _PAUSABLE, FeedState.STOPPED, AdminJob.STOP)

    async def resume(self, key: ChangefeedKey, overwrite_ts: Ts | None = None) -> None:
        info = await self.get(key)
        if overwrite_ts is not None and overwrite_ts != info.checkpoint_ts:
            raise UsageError(
                f"changefeed {key.id!r} continues from its checkpoint {info.checkpoint_ts} only. Create another one "
                "to start elsewhere."
            )
        async with self._asked.pd() as pd:
            resume_point(info, None, await pd.get_ts(), Ts(0))  # what the upstream keeps for it is asked at the start
        await self._asked.beside(self._changes.set_state, key, _RESUMABLE, FeedState.NORMAL, AdminJob.NONE)

    async def remove(self, key: ChangefeedKey) -> None:
        changes, feeds = self._changes, self._asked.feeds
        name = await self._asked.beside(changes.name, key)
        if not await self._asked.beside(changes.remove, key):
            raise not_found(key, feeds.owned)
        deadline = SYSTEM_CLOCK.monotonic() + _REMOVAL_SECONDS
        while feeds.is_at_work_for(key):
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise DeletionUnfinishedError(f"changefeed {key.id!r} is still going away. Look again in some seconds.")
            await SYSTEM_CLOCK.sleep(_POLL_SECONDS)
        if name is not None:
            async with self._asked.pd() as pd:
                await let_go(pd, name)

    # Tables.

    async def tables(self, key: ChangefeedKey, capture_id: CaptureId) -> tuple[TableId, ...]:
        feed = self._running(key)
        self._check_capture(feed, capture_id)
        return tuple(table for table in feed.tables if feed.coordinator.holder(table) == capture_id)

    async def move_table(self, key: ChangefeedKey, table: TableId, capture_id: CaptureId) -> None:
        feed = self._running(key)
        self._check_capture(feed, capture_id)
        if table not in feed.tables:
            raise SchedulerRefusedError(f"changefeed {key.id!r} has no table {table}. Query it for its tables.")
        if capture_id not in feed.coordinator.captures.working:
            raise SchedulerRefusedError(f"capture {capture_id!r} is stopping, or starting. Choose another one.")
        feed.coordinator.move_table(table, capture_id)

    async def rebalance(self, key: ChangefeedKey) -> None:
        self._running(key).coordinator.rebalance()

    def _running(self, key: ChangefeedKey) -> OwnedFeed:
        feed = self._asked.feeds.owned.get(key)
        if feed is None or feed.owner is None:
            if self._asked.feeds.knows(key):
                raise SchedulerRefusedError(f"changefeed {key.id!r} does not run. Resume it first.")
            raise not_found(key, self._asked.feeds.owned)
        return feed

    def _check_capture(self, feed: OwnedFeed, capture_id: CaptureId) -> None:
        if feed.coordinator.captures.get(capture_id) is None:
            raise CaptureNotFoundError(f"no capture has the id {capture_id!r}. Ask for the list of captures.")


def _readable(options: ServerOptions, infos: Iterable[ChangefeedInfo]) -> list[RunOptions]:
    """What those changefeeds are asked to do. One whose config cannot be read writes nowhere."""
    found = []
    for info in infos:
        with suppress(TidemillError):
            found.append(run_options(options, info))
    return found


def _tasks(feed: OwnedFeed) -> tuple[CaptureTables, ...]:
    by_capture: dict[CaptureId, list[TableId]] = {}
    for table in feed.tables:
        holder = feed.coordinator.holder(table)
        if holder is not None:
            by_capture.setdefault(holder, []).append(table)
    return tuple(CaptureTables(name, tuple(tables)) for name, tables in sorted(by_capture.items()))


async def _safepoint(pd: PdClient) -> Ts:
    return await pd.get_gc_safe_point()
