"""Many batches of raw changes into one: in commit order, each change once.

The order is ``(commit_ts, start_ts, key)``, within sections that are never mixed (the spans of a
segment). Most rows come in long runs that are sorted already: commit-ts alone is sorted first, and
keys are compared only between neighbours of one transaction. Rows whose keys then turn out to be
out of order are sorted once more, and only those. Values are not touched before the order is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar.gather import Scattered
from tidemill.columnar.jit import kernel
from tidemill.errors import InvariantError
from tidemill.model.change import alike, cut_by_bytes

Rows = npt.NDArray[np.int64]
Stamps = npt.NDArray[np.uint64]
Verdict = npt.NDArray[np.uint8]

BINARY_COLUMNS = ("key", "value", "old_value")

_COMPARED_BYTES = 32 << 20

_FINE, _DISORDER, _DUPLICATE, _OTHER_TXN = 0, 1, 2, 3  # what a row is to the one before it


@dataclass(frozen=True)
class Merged:
    """Sorted changes that still lie where they came from.

    Section i is the rows ``[bounds[i], bounds[i + 1])``. ``order`` says which row of ``parts``, counted
    through, comes where; None where they are in order as they are.
    """

    parts: Sequence[pa.RecordBatch]
    order: Rows | None
    bounds: Rows

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def schema(self) -> pa.Schema:
        schema: pa.Schema = self.parts[0].schema
        return schema

    def fixed(self, name: str) -> npt.NDArray[Any]:
        """A column of numbers, in order."""
        values = _joined(self.parts, name)
        return values if self.order is None else values[self.order]

    @cached_property
    def binary(self) -> dict[str, Scattered]:
        """Where the values of each binary column are, in order."""
        return {name: Scattered.of([part.column(name) for part in self.parts], self.order) for name in BINARY_COLUMNS}

    def batches(self, cuts: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The rows between each two of ``cuts``, side by side; uncopied if they lie so already."""
        if self.order is None and len(self.parts) == 1:
            yield from (self.parts[0].slice(low, high - low) for low, high in pairwise(cuts))
            return
        fixed = {name: self.fixed(name) for name in self.schema.names if name not in BINARY_COLUMNS}
        binary = self.binary
        for low, high in pairwise(cuts):
            columns = [
                _gathered(binary[name].slice(low, high)) if name in binary else pa.array(fixed[name][low:high])
                for name in self.schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def merge(parts: Sequence[pa.RecordBatch], bounds: Rows | None = None) -> Merged:
    """Sort each section of ``parts``, taken one after the other, and keep one of each change.

    Without ``bounds`` all is one section. Two changes of one key and commit-ts that differ in anything
    else raise an ``InvariantError``.
    """
    parts = alike(parts)
    if bounds is None:
        bounds = np.array([0, sum(len(part) for part in parts)], dtype=np.int64)
    index = _Index(parts, bounds)
    order = _order_by_commit(index)
    is_sorted = order is None
    if order is None:
        order = np.arange(bounds[-1], dtype=np.int64)
    verdict = index.judge(order)
    found = np.bincount(verdict, minlength=4)
    if found[_DISORDER]:
        is_sorted = False
        _order_ties(index, order, verdict)
        verdict = index.judge(order)
        found = np.bincount(verdict, minlength=4)
    if found[_OTHER_TXN]:
        _refuse_two_writers(index, order, verdict)
    if found[_DUPLICATE]:
        is_sorted = False
        _refuse_contradictions(index, order, verdict)
        keep = verdict != _DUPLICATE
        bounds = np.concatenate(([0], np.cumsum(keep)))[bounds]
        order = order[keep]
    return Merged(parts, None if is_sorted else order, bounds)


def ts_column(changes: pa.RecordBatch, name: str) -> Stamps:
    """A column of timestamps without a copy."""
    values: Stamps = changes.column(name).to_numpy(zero_copy_only=True)
    return values


class _Index:
    """What the order depends on, of all parts together."""

    def __init__(self, parts: Sequence[pa.RecordBatch], bounds: Rows) -> None:
        self.parts = parts
        self.bounds = bounds
        self.commit: Stamps = _joined(parts, "commit_ts")
        self.start: Stamps = _joined(parts, "start_ts")
        self.key: pa.Array = pa.concat_arrays([part.column("key") for part in parts])

    def judge(self, order: Rows) -> Verdict:
        """What each row of ``order`` is to the one before it."""
        _, offsets, data = self.key.buffers()
        places = np.frombuffer(offsets, dtype=np.int32)[self.key.offset : self.key.offset + len(self.key) + 1]
        keys = np.frombuffer(data if data is not None and data.size else b"\0", dtype=np.uint8)
        commit, start, at, of = (_read_only(values) for values in (self.commit, self.start, places, keys))
        verdict: Verdict = _judge(commit, start, at, of, order, self.bounds)
        return verdict

    def runs(self, order: Rows) -> Rows:
        """For each row of ``order`` the number of its run: rows of one section and commit-ts."""
        commit = self.commit[order]
        begins = np.zeros(len(order) + 1, dtype=bool)
        begins[1:-1] = commit[1:] != commit[:-1]
        begins[self.bounds[:-1]] = True
        return np.cumsum(begins[:-1])

    def sizes(self) -> Rows:
        """For each row the bytes of its values."""
        lengths = [
            Scattered.of([part.column(name) for part in self.parts], None).length for name in ("value", "old_value")
        ]
        total: Rows = np.sum(lengths, axis=0, dtype=np.int64)
        return total

    def rows(self, at: Rows) -> pa.Table:
        return pa.Table.from_batches(self.parts).take(pa.array(at))


def _joined(parts: Sequence[pa.RecordBatch], name: str) -> npt.NDArray[Any]:
    columns = [part.column(name).to_numpy(zero_copy_only=True) for part in parts]
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Some of Arrow's buffers are read-only; with all of them so one compiled form serves all."""
    view = values.view()
    view.flags.writeable = False
    return view


def _gathered(values: Scattered) -> pa.Array:
    offsets = pa.py_buffer(values.arrow_offsets())
    data = pa.allocate_buffer(values.bytes)
    values.copy_to(np.frombuffer(data, dtype=np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(values.length), [None, offsets, data])


def _order_by_commit(index: _Index) -> Rows | None:
    """The stable order of each section by commit-ts; None where all of them are in it already."""
    commit, bounds = index.commit, index.bounds
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


@kernel
def _judge(commit: Any, start: Any, offsets: Any, data: Any, order: Any, bounds: Any) -> Any:
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


def _rows_of_marked_runs(runs: Rows, marked: npt.NDArray[np.bool_]) -> Rows:
    """Positions of all rows in a run that has a marked row."""
    is_marked = np.zeros(runs[-1] + 1, dtype=bool)
    is_marked[runs[marked]] = True
    return np.flatnonzero(is_marked[runs])


def _order_ties(index: _Index, order: Rows, verdict: Verdict) -> None:
    """Sort, in place, the runs of one commit-ts in which some row is out of order."""
    runs = index.runs(order)
    at = _rows_of_marked_runs(runs, verdict == _DISORDER)
    rows = order[at]
    ties = pa.table({"run": runs[at], "start_ts": index.start[rows], "key": index.key.take(pa.array(rows))})
    by = [("run", "ascending"), ("start_ts", "ascending"), ("key", "ascending")]
    order[at] = rows[pc.sort_indices(ties, sort_keys=by).to_numpy()]


def _refuse_two_writers(index: _Index, order: Rows, verdict: Verdict) -> None:
    """Where several transactions share a commit-ts, see that no key was written by two of them."""
    runs = index.runs(order)
    at = _rows_of_marked_runs(runs, verdict == _OTHER_TXN)
    ties = pa.table({"run": runs[at], "key": index.key.take(pa.array(order[at]))})
    by_key = pc.sort_indices(ties, sort_keys=[("run", "ascending"), ("key", "ascending")]).to_numpy()
    rows, run = order[at][by_key], runs[at][by_key]
    keys, start = index.key.take(pa.array(rows)), index.start[rows]
    same_key = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    clash = same_key & (run[1:] == run[:-1]) & (start[1:] != start[:-1])
    if clash.any():
        _refuse(index, rows[1:][clash][0], "two transactions")


def _refuse_contradictions(index: _Index, order: Rows, verdict: Verdict) -> None:
    """A change that came twice must have come the same both times."""
    found = np.flatnonzero(verdict == _DUPLICATE)
    sizes = index.sizes()[order[found]]
    for low, high in pairwise(cut_by_bytes(sizes, _COMPARED_BYTES)):  # so much of both is copied
        at = found[low:high]
        second, first = index.rows(order[at]), index.rows(order[at - 1])
        for name in ("op", "value", "old_value"):
            differ = pc.not_equal(second.column(name), first.column(name)).to_numpy()
            if differ.any():
                _refuse(index, order[at][differ][0], f"two deliveries that differ in {name}")


def _refuse(index: _Index, row: int, found: str) -> None:
    key: bytes = index.key[int(row)].as_py()
    raise InvariantError(
        f"cannot order the changes of key {key.hex()} at commit-ts {index.commit[row]}: found {found}, where key "
        "and commit-ts name one change. Nothing of this batch was written downstream. Restart to pull it again "
        "from the checkpoint; if it comes back, report it with the store's version."
    )
