"""What a capture is told about the tables of one changefeed, and what it answers. Pure: messages and holdings in,
commands and messages out.

    owner ── Heartbeat, Dispatch ──► receive ─► Reset           ──► executor
                                     poll    ─► Prepare, Run, Stop, Release
    owner ◄── responses ──────────── poll    ◄─ Holdings ────────── executor

The executor obeys a command at once, so far as its next ``Holdings`` show that it is at work, and takes its time for
the rest. Words that come late, twice, from an owner that was replaced, or for a processor that is gone, have no effect.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemill.control.scheduler.holdings import Holdings
from tidemill.errors import InvariantError
from tidemill.model.schedule import (
    AddTable,
    CaptureId,
    ChangefeedKey,
    Dispatch,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveTable,
    TableId,
    TableState,
    TableStatus,
)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Pull and sort these, write nothing. Those of one command come together, and are best kept together."""

    requests: tuple[AddTable, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Write these, prepared or not, from where their handovers say that they are."""

    requests: tuple[AddTable, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Write these no longer, and say with ``STOPPED`` where that ended. Where one is only being prepared, give that up,
    and nothing else: it may be written here as one of the rest."""

    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The owner knows where these stopped: they are absent from now on."""

    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """Another owner: close everything that was begun for the one before, and hold nothing from here on. What still
    closes is fenced."""


Command = Prepare | Run | Stop | Release | Reset


_ENDED = frozenset({TableState.STOPPED, TableState.ABSENT})


@dataclass(slots=True)
class _Task:
    request: AddTable | RemoveTable
    group: int = 0  # the message it came with: what came together is begun together
    is_begun: bool = False


@dataclass(frozen=True, slots=True)
class _Said:
    number: int  # of the message in which it was last said differently
    state: TableState
    is_of_rest: bool
    rows_per_second: float

    def is_as(self, status: TableStatus) -> bool:
        if status.state is not self.state or status.is_of_rest != self.is_of_rest:
            return False
        low, high = sorted((status.rows_per_second, self.rows_per_second))
        return high - low <= max(_SMALL_TRAFFIC, _SMALL_CHANGE * low)


_SMALL_TRAFFIC = 100.0  # rows per second: differences that the owner need not hear of
_SMALL_CHANGE = 0.5


class Agent:
    """Belongs to one processor's loop; ``poll`` it regularly, and after each message."""

    def __init__(self, capture: CaptureId, changefeed: ChangefeedKey, changefeed_epoch: int, birth: str) -> None:
        """``birth``: a name that no other agent has had, and, as text, above those of all before it on this capture: a
        late word of one of these must not pass for that of one that has come since."""
        self._capture, self._changefeed, self._changefeed_epoch = capture, changefeed, changefeed_epoch
        self._birth = birth
        self._owner: CaptureId | None = None
        self._revision = 0
        self._heard = 0  # the number of the owner's newest message
        self._made = 0  # the number of our newest message
        self._heartbeat: Heartbeat | None = None  # to be answered
        self._tasks: dict[TableId, _Task] = {}
        self._said: dict[TableId, _Said] = {}
        self._changed: dict[TableId, None] = {}  # the same tables, the one that changed last at the end
        self._ended: set[TableId] = set()  # those of them that are stopped or absent
        self.is_stopping = False

    @property
    def epoch(self) -> str:
        """Of this processor, under its present owner."""
        return f"{self._birth}-{self._revision}"

    def receive(self, message: Message) -> tuple[Command, ...]:
        """Take a message in. What it returns is to be obeyed before the next ``poll``."""
        header, commands = message.header, tuple[Command, ...]()
        is_ours = (message.changefeed, message.receiver) == (self._changefeed, self._capture)
        if not is_ours or header.changefeed_epoch != self._changefeed_epoch or header.owner_revision < self._revision:
            return ()
        if header.owner_revision > self._revision:
            commands = self._follow(message.sender, header.owner_revision)
        elif message.sender != self._owner:
            raise InvariantError(
                f"captures {self._owner!r} and {message.sender!r} both are owner with revision {self._revision}. "
                "Report it."
            )
        if header.number <= self._heard:
            return commands
        match message.body:
            case Heartbeat() as heartbeat:
                self._heard = header.number
                self._heartbeat = heartbeat
                self.is_stopping = self.is_stopping or heartbeat.is_stopping
            case Dispatch(requests) if header.processor_epoch == self.epoch:
                self._heard = header.number
                for request in requests:
                    self._accept(request, header.number)
        return commands

    def _follow(self, owner: CaptureId, revision: int) -> tuple[Command, ...]:
        is_first = self._owner is None
        self._owner, self._revision = owner, revision
        self._heard = self._made = 0
        self._heartbeat = None
        self._tasks, self._said, self._changed, self._ended = {}, {}, {}, set()
        return () if is_first else (Reset(),)

    def _accept(self, request: AddTable | RemoveTable, group: int) -> None:
        """One task per table: a later request waits until it is sent again, unless it supersedes a preparation."""
        task = self._tasks.get(request.table)
        if task is None or (_is_preparation(task.request) and not _is_preparation(request)):
            self._tasks[request.table] = _Task(request, group)

    # What is done, and said.

    def poll(self, holdings: Holdings) -> tuple[tuple[Command, ...], tuple[Message, ...]]:
        """``holdings`` as they are now. What the commands do shows in the next ones."""
        if self._owner is None:
            return (), ()
        work, done = _Work(), dict[TableId, TableStatus]()
        if self._heartbeat is not None:
            work.release += self._acknowledged(holdings, self._heartbeat.seen)
        for table, task in list(self._tasks.items()):
            status, is_done = _step(task, holdings.of(table), work)
            if is_done:
                del self._tasks[table]
            if status is not None:
                done[table] = status
        messages = []
        if done:
            messages.append(self._message(DispatchResponse(self._say(done.values()))))
        if self._heartbeat is not None:
            heartbeat, self._heartbeat = self._heartbeat, None
            messages.append(self._answer(heartbeat, holdings))
        return work.commands, tuple(messages)

    def _answer(self, heartbeat: Heartbeat, holdings: Holdings) -> Message:
        said = self._said
        changed = [status for table, status in holdings.tables.items() if not _is_said(said.get(table), status)]
        # What is not held any more under its name.
        gone = [holdings.of(table) for table in said.keys() - holdings.tables.keys()]
        changed += [status for status in gone if not _is_said(said.get(status.table), status)]
        self._say(self._now(status) for status in changed)
        asked = dict.fromkeys(heartbeat.tables)
        for table in reversed(self._changed):
            if said[table].number <= heartbeat.seen:
                break
            asked[table] = None
        tables = tuple(self._now(holdings.of(table)) for table in asked)
        self._forget(heartbeat.seen)
        liveness = Liveness.STOPPING if self.is_stopping else Liveness.ALIVE
        return self._message(HeartbeatResponse(tables, liveness, heartbeat.seen))

    def _now(self, status: TableStatus) -> TableStatus:
        """With a task that has still to be begun, or is under way."""
        task = self._tasks.get(status.table)
        ends = task is not None and isinstance(task.request, RemoveTable) and status.state not in _ENDED
        return replace(status, state=TableState.STOPPING) if ends else status

    def _say(self, statuses: Iterable[TableStatus]) -> tuple[TableStatus, ...]:
        """Note what goes out with the next message."""
        number, out = self._made + 1, tuple(statuses)
        for status in out:
            if not _is_said(self._said.get(status.table), status):
                self._said[status.table] = _Said(number, status.state, status.is_of_rest, status.rows_per_second)
                self._changed.pop(status.table, None)
                self._changed[status.table] = None
                (self._ended.add if status.state in _ENDED else self._ended.discard)(status.table)
        return out

    def _forget(self, seen: int) -> None:
        """Tables that are absent, which the owner knows."""
        for table in list(self._ended):
            if self._said[table].state is TableState.ABSENT and self._said[table].number <= seen:
                del self._said[table], self._changed[table]
                self._ended.discard(table)

    def _acknowledged(self, holdings: Holdings, seen: int) -> list[TableId]:
        """Tables that have stopped, which the owner knows."""
        stopped = (table for table in self._ended if self._said[table].number <= seen and table not in self._tasks)
        return sorted(table for table in stopped if holdings.of(table).state is TableState.STOPPED)

    def _message(self, body: DispatchResponse | HeartbeatResponse) -> Message:
        assert self._owner is not None
        self._made += 1
        header = Header(self._revision, self._changefeed_epoch, self.epoch, self._made)
        return Message(header, self._changefeed, self._capture, self._owner, body)


def _is_said(said: _Said | None, status: TableStatus) -> bool:
    return status.state is TableState.ABSENT if said is None else said.is_as(status)


def _is_preparation(request: AddTable | RemoveTable) -> bool:
    return isinstance(request, AddTable) and request.is_secondary


class _Work:
    """What the executor has to do, alike together."""

    def __init__(self) -> None:
        self.release: list[TableId] = []
        self.stop: list[TableId] = []
        self.prepare: dict[int, list[AddTable]] = {}  # by group
        self.run: dict[int, list[AddTable]] = {}

    @property
    def commands(self) -> tuple[Command, ...]:
        found: list[Command] = []
        if self.release:
            found.append(Release(tuple(self.release)))
        if self.stop:
            found.append(Stop(tuple(self.stop)))
        found += [Prepare(tuple(requests)) for requests in self.prepare.values()]
        found += [Run(tuple(requests)) for requests in self.run.values()]
        return tuple(found)


def _step(task: _Task, status: TableStatus, work: _Work) -> tuple[TableStatus | None, bool]:
    """Drive a task one step. What is to be said, and whether the task is over."""
    match task.request:
        case AddTable() as request:
            return _add(task, request, status, work)
        case RemoveTable(table):
            match status.state:
                case TableState.ABSENT | TableState.STOPPED:
                    return status, True
                case TableState.STOPPING:
                    return None, False
            if not task.is_begun:
                task.is_begun = True
                work.stop.append(table)
                return replace(status, state=TableState.STOPPING), False
    return None, False


def _add(task: _Task, request: AddTable, status: TableStatus, work: _Work) -> tuple[TableStatus | None, bool]:
    match status.state:
        case TableState.REPLICATING:
            return status, True
        case TableState.STOPPING:
            return status, True  # it comes again when that is over
        case TableState.STOPPED if not task.is_begun:
            work.release.append(request.table)
        case TableState.PREPARED if request.is_secondary:
            return status, True
    if not task.is_begun:
        task.is_begun = True
        (work.prepare if request.is_secondary else work.run).setdefault(task.group, []).append(request)
    elif status.state in _ENDED:
        return status, True  # it was given up meanwhile
    return None, False
