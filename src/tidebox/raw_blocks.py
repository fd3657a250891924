"""Reading many raw versions at once, from stored pairs straight to wire bytes, as ``blocks`` does for transactions.

What a version costs in the interpreter is its two ``bytes`` objects from RocksDB; all else is compiled.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tidebox import raw_kernels
from tidebox.blocks import RECORDS_PER_BLOCK, Pairs, Rows, join, take
from tidebox.engine import Family, Item, Snapshot
from tidebox.kernels import Bytes, Ints, Stamps
from tidemill.errors import CorruptDataError

BYTES_PER_BLOCK = 8 << 20
_PAIRS_PER_STEP = 256  # after so many it is looked whether a block is full


@dataclass(frozen=True, slots=True)
class Checksum:
    """As TiKV computes it: CRC-64/XZ of each key and its value, combined by xor, so in any order."""

    value: int = 0
    pairs: int = 0
    bytes: int = 0

    def __add__(self, other: "Checksum") -> "Checksum":
        return Checksum(self.value ^ other.value, self.pairs + other.pairs, self.bytes + other.bytes)


def changes(
    snapshot: Snapshot,
    start: bytes,
    end: bytes,
    checkpoint_ts: int,
    *,
    on_read: Callable[[int], object] = lambda size: None,
) -> Iterator[Rows]:
    """COMMITTED rows of the newest version of each key of the physical range, where its ts > ``checkpoint_ts``.

    ``on_read`` is told how many bytes were read, before each part, and may wait.
    """
    source = snapshot.scan(Family.RAW, start, end)
    for block, begin in _blocks(iter(lambda: _take(source, RECORDS_PER_BLOCK), [])):
        on_read(block.read_bytes)
        rows = block.changes(begin, checkpoint_ts)
        if rows is not None:
            yield rows


def live(source: Iterator[Item], now: int, limit: int, *, key_only: bool = False) -> Iterator[Rows]:
    """Pairs (``kvrpcpb.RawScanResponse``) of the versions that are there at ``now``, at most ``limit`` in all."""
    count = min(max(limit * 2, 64), RECORDS_PER_BLOCK)
    for block, begin in _blocks(iter(lambda: _take(source, count), [])):
        rows = block.live(begin, now, limit, key_only)
        if rows is not None:
            limit -= len(rows)
            yield rows
        if limit <= 0:
            return


def dead(snapshot: Snapshot, before_ts: int, now: int) -> Iterator[list[bytes]]:
    """Stored keys of versions below ``before_ts`` that no reader can see, all of a key in one list."""
    source = snapshot.scan(Family.RAW, b"", b"")
    carried: Pairs = []
    while fresh := _take(source, RECORDS_PER_BLOCK):
        block = _Block(carried + fresh)
        # Without its delete an older version would be seen again: a key's versions go together.
        count = block.last_key_start()
        found = block.dead(count, before_ts, now)
        if found:
            yield found
        carried = block.pairs[2 * count :]
    if carried:
        block = _Block(carried)
        found = block.dead(len(block), before_ts, now)
        if found:
            yield found


def checksum_versions(source: Iterator[Item], now: int) -> Checksum:
    """Of the keys and values that are there at ``now``."""
    total = Checksum()
    for block, begin in _blocks(iter(lambda: _take(source, RECORDS_PER_BLOCK), [])):
        total += block.checksum(begin, now)
    return total


def checksum_pairs(source: Iterator[Item]) -> Checksum:
    """Of pairs that are kept as they are."""
    total = Checksum()
    while pairs := _take(source, RECORDS_PER_BLOCK):
        value, size = raw_kernels.checksum_pairs(raw_kernels.CRC64_TABLE, *join(pairs))
        total += Checksum(int(value), len(pairs) // 2, int(size))
    return total


def _take(source: Iterator[Item], count: int) -> Pairs:
    """The next ``count`` pairs, or fewer if they are big; none at the end."""
    taken: Pairs = []
    size = 0
    while len(taken) < 2 * count and size < BYTES_PER_BLOCK:
        step = take(source, min(_PAIRS_PER_STEP, count - len(taken) // 2))
        if not step:
            break
        taken += step
        size += sum(map(len, step))
    return taken


def _blocks(parts: Iterable[Pairs]) -> Iterator[tuple["_Block", int]]:
    """Blocks, and at which of its pairs each begins: the one before it tells whether its first is an older version."""
    carried: Pairs = []
    for fresh in parts:
        yield _Block(carried + fresh), len(carried) // 2
        carried = fresh[-2:]


class _Block:
    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        n = len(self)
        self._data, self._po = join(pairs)
        self.read_bytes = len(self._data)
        self._same = np.empty(n, np.uint8)
        self._flags = np.empty(n, np.uint8)
        self._ts: Stamps = np.empty(n, np.uint64)
        self._expire: Stamps = np.empty(n, np.uint64)
        self._val_len: Ints = np.empty(n, np.int64)
        columns = (self._same, self._ts, self._flags, self._expire, self._val_len)
        bad = raw_kernels.parse(self._data, self._po, *columns)
        if bad >= 0:
            raise CorruptDataError(f"the stored raw version {pairs[2 * bad].hex()} is not readable. Delete its range.")

    def __len__(self) -> int:
        return len(self.pairs) // 2

    def last_key_start(self) -> int:
        return int(np.flatnonzero(self._same == 0)[-1])

    def changes(self, begin: int, checkpoint_ts: int) -> Rows | None:
        chosen: Ints = np.empty(len(self), np.int64)
        m = raw_kernels.choose_changes(self._same, self._ts, begin, np.uint64(checkpoint_ts), chosen)
        return self._encode(chosen[:m], as_changes=True)

    def live(self, begin: int, now: int, limit: int, key_only: bool) -> Rows | None:
        chosen: Ints = np.empty(len(self), np.int64)
        m = raw_kernels.choose_live(self._same, self._flags, self._expire, begin, np.uint64(now), chosen)
        if key_only:
            self._val_len[:] = 0
        return self._encode(chosen[: min(m, limit)], as_changes=False)

    def checksum(self, begin: int, now: int) -> Checksum:
        chosen: Ints = np.empty(len(self), np.int64)
        m = raw_kernels.choose_live(self._same, self._flags, self._expire, begin, np.uint64(now), chosen)
        columns = (self._data, self._po, chosen[:m], self._val_len)
        value, size = raw_kernels.checksum_versions(raw_kernels.CRC64_TABLE, *columns)
        return Checksum(int(value), int(m), int(size))

    def dead(self, count: int, before_ts: int, now: int) -> list[bytes]:
        chosen: Ints = np.empty(len(self), np.int64)
        columns = (self._same, self._ts, self._flags, self._expire)
        m = raw_kernels.choose_dead(*columns, count, np.uint64(before_ts), np.uint64(now), chosen)
        return [self.pairs[2 * i] for i in chosen[:m].tolist()]

    def _encode(self, chosen: Ints, *, as_changes: bool) -> Rows | None:
        if len(chosen) == 0:
            return None
        body: Ints = np.empty(len(chosen), np.int64)
        ends: Ints = np.empty(len(chosen), np.int64)
        numbers = (self._ts, self._expire, self._val_len)
        total = raw_kernels.sizes(self._data, self._po, chosen, *numbers, as_changes, body, ends)
        out: Bytes = np.empty(total, np.uint8)
        columns = (self._ts, self._flags, self._expire, self._val_len)
        raw_kernels.encode(self._data, self._po, chosen, *columns, as_changes, body, out)
        return Rows(out, ends, self.pairs[2 * int(chosen[-1])])
