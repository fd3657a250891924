"""Physical ids and columns that switch while a job still runs; see ``store`` for which do, and when."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidemill.flow.schema.follow import Follower
from tidemill.flow.schema.jobs import JobRow
from tidemill.flow.schema.versions import Rows, Versions
from tidemill.model.ddl import ActionType
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import (
    Job,
    JobState,
    SchemaState,
    partition_args,
    swapped_columns,
    taking_partitions,
    truncate_partition_args,
)

# Jobs that copy rows to new physical ids and switch over to them while they run.
COPYING = frozenset(
    {ActionType.REORGANIZE_PARTITION, ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING}
)


@dataclass(slots=True)
class Running:
    """What is remembered of a job between its transitions."""

    visible_ts: Ts | None = None
    new_ids: tuple[int, ...] = ()  # in use although the job is not done
    has_swapped: bool = False  # columns, although the job is not done
    is_from_start: bool = False  # it ran already when the store was started


class Switches:
    """``tables`` are the newest ones, by logical id."""

    def __init__(self, tables: Mapping[int, TableInfo], versions: Versions, follower: Follower, rows: Rows) -> None:
        self._tables, self._versions, self._follower, self._rows = tables, versions, follower, rows

    def switch(self, job: Job, running: Running, ts: Ts) -> None:
        table = self._tables.get(job.table_id)
        if running.new_ids or table is None:
            return
        self._swap_columns(job, running, table, ts)
        if job.type in COPYING and job.schema_state in (SchemaState.DELETE_REORG, SchemaState.PUBLIC):
            names, running.new_ids = partition_args(job)
            old_ids: Iterable[int] = table.physical_ids
            if job.type == ActionType.REORGANIZE_PARTITION:
                old_ids = [p.id for p in table.partitions if p.name.lower() in names]
            for physical_id in running.new_ids:
                self._versions.add(physical_id, ts, table)
            if self._rows.has_rows(table):
                self._follower.change(old_ids, running.new_ids, ts)
        elif job.type == ActionType.TRUNCATE_TABLE_PARTITION and job.schema_state in (
            SchemaState.DELETE_ONLY,
            SchemaState.DELETE_REORG,
        ):
            _, running.new_ids = truncate_partition_args(job)
            for physical_id in running.new_ids:
                self._versions.add(physical_id, job.real_start_ts, table)
                if self._rows.has_rows(table):
                    self._follower.start(physical_id, job.real_start_ts, None)

    def _swap_columns(self, job: Job, running: Running, table: TableInfo, ts: Ts) -> None:
        """A lossy MODIFY COLUMN: from here on sessions write the new column, and what they leave in the old one, if
        anything, is a cast back. Rows are read by the new one, under the old name until the DDL is delivered."""
        swapped = dict(swapped_columns(job)) if not running.has_swapped else {}
        if not swapped:
            return
        running.has_swapped = True
        columns = tuple(
            replace(swapped[c.name.lower()], name=c.name, offset=c.offset) if c.name.lower() in swapped else c
            for c in table.columns
        )
        # A version of its own, which a store that is started later names alike.
        self._versions.add_swapped(table, replace(table, columns=columns, version_ts=job.real_start_ts), ts)

    def switch_back(self, job: Job, running: Running, ts: Ts) -> None:
        """The job is rolled back after all: from here on the old ids hold the table's rows again."""
        table = self._tables.get(job.table_id)
        for physical_id in running.new_ids:
            self._versions.add(physical_id, ts, None)
        if table is not None:
            self._follower.change(running.new_ids, self._rows.ids(table), ts)
        running.new_ids = ()

    def open_truncated(self, job: Job, new_ids: Iterable[int], tables: Iterable[TableInfo], ts: Ts) -> None:
        """New ids of a truncated partition hold nothing but rows written after the truncation, so all
        of them count; those before ``ts`` are delivered once the DDL is."""
        rows_of = {i for t in tables for i in self._rows.ids(t)}
        for physical_id in sorted(new_ids):
            if physical_id in rows_of:
                self._follower.start(physical_id, job.real_start_ts or ts, ts)
            else:
                self._follower.end(physical_id, ts)

    def replay_takers(self, row: JobRow, after: TableInfo, before: TableInfo | None) -> None:
        """A DROP PARTITION is done. ``before``: None if the order of partitions then is not known."""
        takers = taking_partitions(row.job, [p.id for p in before.partitions] if before is not None else [])
        ids = sorted(takers & set(self._rows.ids(after)))
        self._follower.replay(ids, row.job.real_start_ts or row.commit_ts, row.commit_ts)

    def reopen(self, row: JobRow) -> None:
        """The store starts exactly where a job was done. After a TRUNCATE PARTITION its new ids' rows are still to be
        delivered; after a DROP PARTITION those of its neighbours, again."""
        job = row.job
        table = self._tables.get(job.table_id)
        if job.state != JobState.DONE or table is None:
            return
        if job.type == ActionType.DROP_TABLE_PARTITION:
            self.replay_takers(row, table, None)
        elif job.type == ActionType.TRUNCATE_TABLE_PARTITION:
            # The job's new ids were handed out together with its own: they are the next ones below it, or, in older
            # TiDBs, whose arguments are lists, the highest below it.
            old_ids, _ = truncate_partition_args(job)
            new_ids = sorted(i for i in self._rows.ids(table) if i < job.id)[-len(old_ids) :]
            if not isinstance(job.args, list):
                new_ids = [i for i in new_ids if i >= job.id - len(old_ids)]
            self._follower.reopen(new_ids, job.real_start_ts or row.commit_ts)
