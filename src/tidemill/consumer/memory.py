"""What a checker remembers of rows: numbers in two tables of open addressing, no object per row.

    changes   (key, commit-ts, operation) of each row ──► what it held
    keys      each row's key ──► its last commit-ts, and where it appeared

Numbers are of 64 bits: that two of some millions are the same by chance is as likely as one in a million. What lies at
or below ``horizon`` has been forgotten: of rows there it is not known whether they had appeared before.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tidemill.columnar.jit import Bytes, Ints, Longs, Words, helper, i64, kernel, u64
from tidemill.columnar.row_hashes import Hashes
from tidemill.model.row import RowOp

_LEAST_SLOTS = 1 << 12
_DELETE = int(RowOp.DELETE)


class Verdict(IntEnum):
    """Bits, since a row may break several rules."""

    NEW = 0
    DUPLICATE = 1
    DIFFERENT = 2  # a duplicate that holds something else
    ELSEWHERE = 4  # its key appeared in another partition of the same epoch
    OUT_OF_ORDER = 8
    BELOW_RESOLVED = 16
    BELOW_DDL = 32
    FORGOTTEN = 64


_DUPLICATE, _DIFFERENT, _ELSEWHERE, _OUT_OF_ORDER, _BELOW_RESOLVED, _BELOW_DDL, _FORGOTTEN = (
    int(verdict) for verdict in Verdict if verdict
)


class Memory:
    def __init__(self) -> None:
        self.horizon = 0
        self.changes = 0  # that are remembered
        self._keys = 0
        self._change_slots = _change_slots(_LEAST_SLOTS)
        self._key_slots = _key_slots(_LEAST_SLOTS)

    def judge(
        self,
        keys: Hashes,
        contents: Hashes,
        commit_ts: npt.NDArray[np.uint64],
        op: npt.NDArray[np.uint8],
        partition: int,
        epoch: npt.NDArray[np.int64],
        resolved_ts: npt.NDArray[np.uint64],
        ddl_ts: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.uint8]:
        """Remember rows, in order, with a ``Verdict`` on each. The last two are the highest that stand before it."""
        self._make_room(len(keys))
        verdicts = np.zeros(len(keys), np.uint8)
        rows = (keys, contents, commit_ts, op, epoch, resolved_ts, ddl_ts)
        changes, more = _judge(*rows, partition, u64(self.horizon), *self._change_slots, *self._key_slots, verdicts)
        self.changes += changes
        self._keys += more
        return verdicts

    def forget(self, resolved_ts: int, most: int) -> None:
        """Keep about half of ``most`` changes, the latest; all above ``resolved_ts`` are kept."""
        signs, _, stamps = self._change_slots
        held = stamps[signs != 0]
        if len(held) <= most:
            return
        cut = len(held) - most // 2
        self.horizon = max(self.horizon, min(resolved_ts, int(np.partition(held, cut - 1)[cut - 1])))
        self._rebuild(0)

    def _make_room(self, rows: int) -> None:
        needed = 2 * (max(self.changes, self._keys) + rows)
        if needed > min(len(self._change_slots[0]), len(self._key_slots[0])):
            self._rebuild(rows)

    def _rebuild(self, rows: int) -> None:
        signs, contents, stamps = self._change_slots
        keep = (signs != 0) & (stamps > np.uint64(self.horizon))
        self.changes = int(keep.sum())
        slots = _change_slots(_size(self.changes + rows))
        _put_changes(signs[keep], contents[keep], stamps[keep], *slots)
        self._change_slots = slots
        keys, last, partitions, epochs, ops = self._key_slots
        keep = (keys != 0) & (last > np.uint64(self.horizon))
        self._keys = int(keep.sum())
        of_keys = _key_slots(_size(self._keys + rows))
        _put_keys(keys[keep], last[keep], partitions[keep], epochs[keep], ops[keep], *of_keys)
        self._key_slots = of_keys


def _size(held: int) -> int:
    return max(_LEAST_SLOTS, 1 << (4 * held - 1).bit_length() if held else 0)


def _change_slots(size: int) -> tuple[Words, Words, Words]:
    return np.zeros(size, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.uint64)


def _key_slots(size: int) -> tuple[Words, Words, Ints, Ints, Bytes]:
    numbers = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    return *numbers, np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.uint8)


@kernel
def _judge(
    keys: Words,
    contents: Words,
    commit_ts: Words,
    op: Bytes,
    epoch: Longs,
    resolved_ts: Words,
    ddl_ts: Words,
    partition: int,
    horizon: int,
    signs: Words,
    held: Words,
    stamps: Words,
    known: Words,
    last: Words,
    partitions: Ints,
    epochs: Ints,
    ops: Bytes,
    verdicts: Bytes,
) -> tuple[int, int]:
    changes, more = 0, 0
    for n in range(len(keys)):
        key, ts, verdict = keys[n] | u64(1), commit_ts[n], i64(0)
        sign = _mixed(key ^ _mixed(ts + u64(op[n]) * u64(0x9E3779B97F4A7C15))) | u64(1)
        at = _find(signs, sign)
        place = _find(known, key)
        is_known = known[place] == key
        if signs[at] == sign:
            verdict = _DUPLICATE
            if held[at] != contents[n]:
                verdict |= _DIFFERENT
        elif ts <= horizon:
            verdict = _FORGOTTEN
        else:
            signs[at], held[at], stamps[at] = sign, contents[n], ts
            changes += 1
            if ts < resolved_ts[n]:
                verdict |= _BELOW_RESOLVED
            elif ts < ddl_ts[n]:
                verdict |= _BELOW_DDL
            if is_known and epoch[n] >= epochs[place]:
                is_late = ts < last[place] or (ts == last[place] and op[n] == _DELETE and ops[place] != _DELETE)
                verdict |= _OUT_OF_ORDER if is_late else 0
        verdicts[n] = verdict
        if verdict & _FORGOTTEN:
            continue
        if not is_known:
            known[place], last[place], partitions[place], epochs[place] = key, ts, partition, epoch[n]
            ops[place] = op[n]
            more += 1
            continue
        if epoch[n] == epochs[place] and partitions[place] != partition:
            verdicts[n] |= _ELSEWHERE
        if epoch[n] > epochs[place]:
            partitions[place], epochs[place] = partition, epoch[n]
        if verdict & _DUPLICATE == 0 and ts >= last[place]:
            last[place], ops[place] = ts, op[n]
    return changes, more


@kernel
def _put_changes(signs: Words, held: Words, stamps: Words, to_signs: Words, to_held: Words, to_stamps: Words) -> None:
    for n in range(len(signs)):
        at = _find(to_signs, signs[n])
        to_signs[at], to_held[at], to_stamps[at] = signs[n], held[n], stamps[n]


@kernel
def _put_keys(
    keys: Words,
    last: Words,
    partitions: Ints,
    epochs: Ints,
    ops: Bytes,
    to_keys: Words,
    to_last: Words,
    to_partitions: Ints,
    to_epochs: Ints,
    to_ops: Bytes,
) -> None:
    for n in range(len(keys)):
        at = _find(to_keys, keys[n])
        to_keys[at], to_last[at], to_ops[at] = keys[n], last[n], ops[n]
        to_partitions[at], to_epochs[at] = partitions[n], epochs[n]


@helper
def _find(table: Words, sign: int) -> int:
    """The slot of ``sign``, or the free one where it belongs. At least half of the slots are free."""
    mask = len(table) - 1
    at = i64(_mixed(sign) & u64(mask))
    while table[at] != u64(0) and table[at] != sign:
        at = (at + 1) & mask
    return at


@helper
def _mixed(word: int) -> int:
    word = (word ^ (word >> u64(33))) * u64(0xFF51AFD7ED558CCD)
    return word ^ (word >> u64(29))
