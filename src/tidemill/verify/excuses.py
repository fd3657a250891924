"""Differences that a changefeed's filters explain: rows that were left out on purpose are not missing.

``filter.event-filters`` leave out changes, not rows, so nobody can say from the rows alone what the downstream should
hold. What can be said is which difference a filter would have made:

    a row is missing downstream       an insert of the upstream's row is left out
    a row has other values            an update to the upstream's row, or from the downstream's row, is left out
    a row is there downstream only    a delete of the downstream's row is left out

Such rows are counted as *filtered*. Runs on executors.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import FilterError
from tidemill.flow.filter import RowFilter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.row import RowOp
from tidemill.model.table import TableInfo
from tidemill.verify.hashing import Hashes

Marks = npt.NDArray[np.uint8]  # by row: the kinds of differences, as bits of RowOp, that a filter explains


@dataclass(frozen=True)
class Excuses:
    """For the rows of one table. Small and picklable."""

    config: ChangefeedConfig
    table: TableInfo  # with all its columns: expressions may speak of some that do not go out

    @cached_property
    def _filter(self) -> RowFilter:
        return RowFilter(self.config)

    @property
    def is_needed(self) -> bool:
        return self._filter.concerns(self.table)

    def of_upstream(self, rows: pa.RecordBatch) -> Marks:
        """``rows`` as mounted, with all columns."""
        found = self._filter
        return _bits(
            {
                RowOp.INSERT: found.leaves_out(self.table, RowOp.INSERT, new=rows),
                RowOp.UPDATE: found.leaves_out(self.table, RowOp.UPDATE, new=rows),
            }
        )

    def of_downstream(self, rows: pa.RecordBatch) -> Marks:
        """``rows`` in the form of the comparison. Where that lacks what an expression asks for, it explains nothing."""
        masks = {}
        for op in (RowOp.UPDATE, RowOp.DELETE):
            try:
                masks[op] = self._filter.leaves_out(self.table, op, old=rows)
            except (FilterError, pa.ArrowException, KeyError):
                masks[op] = np.zeros(len(rows), np.bool_)
        return _bits(masks)


def explained(verdict: Hashes, op: RowOp, *sides: tuple[Hashes, Marks]) -> npt.NDArray[np.bool_]:
    """Of keys that differ those for which a filter explains it, by a mark on any of the sides."""
    is_explained = np.zeros(len(verdict), np.bool_)
    for keys, marks in sides:
        is_explained |= np.isin(verdict, keys[(marks & _bit(op)) > 0])
    return is_explained


def _bit(op: RowOp) -> np.uint8:
    return np.uint8(1 << int(op))


def _bits(masks: dict[RowOp, npt.NDArray[np.bool_]]) -> Marks:
    total: Marks = np.zeros(len(next(iter(masks.values()))), np.uint8)
    for op, mask in masks.items():
        total |= np.where(mask, _bit(op), np.uint8(0)).astype(np.uint8)
    return total
