"""The owner of DDL: queues jobs and takes their steps, each in one transaction with its own schema version.

    plan ── submit ──► job row ── advance ──► step ──► one transaction ── every node has the version ──► next step
                                         └──► rows to go through, in transactions of their own

No step is taken before every node that still serves has the version of the step before, so that
never more than two versions are in use. Tests hold a job where they like: they advance it themselves,
or let ``run`` stop before any step that they choose.
"""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from tidebox.sql.catalog import SchemaCache
from tidebox.sql.ddl import backfill
from tidebox.sql.ddl.backfill import CONFLICTS, Begin
from tidebox.sql.ddl.jobs import (
    REORG_KINDS,
    Change,
    Document,
    Documents,
    Moment,
    Reorg,
    Result,
    error_document,
    roll_back,
)
from tidebox.sql.ddl.plan import PlannedJob
from tidebox.sql.ddl.steps import step
from tidebox.sql.ddl.table_steps import counter_schema_id
from tidebox.sql.meta import Counter, Meta
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.ddl import ActionType
from tidemill.model.ts import physical_ms
from tidemill.tidb.documents import JobState, SchemaState

_OVER: Final = (JobState.DONE, JobState.ROLLBACK_DONE, JobState.CANCELLED)
_WAIT_SECONDS: Final = 0.02  # between looks at nodes that have not followed yet
# Kinds that can be undone while they run, up to the state that is theirs.
_CANCELLABLE: Final = frozenset(
    {
        ActionType.ADD_COLUMN,
        ActionType.ADD_INDEX,
        ActionType.ADD_PRIMARY_KEY,
        ActionType.MODIFY_COLUMN,
        ActionType.MULTI_SCHEMA_CHANGE,
    }
)

T = TypeVar("T")
Hold = Callable[[Document], bool]  # whether a job is to stay where it is


class _UnwantedError(Exception):
    """A job was cancelled, or the worker stopped, while it went through rows."""


class Nodes:
    """The SQL nodes of a cluster, by the schema that each serves with."""

    def __init__(self) -> None:
        self._caches: list[SchemaCache] = []
        self._lock = threading.Lock()

    def add(self, cache: SchemaCache) -> None:
        with self._lock:
            self._caches.append(cache)

    def remove(self, cache: SchemaCache) -> None:
        with self._lock:
            self._caches.remove(cache)

    def follow(self, version: int) -> bool:
        """Tell every node of a version; whether all that serve have it now. One that is held stays behind until its
        lease is over, and then serves no more."""
        with self._lock:
            caches = list(self._caches)
        for cache in caches:
            if cache.version < version:
                cache.reload()
        return all(cache.version >= version or not cache.is_serving for cache in caches)


