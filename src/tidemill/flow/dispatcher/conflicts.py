"""Rows that share a value of a unique key stay together; all others may part.

    rows ── key_hashes ──► (row, key) ── components ──► Conflicts: a partition for each, and whether readers must meet

Within some rows, what shares a value of any unique key, old or new, directly or through others, is a component and goes
to one partition, in its order. Between such portions a key may have been elsewhere: as long as a component's keys were
seen in one partition only, it goes there; where they were seen in two, the readers of all partitions have to meet
before these rows, and from there on nothing is remembered. Keys are told apart by 64 bits: two that share a hash count
as one, which costs an order that nobody needed. Pure, and the same for the same rows. Runs on executors.
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

Hashes = npt.NDArray[np.uint64]
Partitions = npt.NDArray[np.int32]
NO_KEY = 0  # in place of a hash: a NULL is in nobody's way
MOST_KEYS = 1 << 20  # that are remembered; beyond, readers meet

_UNSEEN, _CROSSES = -1, -2
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


def components(hashes: Hashes) -> Longs:
    """The component of each row, named by its first row."""
    _, numbers = np.unique(hashes, return_inverse=True)
    parent = np.arange(len(hashes), dtype=np.int64)
    _unite(parent, np.ascontiguousarray(hashes), numbers.reshape(hashes.shape).astype(np.int64))
    return parent


@kernel
def _root(parent: Longs, row: int) -> int:
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


@kernel
def _unite(parent: Longs, hashes: Any, numbers: Longs) -> None:
    first = np.full(hashes.size, -1, np.int64)  # by number of a key
    for row in range(hashes.shape[0]):
        for place in range(hashes.shape[1]):
            if hashes[row, place] == NO_KEY:
                continue
            number = numbers[row, place]
            if first[number] < 0:
                first[number] = row
                continue
            a, b = _root(parent, row), _root(parent, first[number])
            if a < b:
                parent[b] = a
            elif b < a:
                parent[a] = b
    for row in range(len(parent)):
        parent[row] = parent[parent[row]]  # a parent stands before, so it is a root already


@kernel
def _seen_by(component: Longs, hashes: Any, seen: Any, found: Any) -> None:
    """Of each component, at its first row: where its keys were seen."""
    for row in range(hashes.shape[0]):
        at = component[row]
        for place in range(hashes.shape[1]):
            where = seen[row, place]
            if hashes[row, place] == NO_KEY or where == _UNSEEN or where == found[at]:
                continue
            found[at] = where if found[at] == _UNSEEN else _CROSSES


@dataclass(slots=True)
class Conflicts:
    """Partitions for portions of one table's rows, one after the other. Each begins above the last ts of the one
    before, so that readers can meet between them."""

    partitions: int
    most_keys: int = MOST_KEYS
    is_known: bool = False  # whether what was sent before, and not met after, is remembered
    _keys: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))  # sorted
    _where: Partitions = field(default_factory=lambda: np.zeros(0, np.int32))

    def place(self, hashes: Hashes) -> tuple[Partitions, bool]:
        """The partition of each row, and whether readers must meet before them."""
        component = components(hashes)
        found = np.full(len(hashes), _UNSEEN, np.int32)
        _seen_by(component, np.ascontiguousarray(hashes), self._seen(hashes), found)
        must_meet = not self.is_known or bool((found == _CROSSES).any()) or len(self._keys) > self.most_keys
        if must_meet:
            self.forget()
            found[:] = _UNSEEN
        self.is_known = True
        chosen = np.where(found == _UNSEEN, self._fresh(hashes), found)[component].astype(np.int32)
        self._remember(hashes, chosen)
        return chosen, must_meet

    def forget(self) -> None:
        """Readers meet here, or nobody knows any more what was where."""
        self._keys, self._where = np.zeros(0, np.uint64), np.zeros(0, np.int32)
        self.is_known = False

    def _seen(self, hashes: Hashes) -> Partitions:
        if not len(self._keys):
            return np.full(hashes.shape, _UNSEEN, np.int32)
        at = np.minimum(np.searchsorted(self._keys, hashes), len(self._keys) - 1)
        return np.where(self._keys[at] == hashes, self._where[at], _UNSEEN).astype(np.int32)

    def _fresh(self, hashes: Hashes) -> Partitions:
        """By the first of a row's keys, the row key: it stays where it is, whatever else changes."""
        if not hashes.shape[1]:
            return np.zeros(len(hashes), np.int32)
        first = np.where(hashes[:, 0] == NO_KEY, hashes[:, min(1, hashes.shape[1] - 1)], hashes[:, 0])
        return ((first >> np.uint64(33)) % np.uint64(self.partitions)).astype(np.int32)

    def _remember(self, hashes: Hashes, chosen: Partitions) -> None:
        is_key = hashes != NO_KEY
        keys = np.concatenate([self._keys, hashes[is_key]])
        where = np.concatenate([self._where, np.broadcast_to(chosen[:, None], hashes.shape)[is_key]])
        self._keys, at = np.unique(keys, return_index=True)
        self._where = where[at]
