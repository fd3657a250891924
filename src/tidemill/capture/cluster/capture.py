"""One life of a capture: from its registration in etcd to its end, or to the loss of its session.

    etcd ── snapshot, twice a second ──► who owns, who is there, which changefeeds run
    letters ──► agents (following) ; where it is the owner: feeds (owning)

Whoever has lost its session stops writing first: its processors are closed before anything else. Nothing of what their
tasks still do has an effect once the owner has fenced them, which it does before it gives their tables to others.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tidemill.capture.cluster.feeds import Feeds
from tidemill.capture.cluster.following import FollowedFeed
from tidemill.capture.cluster.guarding import check_place
from tidemill.capture.cluster.options import ServerOptions, run_options
from tidemill.capture.cluster.snapshot import Registry, Snapshot
from tidemill.capture.cluster.workplace import MakeEngines, Workplace
from tidemill.capture.engines import Engines
from tidemill.capture.etcd.client import EtcdClient
from tidemill.capture.etcd.home import EtcdHome
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.etcd.session import Session
from tidemill.capture.peers.letters import (
    Admitted,
    Letter,
    OrdersAre,
    SinkStateIs,
)
from tidemill.capture.peers.post import Post
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import MetadataError, SessionLostError, TidemillError
from tidemill.log import get_logger
from tidemill.model.cluster import CaptureInfo
from tidemill.model.schedule import CaptureId, ChangefeedKey, Dispatch, Heartbeat

log = get_logger("capture")

_TICK_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_DRAIN_SECONDS = 30.0

ShouldStop = Callable[[], bool]


class Capture:
    """Runs on one loop. ``open`` it, ``run`` it, ``close`` it in any case."""

    def __init__(
        self,
        capture: CaptureId,
        options: ServerOptions,
        client: EtcdClient,
        keys: Keys,
        session: Session,
        info: CaptureInfo,
        clock: Clock = SYSTEM_CLOCK,
        make_engines: MakeEngines = Engines,
    ) -> None:
        """``make_engines``: others than Spark's, as tests bring them."""
        self._make_engines = make_engines
        self.id, self.options, self.client, self.keys = capture, options, client, keys
        self._session, self._clock, self.info = session, clock, info
        self._registry = Registry(client, keys, session, info)
        self.post = Post(
            capture, keys.cluster, self._hear, on_overflow=self._overflow, security=options.security,
            allowed_cn=options.allowed_cn, clock=clock,
        )  # fmt: skip
        self.snapshot = Snapshot()
        self.feeds: Feeds | None = None
        self.followed: dict[ChangefeedKey, FollowedFeed] = {}
        self._closing: dict[ChangefeedKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()  # terms as an owner
        self._looking: asyncio.Task[None] | None = None
        self._lost: Exception | None = None
        self._place = ""
        self.is_stopping = False

    @property
    def is_owner(self) -> bool:
        return self.feeds is not None

    async def open(self) -> None:
        """Be reachable, then be registered."""
        self._place = await self.post.start(self.options.peer_address)
        await asyncio.to_thread(self._registry.register, self._place)
        await asyncio.to_thread(self._registry.stand)
        self.snapshot = await asyncio.to_thread(self._registry.look)
        self._arrange()

    async def run(self, should_stop: ShouldStop) -> None:
        """Until ``should_stop``; raises SessionLostError where it has to begin anew."""
        self._looking = asyncio.create_task(self._look())
        while not should_stop():
            self._check()
            self._tick()
            await self._clock.sleep(_TICK_SECONDS)

    def _check(self) -> None:
        if self._session.is_lost:
            raise SessionLostError(f"capture {self.id} has lost its session in etcd.")
        if self._lost is not None:
            raise self._lost

    def _tick(self) -> None:
        for feed in list(self.followed.values()):
            feed.poll()
        if self.feeds is not None:
            self.feeds.tick(self.snapshot)

    async def drain(self) -> None:
        """Before a planned end: let another one be owner, and others take over the tables."""
        self.is_stopping = True
        await asyncio.to_thread(self._registry.register, self._place, is_stopping=True)
        if not self._others():
            return
        if self.feeds is not None:
            await self._end_term()
        with suppress(MetadataError):
            await asyncio.to_thread(self._registry.resign)
        ends = self._clock.monotonic() + _DRAIN_SECONDS
        while self._clock.monotonic() < ends:
            for feed in self.followed.values():
                feed.stop()
            if not self._others() or all(feed.holds_nothing for feed in self.followed.values()):
                return
            self._check()
            self._tick()
            await self._clock.sleep(_TICK_SECONDS)

    async def resign(self) -> None:
        """Let another one be owner; this one stands again behind it."""
        await self._end_term()
        await asyncio.to_thread(self._registry.resign)
        await asyncio.to_thread(self._registry.stand)

    def _others(self) -> set[CaptureId]:
        """Who may take over what this one has."""
        return {capture for capture, place in self.snapshot.places.items() if not place.is_stopping} - {self.id}

    def debug_state(self) -> dict[str, object]:
        """For people."""
        owned = self.feeds.owned if self.feeds is not None else {}
        return {
            "capture": self.id,
            "is_owner": self.is_owner,
            "captures": {name: place.address for name, place in self.snapshot.places.items()},
            "changefeeds": {str(key): stored.info.state.value for key, stored in self.snapshot.feeds.items()},
            "followed": {str(key): feed.debug_state() for key, feed in self.followed.items()},
            "owned": {str(key): feed.debug_state() for key, feed in owned.items()},
        }

    async def close(self) -> None:
        """Stop writing, then everything else."""
        feeds = list(self.followed.values())
        self.followed.clear()
        await asyncio.gather(*(feed.close() for feed in feeds), *self._closing.values(), return_exceptions=True)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self.feeds is not None:
            await self._end_term()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self.post.close()

    # What etcd says.

    async def _look(self) -> None:
        while True:
            try:
                self.snapshot = await asyncio.to_thread(self._registry.look)
                self._arrange()
            except SessionLostError as error:
                self._lost = error
                return
            except MetadataError as error:
                log.warning("etcd is away; what it said last holds", reason=str(error))
            await self._clock.sleep(_LOOK_SECONDS)

    def _arrange(self) -> None:
        now = self.snapshot
        for capture, place in now.places.items():
            with suppress(ValueError):
                self.post.meet(capture, place.address)
        for capture in self.post.known - now.places.keys():
            self.post.part(capture)
        self._take_office(now)
        for key, feed in list(self.followed.items()):
            info = now.running(key)
            if info is None or info.epoch != feed.epoch:
                self._unfollow(key)

    def _take_office(self, now: Snapshot) -> None:
        elected = now.owner
        claim = elected.claim if elected is not None and elected.is_me and not self.is_stopping else None
        if self.feeds is not None and self.feeds.claim != claim:
            task = asyncio.create_task(self._end_term())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if claim is not None and self.feeds is None:
            log.info("this capture is the owner", capture=self.id, term=claim.revision)
            self.feeds = Feeds(
                self.id, claim, self.client, self.keys, self.options, self.post.send, self._clock, self._make_engines
            )

    async def _end_term(self) -> None:
        feeds, self.feeds = self.feeds, None
        if feeds is not None:
            log.info("this capture is the owner no longer", capture=self.id)
            await feeds.close()

    # What other captures say.

    def _hear(self, letter: Letter) -> None:
        match letter.body:
            case Heartbeat() | Dispatch() | OrdersAre() | Admitted() | SinkStateIs():
                self._hear_owner(letter)
            case _:
                if self.feeds is not None:
                    self.feeds.hear(letter)

    def _hear_owner(self, letter: Letter) -> None:
        feed = self.followed.get(letter.changefeed)
        if feed is None and isinstance(letter.body, Heartbeat):
            feed = self._follow(letter.changefeed, letter.header.changefeed_epoch)
        if feed is not None:
            feed.hear(letter)

    def _follow(self, key: ChangefeedKey, epoch: int) -> FollowedFeed | None:
        """None: etcd does not say yet, or not any more, that it runs. The owner's next heartbeat asks again."""
        info = self.snapshot.running(key)
        if info is None or info.epoch != epoch or key in self._closing:
            return None
        try:
            options = run_options(self.options, info)
            home = EtcdHome(self.client, self.keys, key, None, options.data_dir)
            workplace = Workplace(options, home, self.options.data_dir / "spark.log", self._make_engines)
        except TidemillError as error:
            log.error("a changefeed cannot be worked for", changefeed=str(key), reason=str(error))
            return None
        feed = self.followed[key] = FollowedFeed(
            self.id, key, epoch, workplace, self.post.send,
            partial(check_place, self.client, self.keys, self.id, key, epoch), self._clock,
        )  # fmt: skip
        if self.is_stopping:
            feed.stop()
        return feed

    def _unfollow(self, key: ChangefeedKey) -> None:
        feed = self.followed.pop(key)
        task = asyncio.create_task(feed.close())
        self._closing[key] = task
        task.add_done_callback(lambda _: self._closing.pop(key, None))

    def _overflow(self, capture: CaptureId) -> None:
        """A capture does not take what must not be lost: whoever wrote it begins anew, and is fenced meanwhile."""
        self._lost = SessionLostError(f"capture {capture} does not take the letters of capture {self.id}.")
