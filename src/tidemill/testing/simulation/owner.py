"""The owner of the changefeed at work. What it decides is decided by the real parts: ``Coordinator``, ``Ownership``,
``Members``. This does what they say, each thing taking its time, as the driver of a real capture does."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import cast

from tidemill.capture.members import NOBODY, Members
from tidemill.control.barriers import BarrierQueue
from tidemill.control.ownership import Ownership, can_run_ddl, ddl_done, learned
from tidemill.control.scheduler.captures import Fence
from tidemill.control.scheduler.coordinator import Coordinator, Situation
from tidemill.control.scheduler.handovers import UNKNOWN_TS, HandOver, Whereabouts
from tidemill.control.scheduler.policies import Settings
from tidemill.errors import SupersededError
from tidemill.flow.schema import SchemaStore
from tidemill.model.orders import Assignment, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import REST, CaptureId, ChangefeedKey, Message, TableId
from tidemill.model.ts import Ts
from tidemill.testing.simulation.downstream import Downstream
from tidemill.testing.simulation.store import Saved, Store
from tidemill.testing.simulation.upstream import Upstream
from tidemill.testing.simulation.world import Process, Violation, Work, World

FEED = ChangefeedKey("default", "simulated")
EPOCH = 1
TICK_MS = 50
_SETTINGS = Settings(check_balance_seconds=1.0)

Tell = Callable[[Orders], None]


class Owner:
    """For one term, in one process."""

    def __init__(
        self,
        world: World,
        upstream: Upstream,
        downstream: Downstream,
        store: Store,
        process: Process,
        me: CaptureId,
        revision: int,
        send: Callable[[Message], None],
    ) -> None:
        self._world, self._upstream, self._downstream, self._store = world, upstream, downstream, store
        self._process, self._me, self.revision, self._send = process, me, revision, send
        self.is_over = False
        self.coordinator = Coordinator(me, FEED, revision, EPOCH, _SETTINGS)
        self.members = Members(cast(SchemaStore, upstream))  # asks it what the upstream answers
        self._queue = BarrierQueue()
        self._learned = 0
        saved = store.saved
        self._saved = saved
        self.owned = Ownership({NOBODY: saved.at}, saved.ddl_ts, saved.ddl_ts)
        self._work: deque[Work] = deque()  # one at a time, as the sink and the store are asked
        self._is_working = False
        self._is_unsaved = False
        self._lanes: dict[str, tuple[CaptureId, str]] = {}
        self._fenced: set[tuple[CaptureId, str]] = set()
        self._ended: set[str] = set()  # lanes of theirs
        self._written_before = Ts(0)
        self.is_open = False
        self._do(self._begin())

    # One thing at a time.

    def _do(self, work: Work) -> None:
        self._work.append(work)
        if not self._is_working:
            self._is_working = True
            self._world.spawn(self._works(), self._process)

    def _works(self) -> Work:
        while self._work:
            try:
                yield from self._work.popleft()
            except SupersededError as error:
                self._world.note("{} is owner no longer: {}", self._me, error)
                self.is_over = True
            if self.is_over:
                return
        self._is_working = False

    def _begin(self) -> Work:
        yield self._world.chance.randint(1, 60)
        self._downstream.begin(self.revision)
        self._downstream.fence(self.revision)
        self._written_before = self._world.ts()
        # Whoever was owner before may have saved something until the sink had a new term.
        self._saved = self._store.saved
        self.owned = Ownership({NOBODY: self._saved.at}, self._saved.ddl_ts, self._saved.ddl_ts)
        self.is_open = True

    # What it hears. ``capture`` and ``epoch`` say whose processor it is.

    def receive(self, message: Message) -> None:
        if not self.is_over and self.is_open:
            self.coordinator.receive(message)

    def admit(
        self,
        capture: CaptureId,
        epoch: str,
        lane: str,
        assignment: Assignment,
        at: Checkpoints,
        replaces: str | None,
        tell: Tell,
    ) -> Orders | None:
        """None: it is too late."""
        if self.is_over or (capture, epoch) in self._fenced or (replaces is not None and replaces not in self.members):
            return None
        self._lanes[lane] = (capture, epoch)
        self.owned = self.members.admit(self.owned, lane, assignment, at, tell, replaces)
        return self.orders

    def report(self, report: Report) -> None:
        if self.is_over:
            return
        owned = self.members.hear(self.owned, report)
        if owned is not None:
            self.owned = owned
            self._is_unsaved = True
            self._check_tiles()

    @property
    def orders(self) -> Orders:
        return Orders(self.owned.ddl_ts, saved=self.members.saved)

    def _tell(self) -> None:
        orders = self.orders
        for member in self.members:
            member.tell(orders)

    # What it does.

    def tick(self) -> None:
        if self.is_over or not self.is_open:
            return
        new = self._upstream.ddls[self._learned :]
        self._learned = len(self._upstream.ddls)
        self._queue.extend(ddl for ddl in new if ddl.ts > self.owned.ddl_ts)
        self.owned = learned(self.owned, self._world.past_ts, self._queue.barriers)
        tables = self._upstream.captured(self.owned.ddl_ts)
        orphans = frozenset(TableId(table) for table in self.members.orphans(self._ended))
        situation = Situation(self._store.alive(), tables, self._saved.checkpoint_ts, orphans)
        for action in self.coordinator.tick(self._world.now_ms / 1000, situation):
            match action:
                case Message():
                    self._send(action)
                case Fence():
                    self._world.note("owner {}: fence {}", self._me, action.capture)
                    self._do(self._fence(action))
                case HandOver():
                    self._do(self._hand_over(action))
        if can_run_ddl(self.owned):
            self.owned = _with_ddl_running(self.owned)
            self._do(self._run_ddl())
        if self._is_unsaved and not self._is_working:
            self._do(self._save())

    def _save(self) -> Work:
        self._is_unsaved = False
        numbers = {name: member.number for name, member in self.members.by_name.items()}
        state = Saved(self.members.whereabouts(self.owned), self.owned.ddl_ts, self.owned.checkpoint_ts)
        yield self._world.chance.randint(1, 25)
        self._store.save(self._me, self.revision, state)
        yield self._world.chance.randint(1, 10)  # it is saved before the owner knows
        self._saved = state
        self.members.note_saved(numbers)
        self._tell()
        self.members.forget_those_that_left()

    def _run_ddl(self) -> Work:
        if self._is_unsaved:
            yield from self._save()
        self.owned = _with_ddl_running(self.owned, is_running=False)
        first = self.owned.barriers.first
        if first is None or not can_run_ddl(self.owned):
            return
        self.owned = _with_ddl_running(self.owned)
        yield self._world.chance.randint(1, 60)
        self._downstream.ddl(self.revision, first)
        self._world.note("owner {}: the DDL at {} has run", self._me, first.ts)
        self._queue.pop()
        self.owned = ddl_done(self.owned, self._queue.barriers)
        self._is_unsaved = True
        self._tell()

    def _fence(self, fence: Fence) -> Work:
        whose = (fence.capture, fence.epoch)
        self._fenced.add(whose)
        lanes = [lane for lane, each in self._lanes.items() if each == whose]
        yield from self._dismiss(lanes)
        self._ended |= set(lanes)
        self.coordinator.fenced(fence, self._world.ts())

    def _dismiss(self, lanes: Collection[str]) -> Work:
        known = [lane for lane in lanes if lane in self.owned.at]
        self.members.mute(known)
        self.owned = self.members.dismissed(self.owned, known, self._saved.at)
        yield self._world.chance.randint(1, 80)
        self._downstream.fence(self.revision, lanes)

    def _hand_over(self, ask: HandOver) -> Work:
        written: dict[TableId, Ts | None] = {}
        for table, ts in ask.tables.items():
            written[table] = self._world.ts() if ts == UNKNOWN_TS else ts
        found: Mapping[TableId, Whereabouts | None]
        if REST in written:
            for name, member in list(self.members.by_name.items()):
                if member.assignment.is_rest and not member.is_gone:
                    yield from self._dismiss([name])
            found = {REST: self.members.rest_of_the_gone(self.owned, self._may_be_written(written[REST]))}
        else:
            found = self._named(written)
        self.coordinator.handed_over(ask, found)

    def _named(self, written: Mapping[TableId, Ts | None]) -> Mapping[TableId, Whereabouts | None]:
        found: dict[TableId, Whereabouts | None] = dict.fromkeys(written)
        for table in [table for table in written if self.members.can_hand_over(table)]:
            written_ts = self._may_be_written(written[table])
            self.owned, handovers = self.members.hand_over(self.owned, [table], written_ts)
            found[table] = handovers[table]
        return found

    def _may_be_written(self, ts: Ts | None) -> Ts:
        """With what writers of an owner before may have written."""
        return Ts(max(ts or 0, self._written_before))

    def _check_tiles(self) -> None:
        """No table has two processors, and the rest has one."""
        there = [member.assignment for member in self.members.by_name.values()]
        if sum(assignment.is_rest for assignment in there) != 1:
            raise Violation(f"the rest of the tables is with {sum(a.is_rest for a in there)} processors")
        for table in self._upstream.captured(self.owned.ddl_ts):
            holders = [name for name, m in self.members.by_name.items() if table in m.assignment and not m.is_gone]
            is_somewhere = self.members.can_hand_over(table)  # perhaps in vain, until its next holder says that it came
            if len(holders) > 1 or not (holders or is_somewhere):
                raise Violation(f"table {table} is with {holders}, adrift: {sorted(self.members.adrift)}")


def _with_ddl_running(owned: Ownership, *, is_running: bool = True) -> Ownership:
    return replace(owned, is_ddl_running=is_running)
