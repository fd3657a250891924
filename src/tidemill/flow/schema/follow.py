"""Which physical tables a changefeed reads, and between which ts.

Rows of a physical id belong to the changefeed iff ``since_ts < commit_ts ≤ until_ts``. Ids come and go
with DDLs; the same id may have several intervals (a table dropped and recovered).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemill.model.ts import Ts


@dataclass(frozen=True, slots=True)
class Followed:
    """One interval of one physical id.

    ``begin_ts`` is where a batch may first contain it. It differs from ``since_ts`` for the new ids of
    TRUNCATE PARTITION alone: sessions write them while the job still runs, but downstream those rows
    must come after the truncation. So the batch that starts exactly at ``begin_ts`` takes the rows of
    ``(since_ts, to]``, a later batch those of ``(from, to]``. None: the job is not done yet.
    """

    physical_id: int
    since_ts: Ts
    until_ts: Ts | None = None  # None: still followed
    begin_ts: Ts | None = None

    def __contains__(self, commit_ts: int) -> bool:
        return self.since_ts < commit_ts and (self.until_ts is None or commit_ts <= self.until_ts)

    def rows_of(self, from_ts: int, to_ts: int) -> tuple[Ts, Ts] | None:
        """The commit-ts ``(low, high]`` that a batch ``(from_ts, to_ts]`` takes of this id; None: nothing.

        The caller cuts its batches at every ``SchemaChange``, so a batch never straddles ``begin_ts``.
        """
        if self.begin_ts is None or to_ts <= self.begin_ts:
            return None
        low = self.since_ts if from_ts == self.begin_ts else max(Ts(from_ts), self.since_ts)
        high = Ts(to_ts) if self.until_ts is None else min(Ts(to_ts), self.until_ts)
        return (low, high) if low < high else None


class Follower:
    """The intervals, and what has changed since ``take_changes`` was last called."""

    def __init__(self) -> None:
        self._active: dict[int, Followed] = {}
        self._ended: list[Followed] = []
        self._started_now: dict[int, Followed] = {}
        self._ended_now: list[Followed] = []
        self._replayed: list[Followed] = []

    def start(self, physical_id: int, since_ts: Ts, begin_ts: Ts | None) -> None:
        """Follow an id, or let one begin whose job is done now; nothing if it is followed already."""
        active = self._active.get(physical_id)
        if active is not None and (active.begin_ts is not None or begin_ts is None):
            return
        since_ts = active.since_ts if active else since_ts
        self._active[physical_id] = self._started_now[physical_id] = Followed(physical_id, since_ts, begin_ts=begin_ts)

    def end(self, physical_id: int, until_ts: Ts) -> None:
        active = self._active.pop(physical_id, None)
        if active is None:
            return
        self._started_now.pop(physical_id, None)
        ended = replace(active, until_ts=until_ts)
        self._ended_now.append(ended)
        if active.begin_ts is not None and active.since_ts < until_ts:
            self._ended.append(ended)

    def reopen(self, physical_ids: Iterable[int], since_ts: Ts) -> None:
        """Let ids that are followed take rows from ``since_ts`` on, below the ts at which they begin."""
        for physical_id in physical_ids:
            active = self._active.get(physical_id)
            if active is not None:
                self._active[physical_id] = self._started_now[physical_id] = replace(active, since_ts=since_ts)

    def change(self, before: Iterable[int], after: Iterable[int], ts: Ts) -> None:
        """At ``ts`` the ids ``after`` take the place of ``before``; those in both go on."""
        after = set(after)
        for physical_id in sorted(set(before) - after):
            self.end(physical_id, ts)
        for physical_id in sorted(after):
            self.start(physical_id, ts, ts)

    def replay(self, physical_ids: Iterable[int], since_ts: Ts, ts: Ts) -> None:
        """Rows of ``(since_ts, ts]``, which are delivered as they come, are to be delivered again behind ``ts``."""
        self._replayed += [Followed(i, since_ts, ts, ts) for i in physical_ids if i in self._active]

    def take_changes(self) -> tuple[tuple[Followed, ...], tuple[Followed, ...]]:
        """(started or begun, ended) since the last call."""
        changes = tuple(self._started_now.values()), tuple(self._ended_now)
        self._started_now, self._ended_now = {}, []
        return changes

    def intervals(self) -> list[Followed]:
        return sorted([*self._ended, *self._active.values()], key=lambda f: (f.physical_id, f.since_ts))

    def replayed(self) -> list[Followed]:
        """What is to be delivered a second time, by the batch that starts at ``begin_ts``."""
        return list(self._replayed)

    def is_followed(self, physical_id: int) -> bool:
        return physical_id in self._active

    def gc(self, ts: Ts) -> None:
        self._ended = [f for f in self._ended if f.until_ts is not None and f.until_ts > ts]
        self._replayed = [f for f in self._replayed if f.begin_ts is not None and f.begin_ts >= ts]
