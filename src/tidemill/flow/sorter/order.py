"""Many batches of raw changes into one: in commit order, each change once.

The order is ``(commit_ts, start_ts, key)``, within sections that are never mixed (the spans of a
segment). Most rows come in long runs that are sorted already: commit-ts alone is sorted first, and
keys are compared only between neighbours of one transaction. Rows whose keys then turn out to be
out of order are sorted once more, and only those.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.errors import InvariantError

Rows = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_FINE, _DISORDER, _DUPLICATE, _OTHER_TXN = 0, 1, 2, 3  # what a row is to the one before it


def sort_unique(changes: pa.RecordBatch, bounds: Rows | None = None) -> tuple[pa.RecordBatch, Rows]:
    """Sort each section of ``changes`` and keep one of each change; return the batch and the new bounds.

    Section i is the rows ``[bounds[i], bounds[i + 1])``; without ``bounds`` all is one section. A
    batch that is in order already comes back as it is, uncopied. Two changes of one key and
    commit-ts that differ in anything else raise an ``InvariantError``.
    """
    if bounds is None:
        bounds = np.array([0, len(changes)], dtype=np.int64)
    commit, start = ts_column(changes, "commit_ts"), ts_column(changes, "start_ts")
    offsets, data = binary_column(changes, "key")
    order = _order_by_commit(commit, bounds)
    is_sorted = order is None
    if order is None:
        order = np.arange(len(changes), dtype=np.int64)
    verdict = _judge(commit, start, offsets, data, order, bounds)
    if (verdict == _DISORDER).any():
        is_sorted = False
        _order_ties(changes, order, verdict, bounds)
        verdict = _judge(commit, start, offsets, data, order, bounds)
    if (verdict == _OTHER_TXN).any():
        _refuse_two_writers(changes, order, verdict, bounds)
    if (verdict == _DUPLICATE).any():
        is_sorted = False
        _refuse_contradictions(changes, order, verdict)
        keep = verdict != _DUPLICATE
        bounds = np.concatenate(([0], np.cumsum(keep)))[bounds]
        order = order[keep]
    return (changes if is_sorted else changes.take(pa.array(order))), bounds


def ts_column(changes: pa.RecordBatch, name: str) -> npt.NDArray[np.uint64]:
    """A column of timestamps without a copy."""
    values: npt.NDArray[np.uint64] = changes.column(name).to_numpy(zero_copy_only=True)
    return values


def binary_column(changes: pa.RecordBatch, name: str) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """Offsets (one more than rows) and bytes of a binary column without a copy."""
    column = changes.column(name)
    _, offsets, data = column.buffers()
    every: Offsets
    if offsets is None or offsets.size == 0:
        every = np.zeros(1, dtype=np.int32)
    elif pa.types.is_large_binary(column.type):
        every = np.frombuffer(offsets, dtype=np.int64)
    else:
        every = np.frombuffer(offsets, dtype=np.int32)
    mine = every[column.offset : column.offset + len(column) + 1]
    return mine, np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)


def _order_by_commit(commit: npt.NDArray[np.uint64], bounds: Rows) -> Rows | None:
    """The stable order of each section by commit-ts; None where all of them are in it already."""
    descents = np.flatnonzero(commit[1:] < commit[:-1]) + 1
    sections = np.searchsorted(bounds, descents, side="right") - 1
    inside = bounds[sections] != descents  # the first row of a section may be below the last of the one before
    if not inside.any():
        return None
    order = np.arange(len(commit), dtype=np.int64)
    for section in np.unique(sections[inside]):
        low, high = bounds[section], bounds[section + 1]
        order[low:high] = low + np.argsort(commit[low:high], kind="stable")
    return order


@njit(cache=True, nogil=True)
def _judge(commit, start, offsets, data, order, bounds):  # type: ignore[no-untyped-def] # compiled
    """Compare each row of ``order`` with the one before it in its section."""
    verdict = np.zeros(len(order), dtype=np.uint8)
    for section in range(len(bounds) - 1):
        for at in range(bounds[section] + 1, bounds[section + 1]):
            row, before = order[at], order[at - 1]
            if commit[row] != commit[before]:
                continue
            if start[row] != start[before]:
                verdict[at] = _OTHER_TXN if start[row] > start[before] else _DISORDER
                continue
            a, a_end = offsets[before], offsets[before + 1]
            b, b_end = offsets[row], offsets[row + 1]
            while a < a_end and b < b_end and data[a] == data[b]:
                a += 1
                b += 1
            if b == b_end:
                verdict[at] = _DUPLICATE if a == a_end else _DISORDER
            elif a < a_end and data[a] > data[b]:
                verdict[at] = _DISORDER
    return verdict


def _runs(changes: pa.RecordBatch, order: Rows, bounds: Rows) -> Rows:
    """For each row of ``order`` the number of its run: rows of one section and commit-ts."""
    commit = ts_column(changes, "commit_ts")[order]
    begins = np.zeros(len(order) + 1, dtype=bool)
    begins[1:-1] = commit[1:] != commit[:-1]
    begins[bounds[:-1]] = True
    return np.cumsum(begins[:-1])


def _rows_of_marked_runs(runs: Rows, marked: npt.NDArray[np.bool_]) -> Rows:
    """Positions of all rows in a run that has a marked row."""
    is_marked = np.zeros(runs[-1] + 1, dtype=bool)
    is_marked[runs[marked]] = True
    return np.flatnonzero(is_marked[runs])


def _order_ties(changes: pa.RecordBatch, order: Rows, verdict: npt.NDArray[np.uint8], bounds: Rows) -> None:
    """Sort, in place, the runs of one commit-ts in which some row is out of order."""
    runs = _runs(changes, order, bounds)
    at = _rows_of_marked_runs(runs, verdict == _DISORDER)
    rows = order[at]
    ties = pa.table(
        {
            "run": runs[at],
            "start_ts": ts_column(changes, "start_ts")[rows],
            "key": changes.column("key").take(pa.array(rows)),
        }
    )
    keys = [("run", "ascending"), ("start_ts", "ascending"), ("key", "ascending")]
    order[at] = rows[pc.sort_indices(ties, sort_keys=keys).to_numpy()]


def _refuse_two_writers(changes: pa.RecordBatch, order: Rows, verdict: npt.NDArray[np.uint8], bounds: Rows) -> None:
    """Where several transactions share a commit-ts, see that no key was written by two of them."""
    runs = _runs(changes, order, bounds)
    at = _rows_of_marked_runs(runs, verdict == _OTHER_TXN)
    rows, run = order[at], runs[at]
    keys = changes.column("key").take(pa.array(rows))
    by_key = pc.sort_indices(
        pa.table({"run": run, "key": keys}), sort_keys=[("run", "ascending"), ("key", "ascending")]
    ).to_numpy()
    keys = keys.take(pa.array(by_key))
    start = ts_column(changes, "start_ts")[rows][by_key]
    same_key = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    clash = same_key & (run[by_key][1:] == run[by_key][:-1]) & (start[1:] != start[:-1])
    if clash.any():
        _refuse(changes, rows[by_key][1:][clash][0], "two transactions")


def _refuse_contradictions(changes: pa.RecordBatch, order: Rows, verdict: npt.NDArray[np.uint8]) -> None:
    """A change that came twice must have come the same both times."""
    at = np.flatnonzero(verdict == _DUPLICATE)
    second, first = changes.take(pa.array(order[at])), changes.take(pa.array(order[at - 1]))
    if second.equals(first):
        return
    for name in ("op", "value", "old_value"):
        differ = pc.not_equal(second.column(name), first.column(name)).to_numpy(zero_copy_only=False)
        if differ.any():
            _refuse(changes, order[at][differ][0], f"two deliveries that differ in {name}")


def _refuse(changes: pa.RecordBatch, row: int, found: str) -> None:
    key: bytes = changes.column("key")[int(row)].as_py()
    commit_ts = int(ts_column(changes, "commit_ts")[row])
    raise InvariantError(
        f"cannot order the changes of key {key.hex()} at commit-ts {commit_ts}: found {found}, where key and "
        "commit-ts name one change. Nothing of this batch was written downstream. Restart to pull it again "
        "from the checkpoint; if it comes back, report it with the store's version."
    )


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of many; the only one there is comes back uncopied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
