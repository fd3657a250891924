"""Reading many versions at once, from stored pairs straight to wire bytes.

    snapshot ──► block of commit records ──► choose ──► long values ──► wire bytes
                 (one flat buffer)           (changes above a ts, or what is visible at one)

The change stream's incremental scan and ``KvScan`` read this way, and garbage collection chooses so
what to remove. What a row costs in the interpreter is its two ``bytes`` objects from RocksDB; all
else is compiled (``kernels``). Pairs are kept as a flat list ``[key, value, key, value, …]``: thousands
of tuples at a time would cost more in the interpreter's own garbage collection than all the rest.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import pyarrow as pa

from tidebox import kernels
from tidebox.engine import Family, Item, Snapshot
from tidebox.kernels import LONG_VALUE, Bytes, Ints, Stamps
from tidemill.errors import CorruptDataError

RECORDS_PER_BLOCK = 8192
LONG_BYTES_PER_BLOCK = 8 << 20
Pairs = list[bytes]  # keys at even places, their values behind them

_POINT_READS = 256  # records at a time where long values of one key alone exceed a block


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as repeated fields of a wire message: row i is ``data[ends[i - 1]:ends[i]]``."""

    data: Bytes
    ends: Ints
    last_key: bytes  # stored key of the last row, with its ts

    def __len__(self) -> int:
        return len(self.ends)

    def cut(self, max_bytes: int) -> Iterator[memoryview]:
        """The rows in runs of at most ``max_bytes``; a longer row comes alone. Nothing is copied."""
        first, base = 0, 0
        while first < len(self.ends):
            last = max(int(np.searchsorted(self.ends, base + max_bytes, side="right")), first + 1)
            end = int(self.ends[last - 1])
            yield self.data[base:end].data
            first, base = last, end


@dataclass(frozen=True, slots=True)
class Garbage:
    """Stored keys of one block that nobody needs any more, commit records and the long values they stand for."""

    writes: list[bytes]
    values: list[bytes]
    kept: int  # commit records that should go as well, but for somebody who is not finished yet

    def without(self, physical_keys: Set[bytes]) -> "Garbage":
        """Less what belongs to these keys, which is kept then."""
        writes = [key for key in self.writes if key[:-8] not in physical_keys]
        values = [key for key in self.values if key[:-8] not in physical_keys]
        return Garbage(writes, values, self.kept + len(self.writes) - len(writes))


def changes(
    snapshot: Snapshot,
    start: bytes,
    end: bytes,
    checkpoint_ts: int,
    *,
    drop_looped: bool = False,
    on_read: Callable[[int], object] = lambda size: None,
) -> Iterator[Rows]:
    """COMMITTED rows (``cdcpb.Event.Entries``) of the memcomparable range with commit-ts > ``checkpoint_ts``.

    Keys ascend, versions of a key come from newest to oldest, each with the value before it.
    ``on_read`` is told how many bytes were read, before each part, and may wait.
    """
    source = snapshot.scan(Family.WRITE, start, end)
    carried: Pairs = []
    done = False
    while not done:
        fresh = take(source, RECORDS_PER_BLOCK)
        done = len(fresh) < 2 * RECORDS_PER_BLOCK
        block = _Block(snapshot, carried + fresh, is_parsed=False)
        on_read(block.read_bytes)
        # The last version waits for the next block, which may hold the one before it.
        count = len(block) if done else block.last_data()
        whole, at = block.scan(count, checkpoint_ts, drop_looped)
        if whole is not None:
            yield whole
        while at < count:
            block.read_bytes = 0
            rows, at = block.changes(at, count, checkpoint_ts, drop_looped)
            on_read(block.read_bytes)
            if rows is not None:
                yield rows
        carried = block.pairs[2 * count : 2 * count + 2]


def visible(snapshot: Snapshot, start: bytes, end: bytes, version: int, limit: int) -> Iterator[Rows]:
    """Pairs (``kvrpcpb.ScanResponse``) of the memcomparable range as of ``version``, at most ``limit`` in all."""
    source = snapshot.items(Family.WRITE, start, end)
    carried: Pairs = []
    size = min(max(limit * 2, 64), RECORDS_PER_BLOCK)
    while limit > 0:
        fresh = take(source, size)
        done = len(fresh) < 2 * size
        block = _Block(snapshot, carried + fresh)
        # A key's versions must be judged together, so the last key waits for the next block.
        count = len(block) if done else block.last_key_start()
        rows = block.visible(count, version, limit)
        if rows is not None:
            limit -= len(rows)
            yield rows
        if done:
            return
        carried = block.pairs[2 * count :]


