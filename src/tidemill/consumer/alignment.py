"""Which rows may be written, and which DDL may run, as far as the partitions of a topic have been read. Pure.

A Resolved with ts T in a partition promises that all of its rows up to T stand before it; a DDL at F promises the same
for F. The highest of them is the partition's *frontier*. Above what has been written, rows up to a frontier may be:

    transactions   of all partitions up to the lowest frontier: whole transactions, wherever their rows are
    rows           of each partition up to its own

Rows of a table with several unique keys may meet across partitions: a late one could take the place of another that
holds the same value by now. Where there are such tables, and whoever writes them does not tell of meetings, partitions
go together also by rows.

All stop at a DDL: rows up to it first, of all partitions; then the DDL, once; then the rest. An Admin event changes the
number of partitions in use: rows up to its ts first, of all that were; then those that are. In between a row moves from
one partition to another, so no partition passes its ts before. One that was added later cannot have seen the earlier
ones: it has seen an epoch where the first that it has seen is that or a later one.

A *meeting* at a ts: a value of a unique key passes from a row in one partition to a row in another. It holds back
nobody up to there, and everybody beyond before all are there. What all partitions have resolved is written in the order
of its ts whatever partition it is from, so meetings below the lowest frontier cost nothing; and none is needed where
partitions go together.

Partitions that are not in use may be read all the same, and speak; nobody waits for them.

Topics hold copies. What is at or below what has been written counts for nothing, and a DDL runs once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tidemill.model.event import AdminSeen, DdlSeen, ResolvedSeen
from tidemill.model.ts import MAX_TS, Ts

NEVER = Ts(0)


class Consistency(Enum):
    TRANSACTION = "transaction"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Position:
    """What has been done: it survives a restart. ``ddl_ts``: all DDLs below it have run, and at it those of ``done``.
    ``done`` are identities, in the order in which they ran."""

    applied: Mapping[int, Ts] = field(default_factory=dict)  # by partition: rows up to here have been written
    ddl_ts: Ts = NEVER
    done: tuple[str, ...] = ()
    epoch: int = 0  # of the last Admin event

    @property
    def lowest_ts(self) -> Ts:
        return min(self.applied.values(), default=NEVER)


@dataclass(frozen=True, slots=True)
class Due:
    """A DDL; ``seq`` orders those of one ts."""

    ddl: DdlSeen
    seq: int

    @property
    def identity(self) -> str:
        return identity_of(self.ddl)


@dataclass(frozen=True, slots=True)
class Write:
    """Rows of each of these partitions up to the ts may be written. Less may be done, as long as all end alike where
    they are to be whole transactions."""

    to: Mapping[int, Ts]


@dataclass(frozen=True, slots=True)
class RunDdl:
    """``nth``: so many of its ts have run before. Sinks know a DDL by it, so it is the same after a restart."""

    due: Due
    nth: int


@dataclass(frozen=True, slots=True)
class Repartition:
    """All partitions have seen it, and what goes before it is written: from here on there are ``partitions``."""

    admin: AdminSeen


Step = Write | RunDdl | Repartition


def identity_of(ddl: DdlSeen) -> str:
    return f"{ddl.schema}\x00{ddl.table}\x00{ddl.query}"


class DdlNumbers:
    """Of the DDLs of one ts, as they follow each other in a partition; a copy has the number of the first."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Ts, list[str]]] = {}  # by partition: those of its last ts

    def of(self, partition: int, ddl: DdlSeen) -> int:
        ts, seen = self._seen.get(partition, (ddl.ts, []))
        if ts != ddl.ts:
            seen = []
        self._seen[partition] = ddl.ts, seen
        identity = identity_of(ddl)
        if identity not in seen:
            seen.append(identity)
        return seen.index(identity)


