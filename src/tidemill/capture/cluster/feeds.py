"""All changefeeds of a cluster, as its owner looks after them: which run, which are tried again, which are over.

What is decided is written to etcd on the condition that this capture is the owner still and nobody has changed the
changefeed since. So a user's pause and an error of the same moment do not undo each other.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from tidemill.capture.cluster.asking import Asking
from tidemill.capture.cluster.guarding import check_place
from tidemill.capture.cluster.options import ServerOptions, run_options
from tidemill.capture.cluster.owning import OwnedFeed, place_of
from tidemill.capture.cluster.snapshot import Snapshot, Stored
from tidemill.capture.cluster.workplace import MakeEngines
from tidemill.capture.engines import Engines
from tidemill.capture.etcd.client import EtcdClient, IsAt, Put
from tidemill.capture.etcd.documents import info_document
from tidemill.capture.etcd.election import Claim
from tidemill.capture.etcd.home import EtcdHome
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.peers.letters import Letter
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.feed_states import Effect, Event, Failed, Feed, TargetReached, Ticked, Warned, step
from tidemill.errors import SupersededError, TidemillError
from tidemill.log import get_logger
from tidemill.model.cluster import ChangefeedInfo, FeedState, RunningError
from tidemill.model.schedule import CaptureId, ChangefeedKey
from tidemill.model.ts import compose

log = get_logger("owner")

_STORED = {Effect.KEEP_ERROR, Effect.KEEP_WARNING, Effect.CLEAR_ERROR, Effect.NEW_EPOCH}


def new_epoch(info: ChangefeedInfo | None, clock: Clock) -> int:
    """Higher than before."""
    fresh = int(compose(int(clock.now() * 1000), 0))
    return fresh if info is None else max(fresh, info.epoch + 1)


class Feeds:
    """Runs on the capture's loop, for one term. ``close`` it in any case."""

    def __init__(
        self,
        me: CaptureId,
        claim: Claim,
        client: EtcdClient,
        keys: Keys,
        options: ServerOptions,
        post: Callable[[Letter], None],
        clock: Clock = SYSTEM_CLOCK,
        make_engines: MakeEngines = Engines,
    ) -> None:
        self._make_engines = make_engines
        self._me, self.claim, self._client, self._keys = me, claim, client, keys
        self._options, self._post, self._clock = options, post, clock
        self.owned: dict[ChangefeedKey, OwnedFeed] = {}
        self._states: dict[ChangefeedKey, Feed] = {}
        self._closing: dict[ChangefeedKey, asyncio.Task[None]] = {}
        self._written: dict[ChangefeedKey, int] = {}  # the revision that a decision was made at
        self._work = Asking()

    @property
    def failure(self) -> BaseException | None:
        return self._work.failure

    def knows(self, key: ChangefeedKey) -> bool:
        """Whether there is one of that name, running or not."""
        return key in self._states or key in self.owned

    def is_at_work_for(self, key: ChangefeedKey) -> bool:
        """Whether something of it runs on this capture."""
        return key in self.owned or key in self._closing

    def hear(self, letter: Letter) -> None:
        feed = self.owned.get(letter.changefeed)
        if feed is not None:
            feed.hear(letter)

    def tick(self, now: Snapshot) -> None:
        for key, feed in list(self.owned.items()):
            info = now.running(key)
            if info is None or info.epoch != feed.place.epoch:
                self._end(key, lets_go=key not in now.feeds)
        for key, stored in now.feeds.items():
            if self._written.get(key) != stored.revision:  # else what was decided is on its way
                self._look_after(key, stored)
        alive = frozenset(now.captures.keys() & now.places.keys())
        for feed in self.owned.values():
            feed.tick(alive)

    def _look_after(self, key: ChangefeedKey, stored: Stored) -> None:
        feed, now = self.owned.get(key), self._clock.monotonic()
        if feed is None:
            if stored.info.state.is_running and key not in self._closing:
                self._begin(key, stored)
            elif stored.info.state is FeedState.PENDING:
                self._decide(stored, Ticked(now, stored.info.checkpoint_ts, stored.info.checkpoint_ts))
        elif feed.failure is not None:
            self._fail(stored, feed.failure)
        elif feed.is_finished:
            self._decide(stored, TargetReached())
        elif feed.owner is not None:
            trouble = feed.owner.beside.trouble
            if trouble is not None:
                self._decide(stored, Warned(now, feed.checkpoint_ts), "CDC:ErrSinkUnavailable", trouble)
            else:
                self._decide(stored, Ticked(now, feed.checkpoint_ts, feed.resolved_ts))

    def _decide(self, stored: Stored, event: Event, code: str = "", message: str = "") -> None:
        """Take the step that ``event`` means. ``code`` and ``message`` are those of what was met."""
        info, key = stored.info, stored.info.key
        before = self._states.get(key)
        if before is None or before.state is not info.state:  # users have changed it, or there was another owner
            error_code = info.error.code if info.error is not None else None
            before = Feed(info.state, info.admin_job, error_code, checkpoint_ts=info.start_ts)
        after, effects = step(before, event)
        self._states[key] = after
        if after.state is None or (after.state is info.state and not set(effects) & _STORED):
            return
        told = RunningError(
            datetime.fromtimestamp(self._clock.now(), UTC), self._options.address, after.error_code or code, message
        )
        new = replace(info, state=after.state, admin_job=after.job)
        if Effect.NEW_EPOCH in effects:
            new = replace(new, epoch=new_epoch(info, self._clock))
        if Effect.KEEP_ERROR in effects:
            new = replace(new, error=told)
        if Effect.KEEP_WARNING in effects:
            if info.warning is not None and info.warning.message == message and after.state is info.state:
                return  # it is known
            new = replace(new, warning=replace(told, code=code))
        if Effect.CLEAR_ERROR in effects:
            new = replace(new, error=None, warning=None)
        log.info("a changefeed has another state", changefeed=str(key), state=after.state.value, reason=message)
        self._write(stored, new)

    def _begin(self, key: ChangefeedKey, stored: Stored) -> None:
        try:
            options = run_options(self._options, stored.info)
            home = EtcdHome(self._client, self._keys, key, self.claim, options.data_dir)
            place, log_file = place_of(self._me, self.claim.revision, stored.info), self._options.data_dir / "spark.log"
            feed = OwnedFeed(
                place, options, home, self._post,
                lambda to: self._make_engines(options, to.place, to.traits, log_file),
                partial(check_place, self._client, self._keys, self._me, key, stored.info.epoch, self.claim.revision),
                self._clock,
            )  # fmt: skip
        except TidemillError as error:
            self._fail(stored, error)
            return
        self.owned[key] = feed
        feed.start()

    def _fail(self, stored: Stored, error: BaseException) -> None:
        key = stored.info.key
        if key in self.owned:
            self._end(key)
        if isinstance(error, SupersededError):
            return  # it has been removed, or there is another owner: the next look at etcd says which
        code = error.code if isinstance(error, TidemillError) else "internal"
        message = str(error) if isinstance(error, TidemillError) else f"{type(error).__name__}: {error}"
        log.error("a changefeed has met an error", changefeed=str(key), code=code, reason=message)
        self._decide(stored, Failed(self._clock.monotonic(), code, random.uniform(-1.0, 1.0)), code, message)

    def _write(self, stored: Stored, info: ChangefeedInfo) -> None:
        """Unless somebody has changed it meanwhile."""
        self._written[info.key] = stored.revision
        conditions = [self.claim.condition, IsAt(self._keys.info(info.key), stored.revision)]
        put = Put(self._keys.info(info.key), info_document(info))
        self._work.begin(self._commit(conditions, put))

    async def _commit(self, conditions: list[IsAt], put: Put) -> None:
        await asyncio.to_thread(self._client.commit, conditions, [put])

    def _end(self, key: ChangefeedKey, *, lets_go: bool = False) -> None:
        feed = self.owned.pop(key)
        task = asyncio.create_task(feed.close(lets_go=lets_go))
        self._closing[key] = task
        task.add_done_callback(lambda _: self._closing.pop(key, None))

    async def close(self) -> None:
        for key in list(self.owned):
            self._end(key)
        await asyncio.gather(*self._closing.values(), return_exceptions=True)
        await self._work.close()