class Worker:
    """Safe to use from several threads; the steps of all jobs are taken one at a time."""

    def __init__(self, begin: Begin, nodes: Nodes) -> None:
        self._begin = begin
        self._nodes = nodes
        self._turn = threading.RLock()
        self._changed = threading.Condition()
        self._holds: list[Hold] = []
        self._stopped = threading.Event()
        self._first = 0  # no job below this id is left; of those that are gone the store keeps old versions

    # Queueing

    def submit(self, planned: PlannedJob) -> int:
        """Queue a job; its id. Ids that it needs are taken in the same transaction, its own last."""

        def write(transaction: Transaction) -> int:
            meta = Meta(transaction)
            job = copy.deepcopy(planned.job)
            ids = meta.next_ids(planned.ids + 1)
            if planned.assign is not None:
                planned.assign(job, ids[:-1])
            job.update(id=ids[-1], start_ts=int(transaction.start_ts))
            _raise_base(meta, job)
            _put_job(meta, job)
            return ids[-1]

        return self._write(write)

    # Steps

    def run(self, job_id: int, check: Callable[[], None] = lambda: None) -> Document:
        """Take a job to its end; what it came to. ``check`` is called before each step, and may raise: the job then
        stays as it is, and is taken on by who waits for its tables, or by ``carry_on``. 1053 once it is stopped."""
        while True:
            if self._stopped.is_set():
                raise sql_error(Errno.SERVER_SHUTDOWN)
            check()
            if (past := self._past(job_id)) is not None:
                return past
            first = self._first_in_way(job_id)
            if self._is_held(self.job(first)) or not self.advance(first):
                with self._changed:
                    self._changed.wait(_WAIT_SECONDS)

    def carry_on(self) -> None:
        """Take the steps of all jobs that may: of those, too, whose client is gone, or was before a restart."""
        with self._reading() as meta:
            ids = [job["id"] for job in self._jobs(meta)]
        for job_id in ids:
            while not self._stopped.is_set() and not self._is_held(self.job(job_id)) and self.advance(job_id):
                pass

    def stop(self) -> None:
        """Take no more steps; jobs stay where they are, and the next start carries them on."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def _past(self, job_id: int) -> Document | None:
        with self._reading() as meta:
            return meta.past_job(job_id)

    def _first_in_way(self, job_id: int) -> int:
        """The job itself, or the oldest that it has to wait for: whoever queued that one may have gone away."""
        with self._reading() as meta:
            jobs = {job["id"]: job for job in self._jobs(meta)}
        first = job_id
        while first in jobs:
            older = [i for i, job in jobs.items() if i < first and _meets(job, jobs[first])]
            if not older:
                break
            first = min(older)
        return first

    def advance(self, job_id: int) -> bool:
        """Take one step of a job. False if it must wait: for a node, or for an older job on the same tables."""
        with self._turn:
            if not self._nodes.follow(self._version()):
                return False
            job = self._running(job_id)
            if job is None:
                return False
            if job["state"] in _OVER:
                self._write(lambda transaction: _finish(Meta(transaction), job_id, transaction))
            else:
                self._take_step(job_id)
            self._nodes.follow(self._version())
        with self._changed:
            self._changed.notify_all()
        return True

    def job(self, job_id: int) -> Document:
        """A job as it is: queued, running, or over."""
        with self._reading() as meta:
            job = meta.job(job_id) or meta.past_job(job_id)
        if job is None:
            raise sql_error(Errno.DDL_JOB_NOT_FOUND, job_id)
        return job

    def jobs(self) -> tuple[list[Document], list[Document]]:
        """Those that are queued or run, and those that are over."""
        with self._reading() as meta:
            return meta.jobs(), meta.past_jobs()

    def _jobs(self, meta: Meta) -> list[Document]:
        """The jobs that are queued or run. Ids are handed out in the order of commits, so none comes below another."""
        highest = meta.number(b"NextGlobalID")
        jobs = meta.jobs(self._first)
        self._first = max(self._first, jobs[0]["id"] if jobs else highest)
        return jobs

    def _running(self, job_id: int) -> Document | None:
        """A job that may take a step: no older one has its tables."""
        with self._reading() as meta:
            jobs = self._jobs(meta)
        job = next((j for j in jobs if j["id"] == job_id), None)
        if job is None or any(j["id"] < job_id and _meets(j, job) for j in jobs):
            return None
        return job

    def _take_step(self, job_id: int) -> None:
        result: Result | None = None
        while True:
            try:
                reorg = self._write(partial(_step, job_id=job_id, result=result))
            except SqlError as error:
                self._write(partial(_cancel_for, job_id=job_id, error=error))
                return
            if reorg is None:
                return
            try:
                result = backfill.run(reorg, self._begin, partial(self._check_wanted, job_id))
            except _UnwantedError:
                return

    def _check_wanted(self, job_id: int) -> None:
        with self._reading() as meta:
            job = meta.job(job_id)
        if self._stopped.is_set() or job is None or job["state"] == JobState.CANCELLING:
            raise _UnwantedError

    # Holding and cancelling

    def hold(self, where: Hold) -> Callable[[], None]:
        """Keep jobs for which ``where`` is true from further steps by ``run``; call the result to let them go."""
        self._holds.append(where)

        def release() -> None:
            self._holds.remove(where)
            with self._changed:
                self._changed.notify_all()

        return release

    def _is_held(self, job: Document) -> bool:
        return any(where(job) for where in list(self._holds))

    def cancel(self, job_id: int) -> None:
        """Ask a job to undo what it did, also while it goes through rows. 8224, 8225, 8226."""
        self._write(lambda transaction: _ask_to_cancel(Meta(transaction), job_id))
        with self._changed:
            self._changed.notify_all()

    # Transactions

    def _version(self) -> int:
        with self._reading() as meta:
            return meta.schema_version

    @contextmanager
    def _reading(self) -> Iterator[Meta]:
        transaction = self._begin()
        try:
            yield Meta(transaction)
        finally:
            transaction.rollback()

    def _write(self, write: Callable[[Transaction], T]) -> T:
        """One transaction, again from the start as long as others are in its way."""
        while True:
            transaction = self._begin()
            try:
                done = write(transaction)
                transaction.commit()
                return done
            except SqlError as error:
                transaction.rollback()
                if error.number not in CONFLICTS:
                    raise
            except BaseException:
                transaction.rollback()
                raise


# What a transaction does


def _step(transaction: Transaction, job_id: int, result: Result | None) -> Reorg | None:
    """Take a step; what rows to go through before, if any."""
    meta = Meta(transaction)
    job = meta.job(job_id)
    if job is None:
        return None
    if job["state"] == JobState.CANCELLING:
        if _begin_to_undo(meta, job):
            return None
        result = None
    moment = Moment(int(transaction.start_ts), meta.schema_version + 1)
    outcome = step(job, _documents(meta, job), moment, result)
    if not isinstance(outcome, Change):
        return outcome
    _apply(meta, outcome)
    return None


def _documents(meta: Meta, job: Document) -> Documents:
    """What the job can touch: its databases and tables, and all tables of a database that goes."""
    schema_ids, table_ids = _ids_of(job)
    databases = {i: d for i in schema_ids if (d := meta.database(i)) is not None}
    if job["type"] == ActionType.DROP_SCHEMA:
        tables = {(job["schema_id"], t["id"]): t for t in meta.tables(job["schema_id"])}
        return Documents(databases, tables)
    found = ((s, t, meta.table(s, t)) for s in schema_ids for t in table_ids)
    return Documents(databases, {(s, t): d for s, t, d in found if d is not None})


def _apply(meta: Meta, change: Change) -> None:
    for schema_id in change.gone_databases:
        meta.drop_database(schema_id)
    for gone in change.gone:
        meta.drop_table(gone.schema_id, gone.table_id, keeps_counters=gone.keeps_counters)
    for database in change.databases:
        meta.put_database(database)
    for schema_id, table in change.tables:
        meta.put_table(schema_id, table)
    documents = {table["id"]: table for _, table in change.tables}
    for schema_id, table_id, least in change.counters:
        counter = _counter_of(documents[table_id])
        meta.set_counter(schema_id, table_id, max(least, meta.counter(schema_id, table_id, counter)), counter)
    if change.diff is not None:
        meta.bump_version(change.diff)
    _put_job(meta, change.job)


def _counter_of(table: Document) -> Counter:
    """Where AUTO_INCREMENT counts: with the row ids, unless the table wants each number from the store."""
    return Counter.AUTO_INCREMENT if table["auto_id_cache"] == 1 and table["version"] >= 5 else Counter.ROW


def _raise_base(meta: Meta, job: Document) -> None:
    """AUTO_INCREMENT = n never goes below what has been handed out."""
    subs = (job["multi_schema_info"] or {}).get("sub_jobs") or ()
    table = meta.table(job["schema_id"], job["table_id"])
    for one in (job, *subs):
        if one["type"] == ActionType.REBASE_AUTO_ID and table is not None:
            owner = counter_schema_id(table, job["schema_id"])
            given = meta.counter(owner, job["table_id"], _counter_of(table))
            one["raw_args"]["new_base"] = max(one["raw_args"]["new_base"], given + 1)


def _put_job(meta: Meta, job: Document) -> None:
    schema_ids, table_ids = _ids_of(job)
    meta.put_job(job, is_reorg=_is_reorg(job), schema_ids=schema_ids, table_ids=table_ids)


def _is_reorg(job: Document) -> bool:
    if job["multi_schema_info"] is not None:
        return any(s["type"] in REORG_KINDS for s in job["multi_schema_info"]["sub_jobs"])
    return job["type"] in REORG_KINDS


def _ids_of(job: Document) -> tuple[list[int], list[int]]:
    args = job["raw_args"] or {}
    if job["type"] == ActionType.RENAME_TABLES:
        pairs = args["rename_table_infos"]
        schemas = [i for p in pairs for i in (p["old_schema_id"], p["new_schema_id"])]
        return list(dict.fromkeys(schemas)), list(dict.fromkeys(p["table_id"] for p in pairs))
    schemas = [job["schema_id"]]
    if job["type"] == ActionType.RENAME_TABLE:
        schemas.append(args["old_schema_id"])
    return list(dict.fromkeys(schemas)), [job["table_id"]]


def _finish(meta: Meta, job_id: int, transaction: Transaction) -> None:
    """The job leaves its table for the history."""
    job = meta.job(job_id)
    if job is None:
        return
    if job["state"] == JobState.DONE:
        job["state"] = int(JobState.SYNCED)
    job["binlog"]["FinishedTS"] = int(transaction.start_ts)
    now = datetime.fromtimestamp(physical_ms(transaction.start_ts) / 1000, UTC)
    schema_ids, table_ids = _ids_of(job)
    meta.delete_job(job_id)
    meta.put_history(job, now, schema_ids, table_ids)


# Ends that were not wished for


def _cancel_for(transaction: Transaction, job_id: int, error: SqlError) -> None:
    """A step met a schema that does not allow it: nothing was done, or what was done is undone."""
    meta = Meta(transaction)
    job = meta.job(job_id)
    if job is None:
        return
    has_begun = job["schema_state"] not in (SchemaState.NONE, SchemaState.PUBLIC)
    if job["type"] == ActionType.MULTI_SCHEMA_CHANGE:
        # Of several clauses some may have begun; once they may no longer go back, none of them fails.
        has_begun = job["multi_schema_info"]["revertible"] and job["real_start_ts"] != 0
    if has_begun and job["type"] in _CANCELLABLE and job["state"] != JobState.ROLLING_BACK:
        roll_back(job, error.number, error.message)
    else:
        job.update(state=int(JobState.CANCELLED), err=error_document(error.number, error.message))
    _put_job(meta, job)


def _ask_to_cancel(meta: Meta, job_id: int) -> None:
    job = meta.job(job_id)
    if job is None:
        raise sql_error(
            Errno.DDL_JOB_NOT_FOUND if meta.past_job(job_id) is None else Errno.CANCEL_FINISHED_DDL_JOB, job_id
        )
    if job["state"] in _OVER:
        raise sql_error(Errno.CANCEL_FINISHED_DDL_JOB, job_id)
    if job["state"] != JobState.QUEUEING and not _can_be_undone(job):
        raise sql_error(Errno.CANNOT_CANCEL_DDL_JOB, job_id)
    job.update(state=int(JobState.CANCELLING), admin_operator=1)
    _put_job(meta, job)


def _can_be_undone(job: Document) -> bool:
    if job["type"] not in _CANCELLABLE:
        return False
    if job["type"] == ActionType.MULTI_SCHEMA_CHANGE:
        return bool(job["multi_schema_info"]["revertible"])
    return bool(job["schema_state"] != SchemaState.PUBLIC)


def _begin_to_undo(meta: Meta, job: Document) -> bool:
    """A job that was asked to cancel: it goes back, or, if it has not begun, it is over; whether it is."""
    error = sql_error(Errno.CANCELLED_DDL_JOB)
    if job["real_start_ts"] == 0:
        job.update(state=int(JobState.CANCELLED), err=error_document(error.number, error.message))
        _put_job(meta, job)
        return True
    roll_back(job, error.number, error.message)
    return False


def _meets(one: Document, other: Document) -> bool:
    """Whether two jobs have a table in common, by name; ``*`` is all of a database."""
    for schema, table in _places(one):
        for other_schema, other_table in _places(other):
            if schema == other_schema and (table == other_table or "*" in (table, other_table)):
                return True
    return False


def _places(job: Document) -> list[tuple[str, str]]:
    involved = job.get("involving_schema_info") or ()
    if involved:
        return [(i["database"], i["table"]) for i in involved]
    return [(job["schema_name"], job["table_name"])]
