"""Holds a topic to what its protocol promises.

    Events of a partition, in order ──► Checker ──► Report: counts, and each promise that was broken, by offset

Partitions may be read at any pace, one ahead of the other. Memory is bounded: once there are more than ``keep`` rows,
those below the resolved-ts of all partitions are forgotten, the oldest first, which replays of a sane producer never
reach. Pure code: it reads no topic itself.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from tidemill.columnar.row_hashes import Hashes, row_hashes
from tidemill.consumer.memory import Memory, Verdict
from tidemill.consumer.report import PartitionReport, Report, Rule, Violation
from tidemill.flow.reader import Events, RowsSeen
from tidemill.model.event import AdminSeen, DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo

Offsets = npt.NDArray[np.int64]
_BROKEN = {
    Verdict.DIFFERENT: (Rule.EXACT_COPIES, "a change appears again and holds something else"),
    Verdict.ELSEWHERE: (Rule.ONE_PARTITION, "the same key appeared in another partition"),
    Verdict.OUT_OF_ORDER: (Rule.COMMIT_ORDER, "a later change of the same key appeared before"),
    Verdict.BELOW_RESOLVED: (Rule.RESOLVED, "a resolved-ts above it appeared before"),
    Verdict.BELOW_DDL: (Rule.DDL, "a DDL above it appeared before"),
}
_ANY_BROKEN = sum(_BROKEN)
_MOST_DDLS = 4096  # that are remembered after all partitions had them
_Ddl = tuple[int, str, str, str]  # ts, schema, table, query


@dataclass(slots=True)
class _Partition:
    messages: int = 0
    rows: int = 0
    ddls: int = 0
    resolved_ts: int = 0  # the highest seen, as are the next two
    ddl_ts: int = 0
    admin_ts: int = 0
    epoch: int = 0
    begin_ts: int | None = None  # the first ts that it was told, if it was added later: DDLs up to it are not its own

    @property
    def told_ts(self) -> int:
        """All DDLs below it should have been seen."""
        return max(self.resolved_ts, self.ddl_ts)


@dataclass(slots=True)
class _Stamps:
    """What a partition was told, message by message: in force for what stands behind it."""

    message: list[int] = field(default_factory=lambda: [-1])
    resolved_ts: list[int] = field(default_factory=list)
    ddl_ts: list[int] = field(default_factory=list)
    epoch: list[int] = field(default_factory=list)

    def note(self, partition: _Partition) -> None:
        self.resolved_ts.append(max(partition.resolved_ts, partition.admin_ts))
        self.ddl_ts.append(partition.ddl_ts)
        self.epoch.append(partition.epoch)


class Checker:
    """``partitions``: how many there are at first. ``keys_stay``: the topic is dispatched by key or by table, so that
    changes of a row stay in one partition; not so by ts. ``broadcasts_ddls``: to all partitions, as all protocols but
    canal-json do."""

    def __init__(
        self,
        partitions: int,
        *,
        keys_stay: bool = True,
        broadcasts_ddls: bool = True,
        keep: int = 1 << 22,
        most_violations: int = 100,
    ) -> None:
        self._partitions = {number: _Partition() for number in range(partitions)}
        self._keys_stay = keys_stay
        self._broadcasts_ddls = broadcasts_ddls
        self._keep = keep
        self._most_violations = most_violations
        self._memory = Memory()
        self._ddls: dict[_Ddl, set[int]] = {}  # in which partitions they were seen
        self._settled: OrderedDict[_Ddl, None] = OrderedDict()  # that were seen everywhere; the oldest are forgotten
        self._settled_ts = 0  # of those forgotten, the highest
        self._cuts: dict[int, int] = {0: 0}  # by epoch: where admin events cut; rows above are dispatched by it
        self._sizes: dict[int, int] = {}  # and how many partitions there are from there on
        self._totals: Counter[str] = Counter()
        self._counts: Counter[Rule] = Counter()
        self._violations: list[Violation] = []

    def observe(self, number: int, offsets: Offsets, events: Events) -> None:
        """The next messages of a partition: their offsets, and what they say."""
        partition = self._partitions.get(number)
        if partition is None:  # added later, so by an admin event
            epoch = max(1, *(each.epoch for each in self._partitions.values()))
            partition = self._partitions[number] = _Partition(begin_ts=0, epoch=epoch)
        if not partition.messages and events.marks and events.marks[0][0] == 0:
            first = events.marks[0][1]
            partition.begin_ts = int(first.ts or 0) if isinstance(first, AdminSeen) else partition.begin_ts
        partition.messages += len(offsets)
        stamps = _Stamps()
        stamps.note(partition)
        for message, mark in events.marks:
            self._take(number, partition, int(offsets[message]), mark)
            stamps.message.append(message)
            stamps.note(partition)
        if events.rows:
            partition.rows += sum(len(seen.rows) for seen in events.rows)
            self._judge(number, offsets, events.rows, stamps)
        if self._memory.changes > self._keep:
            resolved_ts = min(partition.resolved_ts for partition in self._partitions.values())
            has_none = not any(partition.resolved_ts for partition in self._partitions.values())
            self._memory.forget((1 << 64) - 1 if has_none else resolved_ts, self._keep)

    def report(self) -> Report:
        """All that was found so far. DDLs that are not in every partition yet, where reading stopped, are not wrong."""
        highest = max((partition.resolved_ts for partition in self._partitions.values()), default=0)
        told = {number: each.resolved_ts or each.admin_ts for number, each in self._partitions.items()}
        silent = [number for number, ts in told.items() if highest and not ts]
        what = "it has no resolved-ts, and others have"
        more = [Violation(Rule.BROADCAST, number, -1, highest, what) for number in silent]
        counts = self._counts + Counter({Rule.BROADCAST: len(more)})
        waiting = [ddl for ddl, seen in self._ddls.items() if not self._wanting(ddl[0]) <= seen]
        return Report(
            {
                number: PartitionReport(each.messages, each.rows, each.resolved_ts, each.ddls)
                for number, each in sorted(self._partitions.items())
            },
            sum(partition.rows for partition in self._partitions.values()),
            self._totals["duplicates"],
            self._totals["unverifiable"],
            self._totals["ddls"],
            self._totals["resolved"],
            self._totals["resolved went back"],
            self._totals["admin"],
            len(waiting) if self._broadcasts_ddls else 0,
            dict(counts),
            [*self._violations, *more],
        )

    def _violate(self, violation: Violation) -> None:
        self._counts[violation.rule] += 1
        if len(self._violations) < self._most_violations:
            self._violations.append(violation)

    # Marks

    def _take(self, number: int, partition: _Partition, offset: int, mark: Mark) -> None:
        match mark:
            case ResolvedSeen(ts):
                self._totals["resolved"] += 1
                self._totals["resolved went back"] += ts < partition.resolved_ts
                self._begin(partition, ts)
                partition.resolved_ts = max(partition.resolved_ts, ts)
                self._miss(number, partition, offset)
            case DdlSeen() if mark.query:
                self._take_ddl(number, partition, offset, mark)
            case AdminSeen(count, epoch, ts):
                self._totals["admin"] += 1
                partition.epoch = max(partition.epoch, epoch) if epoch else partition.epoch + 1
                partition.admin_ts = max(partition.admin_ts, ts or 0)
                if epoch and ts is not None:
                    self._cuts[epoch], self._sizes[epoch] = ts, count
            case Unreadable(why):
                self._violate(Violation(Rule.READABLE, number, offset, 0, why))
            case _:
                pass  # a schema by itself

    @staticmethod
    def _begin(partition: _Partition, ts: int) -> None:
        if partition.begin_ts == 0:
            partition.begin_ts = ts

    def _take_ddl(self, number: int, partition: _Partition, offset: int, ddl: DdlSeen) -> None:
        self._begin(partition, ddl.ts - 1)
        identity = (int(ddl.ts), ddl.schema, ddl.table, ddl.query)
        partition.ddls += 1
        if identity in self._settled or ddl.ts <= self._settled_ts:
            return  # once more, after a replay
        is_first = identity not in self._ddls
        seen = self._ddls.setdefault(identity, set())
        if number not in seen and ddl.ts < partition.told_ts:
            what = f"a DDL of {ddl.schema}.{ddl.table} behind a DDL or resolved-ts above it"
            self._violate(Violation(Rule.DDL_ORDER, number, offset, ddl.ts, what))
        seen.add(number)
        partition.ddl_ts = max(partition.ddl_ts, ddl.ts)
        if is_first:
            self._totals["ddls"] += 1
            for other, state in self._partitions.items():
                if other != number and state.told_ts > ddl.ts and other in self._wanting(ddl.ts):
                    self._missing(other, -1, identity)
        self._miss(number, partition, offset)
        self._settle()

    def _wanting(self, ts: int) -> set[int]:
        """The partitions that a DDL of this ts should be in. Those beyond the count of its epoch rest."""
        epoch = max(epoch for epoch, cut_ts in self._cuts.items() if cut_ts < ts or not epoch)
        known = {number for number, each in self._partitions.items() if each.begin_ts is None or 0 < each.begin_ts < ts}
        return {number for number in known if number < self._sizes.get(epoch, number + 1)}

    def _miss(self, number: int, partition: _Partition, offset: int) -> None:
        """Note DDLs that this partition has passed without getting them."""
        for ddl, seen in self._ddls.items():
            if number not in seen and ddl[0] < partition.told_ts and number in self._wanting(ddl[0]):
                self._missing(number, offset, ddl)
        self._settle()

    def _missing(self, number: int, offset: int, ddl: _Ddl) -> None:
        self._ddls[ddl].add(number)  # told once
        if self._broadcasts_ddls:
            what = f"a DDL of {ddl[1]}.{ddl[2]} is in other partitions and not in this one"
            self._violate(Violation(Rule.BROADCAST, number, offset, ddl[0], what))

    def _settle(self) -> None:
        """Forget DDLs that all partitions have passed."""
        passed = min(partition.told_ts for partition in self._partitions.values())
        for ddl in [ddl for ddl, seen in self._ddls.items() if ddl[0] < passed and self._wanting(ddl[0]) <= seen]:
            del self._ddls[ddl]
            self._settled[ddl] = None
            if len(self._settled) > _MOST_DDLS:
                self._settled_ts = max(self._settled_ts, self._settled.popitem(last=False)[0][0])

    # Rows

    def _judge(self, number: int, offsets: Offsets, some: Sequence[RowsSeen], stamps: _Stamps) -> None:
        """All rows of some messages, of whatever tables, in their order."""
        order = np.argsort(np.concatenate([s.message if s.order is None else s.order for s in some]), kind="stable")
        hashes = [self._hashes(number, seen.rows) for seen in some]
        message = np.concatenate([seen.message for seen in some])[order]
        commit_ts = np.concatenate([seen.rows.commit_ts for seen in some])[order]
        # A mark is in force for the messages behind its own.
        before = np.searchsorted(stamps.message, message, side="left") - 1
        verdicts = self._memory.judge(
            np.concatenate([keys for keys, _ in hashes])[order],
            np.concatenate([contents for _, contents in hashes])[order],
            commit_ts,
            np.concatenate([seen.rows.op for seen in some])[order],
            number,
            self._epochs(commit_ts, np.array(stamps.epoch, np.int64)[before]),
            np.array(stamps.resolved_ts, np.uint64)[before],
            np.array(stamps.ddl_ts, np.uint64)[before],
        )
        self._totals["duplicates"] += int(((verdicts & Verdict.DUPLICATE) != 0).sum())
        self._totals["unverifiable"] += int(((verdicts & Verdict.FORGOTTEN) != 0).sum())
        ends = np.cumsum([len(seen.rows) for seen in some])
        for row in np.flatnonzero(verdicts & _ANY_BROKEN).tolist():
            table = some[int(np.searchsorted(ends, order[row], side="right"))].rows.table
            for bit, (rule, what) in _BROKEN.items():
                if verdicts[row] & bit:
                    told = f"{what} (a row of table {table.full_name})"
                    self._violate(Violation(rule, number, int(offsets[message[row]]), int(commit_ts[row]), told))

    def _epochs(self, commit_ts: npt.NDArray[np.uint64], told: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """By which dispatch each row goes: where admin events say at which ts they cut, a copy of a row below it goes
        by the one before, wherever it stands."""
        if len(self._cuts) == 1:
            return told
        epochs = sorted(self._cuts)
        cuts = np.array([self._cuts[epoch] for epoch in epochs], np.uint64)
        place = np.maximum(np.searchsorted(cuts, commit_ts, side="left") - 1, 0)
        found: npt.NDArray[np.int64] = np.array(epochs, np.int64)[place]
        return found

    def _hashes(self, number: int, rows: RowBatch) -> tuple[Hashes, Hashes]:
        keys, contents = _hashes(rows)
        if not self._keys_stay or not rows.table.handle_key:
            keys = keys ^ np.uint64((number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
        return keys, contents


def _hashes(rows: RowBatch) -> tuple[Hashes, Hashes]:
    """Of each change: its key, and all that it holds. Columns go by name, whatever order a partition's reader met."""
    places = {column.name: place for place, column in enumerate(rows.table.stored_columns)}
    handle = _names(rows.table.handle_key or rows.table.stored_columns)
    every = _names(rows.table.stored_columns)
    seed = int.from_bytes(blake2b(rows.table.full_name.encode("utf-8", "replace"), digest_size=8).digest())
    found: dict[str, tuple[Hashes, Hashes]] = {}
    for name, image in (("new", rows.new), ("old", rows.old)):
        columns = {column: image.column(places[column]) for column in every}
        keys = row_hashes([columns[column] for column in handle], image.num_rows)
        found[name] = keys ^ np.uint64(seed), row_hashes(list(columns.values()), image.num_rows)
    has_new, has_old = rows.op != RowOp.DELETE, rows.op != RowOp.INSERT
    keys, contents = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint64)
    keys[has_old] = found["old"][0]
    keys[has_new] = found["new"][0]
    contents[has_old] = found["old"][1] * np.uint64(0x9E3779B97F4A7C15)
    contents[has_new] ^= found["new"][1]
    return keys, contents


def _names(columns: tuple[ColumnInfo, ...]) -> list[str]:
    return sorted(column.name for column in columns)
