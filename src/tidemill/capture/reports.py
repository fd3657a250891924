"""What a lane has told its owner, and what of that is durable."""

import asyncio
from collections import deque
from typing import Any

from tidemill.capture.link import OwnerLink
from tidemill.errors import SupersededError
from tidemill.model.orders import Assignment, Obeyed, Report
from tidemill.model.progress import Checkpoints


class Reports:
    """Of one lane, numbered. Runs on the lane's loop."""

    def __init__(self, lane: str, link: OwnerLink) -> None:
        self._lane, self._link = lane, link
        self._made = 0
        self._pending: deque[tuple[int, Checkpoints]] = deque()  # not known to be durable
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._is_over = False
        self.last: Checkpoints | None = None
        self.last_obeyed = Obeyed()

    def make(self, assignment: Assignment, at: Checkpoints, ids: frozenset[int], obeyed: Obeyed, **what: Any) -> int:
        """Tell the owner; returns the report's number. ``what`` else it says: see ``Report``."""
        self._made, self.last, self.last_obeyed = self._made + 1, at, obeyed
        self._pending.append((self._made, at))
        self._link.report(Report(self._lane, self._made, assignment, at, ids, obeyed=obeyed, **what))
        return self._made

    def is_news(self, at: Checkpoints, obeyed: Obeyed) -> bool:
        """Whether the owner has not been told."""
        last = self.last_obeyed
        now, told = ((each.sync_ts, each.epoch, each.resolved_ts) for each in (obeyed, last))
        return at != self.last or now != told

    async def durable(self, number: int) -> None:
        """Wait until the owner has saved it. Raises SupersededError where it saves nothing any more."""
        if self._is_over:
            raise _over()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, future))
        await future

    def saved(self, number: int) -> Checkpoints | None:
        """All up to this one are durable: where the tables were in the last of them; None: that was known."""
        at = None
        while self._pending and self._pending[0][0] <= number:
            at = self._pending.popleft()[1]
        for each, future in self._waiting:
            if each <= number and not future.done():
                future.set_result(None)
        self._waiting = [(each, future) for each, future in self._waiting if not future.done()]
        return at

    def give_up(self) -> None:
        """Nothing is saved any more, and nothing will be."""
        self._is_over = True
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(_over())
        self._waiting = []


def _over() -> SupersededError:
    return SupersededError("the owner has stopped; what it has not saved comes again.")
