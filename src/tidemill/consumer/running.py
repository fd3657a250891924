"""A consumer from its start to its end: alone, or as one of a group whose others stand by.

    join ─► stand by ──── Kafka gives the group's work to us ────► read the group's state, begin, write …
               ▲                                                                    │
               └── the work is another's: what is at hand is given up, and comes again there ◄──┘

In a group one process at a time reads the topic and writes; the others wait until Kafka takes that one for dead. It may
not be: what it still does from then on is refused, by the sink, whose next term has begun, and by the group's state.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from tidemill.clock import SYSTEM_CLOCK
from tidemill.consumer.alignment import NEVER
from tidemill.consumer.consume import Consume, ConsumeOptions, ConsumerStatus, Shared, sink_of
from tidemill.consumer.group import Group
from tidemill.consumer.group_state import GroupState, ensure_topic
from tidemill.consumer.patience import Patience
from tidemill.consumer.state import ConsumerDir
from tidemill.consumer.topic import parse_topic
from tidemill.errors import DataDirError, EngineError, StoppedError, SupersededError
from tidemill.log import get_logger
from tidemill.model.ts import Ts

log = get_logger("consumer")

STANDING_BY = "standing by"  # the stage of a member without work
_POLL_SECONDS = 0.05
# Who was superseded may not have heard from Kafka yet that the work is another's, and would take it back.
_TO_HEAR_SECONDS = 5.0


def _silent(text: str) -> None:
    """Nobody is told."""


class Member:
    """One process of a group. Like ``Consume``, for as long as it has the work; else it stands by."""

    def __init__(self, options: ConsumeOptions, group: str, say: Callable[[str], None] = _silent) -> None:
        self._options, self._say = options, say
        self._kafka = parse_topic(options.kafka_uri)
        self._name = group
        self._dir = ConsumerDir(options.data_dir)
        self._stopping = threading.Event()
        self._should_stop: Callable[[], bool] = self._stopping.is_set
        self._group: Group | None = None
        self._state: GroupState | None = None
        self._feed: Consume | None = None
        self._is_told = False
        self.last = ConsumerStatus("stopped", 0, 0, 0, 0, NEVER, NEVER)
        self._not_before = 0.0  # by the clock
        sink_of(options)  # what cannot be written so is refused at once, not when the work is ours

    def start(self, should_stop: Callable[[], bool]) -> None:
        """Joins the group."""
        self._should_stop = lambda: should_stop() or self._stopping.is_set()
        self._dir.acquire()
        if self._dir.has_state:
            raise DataDirError(
                f"{self._dir.shown} has the state of a consumer that was alone, and the state of a group is in Kafka. "
                "Choose another --data-dir, or leave --group out."
            )
        Patience(self._say, self._should_stop)(lambda: ensure_topic(self._kafka, self._name))
        self._group = Group(self._kafka, self._name)
        self._group.join()

    def poll(self) -> None:
        """Like ``Consume.poll`` where the work is ours; else waits a moment for it."""
        assert self._group is not None
        is_mine = self._group.is_mine
        if self._feed is not None and not is_mine:
            self._give_up("Kafka has given it to another")
        try:
            if self._feed is not None:
                self._feed.poll()
            elif is_mine and SYSTEM_CLOCK.monotonic() >= self._not_before:
                self._take_over(self._group)
            else:
                self._stand_by()
        except SupersededError as error:
            self._give_up(str(error))
        except (StoppedError, EngineError):
            if self._should_stop() or self._group.is_mine:
                raise
            self._give_up("Kafka has given it to another")

    def is_at(self, ts: Ts) -> bool:
        return self._feed is not None and self._feed.is_at(ts)

    def status(self) -> ConsumerStatus:
        return self.last if self._feed is None else self._feed.status()

    def stop(self) -> None:
        self._stopping.set()
        if self._feed is not None:
            self._feed.stop()

    def drain(self) -> None:
        """``SupersededError`` cannot hurt any more: what was not saved, another one does."""
        if self._feed is not None:
            try:
                self._feed.drain()
            except SupersededError as error:
                raise StoppedError(str(error)) from error

    def close(self) -> None:
        """The others hear of it when nothing is under way any more."""
        self._stopping.set()
        with ExitStack() as stack:  # the last one first
            stack.callback(self._dir.release)
            if self._group is not None:
                stack.callback(self._group.leave)
            stack.callback(self._let_go)

    def _stand_by(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(f"standing by: another process has the work of group {self._name}, or it is about to be given")
        self.last = ConsumerStatus(STANDING_BY, self.last.rows, self.last.ddls, 0, 0, self.last.applied_ts, NEVER)
        self._stopping.wait(_POLL_SECONDS)

    def _take_over(self, group: Group) -> None:
        def should_stop() -> bool:
            return self._should_stop() or not group.is_mine

        self._state = state = GroupState(self._kafka, self._name, should_stop)
        state.begin()
        self._say(f"group {self._name}: the work is ours")
        self._feed = Consume(self._options, self._say, Shared(state, group.tell))
        self._feed.start(should_stop)

    def _give_up(self, why: str) -> None:
        log.warning("the group's work is given up", group=self._name, reason=why)
        self._say(f"group {self._name}: the work is given up: {why}")
        self._is_told = False
        self._let_go()
        self._not_before = SYSTEM_CLOCK.monotonic() + _TO_HEAR_SECONDS

    def _let_go(self) -> None:
        feed, state = self._feed, self._state
        self._feed = self._state = None
        with ExitStack() as stack:
            if state is not None:
                stack.callback(state.close)
            if feed is not None:
                stack.callback(lambda: setattr(self, "last", feed.last))
                stack.callback(feed.close)


def open_consumer(options: ConsumeOptions, say: Callable[[str], None] = _silent) -> Consume | Member:
    """Not started yet. ``close`` it in any case."""
    return Consume(options, say) if options.group is None else Member(options, options.group, say)


def consuming(options: ConsumeOptions, until_ts: Ts | None = None) -> Iterator[ConsumerStatus]:
    """A consumer as a library has it: where it is, again and again, until all up to ``until_ts`` is written. Whoever
    leaves the loop earlier stops it; the next run continues from its data-dir."""
    feed = open_consumer(options)
    try:
        feed.start(lambda: False)
        while not (until_ts is not None and feed.is_at(until_ts)):
            feed.poll()
            yield feed.status()
        feed.stop()
        feed.drain()
        yield feed.status()
    finally:
        feed.close()