def garbage(
    snapshot: Snapshot,
    safepoint: int,
    held: Stamps,
    locked: Set[bytes],
    records_per_block: int = RECORDS_PER_BLOCK,
) -> Iterator[Garbage]:
    """What no read at or above ``safepoint`` needs, block by block; remove each with one write, in order.

    After every single one of them such reads are as before. Kept for unfinished transactions are
    the records of those with a start-ts in ``held`` (ascending), and all of the physical keys ``locked``.
    The latter may become more between blocks: what is removed of a key must be removed to its end.
    """
    source = snapshot.scan(Family.WRITE, b"", b"")
    last = marker = b""
    state: Ints = np.array([0, -1, 0], np.int64)
    while fresh := take(source, records_per_block):
        block = _Block(snapshot, fresh)
        found = block.garbage(fresh[0][:-8] == last[:-8], safepoint, held, state)
        last = fresh[-2]
        if state[2]:
            found.writes.append(marker)
        if state[1] >= 0:
            marker = block.key(int(state[1]))
        state[1:] = (-1 if state[1] == -1 else -2, 0)
        yield found.without(locked) if locked else found
    if state[1] == -2:
        yield Garbage([marker], [], 0).without(locked)


class _Block:
    def __init__(self, snapshot: Snapshot, pairs: Pairs, *, is_parsed: bool = True) -> None:
        """What is not parsed yet must be by ``scan``."""
        self.pairs = pairs
        self._snapshot = snapshot
        n = len(self)
        self._data, self._po = join(pairs)
        self.read_bytes = len(self._data)  # and long values, as they are read
        self._same = np.empty(n, np.uint8)
        self._kind = np.empty(n, np.uint8)
        self._commit: Stamps = np.empty(n, np.uint64)
        self._start: Stamps = np.empty(n, np.uint64)
        self._source: Stamps = np.empty(n, np.uint64)
        self._val_at: Ints = np.empty(n, np.int64)
        self._val_len: Ints = np.empty(n, np.int64)
        stamps = (self._commit, self._start, self._source)
        self._columns = (self._same, self._kind, *stamps, self._val_at, self._val_len)
        if is_parsed:
            self._check(kernels.parse(self._data, self._po, *self._columns))

    def __len__(self) -> int:
        return len(self.pairs) // 2

    def key(self, index: int) -> bytes:
        """As it is stored, with its ts."""
        return self.pairs[2 * index]

    def last_data(self) -> int:
        """Index of the last put or delete; 0 if there is none behind it."""
        for index in range(len(self) - 1, 0, -1):
            if self.pairs[2 * index + 1][:1] in (b"P", b"D"):
                return index
        return 0

    def last_key_start(self) -> int:
        return int(np.flatnonzero(self._same == 0)[-1])

    def scan(self, count: int, checkpoint_ts: int, drop_looped: bool) -> tuple[Rows | None, int]:
        """Parse, and give the rows of all changes among the first ``count`` records, unless values are long.

        Also the record from which on ``changes`` has to go on.
        """
        n = len(self)
        chosen, old, ends = (np.empty(n, np.int64) for _ in range(3))
        out: Bytes = np.empty(2 * len(self._data) + 64 * n, np.uint8)
        wanted = (count, np.uint64(checkpoint_ts), drop_looped)
        work = (*self._columns, chosen, old, ends, out)
        bad, m, total = kernels.scan(self._data, self._po, *wanted, *work)
        self._check(bad)
        if m == 0:
            return None, count
        if total < 0:
            return None, 0
        return Rows(out[:total], ends[:m], self.key(int(chosen[m - 1]))), count

    def changes(self, begin: int, count: int, checkpoint_ts: int, drop_looped: bool) -> tuple[Rows | None, int]:
        """Rows of the records from ``begin`` up to ``count``, or to fewer if values are long; and where it stopped."""
        chosen: Ints = np.empty(len(self), np.int64)
        old: Ints = np.empty(len(self), np.int64)
        bounds = (begin, count, np.uint64(checkpoint_ts), drop_looped)
        m = kernels.choose_changes(self._same, self._kind, self._commit, self._source, *bounds, chosen, old)
        chosen, old = chosen[:m], old[:m]
        if m == 0:
            return None, count
        is_wanted = np.zeros(len(self), np.bool_)
        is_wanted[chosen] = True
        is_wanted[old[old >= 0]] = True
        wanted: Ints = np.flatnonzero(is_wanted & (self._val_len == LONG_VALUE))
        longs, fitting = self._long_values(wanted, begin, count)
        if fitting < count:
            return self.changes(begin, fitting, checkpoint_ts, drop_looped)
        rows = self._encode(chosen, old, longs, as_changes=True)
        self._val_len[wanted] = LONG_VALUE  # the next call has another buffer
        return rows, count

    def visible(self, count: int, version: int, limit: int) -> Rows | None:
        chosen: Ints = np.empty(len(self), np.int64)
        same, kind, commit = self._same[:count], self._kind[:count], self._commit[:count]
        m = kernels.choose_visible(same, kind, commit, np.uint64(version), chosen)
        chosen = chosen[: min(m, limit)]
        if len(chosen) == 0:
            return None
        longs = self._point_values(chosen[self._val_len[chosen] == LONG_VALUE])
        return self._encode(chosen, np.full(len(chosen), -1, np.int64), longs, as_changes=False)

    def garbage(self, continues: bool, safepoint: int, held: Stamps, state: Ints) -> Garbage:
        self._same[:1] = continues
        doomed = np.zeros(len(self), np.uint8)
        columns = (self._same, self._kind, self._commit, self._start)
        kept = kernels.choose_garbage(*columns, np.uint64(safepoint), held, state, doomed)
        chosen = np.flatnonzero(doomed)
        values = [self._value_key(i) for i in chosen[self._val_len[chosen] == LONG_VALUE].tolist()]
        return Garbage([self.key(i) for i in chosen.tolist()], values, kept)

    def _check(self, bad: int) -> None:
        if bad >= 0:
            raise CorruptDataError(
                f"the stored version {self.key(bad).hex()} is not readable. Load the data folder anew from its history."
            )

    def _encode(self, chosen: Ints, old: Ints, longs: Bytes, *, as_changes: bool) -> Rows:
        body: Ints = np.empty(len(chosen), np.int64)
        ends: Ints = np.empty(len(chosen), np.int64)
        columns = (self._kind, self._commit, self._start, self._source)
        total = kernels.sizes(self._data, self._po, chosen, old, *columns, self._val_len, as_changes, body, ends)
        out: Bytes = np.empty(total, np.uint8)
        slots = (self._val_at, self._val_len)
        kernels.encode(self._data, self._po, longs, chosen, old, *columns, *slots, as_changes, body, out)
        return Rows(out, ends, self.key(int(chosen[-1])))

    def _long_values(self, wanted: Ints, begin: int, count: int) -> tuple[Bytes, int]:
        """The long values of the wanted records in one buffer, and ``count``.

        Too much for one block: nothing, and a lower ``count`` to try with.
        """
        if len(wanted) == 0:
            return np.empty(0, np.uint8), count
        first, last = self.key(int(wanted[0])), self.key(int(wanted[-1]))
        pairs: Pairs = []
        size = 0
        for pair in self._snapshot.scan(Family.DEFAULT, first[:-8], last[:-8] + b"\xff" * 9):
            if size > LONG_BYTES_PER_BLOCK:
                fitting = self._first_at_or_after(pair[0][:-8])
                if begin < fitting < count:
                    return np.empty(0, np.uint8), fitting
                if count - begin > _POINT_READS:
                    return np.empty(0, np.uint8), begin + _POINT_READS
                return self._point_values(wanted), count
            pairs += pair
            size += len(pair[1])
        longs, lo = join(pairs)
        self.read_bytes += len(longs)
        kernels.match_long(self._data, self._po, self._start, wanted, longs, lo, self._val_at, self._val_len)
        missing = wanted[self._val_len[wanted] == LONG_VALUE]
        if len(missing):
            raise self._lost(int(missing[0]))
        return longs, count

    def _point_values(self, wanted: Ints) -> Bytes:
        parts, at = [], 0
        for i in wanted.tolist():
            value = self._snapshot.get(Family.DEFAULT, self._value_key(i))
            if value is None:
                raise self._lost(i)
            parts.append(value)
            self._val_at[i] = at
            self._val_len[i] = LONG_VALUE - 1 - len(value)
            at += len(value)
        return np.frombuffer(b"".join(parts), np.uint8)

    def _value_key(self, index: int) -> bytes:
        """Where the long value of a record is stored."""
        return self.key(index)[:-8] + (int(self._start[index]) ^ (1 << 64) - 1).to_bytes(8, "big")

    def _first_at_or_after(self, prefix: bytes) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.key(middle)[:-8] < prefix:
                low = middle + 1
            else:
                high = middle
        return low

    def _lost(self, index: int) -> CorruptDataError:
        return CorruptDataError(
            f"the long value of stored version {self.key(index).hex()} is missing. "
            "Load the data folder anew from its history."
        )


def take(source: Iterator[Item], count: int) -> Pairs:
    """The next ``count`` pairs, fewer at the end."""
    return list(chain.from_iterable(islice(source, count)))


def join(parts: Sequence[bytes]) -> tuple[Bytes, Ints]:
    """All parts in one buffer, and where each begins and ends."""
    _, offsets, data = pa.array(parts, pa.large_binary()).buffers()
    ends: Ints = np.frombuffer(offsets, np.int64) if parts else np.zeros(1, np.int64)
    return np.frombuffer(data, np.uint8) if ends[-1] else np.empty(0, np.uint8), ends
