"""The schema store: which table a row belongs to, in which form, at which ts.

    snapshot of the metadata at a ts ─┐
    changes of mysql.tidb_ddl_job ────┴──► SchemaStore ──► table(physical id, commit-ts)   for the mounter
                                                       ──► followed()                      for the puller
                                                       ──► SchemaChange, each a barrier    for the flow

A version is in force for commit-ts *above* its ts: a row committed at a job's FinishedTS was written
under the schema before it. FinishedTS is the commit-ts of the job row that says *done*.

Physical ids, however, may switch while a job still runs. Where rows are copied to new ids (PARTITION
BY, REMOVE PARTITIONING, REORGANIZE, COALESCE, ADD PARTITION of hash and key), sessions write the new
ids from the transition to delete-reorg on, at S: the old ids are followed up to S and the new ones
from S, both with the table as it was before the DDL. TRUNCATE PARTITION switches at delete-only: the
old ids are followed up to FinishedTS, the new ones from their first row, but delivered after the DDL.
DROP PARTITION lets a neighbour take the rows of the range that goes while the job still runs; downstream
they would go with it, so what that neighbour got meanwhile is delivered once more behind the DDL.
All other DDLs switch at FinishedTS. Columns may, too: a lossy MODIFY COLUMN swaps its new column in
several transitions before it is done, and from there on rows are read by that column.

Pure code: the caller scans, subscribes and persists. See ``from_snapshot`` for what it owes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.flow.schema.effects import Catalogue, Effect, Recovered, effect_of
from tidemill.flow.schema.follow import Followed, Follower
from tidemill.flow.schema.jobs import JobChanges, JobGone, JobRow, read_changes
from tidemill.flow.schema.snapshot import PastRead, Start, load_start
from tidemill.flow.schema.switches import Running, Switches
from tidemill.flow.schema.versions import Absent, Rows, Versions
from tidemill.flow.schema.visible import is_visible
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import MAX_TS, Ts
from tidemill.tidb.documents import (
    Job,
    JobState,
)
from tidemill.tidb.meta import MetaSnapshot, read_snapshot


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A barrier: rows of what it touches with commit-ts ≤ ``finished_ts`` go first, then ``events``, then the rest.

    ``touched`` are physical ids, of the tables before and after. Rows of others have nothing to do with it.
    ``events`` is empty where nothing goes downstream: tables of another kind than we replicate, or
    physical ids or columns that switch in the middle of a job. ``visible_ts`` is the commit-ts of the first
    transition at which sessions may use the new form; below ``finished_ts``, rows in between may have
    been written under either. (In a store started in between it is the ts of the start.)
    """

    finished_ts: Ts
    events: tuple[DdlEvent, ...]
    visible_ts: Ts
    touched: frozenset[int] = frozenset()
    started: tuple[Followed, ...] = ()  # intervals that start, or whose begin_ts is now known
    ended: tuple[Followed, ...] = ()


