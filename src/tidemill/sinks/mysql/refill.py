"""Rows read from the upstream in place of changes: where a DDL has changed or brought rows that no change tells of.

Runs in the driver, between batches. Every call may be repeated, and ends in the same rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.retry import Patience
from tidemill.sinks.mysql.writer import MysqlTarget, write_rows
from tidemill.sinks.port import Rescan


class Refill:
    def __init__(self, rescan: Rescan, target: Callable[[TableInfo], MysqlTarget], patience: Patience) -> None:
        self._rescan, self._target, self._patience = rescan, target, patience

    def copy(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts, into: tuple[str, str] | None = None) -> None:
        """Write the rows that ``physical_ids`` held at ``ts``, read as those of ``table``; ``into``: schema and name
        of another table of the same form."""
        place = replace(table, schema=into[0], name=into[1]) if into is not None else table
        rows = (replace(batch, table=place) for batch in self._read(table, physical_ids, ts))
        write_rows(self._target(place), rows)

    def delete(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> None:
        """Delete the rows that ``physical_ids`` held at ``ts``, found by their keys."""
        write_rows(self._target(table), map(_as_deletes, self._read(table, physical_ids, ts)))

    def _read(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        for batch in self._rescan(table, physical_ids, ts):
            if self._patience.is_ended:
                raise failures.DownstreamUnavailableError(
                    f"stopped while table {table.full_name} was read anew for a DDL. The changefeed continues with "
                    "this DDL when it is started again."
                )
            yield batch


def _as_deletes(rows: RowBatch) -> RowBatch:
    return replace(rows, op=np.full(len(rows), RowOp.DELETE, rows.op.dtype), old=rows.new, new=rows.new.slice(0, 0))