class Alignment:
    """Of the partitions of one topic. No clock, no socket, no lock."""

    def __init__(
        self, partitions: Iterable[int], position: Position, consistency: Consistency, *, ddls_in_first_only: bool
    ) -> None:
        """``ddls_in_first_only``: the protocol tells of DDLs in partition 0 alone."""
        self._is_together = consistency is Consistency.TRANSACTION
        self._ddls_in_first_only = ddls_in_first_only
        start_ts = position.lowest_ts
        self.position = replace(position, applied={p: position.applied.get(p, start_ts) for p in partitions})
        self._frontier = dict(self.position.applied)
        self._pending: list[Due] = []  # in the order in which they run
        self._admins: dict[int, tuple[AdminSeen, Ts]] = {}  # by epoch, with where it cuts
        self._meetings: set[Ts] = set()  # where not all have been
        self._epochs: dict[int, int] = {}  # by partition: the last epoch that it has seen

    @property
    def partitions(self) -> frozenset[int]:
        """Those in use."""
        return frozenset(self.position.applied)

    def frontier_ts(self, partition: int) -> Ts:
        return self._frontier.get(partition, NEVER)

    @property
    def lowest_frontier_ts(self) -> Ts:
        return min(self.frontier_ts(p) for p in self.position.applied)

    def applied_ts(self, partition: int) -> Ts:
        """Rows of it up to here have been written; of one that is not in use, all that there were when it was."""
        return self.position.applied.get(partition, self.position.lowest_ts)

    def epoch(self, partition: int) -> int:
        """The last that it has seen."""
        return max(self.position.epoch, self._epochs.get(partition, 0))

    @property
    def pending(self) -> tuple[Due, ...]:
        return tuple(self._pending)

    def hold_together(self) -> None:
        """From here on all partitions are written up to the same ts, also by rows: some may meet across partitions."""
        self._is_together = True
        self._meetings.clear()

    # What the partitions say.

    def resolve(self, partition: int, seen: ResolvedSeen) -> None:
        """One that goes back is an old one, told again."""
        self._advance(partition, seen.ts)

    def learn(self, partition: int, seen: DdlSeen, nth: int) -> None:
        """``nth``: of the DDLs with this ts, as the partition has them in a row."""
        self._advance(partition, seen.ts)
        if not seen.query or self._has_run(seen):
            return
        due = Due(seen, nth)
        if any(each.ddl.ts == seen.ts and each.identity == due.identity for each in self._pending):
            return
        self._pending.append(due)
        self._pending.sort(key=lambda each: (each.ddl.ts, each.seq))

    def admit(self, partition: int, seen: AdminSeen) -> None:
        """Without a ts it cuts where the partition is that tells of it first."""
        if seen.epoch <= self.position.epoch:
            return
        _, cut_ts = self._admins.setdefault(
            seen.epoch, (seen, self.frontier_ts(partition) if seen.ts is None else seen.ts)
        )
        self._epochs[partition] = max(self._epochs.get(partition, 0), seen.epoch)
        self._advance(partition, cut_ts)

    def meet(self, ts: Ts) -> None:
        """Whatever partition tells of it. It stands there before anything that resolves rows above it."""
        if not self._is_together and ts > self.position.lowest_ts:
            self._meetings.add(ts)

    def is_met(self, ts: Ts) -> bool:
        return ts not in self._meetings

    def _has_run(self, seen: DdlSeen) -> bool:
        at = self.position
        return seen.ts < at.ddl_ts or (seen.ts == at.ddl_ts and identity_of(seen) in at.done)

    def _advance(self, partition: int, ts: Ts) -> None:
        self._frontier[partition] = max(self.frontier_ts(partition), ts)

    # What may be done.

    def step(self) -> Step | None:
        """None: nothing before more has been read."""
        to = self._writable()
        if to:
            return Write(to)
        applied, due = self.position.applied, self._pending[0] if self._pending else None
        if due is not None and all(ts >= due.ddl.ts for ts in applied.values()):
            return RunDdl(due, len(self.position.done) if due.ddl.ts == self.position.ddl_ts else 0)
        if self._admins:
            epoch, (admin, cut_ts) = min(self._admins.items())
            if all(ts >= cut_ts and self.epoch(p) >= epoch for p, ts in applied.items()):
                return Repartition(admin)
        return None

    def _writable(self) -> dict[int, Ts]:
        stop_ts = self._pending[0].ddl.ts if self._pending else MAX_TS
        if self._admins:
            stop_ts = min(stop_ts, self._admins[min(self._admins)][1])
        limits = {p: min(self.frontier_ts(p), stop_ts) for p in self.position.applied}
        lowest_ts = min(limits.values(), default=NEVER)
        if self._is_together:
            limits = dict.fromkeys(limits, lowest_ts)
        elif self._ddls_in_first_only and 0 in limits:  # another cannot know what is behind a DDL
            limits = {p: min(ts, self._frontier[0]) for p, ts in limits.items()}
        meeting_ts = min((ts for ts in self._meetings if ts >= lowest_ts), default=MAX_TS)
        limits = {p: min(ts, meeting_ts) for p, ts in limits.items()}
        return {p: ts for p, ts in limits.items() if ts > self.position.applied[p]}

    # What has been done.

    def written(self, to: Mapping[int, Ts]) -> None:
        applied = {p: max(ts, to.get(p, NEVER)) for p, ts in self.position.applied.items()}
        self.position = replace(self.position, applied=applied)
        self._meetings = {ts for ts in self._meetings if ts > self.position.lowest_ts}

    def ran(self, due: Due) -> None:
        self._pending.remove(due)
        at = self.position
        done = (*at.done, due.identity) if due.ddl.ts == at.ddl_ts else (due.identity,)
        self.position = replace(at, ddl_ts=due.ddl.ts, done=done)

    def repartitioned(self, admin: AdminSeen) -> None:
        """From here on there are as many partitions as it says. New ones begin where the others are."""
        _, cut_ts = self._admins.pop(admin.epoch)
        applied = {p: self.position.applied.get(p, cut_ts) for p in range(admin.partitions)}
        self._frontier |= {p: max(self.frontier_ts(p), ts) for p, ts in applied.items()}
        self.position = replace(self.position, applied=applied, epoch=admin.epoch)