class SchemaStore:
    def __init__(self, ts: Ts, *, is_for_every_table: bool = False) -> None:
        self._start_ts = ts  # jobs done up to here are in the snapshot
        self._rows = Rows(is_for_every_table)
        self._versions = Versions(ts, self._rows)
        self._follower = Follower()
        self._take_catalogue(Catalogue())
        self._running: dict[int, Running] = {}
        self._seen: dict[int, Ts] = {}  # newest transition per job id, so that a second delivery is dropped
        self._column_id = 0
        self.revision = 0  # grows with whatever ``apply`` learns
        self.changed_ts = ts  # of the newest of it: from there on nothing that is known changes with the ts

    @classmethod
    def from_snapshot(
        cls,
        pairs: Iterable[tuple[bytes, bytes]] | MetaSnapshot,
        ts: Ts,
        *,
        past: Mapping[PastRead, bytes | None] | None = None,
        base_ts: Ts | None = None,
        versions: Mapping[int, Ts] | None = None,
        is_for_every_table: bool = False,
    ) -> "SchemaStore":
        """A store for rows with commit-ts above ``ts``.

        ``pairs`` are those of ``meta.scan_ranges()`` visible at ``ts``, or the documents in them, which are
        used up. ``past`` answers
        ``past_reads(pairs)``: tables in the middle of an online DDL are read as they were before it, since
        that is the version in force until it is done. Where an answer is missing (the past may be
        garbage-collected) the public part of the present document is taken, which is the same but for
        columns, indexes and names that are just being dropped or renamed.

        A restarted changefeed gives ``base_ts`` (the ts of its very first snapshot) and ``versions``
        (what ``versions()`` said at its checkpoint), so that each table has the version it had.

        ``is_for_every_table``: tables whose rows cannot be told apart count too, for who only reads them.

        The caller then subscribes the job table for changes above ``ts - 1``: the one at ``ts``
        itself is needed where a TRUNCATE PARTITION was done exactly there.
        """
        snapshot = pairs if isinstance(pairs, MetaSnapshot) else read_snapshot(pairs)
        start = load_start(snapshot, past or {}, ts if base_ts is None else base_ts, versions or {})
        store = cls(ts, is_for_every_table=is_for_every_table)
        store._load(start)
        return store

    def read_recovered_with(self, read: Recovered) -> None:
        """How to learn what a database that comes back holds, where the job does not tell."""
        self._catalogue.recovered = read

    # Lookups

    def lookup(self, physical_id: int, commit_ts: int) -> TableInfo | Absent:
        """The table that explains a row of ``physical_id`` committed at ``commit_ts``."""
        return self._versions.lookup(physical_id, commit_ts)

    def table(self, physical_id: int, commit_ts: int) -> TableInfo | None:
        """Like ``lookup``, with None for every reason to have no table."""
        found = self.lookup(physical_id, commit_ts)
        return found if isinstance(found, TableInfo) else None

    def tables_above(self, physical_id: int, ts: int) -> list[TableInfo]:
        """Those that explain rows of ``physical_id`` with commit-ts above ``ts``, one after the other."""
        return [form for _, form in self.forms(physical_id, ts, MAX_TS) if isinstance(form, TableInfo)]

    def forms(self, physical_id: int, from_ts: int, to_ts: int) -> list[tuple[Ts, TableInfo | Absent]]:
        """What explains the rows of ``physical_id`` with commit-ts in ``(from_ts, to_ts]``: pairs of the ts above which
        something is in force, and what; the first one is in force from ``from_ts`` on."""
        return self._versions.forms(physical_id, from_ts, to_ts)

    def tables(self) -> list[TableInfo]:
        """All tables as they are in the newest version that is known, views and sequences included."""
        return list(self._catalogue.tables.values())

    def databases(self) -> list[str]:
        """The names of all databases, also of those without tables; none of the system's."""
        return [database.name for database in self._catalogue.databases.values()]

    def physical_ids(self) -> list[int]:
        """Of every table that is known, followed or not, ascending."""
        return self._versions.physical_ids()

    def followed(self) -> list[Followed]:
        """All intervals that are not below the last ``gc``, by physical id and ts."""
        return self._follower.intervals()

    def replayed(self) -> list[Followed]:
        """Intervals of ids that are followed anyway, whose rows the batch that starts at their ``begin_ts`` is to
        deliver again, for sinks that put a row into the table partition that its values name."""
        return self._follower.replayed()

    def versions(self, ts: int) -> dict[int, Ts]:
        """The version in force at ``ts`` of each table changed since the first snapshot, by logical id: to be kept
        with a checkpoint at ``ts`` and given to ``from_snapshot`` after a restart from it."""
        return self._versions.in_force(ts)

    # Changes

    def apply(self, changes: JobChanges) -> list[SchemaChange]:
        """Take notice of changes of the job table, in commit order; return what is new, in order.

        Delivering a change twice does no harm. All changes of one commit-ts come in one call. After an
        error the store is of no further use: part of the call may have been applied.
        """
        rows = list(read_changes(changes, self._column_id))
        rows.sort(key=lambda r: (r.commit_ts, r.job.schema_version if isinstance(r, JobRow) else 0))
        out: list[SchemaChange] = []
        for row in rows:
            job_id = row.job.id if isinstance(row, JobRow) else row.job_id
            if self._is_known(job_id, row.commit_ts):
                continue
            self._seen[job_id] = row.commit_ts
            self.revision += 1
            self.changed_ts = max(self.changed_ts, row.commit_ts)
            if isinstance(row, JobGone):
                self._running.pop(job_id, None)
                continue
            change = self._step(row) if row.commit_ts > self._start_ts else self._reopen(row)
            if change is not None:
                out.append(change)
        return out

    def _is_known(self, job_id: int, commit_ts: Ts) -> bool:
        if commit_ts <= self._versions.floor_ts:
            # All of it is in the snapshot, or was applied before it was forgotten; but see _reopen.
            return commit_ts < self._start_ts or self._start_ts < self._versions.floor_ts
        return commit_ts <= self._seen.get(job_id, 0)

    @property
    def floor_ts(self) -> Ts:
        """What tables were at or below is not known (any more)."""
        return self._versions.floor_ts

    def gc(self, ts: Ts) -> None:
        """Forget what only rows with commit-ts ≤ ``ts`` need. ``ts`` is a checkpoint: it never moves back."""
        self._versions.gc(ts)
        self._follower.gc(ts)
        self._seen = {job_id: seen for job_id, seen in self._seen.items() if seen > ts}

    def _take_catalogue(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._switches = Switches(catalogue.tables, self._versions, self._follower, self._rows)

    def _load(self, start: Start) -> None:
        self._column_id = start.job_meta_column_id
        self._versions.base_ts = start.base_ts
        self._take_catalogue(start.catalogue)
        ts = self._start_ts
        for table in start.catalogue.tables.values():
            for physical_id in table.physical_ids:
                self._versions.add(physical_id, ts, table)
            self._follower.change((), self._rows.ids(table), ts)
        for job in start.jobs:
            running = self._running.setdefault(job.id, Running(is_from_start=True))
            if is_visible(job):
                running.visible_ts = ts
            self._switches.switch(job, running, ts)
        self._follower.take_changes()

    def _reopen(self, row: JobRow) -> SchemaChange | None:
        self._switches.reopen(row)
        return self._switched(row.commit_ts, self._touched_by(row.job, Running()))

    def _step(self, row: JobRow) -> SchemaChange | None:
        job, ts = row.job, row.commit_ts
        if job.schema_id in self._catalogue.system_ids:
            return None
        running = self._running.setdefault(job.id, Running())
        if running.visible_ts is None and is_visible(job):
            running.visible_ts = ts
        if job.state == JobState.DONE:
            del self._running[job.id]
            return self._finish(row, running)
        before = self._touched_by(job, running)
        had_swapped = running.has_swapped
        if job.is_undone:
            self._switches.switch_back(job, running, ts)
        elif job.is_running:
            self._switches.switch(job, running, ts)
        touched = before | self._touched_by(job, running)
        if running.has_swapped and not had_swapped:
            return SchemaChange(ts, (), ts, touched, *self._follower.take_changes())
        return self._switched(ts, touched)

    def _touched_by(self, job: Job, running: Running) -> frozenset[int]:
        table = self._catalogue.tables.get(job.table_id)
        return frozenset((*running.new_ids, *(table.physical_ids if table is not None else ())))

    def _finish(self, row: JobRow, running: Running) -> SchemaChange | None:
        effect = effect_of(row, self._catalogue)
        if effect is None:
            return self._switched(row.commit_ts, self._touched_by(row.job, running))
        before = self._catalogue.tables.get(row.job.table_id)
        touched = self._commit(effect, row, running)
        if before is not None and row.job.type == ActionType.DROP_TABLE_PARTITION:
            self._switches.replay_takers(row, effect.put[0], None if running.is_from_start else before)
        started, ended = self._follower.take_changes()
        if not (effect.events or started or ended or any(map(self._rows.has_rows, effect.put))):
            return None  # a sequence, say
        visible_ts = row.commit_ts if running.visible_ts is None else running.visible_ts
        return SchemaChange(row.commit_ts, effect.events, visible_ts, touched, started, ended)

    def _commit(self, effect: Effect, row: JobRow, running: Running) -> frozenset[int]:
        """Returns the physical ids that it touches."""
        ts, tables = row.commit_ts, self._catalogue.tables
        if effect.put_database is not None:
            self._catalogue.databases[effect.put_database.id] = effect.put_database
        if effect.drop_database is not None:
            self._catalogue.databases.pop(effect.drop_database, None)
            self._catalogue.dropped[effect.drop_database] = tuple(tables[i] for i in effect.drop if i in tables)
        affected = [tables.pop(i) for i in effect.drop if i in tables]
        affected += [tables[t.id] for t in effect.put if t.id in tables]
        before = {i for t in affected for i in t.physical_ids} | set(running.new_ids)
        after = {i: t for t in effect.put for i in t.physical_ids}
        tables.update((t.id, t) for t in effect.put)
        for physical_id in sorted(before - set(after)):
            self._versions.add(physical_id, ts, None)
        for physical_id, table in after.items():
            self._versions.add(physical_id, ts, table)
        if row.job.type == ActionType.TRUNCATE_TABLE_PARTITION:
            self._switches.open_truncated(row.job, set(after) - before | set(running.new_ids), effect.put, ts)
        self._follower.change(before, {i for t in effect.put for i in self._rows.ids(t)}, ts)
        return frozenset(before | set(after))

    # Physical ids that switch while the job runs

    def _switched(self, ts: Ts, touched: frozenset[int]) -> SchemaChange | None:
        started, ended = self._follower.take_changes()
        if not (started or ended):
            return None
        moved = {followed.physical_id for followed in (*started, *ended)}
        return SchemaChange(ts, (), ts, touched | moved, started, ended)


def store_of_tables(tables: Sequence[TableInfo], ts: Ts) -> SchemaStore:
    """Tables that never change, for rows with commit-ts above ``ts``: of a source that has no DDL."""
    store = SchemaStore(ts)
    since_ts = min(table.version_ts for table in tables)
    store._load(Start(Catalogue(tables={table.id: table for table in tables}), (), 0, since_ts))
    return store
