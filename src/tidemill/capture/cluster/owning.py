"""The owner of one changefeed at work: what concerns it as a whole, and which capture has which of its tables.

    agents ── reports, admissions ──► ChangefeedOwner ── orders ──► agents
    agents ── answers ──────────────► Coordinator ── heartbeats, dispatches ──► agents
                                          └── Fence, HandOver ──► ChangefeedOwner: dismiss, hand over

Opening it begins a new term in the sink, which fences whatever worked for an owner before. So it knows of no processor
at first, and all tables are nobody's, where they were saved.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tidemill.capture.cluster.asking import Asking
from tidemill.capture.cluster.first_copy import FirstCopy, name_of_copy
from tidemill.capture.cluster.guarding import Check
from tidemill.capture.cluster.watching import HeldLanes
from tidemill.capture.downstream import Downstream
from tidemill.capture.engines import Engines
from tidemill.capture.etcd.home import EtcdHome
from tidemill.capture.metadata import ChangefeedState, StateWriter
from tidemill.capture.opening import Opened, Opening
from tidemill.capture.options import RunOptions
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.peers.letters import (
    Admit,
    Admitted,
    AskSinkState,
    Body,
    Failed,
    HeldBack,
    Letter,
    OrdersAre,
    Said,
    SinkStateIs,
    letter_of,
)
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.scheduler.captures import Fence
from tidemill.control.scheduler.coordinator import Coordinator, Situation
from tidemill.control.scheduler.handovers import UNKNOWN_TS, HandOver, Whereabouts
from tidemill.errors import InvariantError, SinkError, TidemillError, UpstreamError
from tidemill.flow.filter import TableFilter
from tidemill.log import get_logger
from tidemill.model.cluster import ChangefeedInfo
from tidemill.model.orders import Orders
from tidemill.model.row import RowBatch
from tidemill.model.schedule import REST, CaptureId, ChangefeedKey, Header, Message, TableId
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import OwnerSink
from tidemill.source.scan import plan_scan, read_part
from tidemill.upstream.pd import PdClient

log = get_logger("owner")

_RETRY_SECONDS = 1.0


class ProcessorError(TidemillError):
    """What has ended a processor on another capture, as that one says."""

    def __init__(self, code: str, message: str, is_retryable: bool) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # that of what has happened there
        self.retryable = is_retryable  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Place:
    """Who says what in whose name."""

    me: CaptureId
    changefeed: ChangefeedKey
    revision: int
    epoch: int


class OwnedFeed:
    """Runs on the capture's loop. ``start`` it, ``tick`` it, ``close`` it in any case."""

    def __init__(
        self,
        place: Place,
        options: RunOptions,
        home: EtcdHome,
        post: Callable[[Letter], None],
        engines: Callable[[Downstream], Engines],
        check: Check,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``engines``: for its initial copy, where it has one. ``check``: raises where this is the owner no longer.
        Raises a UsageError for a sink or a config that cannot be."""
        self._engines, self._check = engines, check
        self.place, self._options, self._home, self._post, self._clock = place, options, home, post, clock
        self.downstream = Downstream.of(options)
        security = options.security or options.config.security
        self._pd = PdClient(options.pd, security=security)
        self._states = StateWriter(home)
        self._loop = asyncio.get_running_loop()
        self.opening = Opening(
            options, home, self.downstream.sink, self.downstream.place, self.downstream.zone, security, self._rescan,
            opened=lambda sink: setattr(self, "_sink", sink),
        )  # fmt: skip
        self._sink: OwnerSink | None = None
        self._opened: Opened | None = None
        self.owner: ChangefeedOwner | None = None
        self.copying: FirstCopy | None = None
        self.coordinator = Coordinator(place.me, place.changefeed, place.revision, place.epoch)
        self._starting: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._asking = Asking()
        self._epochs: dict[CaptureId, str] = {}  # of the processors that have said something
        self._lanes: dict[str, tuple[CaptureId, str]] = {}  # and whose they are
        self._fenced: set[tuple[CaptureId, str]] = set()
        self._ended: set[str] = set()  # lanes of theirs, once nothing that they do has an effect any more
        self._untold: set[CaptureId] = set()
        self._saved: dict[str, int] = {}  # of each lane, the number of its last report that is durable
        self._tables: tuple[tuple[object, ...], tuple[TableId, ...]] = ((), ())
        self._told: ChangefeedState | None = None  # what was saved when all were told
        self._failure: BaseException | None = None
        self.held = HeldLanes()

    # Its life.

    def start(self) -> None:
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        await self._pd.connect()
        opened = self._opened = await self.opening.run(self._pd)
        state = opened.state
        if state.copied is not None:
            name = name_of_copy(self.place.revision, self.place.epoch)
            self.copying = FirstCopy(name, self.downstream, self._engines(self.downstream), self._home, self._check)
            state = await self.copying.run(self._pd, opened)
            self.copying = None
        owner = ChangefeedOwner(
            opened.feed, opened.sink, state, self._states, target_ts=opened.target_ts,
            config=self._options.config, orders_ddls=self.downstream.traits.orders_ddls,
            is_together=self.downstream.traits.is_together, clock=self._clock,
        )  # fmt: skip
        owner.left_out.note(opened.feed.store.tables())
        self.owner = owner
        owner.start()
        self._following = asyncio.create_task(opened.feed.run())
        log.info("owning a changefeed", changefeed=str(self.place.changefeed), checkpoint_ts=state.checkpoint_ts)

    @property
    def failure(self) -> BaseException | None:
        """What has ended it. The owner first: what it cannot save ends the others."""
        if self.owner is not None and self.owner.beside.failure is not None:
            return self.owner.beside.failure
        for task in (self._starting, self.opening.holding, self._following):
            if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return self._asking.failure or self._failure

    @property
    def is_finished(self) -> bool:
        return self.owner is not None and self.owner.is_done

    @property
    def checkpoint_ts(self) -> Ts:
        return self._states.checkpoint_ts

    @property
    def resolved_ts(self) -> Ts:
        return self._opened.feed.resolved_ts if self._opened is not None else Ts(0)

    async def close(self, *, lets_go: bool = False) -> None:
        """``lets_go``: nobody will come back for what the upstream keeps for it."""
        self._home.is_over = True
        for task in (self._starting, self._following, self.opening.holding):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._asking.close()
        if self.owner is not None:
            await self.owner.close()
        elif self._sink is not None:
            await asyncio.to_thread(self._sink.close)
        if lets_go and self.opening.hold is not None:
            with suppress(UpstreamError, TimeoutError):
                await self.opening.hold.release()
        await self._pd.close()
        await asyncio.to_thread(self._states.close)

    def debug_state(self) -> dict[str, object]:
        """For people."""
        owner = self.owner
        return {
            "epoch": self.place.epoch,
            "checkpoint_ts": self.checkpoint_ts,
            "resolved_ts": self.resolved_ts,
            "failure": str(self.failure or ""),
            "owned": str(owner.owned) if owner is not None else "",
            "lanes": {lane: f"{capture} {epoch}" for lane, (capture, epoch) in self._lanes.items()},
            "captures": {name: str(each) for name, each in self.coordinator.captures},
            "replicas": {str(table): str(replica) for table, replica in self.coordinator.replicas},
        }

    # What agents say.

    def hear(self, letter: Letter) -> None:
        header, place = letter.header, self.place
        if (header.owner_revision, header.changefeed_epoch) != (place.revision, place.epoch) or self.owner is None:
            return
        if (letter.sender, header.processor_epoch) in self._fenced:
            return
        if self._epochs.get(letter.sender) != header.processor_epoch:
            self._epochs[letter.sender] = header.processor_epoch
            self._leave_untold(letter.sender)
        try:
            if letter.message is not None:
                self.coordinator.receive(letter.message)
            else:
                self._take(letter, self.owner)
        except InvariantError as error:
            self._failure = self._failure or error

    def _take(self, letter: Letter, owner: ChangefeedOwner) -> None:
        sender, epoch = letter.sender, letter.header.processor_epoch
        match letter.body:
            case Admit(number, lane, assignment, at, replaces):
                if replaces is not None and replaces not in owner.members:
                    raise InvariantError(f"lane {lane!r} replaces {replaces!r}, which has been replaced. Report it.")
                self._lanes[lane] = (sender, epoch)
                tell = partial(self._note_saved, sender, lane)
                orders = owner.enter(lane, assignment, at, tell, replaces=replaces)
                self._say(sender, epoch, Admitted(number, orders))
            case Said(report):
                owner.report(report)
                if report.is_last:
                    self._lanes.pop(report.processor, None)
            case AskSinkState(number):
                self._asking.begin(self._tell_sink_state(owner, sender, epoch, number))
            case HeldBack(by):
                self.held.note(sender, epoch, by)
            case Failed(code, message, is_retryable):
                self._failure = self._failure or ProcessorError(code, message, is_retryable)

    async def _tell_sink_state(self, owner: ChangefeedOwner, capture: CaptureId, epoch: str, number: int) -> None:
        self._say(capture, epoch, SinkStateIs(number, await owner.sink_state()))

    def _say(self, capture: CaptureId, epoch: str, body: Body) -> None:
        header = Header(self.place.revision, self.place.epoch, epoch)
        self._post(Letter(header, self.place.changefeed, self.place.me, capture, body))

    def _note_saved(self, capture: CaptureId, lane: str, orders: Orders) -> None:
        """A lane that has ended is forgotten right after, and waits to hear that its last report is durable."""
        self._saved[lane] = orders.saved.get(lane, 0)
        self._leave_untold(capture)

    def _leave_untold(self, capture: CaptureId) -> None:
        """Its newest orders go out once all that changes at this moment has changed."""
        if not self._untold:
            self._loop.call_soon(self._tell)
        self._untold.add(capture)

    def _tell(self) -> None:
        untold, self._untold = self._untold, set()
        if self.owner is None or self._opened is None:
            return
        now = self.owner.orders
        ended = {lane: number for lane, number in self._saved.items() if lane not in now.saved}
        orders = replace(now, saved={**now.saved, **ended})
        for lane in ended:
            del self._saved[lane]
        letter = OrdersAre(orders, Ts(min(self._states.passed_ts, self.owner.owned.lowest_ts)))
        for capture in untold:
            self._say(capture, self._epochs[capture], letter)

    # Which capture has which tables.

    def tick(self, alive: frozenset[CaptureId]) -> None:
        if self.owner is None or self.failure is not None:
            return
        if self._states.saved is not self._told:  # captures without lanes go by it, too
            self._told = self._states.saved
            for capture in self._epochs:
                self._leave_untold(capture)
        orphans = frozenset(TableId(table) for table in self.owner.members.orphans(self._ended))
        situation = Situation(alive, self.tables, self.checkpoint_ts, orphans)
        try:
            for action in self.coordinator.tick(self._clock.monotonic(), situation):
                match action:
                    case Message():
                        self._post(letter_of(action))
                    case Fence():
                        self._asking.begin(self._fence(self.owner, action))
                    case HandOver():
                        self._asking.begin(self._hand_over(self.owner, action))
        except InvariantError as error:
            self._failure = self._failure or error

    @property
    def tables(self) -> Sequence[TableId]:
        """All that have to be captured, ascending; the same object while nothing has changed. Those that end by a DDL
        which has not run, too."""
        owner = self.owner
        if owner is None:
            return ()
        feed, first = owner.feed, owner.owned.barriers.first
        mark = (feed.learned, first, owner.ddls.count)
        if self._tables[0] != mark:
            wanted = TableFilter(self._options.config)
            self._tables = (mark, tuple(sorted(set(self._table_ids(owner, wanted)))))
        return self._tables[1]

    def _table_ids(self, owner: ChangefeedOwner, wanted: TableFilter) -> Iterator[TableId]:
        for followed in owner.feed.store.followed():
            for table in owner.feed.store.tables_above(followed.physical_id, owner.owned.ddl_ts):
                if wanted.captures(table):
                    yield TableId(table.id)

    async def _fence(self, owner: ChangefeedOwner, fence: Fence) -> None:
        """Nothing that this processor still does has an effect when it is done, and nothing that it says counts."""
        whose = (fence.capture, fence.epoch)
        self._fenced.add(whose)
        self.held.forget(*whose)
        lanes = [lane for lane, each in self._lanes.items() if each == whose]
        await self._dismiss(owner, lanes)
        written_ts = await self._pd.get_ts()
        self._ended |= set(lanes)
        self.coordinator.fenced(fence, written_ts)

    async def _dismiss(self, owner: ChangefeedOwner, lanes: Sequence[str]) -> None:
        while True:
            try:
                await owner.dismiss(lanes)
                break
            except SinkError as error:
                if not error.retryable:
                    raise
                log.warning("the sink is away; writers that are gone are fenced when it is there", reason=str(error))
            await self._clock.sleep(_RETRY_SECONDS)
        for lane in lanes:
            self._lanes.pop(lane, None)
        log.info("processors that are gone are fenced", changefeed=str(self.place.changefeed), lanes=",".join(lanes))

    async def _hand_over(self, owner: ChangefeedOwner, ask: HandOver) -> None:
        written: dict[TableId, Ts | None] = {}
        for table, ts in ask.tables.items():
            written[table] = await self._pd.get_ts() if ts == UNKNOWN_TS else ts
        found: Mapping[TableId, Whereabouts | None]
        found = await self._rest(owner, written[REST]) if REST in written else self._named(owner, written)
        self.coordinator.handed_over(ask, found)

    async def _rest(self, owner: ChangefeedOwner, written_ts: Ts | None) -> Mapping[TableId, Whereabouts | None]:
        for name, member in list(owner.members.by_name.items()):
            if member.assignment.is_rest and not member.is_gone:
                await self._dismiss(owner, [name])  # it has stopped
        takeover = owner.members.rest_of_the_gone(owner.owned, _may_be_written(self._opened, written_ts))
        if takeover is None:
            raise InvariantError("nobody has the rest of the tables. Report it.")
        return {REST: takeover}

    def _named(
        self, owner: ChangefeedOwner, written: Mapping[TableId, Ts | None]
    ) -> Mapping[TableId, Whereabouts | None]:
        found: dict[TableId, Whereabouts | None] = dict.fromkeys(written)
        free = [table for table in written if owner.members.can_hand_over(table)]
        for ts in {written[table] for table in free}:
            tables = [table for table in free if written[table] == ts]
            handovers = owner.hand_over(tables, _may_be_written(self._opened, ts))
            found |= {TableId(table): handover for table, handover in handovers.items()}
        return found

    # Small things.

    def _rescan(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        """The rows of a table as of ``ts``, for a sink whose table a DDL has changed unseen. Blocks, in its thread."""
        plan = plan_scan(self._pd, table, ts, physical_ids=physical_ids, zone=self.downstream.zone)
        for part in asyncio.run_coroutine_threadsafe(plan, self._loop).result():
            yield from read_part(part)


def place_of(me: CaptureId, revision: int, info: ChangefeedInfo) -> Place:
    return Place(me, info.key, revision, info.epoch)


def _may_be_written(opened: Opened | None, ts: Ts | None) -> Ts | None:
    """With what writers of an owner before may have written."""
    before = opened.written_ts if opened is not None else None
    return Ts(max(ts or 0, before or 0)) or None
