"""A recorded history through the MySQL sink without Spark: rows of each batch, then its DDL; and what is there then."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from tests.flow.schema.stores import fed_store
from tests.histories import History, load
from tests.sinks.halves import MysqlHalves
from tests.sinks.lake.replay import rows_of
from tidemill.flow.decoder import as_rows_of
from tidemill.flow.mounter import mount
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import write_rows
from tidemill.sinks.port import Rescan


def barriers(history: History) -> list[int]:
    """Every ts at which a batch ends: DDLs, marks and the end."""
    _, changes = fed_store(history.name)
    marks = {mark["ts"] for mark in history.marks()}
    return sorted({*(int(change.finished_ts) for change in changes), *marks, history.end_ts})


def events_at(name: str, ts: int) -> Iterator[DdlEvent]:
    for change in fed_store(name)[1]:
        if change.finished_ts == ts:
            yield from change.events


def units(history: History, from_ts: int, to_ts: int) -> Iterator[RowBatch]:
    """The rows of ``(from_ts, to_ts]``, a batch of rows for each table, its partitions together."""
    store, _ = fed_store(history.name)
    found: dict[int, tuple[TableInfo, list[tuple[int, pa.RecordBatch]]]] = {}
    for followed in store.followed():
        wanted = followed.rows_of(from_ts, to_ts)
        if wanted is None:
            continue
        changes = _changes(history.name, followed.physical_id)
        stamps = changes.column("commit_ts").to_numpy()
        begin, end = (int(np.searchsorted(stamps, np.uint64(ts), "right")) for ts in wanted)
        table = store.table(followed.physical_id, Ts(to_ts))
        if begin == end or table is None or not table.is_eligible:
            continue
        _, parts = found.setdefault(table.id, (table, []))
        parts.append((followed.physical_id, changes.slice(begin, end - begin)))
    for table, parts in found.values():
        physical_id, changes = parts[0]
        if len(parts) > 1:
            whole = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks().to_batches()[0]
            changes = as_rows_of(physical_id, whole)
        yield mount(table, physical_id, changes, "UTC")


def rescan_of(history: History) -> Rescan:
    """Tables as of a ts, as the upstream would give them."""

    def rescan(table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        for physical_id in physical_ids:
            yield rows_of(history, table, physical_id, ts)

    return rescan


@cache
def _changes(name: str, physical_id: int) -> pa.RecordBatch:
    return load(name).row_changes(physical_id)


def replay(
    history: History,
    sink: MysqlHalves,
    at_mark: Callable[[int], None],
    run_ddl: Callable[[MysqlHalves, DdlEvent], None] = MysqlHalves.ddl,
) -> None:
    """``at_mark`` is called with the ts of each mark, when all up to it is there."""
    from_ts, marks = history.bootstrap_ts, {mark["ts"] for mark in history.marks()}
    for to_ts in barriers(history):
        receipts = []
        for rows in units(history, from_ts, to_ts):
            receipts.append(write_rows(sink.target(rows.table, rows.physical_id, (Ts(0), Ts(to_ts))), iter([rows])))
        sink.commit(Ts(to_ts), receipts)
        for event in events_at(history.name, to_ts):
            run_ddl(sink, event)
        if to_ts in marks:
            at_mark(to_ts)
        from_ts = to_ts
