"""Where rows that are spread by their row key meet in another unique key, readers have to meet as well.

    rows ── key_hashes ──► the keys of each change ── Crossings ──► the ts at which readers meet

All changes of a row go to one partition, whatever batches they come in. But a value of another unique key may pass from
one row to another, in another partition. A reader that is further in the one than in the other could take the old
owner's changes for newer ones. So before a change of a key that has been seen in another partition since readers met
last, they meet: at the ts below it. Of changes with one ts none is before the other, so they need no meeting between
them, but whatever follows does. Keys are told apart by 64 bits: two that share a hash count as one, which costs a
meeting that nobody needed. Pure. Runs on executors.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar.jit import Longs, kernel
from tidemill.columnar.row_hashes import row_hashes
from tidemill.errors import ConfigError
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, IndexColumn, TableInfo
from tidemill.model.ts import Ts

Hashes = npt.NDArray[np.uint64]
Partitions = npt.NDArray[np.int32]
Stamps = npt.NDArray[np.uint64]
NO_KEY = 0  # in place of a hash: a NULL is in nobody's way
MOST_KEYS = 1 << 20  # that are remembered; beyond, readers meet

_UNSEEN, _CROSSED = -1, -2
_SEED = 0x9E3779B97F4A7C15


def unique_keys(table: TableInfo) -> list[tuple[IndexColumn, ...]]:
    """The columns of each unique index, and of the row key. Raises ConfigError where a value of one is in no row."""
    keys = [index.columns for index in table.indexes if index.is_unique or index.is_primary]
    if table.pk_is_handle and not any(index.is_primary for index in table.indexes):
        keys.insert(0, tuple(IndexColumn(column.offset, -1) for column in table.primary_key))
    for key in keys:
        for part in key:
            if table.columns[part.offset].is_virtual:
                raise ConfigError(
                    f"table {table.full_name} has a unique index on column {table.columns[part.offset].name!r}, which "
                    "is virtual: no row has its values, so conflicts cannot be seen. Use partition = 'table' for it."
                )
    return keys


def key_hashes(rows: RowBatch) -> Hashes:
    """A row for each change, with the hashes of its values of each unique key, new and old; or NO_KEY."""
    table = rows.table
    places = {column.offset: place for place, column in enumerate(table.stored_columns)}
    keys = unique_keys(table)
    found = np.full((len(rows), 2 * len(keys)), NO_KEY, np.uint64)
    has_new, has_old = rows.op != RowOp.DELETE, rows.op != RowOp.INSERT
    for number, key in enumerate(keys):
        for side, (image, has) in enumerate(((rows.new, has_new), (rows.old, has_old))):
            columns = [
                _loose(table.columns[part.offset], image.column(places[part.offset]), part.length) for part in key
            ]
            found[has, 2 * number + side] = _hashed(columns, image.num_rows, number)
    return found


def _hashed(columns: list[pa.Array], rows: int, number: int) -> Hashes:
    seed = np.uint64(_SEED * (number + 1) & (1 << 64) - 1)  # equal values of two indexes do not conflict
    hashes: Hashes = row_hashes(columns, rows) ^ seed
    hashes[hashes == NO_KEY] = 1
    for column in columns:
        if column.null_count:
            hashes[column.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return hashes


def _loose(column: ColumnInfo, values: pa.Array, prefix: int) -> pa.Array:
    """``values`` so that any two which may be equal under a unique index are equal, whatever stands beside them. Which
    texts a collation takes as equal is known for binary ones only; under others all are."""
    if pa.types.is_floating(values.type):
        return pc.add(values, pa.scalar(0.0, values.type))  # the two zeros are one
    if values.type == pa.binary():
        return pc.binary_slice(values, 0, prefix) if prefix >= 0 else values
    if values.type != pa.string() or column.charset == "binary" or not column.charset:
        return values
    if not column.collate.endswith(("_bin", "binary")):
        return pc.if_else(pc.is_valid(values), pa.scalar(""), values)
    if prefix >= 0:
        values = pc.utf8_slice_codeunits(values, 0, prefix)
    return pc.utf8_rtrim(values, " ")  # it pads


@kernel
def _cross(numbers: Longs, partitions: Any, stamps: Any, where: Any, since: Any, met: Any, continues: bool) -> int:
    """``numbers`` are those of keys, -1: none. ``where`` each was seen, in the stretch ``since``; that at hand is
    returned. ``met`` becomes true of the first change behind each meeting. ``continues``: the first ts has been seen
    before."""
    stretch, first, rows, width = 0, 0, numbers.shape[0], numbers.shape[1]
    while first < rows:
        end = first
        crosses = False
        while end < rows and stamps[end] == stamps[first]:
            for place in range(width):
                key = numbers[end, place]
                if key >= 0 and since[key] == stretch and where[key] != partitions[end]:
                    crosses = True
            end += 1
        if crosses:
            met[first] = True
            if first > 0 or not continues:
                stretch += 1
        for row in range(first, end):
            for place in range(width):
                key = numbers[row, place]
                if key < 0:
                    continue
                if since[key] != stretch:
                    since[key] = stretch
                    where[key] = partitions[row]
                elif where[key] != partitions[row]:
                    where[key] = _CROSSED
        first = end
    return stretch


@dataclass(slots=True)
class Crossings:
    """Of one table's changes in commit order, in portions. At first nobody knows what was sent before."""

    most_keys: int = MOST_KEYS
    _is_known: bool = False
    _last_ts: int = 0
    _keys: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))  # since readers met; sorted
    _where: Partitions = field(default_factory=lambda: np.zeros(0, np.int32))

    def meetings(self, hashes: Hashes, partitions: Partitions, commit_ts: Stamps) -> list[Ts]:
        """Readers have to be at each of these, in all partitions, before they go on."""
        if not len(commit_ts):
            return []
        continues = int(commit_ts[0]) == self._last_ts
        found = []
        if not self._is_known or (len(self._keys) > self.most_keys and not continues):
            self._keys, self._where, self._is_known = np.zeros(0, np.uint64), np.zeros(0, np.int32), True
            found = [Ts(int(commit_ts[0]) - 1)]
        is_key = hashes != NO_KEY
        names, inverse = np.unique(np.concatenate([self._keys, hashes[is_key]]), return_inverse=True)
        numbers = np.full(hashes.shape, -1, np.int64)
        numbers[is_key] = inverse[len(self._keys) :]
        where, since = np.full(len(names), _UNSEEN, np.int32), np.full(len(names), -1, np.int64)
        carried = inverse[: len(self._keys)]
        where[carried], since[carried] = self._where, 0
        met = np.zeros(len(commit_ts), np.bool_)
        stretch = _cross(numbers, partitions.astype(np.int32), commit_ts, where, since, met, continues)
        kept = since == stretch
        self._keys, self._where, self._last_ts = names[kept], where[kept], int(commit_ts[-1])
        return [*found, *(Ts(int(ts) - 1) for ts in commit_ts[met])]
