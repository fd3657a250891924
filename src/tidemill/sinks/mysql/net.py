"""What remains of many changes: for each key the row before them and the row after, nothing of what was between.

    insert 7 · update 7 · delete 7        ─► nothing (or a delete, where an earlier try may have written it)
    update 7 · update 7                   ─► one update: the first old row, the last new one
    update 7 → 8 (its key)                ─► delete 7, insert 8

Keys are told apart by the bytes of their handle key. Within a transaction deletes come first, then updates, then
inserts: two rows that swap their keys end where they should. All of it is done for whole columns at once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import TableInfo
from tidemill.sinks.mysql.keycodes import handle_codes, places

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NONE = -1


@dataclass(frozen=True, slots=True)
class Net:
    """One entry a key (and piece). ``before`` and ``after`` are rows of the old and the new image; NONE: no row."""

    piece: Ints
    before: Ints
    after: Ints
    last_old: Ints  # a row of the old image that holds the key, where ``after`` is NONE
    links: tuple[Ints, Ints]  # pairs of entries that were one update, of a row whose key changed

    def __len__(self) -> int:
        return len(self.before)


def net_effect(rows: RowBatch, piece_of_change: Ints | None = None) -> Net:
    """``rows`` in commit order. With ``piece_of_change`` only changes of the same piece are merged."""
    atoms = _atoms(rows, piece_of_change)
    order = np.lexsort(
        (atoms.moment, atoms.code, atoms.piece) if piece_of_change is not None else (atoms.moment, atoms.code)
    )
    code, piece = atoms.code[order], atoms.piece[order]
    is_first = np.ones(len(order), np.bool_)
    if len(order):
        is_first[1:] = (code[1:] != code[:-1]) | (piece[1:] != piece[:-1])
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    first_atom, last_atom = order[first], order[last]
    return Net(
        piece[first],
        atoms.old[first_atom],
        atoms.new[last_atom],
        atoms.old[last_atom],
        _links(atoms, order, is_first),
    )


@dataclass(frozen=True, slots=True)
class _Atoms:
    """What happened to one key: deletes, updates and inserts, those of split updates apart."""

    code: Ints
    piece: Ints
    moment: Ints
    old: Ints
    new: Ints
    change: Ints
    splits: int  # so many split updates: the first of the deletes, and the first of the inserts, are their halves


def _atoms(rows: RowBatch, piece_of_change: Ints | None) -> _Atoms:
    op = rows.op
    has_old, has_new = op != RowOp.INSERT, op != RowOp.DELETE
    old_row, new_row = np.cumsum(has_old) - 1, np.cumsum(has_new) - 1
    old_code, new_code = handle_codes(rows.table, rows.old, rows.new)
    updates = np.flatnonzero(op == RowOp.UPDATE)
    moved = updates[old_code[old_row[updates]] != new_code[new_row[updates]]]
    stays = updates if not len(moved) else np.setdiff1d(updates, moved, assume_unique=True)
    deletes = np.concatenate((moved, np.flatnonzero(op == RowOp.DELETE)))
    inserts = np.concatenate((moved, np.flatnonzero(op == RowOp.INSERT)))
    change = np.concatenate((deletes, stays, inserts))
    nothing = np.full(max(len(deletes), len(inserts)), NONE, np.int64)
    rank = np.repeat(np.arange(3), (len(deletes), len(stays), len(inserts)))
    return _Atoms(
        np.concatenate((old_code[old_row[deletes]], new_code[new_row[stays]], new_code[new_row[inserts]])),
        piece_of_change[change] if piece_of_change is not None else np.zeros(len(change), np.int64),
        transactions(rows)[change] * 3 + rank,
        np.concatenate((old_row[deletes], old_row[stays], nothing[: len(inserts)])),
        np.concatenate((nothing[: len(deletes)], new_row[stays], new_row[inserts])),
        change,
        len(moved),
    )


def _links(atoms: _Atoms, order: Ints, is_first: Bools) -> tuple[Ints, Ints]:
    entry_of_atom = np.empty(len(order), np.int64)
    entry_of_atom[order] = np.cumsum(is_first) - 1
    inserts = len(order) - np.count_nonzero(atoms.old == NONE)
    return entry_of_atom[: atoms.splits], entry_of_atom[inserts : inserts + atoms.splits]


def transactions(rows: RowBatch) -> Ints:
    """The number of each change's transaction, from 0 on, in commit order."""
    begins = np.zeros(len(rows), np.int64)
    if len(rows):
        begins[1:] = (rows.commit_ts[1:] != rows.commit_ts[:-1]) | (rows.start_ts[1:] != rows.start_ts[:-1])
    return np.cumsum(begins)


def keys_changed(table: TableInfo, old: pa.RecordBatch, new: pa.RecordBatch) -> Bools:
    """For pairs of rows with the same handle key: whether any column of another unique index differs.

    The value of a virtual column is in no row, so where a unique index has one every pair counts as differing.
    """
    unique = [index for index in table.indexes if index.is_unique or index.is_primary]
    if any(table.columns[part.offset].is_virtual for index in unique for part in index.columns):
        return np.ones(old.num_rows, np.bool_)
    where, handle = places(table), {column.offset for column in table.handle_key}
    changed = np.zeros(old.num_rows, np.bool_)
    for column in table.unique_key_columns:
        if column.offset not in handle:
            before, after = old.column(where[column.offset]), new.column(where[column.offset])
            same = pc.fill_null(pc.equal(before, after), False)
            if before.null_count and after.null_count:
                same = pc.or_(same, pc.and_(before.is_null(), after.is_null()))
            changed |= ~same.to_numpy(zero_copy_only=False)
    return changed
