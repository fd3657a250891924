"""DDLs that have not run yet, and which tables wait for them. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidemill.model.ts import Ts


@dataclass(frozen=True, slots=True)
class Pending:
    """A DDL that has not run, and the physical ids that it touches. Several may have one ts."""

    ts: Ts
    touched: frozenset[int]


@dataclass(frozen=True, slots=True)
class Barriers:
    """Of the DDLs that have not run: the first one, and for each physical id the first that touches it."""

    first: Pending | None = None
    by_id: Mapping[int, Ts] = field(default_factory=dict)

    @classmethod
    def of(cls, pending: Iterable[Pending]) -> "Barriers":
        """``pending`` in the order in which they run."""
        queue = BarrierQueue()
        queue.extend(pending)
        return queue.barriers


class BarrierQueue:
    """The same for a queue that grows and shrinks: what it costs depends on what one DDL touches, not on how many wait.

    ``barriers`` shows the queue as it is now; ask again after a change.
    """

    def __init__(self) -> None:
        self._pending: deque[Pending] = deque()
        self._waiting: dict[int, deque[Ts]] = {}  # by physical id: the DDLs that touch it
        self._by_id: dict[int, Ts] = {}  # the first of each

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Pending]:
        """In the order in which they run."""
        return iter(self._pending)

    @property
    def barriers(self) -> Barriers:
        return Barriers(self._pending[0] if self._pending else None, self._by_id)

    def extend(self, pending: Iterable[Pending]) -> None:
        """In the order in which they run, after those that are there."""
        for each in pending:
            self._pending.append(each)
            for physical_id in each.touched:
                self._waiting.setdefault(physical_id, deque()).append(each.ts)
                self._by_id.setdefault(physical_id, each.ts)

    def pop(self) -> Pending:
        """The first one has run."""
        done = self._pending.popleft()
        for physical_id in done.touched:
            waiting = self._waiting[physical_id]
            waiting.popleft()
            if waiting:
                self._by_id[physical_id] = waiting[0]
            else:
                del self._waiting[physical_id], self._by_id[physical_id]
        return done

    def pop_until(self, ts: Ts) -> bool:
        """Those up to ``ts`` have run; whether there were any."""
        before = len(self._pending)
        while self._pending and self._pending[0].ts <= ts:
            self.pop()
        return len(self._pending) < before
