"""Transactions that wait for each other's locks, and the circles that must not form."""

import threading
from collections import defaultdict

from tidebox.txn.errors import DeadlockError, Wait


class LockWaits:
    """Everything here is done under the cluster's mutex; only waiting lets go of it."""

    def __init__(self, mutex: threading.RLock) -> None:
        self._released = threading.Condition(mutex)
        self._waits: dict[int, list[Wait]] = defaultdict(list)  # by who waits

    def wait(self, wait: Wait, seconds: float) -> None:
        """Until some lock is released, or the time is up. ``DeadlockError`` if the holder waits for this one."""
        chain = self._chain(wait.holder_ts, wait.start_ts, set())
        if chain is not None:
            raise DeadlockError(wait, chain)
        self._waits[wait.start_ts].append(wait)
        try:
            self._released.wait(seconds)
        finally:
            self._waits[wait.start_ts].remove(wait)
            if not self._waits[wait.start_ts]:
                del self._waits[wait.start_ts]

    def release(self) -> None:
        """Locks are gone: whoever waits looks again."""
        if self._waits:
            self._released.notify_all()

    def waiting(self) -> set[int]:
        """The transactions that wait, by their start-ts."""
        return set(self._waits)

    def _chain(self, start_ts: int, goal_ts: int, seen: set[int]) -> list[Wait] | None:
        """How ``start_ts`` waits for ``goal_ts``, step by step; None if it does not."""
        if start_ts == goal_ts:
            return []
        seen.add(start_ts)
        for wait in self._waits.get(start_ts, ()):
            if wait.holder_ts in seen:
                continue
            rest = self._chain(wait.holder_ts, goal_ts, seen)
            if rest is not None:
                return [wait, *rest]
        return None
