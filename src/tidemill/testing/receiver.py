"""A ``ChangeReceiver`` that remembers, and notices when a promise made to it is broken."""

import asyncio
from collections import defaultdict

import pyarrow as pa

from tidemill.model.change import are_changes
from tidemill.model.ts import Ts

Change = tuple[bytes, int, int, int, bytes, bytes]  # key, commit_ts, start_ts, op, value, old_value


class RecordingReceiver:
    """Keeps every change once, like a sorter, and counts the copies.

    ``broken_promises`` names what must never happen: a frontier that goes back or stays, a change
    that comes for the first time at or below the frontier, a copy that differs from the first.
    """

    def __init__(self) -> None:
        self.changes: dict[int, dict[tuple[bytes, int], Change]] = defaultdict(dict)
        self.resolved: dict[int, list[Ts]] = defaultdict(list)
        self.copies = 0
        self.broken_promises: list[str] = []
        self.gate = asyncio.Event()  # cleared by a test that wants the receiver to be slow
        self.gate.set()
        self.is_waiting = asyncio.Event()
        self._moved = asyncio.Event()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        if not self.gate.is_set():
            self.is_waiting.set()
        await self.gate.wait()
        if not are_changes(changes.schema):
            self.broken_promises.append(f"a batch of another schema: {changes.schema}")
        for row in changes.to_pylist():
            change = (row["key"], row["commit_ts"], row["start_ts"], row["op"], row["value"], row["old_value"])
            self._keep(subscription, change)

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        if resolved_ts <= self.resolved_ts(subscription):
            self.broken_promises.append(f"the frontier went from {self.resolved_ts(subscription)} to {resolved_ts}")
        self.resolved[subscription].append(resolved_ts)
        self._moved.set()

    def resolved_ts(self, subscription: int) -> Ts:
        reached = self.resolved[subscription]
        return reached[-1] if reached else Ts(0)

    def up_to(self, subscription: int, ts: int) -> list[Change]:
        """The changes at or below ``ts`` in the order of commits."""
        kept = self.changes[subscription].values()
        return sorted((c for c in kept if c[1] <= ts), key=lambda c: (c[1], c[2], c[0]))

    async def wait_resolved(self, subscription: int, ts: int, seconds: float = 30.0) -> None:
        """Until the frontier has reached ``ts``."""
        async with asyncio.timeout(seconds):
            while self.resolved_ts(subscription) < ts:
                self._moved.clear()
                await self._moved.wait()

    def _keep(self, subscription: int, change: Change) -> None:
        known = self.changes[subscription].setdefault(change[:2], change)
        if known is not change:
            self.copies += 1
            if known != change:
                self.broken_promises.append(f"a copy of {change[0]!r}@{change[1]} differs from the first")
        elif change[1] <= self.resolved_ts(subscription):
            self.broken_promises.append(f"{change[0]!r}@{change[1]} came after its resolved-ts")
