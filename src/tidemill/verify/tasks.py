"""What executors do: checksums first, then numbers of rows where those differ, then the rows themselves.

    SumTask     sources of one side of a table      ─► its checksums, by bucket of the key's number
    HashTask    the same, and the buckets to look into ─► the numbers of the keys and rows in them
    RowTask     the same, and the keys to fetch     ─► the rows
    RangeTask   a part of the upstream and the downstream's rows of the same keys, range by range: all three at once

A table whose rows lie in the order of one integer key on both sides is read by ranges of it, and only those that
differ are read again. Others are read by hash: two sides that order their rows differently agree about the number
of a key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.model.row import RowOp
from tidemill.sinks.mysql.session import SessionSettings
from tidemill.source.scan import ScanPart, read_part
from tidemill.tidb.keys import decode_int, record_prefix
from tidemill.tidb.lexer import quoted
from tidemill.verify.excuses import Excuses, Marks, explained
from tidemill.verify.forms import Comparison
from tidemill.verify.hashing import Hashes, Sums
from tidemill.verify.mysql import reading
from tidemill.verify.sources import Source, UpstreamSource

_MIDDLE = 1 << 63


Found = tuple[Hashes, Hashes, Marks]  # numbers of keys and of rows, and what filters would explain of each
NOTHING: Found = (np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint8))


def put_together(results: Sequence[Found]) -> Found:
    keys, rows, marks = zip(*results, strict=True)
    return np.concatenate(keys), np.concatenate(rows), np.concatenate(marks)


@dataclass(frozen=True, slots=True)
class SumTask:
    sources: tuple[Source, ...]
    buckets: int

    def run(self) -> Sums:
        total = Sums.empty(self.buckets)
        for comparison, rows in _batches(self.sources):
            total.add(*comparison.hashes(rows))
        return total


@dataclass(frozen=True, slots=True)
class HashTask:
    sources: tuple[Source, ...]
    buckets: int
    wanted: npt.NDArray[np.int64]
    excuses: Excuses | None = None

    def run(self) -> Found:
        is_wanted = np.zeros(self.buckets, np.bool_)
        is_wanted[self.wanted] = True
        found: list[Found] = [NOTHING]
        for source in self.sources:
            for batch, marks in self._marked(source):
                key, row = source.comparison.hashes(batch)
                chosen = is_wanted[key % np.uint64(self.buckets)]
                found.append((key[chosen], row[chosen], marks[chosen]))
        return put_together(found)

    def _marked(self, source: Source) -> Iterator[tuple[pa.RecordBatch, Marks]]:
        if self.excuses is None:
            for rows in source.read():
                yield rows, np.zeros(len(rows), np.uint8)
        elif isinstance(source, UpstreamSource):
            for mounted in source.mounted():
                yield source.comparison.of_upstream(mounted), self.excuses.of_upstream(mounted)
        else:
            for rows in source.read():
                yield rows, self.excuses.of_downstream(rows)


@dataclass(frozen=True, slots=True)
class RowTask:
    sources: tuple[Source, ...]
    keys: Hashes

    def run(self) -> pa.Table:
        found = []
        for comparison, batch in _batches(self.sources):
            key, _ = comparison.hashes(batch)
            found.append(batch.filter(pa.array(np.isin(key, self.keys))))
        return pa.Table.from_batches(found, self.sources[0].comparison.schema)


def _batches(sources: Sequence[Source]) -> Iterator[tuple[Comparison, pa.RecordBatch]]:
    for source in sources:
        for rows in source.read():
            yield source.comparison, rows


@dataclass(slots=True)
class Outcome:
    """What came of comparing some of a table's rows. Of those that differ, ``up`` and ``down`` are at most so many."""

    upstream_rows: int = 0
    downstream_rows: int = 0
    chunks: int = 0
    differing_chunks: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    up: list[pa.Table] = field(default_factory=list)
    down: list[pa.Table] = field(default_factory=list)

    @property
    def differing(self) -> int:
        return self.missing + self.extra + self.changed

    def merge(self, other: "Outcome") -> None:
        self.upstream_rows += other.upstream_rows
        self.downstream_rows += other.downstream_rows
        self.chunks += other.chunks
        self.differing_chunks += other.differing_chunks
        self.missing += other.missing
        self.extra += other.extra
        self.changed += other.changed
        self.up += other.up
        self.down += other.down


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The keys that differ, by their numbers."""

    missing: Hashes
    extra: Hashes
    changed: Hashes

    def first(self, most: int) -> Hashes:
        return np.concatenate((self.changed, self.missing, self.extra))[:most]

    def without_explained(self, up: Found, down: Found) -> tuple["Verdicts", int]:
        """Those that filters do not explain, and how many they do."""
        ours, theirs = (up[0], up[2]), (down[0], down[2])
        missing = explained(self.missing, RowOp.INSERT, ours)
        extra = explained(self.extra, RowOp.DELETE, theirs)
        changed = explained(self.changed, RowOp.UPDATE, ours, theirs)
        count = sum(int(np.count_nonzero(mask)) for mask in (missing, extra, changed))
        return Verdicts(self.missing[~missing], self.extra[~extra], self.changed[~changed]), count


def judge(up: tuple[Hashes, Hashes], down: tuple[Hashes, Hashes]) -> Verdicts:
    """Of rows by (key, row) those that are not the same on both sides."""
    up_keys, up_rows = _by_key(*up)
    down_keys, down_rows = _by_key(*down)
    missing = np.setdiff1d(up_keys, down_keys, assume_unique=True)
    extra = np.setdiff1d(down_keys, up_keys, assume_unique=True)
    both, at_up, at_down = np.intersect1d(up_keys, down_keys, assume_unique=True, return_indices=True)
    return Verdicts(missing, extra, both[up_rows[at_up] != down_rows[at_down]])


def _by_key(keys: Hashes, rows: Hashes) -> tuple[Hashes, Hashes]:
    """Each key once, in order. A key that comes twice (files may hold a row twice) counts as the sum of its rows."""
    found, place = np.unique(keys, return_inverse=True)
    if len(found) == len(keys):
        order = np.argsort(keys)
        return keys[order], rows[order]
    sums = np.zeros(len(found), np.uint64)
    np.add.at(sums, place, rows)
    return found, sums


@dataclass(frozen=True, slots=True)
class RangeTask:
    """For tables with one integer key, in whose order the upstream keeps them; and a MySQL downstream."""

    part: ScanPart
    comparison: Comparison
    settings: SessionSettings
    snapshot_ts: int | None
    most_rows: int  # that differ, to bring back

    def run(self) -> Outcome:
        outcome = Outcome()
        low, end = handle_range(self.part)
        with reading(self.settings, self.comparison.table, self.snapshot_ts) as session:
            for rows in self._ahead():
                high = end
                if rows is not None:
                    batch, is_last = rows
                    if not is_last:
                        high = int(self._handles(batch)[-1]) + 1
                    self._compare(session, batch, low, high, outcome)
                low = high
        return outcome

    def _ahead(self) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """The part's batches, the last of them known as such; at least one."""
        held = pa.RecordBatch.from_pylist([], self.comparison.schema)
        for rows in read_part(self.part):
            if len(held):
                yield held, False
            held = self.comparison.of_upstream(rows.new)
        yield held, True

    def _handles(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        values: Any = batch.column(self.comparison.key_places[0]).to_numpy()
        return np.asarray(values.view(np.int64))

    def _compare(self, session: reading, up: pa.RecordBatch, low: int, high: int, outcome: Outcome) -> None:
        comparison = self.comparison
        where = _condition(comparison, low, high)
        total, theirs = Sums.empty(1), Sums.empty(1)
        ours = comparison.hashes(up)
        total.add(*ours)
        found = [(np.empty(0, np.uint64), np.empty(0, np.uint64))]
        for batch in session.rows(comparison, where):
            found.append(comparison.hashes(batch))
            theirs.add(*found[-1])
        outcome.merge(Outcome(total.rows, theirs.rows, 1))
        if not len(total.differing(theirs)):
            return
        keys, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        verdicts = judge(ours, (keys, rows))
        room = max(0, self.most_rows - sum(map(len, outcome.up)) - sum(map(len, outcome.down)))
        chosen = verdicts.first(room)
        again = [_among(comparison, batch, chosen) for batch in session.rows(comparison, where)] if len(chosen) else []
        outcome.merge(
            Outcome(
                differing_chunks=1,
                missing=len(verdicts.missing),
                extra=len(verdicts.extra),
                changed=len(verdicts.changed),
                up=[pa.Table.from_batches([_among(comparison, up, chosen)])],
                down=[pa.Table.from_batches(again, comparison.schema)],
            )
        )


def _among(comparison: Comparison, rows: pa.RecordBatch, keys: Hashes) -> pa.RecordBatch:
    return rows.filter(pa.array(np.isin(comparison.hashes(rows)[0], keys)))


def handle_range(part: ScanPart) -> tuple[int, int]:
    """The handles of a part's keys as ``[low, end)``, signed as the upstream orders them."""
    prefix = record_prefix(part.physical_id)
    return _handle_from(part.start, prefix), _handle_from(part.end, prefix)


def _handle_from(bound: bytes, prefix: bytes) -> int:
    """The first handle whose key is not below ``bound``."""
    if bound <= prefix:
        return -_MIDDLE
    if not bound.startswith(prefix):
        return _MIDDLE  # behind all of them
    rest = bound[len(prefix) :]
    handle = decode_int(rest[:8].ljust(8, b"\0"))
    return handle + 1 if len(rest) > 8 else handle


def _condition(comparison: Comparison, low: int, end: int) -> str:
    """For handles in ``[low, end)``. Those of an unsigned key are the signed numbers of the same bits."""
    column = comparison.table.handle_key[0]
    if not column.is_unsigned:
        return _between(quoted(column.name), low, end - 1)
    halves = [(max(low, 0), end), (low + 2 * _MIDDLE, min(end, 0) + 2 * _MIDDLE)]
    parts = [_between(quoted(column.name), a, b - 1) for a, b in halves if a < b and (a < _MIDDLE or low < 0)]
    return "(" + " OR ".join(parts) + ")" if parts else "FALSE"


def _between(column: str, low: int, high: int) -> str:
    return f"{column} BETWEEN {low} AND {high}"
