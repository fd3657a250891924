"""An agent at work: what a capture does for one changefeed, whoever owns it.

    letters ──► Agent (control.scheduler) ── commands ──► TableExecutor ──► SpanProcessor, on this machine's Spark
    owner ◄── letters ── its answers, and what the lanes report

Another owner means another processor: the one before is closed, and fenced by the new owner before it gives its tables
to anybody. A name of a lane is used once, in the whole life of a changefeed.
"""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial

from tidemill.capture.cluster.executor import TableExecutor
from tidemill.capture.cluster.guarding import Check
from tidemill.capture.cluster.link import PostedLink
from tidemill.capture.cluster.watching import LaneWatch
from tidemill.capture.cluster.workplace import Workplace
from tidemill.capture.lanes import RunningLane
from tidemill.capture.peers.letters import Body, Failed, Letter, letter_of
from tidemill.capture.processor import SpanProcessor
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.scheduler.agent import Agent, Reset
from tidemill.errors import SupersededError, TidemillError
from tidemill.log import get_logger
from tidemill.model.schedule import CaptureId, ChangefeedKey, Header, TableId
from tidemill.model.ts import Ts

log = get_logger("agent")

_SAY_AGAIN_SECONDS = 1.0


class _Work:
    """For one owner."""

    def __init__(
        self, name: str, workplace: Workplace, send: Callable[[Body], None], check: Check, clock: Clock
    ) -> None:
        self.name, self._check = name, check
        self.link = PostedLink(send, self._forget)
        self._workplace = workplace
        self.executor = TableExecutor(self._open)
        self.watch = LaneWatch(send, clock)

    def _forget(self, ts: Ts) -> None:
        """Of the schema. What is being prepared is behind what the owner knows of."""
        self._workplace.forget(min(ts, self.executor.lowest_ts))

    async def _open(self) -> SpanProcessor:
        await self.link.opened()
        builder = await self._workplace.builder(self.link, self._check)
        await self.link.opened(self._workplace.ddl_ts)
        return SpanProcessor(self.name, builder)

    async def close(self) -> None:
        self.link.close()
        await self.executor.close()


class FollowedFeed:
    """Runs on the capture's loop. ``close`` it in any case."""

    def __init__(
        self,
        capture: CaptureId,
        changefeed: ChangefeedKey,
        epoch: int,
        workplace: Workplace,
        post: Callable[[Letter], None],
        check: Callable[[int], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``check``: raises where this capture may not write any more for the owner of a term."""
        self._capture, self.changefeed, self.epoch = capture, changefeed, epoch
        self._workplace, self._post, self._check, self._clock = workplace, post, check, clock
        self._agent = Agent(capture, changefeed, epoch, _new_birth(clock))
        self._owner: CaptureId | None = None
        self._revision = 0
        self._work: _Work | None = None
        self._closing: set[asyncio.Task[None]] = set()  # work for owners before
        self._said_at = 0.0

    @property
    def failure(self) -> BaseException | None:
        at_work = self._work.executor.failure if self._work is not None else None
        return at_work or self._workplace.failure

    @property
    def lanes(self) -> list[RunningLane]:
        processor = self._work.executor.processor if self._work is not None else None
        return list(processor.lanes) if processor is not None else []

    @property
    def holds_nothing(self) -> bool:
        """No table of it is written or prepared here."""
        return self._work is None or not self._work.executor.holdings.tables

    def tables(self) -> tuple[TableId, ...]:
        return tuple(sorted(self._work.executor.holdings.tables)) if self._work is not None else ()

    def stop(self) -> None:
        """Tell the owner that this capture is about to end."""
        self._agent.is_stopping = True

    def hear(self, letter: Letter) -> None:
        """Letters of another owner's term, or for a processor of another, have no effect."""
        header, message = letter.header, letter.message
        if header.changefeed_epoch != self.epoch or header.owner_revision < self._revision:
            return
        if message is not None:
            commands = self._agent.receive(message)
            if header.owner_revision > self._revision:
                self._owner, self._revision = letter.sender, header.owner_revision
                self._begin_anew()
            for command in commands:
                if self._work is not None and not isinstance(command, Reset):
                    self._work.executor.obey(command)
            self.poll()
        elif self._work is not None and header.processor_epoch == self._work.name:
            self._work.link.hear(letter.body)

    def _begin_anew(self) -> None:
        self._end_work()
        check = partial(self._check, self._revision)
        self._work = _Work(self._agent.epoch, self._workplace, self._send, check, self._clock)

    def _end_work(self) -> None:
        if self._work is not None:
            self._work.executor.leave()
            task = asyncio.create_task(self._work.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._work = None

    def _send(self, body: Body) -> None:
        if self._owner is not None and self._work is not None:
            header = Header(self._revision, self.epoch, self._work.name)
            self._post(Letter(header, self.changefeed, self._capture, self._owner, body))

    def poll(self) -> None:
        """To be called regularly."""
        work = self._work
        if work is None:
            return
        failure = self.failure
        if isinstance(failure, SupersededError):
            self._be_another()
            return
        if failure is not None:
            self._say_failure(failure)
        work.watch.poll(self.lanes)
        commands, messages = self._agent.poll(work.executor.holdings)
        for command in commands:
            work.executor.obey(command)
        for message in messages:
            self._post(letter_of(message))

    def _be_another(self) -> None:
        """The owner has fenced this processor, as one that is gone. A new one begins with nothing."""
        log.warning("a processor was fenced; another one begins", changefeed=str(self.changefeed))
        is_stopping = self._agent.is_stopping
        self._end_work()
        self._agent = Agent(self._capture, self.changefeed, self.epoch, _new_birth(self._clock))
        self._agent.is_stopping = is_stopping
        self._owner, self._revision = None, 0  # the next heartbeat tells

    def _say_failure(self, failure: BaseException) -> None:
        """Again and again: it is for the owner to decide."""
        now = self._clock.monotonic()
        if now - self._said_at >= _SAY_AGAIN_SECONDS:
            self._said_at = now
            is_ours = isinstance(failure, TidemillError)
            log.error("a processor has ended", changefeed=str(self.changefeed), reason=str(failure))
            code = failure.code if isinstance(failure, TidemillError) else "internal"
            message = str(failure) if is_ours else f"{type(failure).__name__}: {failure}"
            self._send(Failed(code, message, failure.retryable if isinstance(failure, TidemillError) else True))

    def debug_state(self) -> dict[str, object]:
        """For people."""
        return {
            "epoch": self.epoch,
            "term": self._revision,
            "processor": self._work.name if self._work is not None else "",
            "failure": str(self.failure or ""),
            "tables": {
                str(table): f"{status.state.name} {status.checkpoint_ts} {status.resolved_ts}"
                for table, status in (self._work.executor.holdings.tables.items() if self._work is not None else ())
            },
            "lanes": {
                running.lane.name: f"{running.lane.assignment} {running.lane.progress}" for running in self.lanes
            },
        }

    async def close(self) -> None:
        """Nothing of it is written any more when this returns, but for what tasks on other machines still do."""
        self._end_work()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._workplace.close()


def _new_birth(clock: Clock) -> str:
    """Later ones on this capture are above it, as text."""
    return f"{int(clock.monotonic() * 1_000_000):016x}{secrets.token_hex(3)}"
