"""Updates that change a key become a delete and an insert.

    mounter ── rows ──► split_key_updates ── rows ──► encoder

A transaction may swap the keys of two rows. Replayed as updates, the first would meet a duplicate
key; replayed as deletes followed by inserts, every order of arrival is safe. So once an update of
a transaction is split, all of that transaction's rows in this table are put in the order delete,
update, insert. Runs on executors.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.row import RowBatch, RowOp

_RANK = np.array([0, 2, 1, 0], dtype=np.int8)  # by RowOp: delete < update < insert


def split_key_updates(rows: RowBatch) -> RowBatch:
    """Split each update whose old and new values differ in a column of the handle key or of any
    unique index, nullable ones included.

    Both halves keep the ts of the update. Transactions without a split keep their order. The
    changes of one transaction, those with equal ``(commit_ts, start_ts)``, must stand together
    and must not continue in another batch: the caller cuts batches between transactions, or puts the
    halves in order by himself.
    """
    split = _changes_key(rows)
    if split is None:
        return rows
    source = np.repeat(np.arange(len(rows)), np.where(split, 2, 1))
    op = rows.op[source]
    is_half = split[source]
    is_second = is_half & np.concatenate(([False], source[1:] == source[:-1]))
    op = np.where(is_half, np.where(is_second, RowOp.INSERT, RowOp.DELETE), op).astype(np.uint8)

    transaction = _transactions(rows)
    reordered = np.zeros(int(transaction[-1]) + 1, dtype=np.bool_)
    reordered[transaction[split]] = True
    rank = np.where(reordered[transaction[source]], _RANK[op], 0)
    order = np.lexsort((rank, transaction[source]))
    source, op = source[order], op[order]

    return replace(
        rows,
        op=op,
        start_ts=rows.start_ts[source],
        commit_ts=rows.commit_ts[source],
        new=rows.new.take(pa.array(_new_rows(rows)[source[op != RowOp.DELETE]])),
        old=rows.old.take(pa.array(_old_rows(rows)[source[op != RowOp.INSERT]])),
    )


def _changes_key(rows: RowBatch) -> npt.NDArray[np.bool_] | None:
    """For each change, whether it is an update of a key. None: not one is."""
    updates = np.flatnonzero(rows.op == RowOp.UPDATE)
    if not len(updates):
        return None
    new = pa.array(_new_rows(rows)[updates])
    old = pa.array(_old_rows(rows)[updates])
    changed = np.zeros(len(updates), dtype=np.bool_)
    places = {column.offset: place for place, column in enumerate(rows.table.stored_columns)}
    for column in rows.table.unique_key_columns:
        place = places[column.offset]
        changed |= _differ(rows.new.column(place).take(new), rows.old.column(place).take(old))
    if not changed.any():
        return None
    split = np.zeros(len(rows), dtype=np.bool_)
    split[updates[changed]] = True
    return split


def _differ(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_floating(left.type):
        # What counts is the text: -0 and 0 are equal as numbers and differ as keys in a message.
        bits = pa.int64() if left.type == pa.float64() else pa.int32()
        left, right = left.view(bits), right.view(bits)
    equal = pc.fill_null(pc.equal(left, right), pa.scalar(False))
    equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    different: npt.NDArray[np.bool_] = ~equal.to_numpy(zero_copy_only=False)
    return different


def _transactions(rows: RowBatch) -> npt.NDArray[np.int64]:
    """The number of each change's transaction within the batch."""
    begins = np.ones(len(rows), dtype=np.int64)
    begins[0] = 0
    begins[1:] = (rows.commit_ts[1:] != rows.commit_ts[:-1]) | (rows.start_ts[1:] != rows.start_ts[:-1])
    return np.cumsum(begins)


def _new_rows(rows: RowBatch) -> npt.NDArray[np.int64]:
    """Where each change's new image stands in ``rows.new``; meaningless for a delete."""
    return np.cumsum(rows.op != RowOp.DELETE) - 1


def _old_rows(rows: RowBatch) -> npt.NDArray[np.int64]:
    return np.cumsum(rows.op != RowOp.INSERT) - 1
