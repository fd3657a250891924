"""Steps of a multi-schema change: several clauses of one ALTER TABLE that come into force together.

    each clause up to where it can still be undone, one after the other
    then all of them one step further, in one transaction with one schema version
    then what is left of each (removals), one after the other
    then the job is done, without a version of its own

A clause that fails before the common step takes the others back, the last one first.
"""

import base64
from collections.abc import Callable
from typing import TypeAlias

from tidebox.sql.ddl.jobs import (
    Change,
    Document,
    Documents,
    Done,
    Moment,
    Reorg,
    Result,
    diff_of,
    roll_back,
    running,
    touch,
)
from tidebox.sql.ddl.modify_steps import is_replacement
from tidemill.model.ddl import ActionType
from tidemill.tidb.documents import JobState, SchemaState

Step: TypeAlias = Callable[[Document, Documents, Moment, Result | None], Change | Reorg]

_FINISHED = (JobState.DONE, JobState.ROLLBACK_DONE, JobState.CANCELLED)
# Keys of a sub-job that it has from its parent while it takes a step.
_OWN = ("type", "raw_args", "schema_state", "snapshot_ver", "real_start_ts", "state", "row_count", "warning")
# Kinds whose first step is already the one that all take together.
_AT_ONCE = frozenset(
    {
        ActionType.DROP_COLUMN,
        ActionType.DROP_INDEX,
        ActionType.DROP_PRIMARY_KEY,
        ActionType.RENAME_INDEX,
        ActionType.SET_DEFAULT_VALUE,
        ActionType.ALTER_INDEX_VISIBILITY,
        ActionType.MODIFY_TABLE_COMMENT,
        ActionType.MODIFY_TABLE_CHARSET,
        ActionType.REBASE_AUTO_ID,
    }
)
_FILLED = frozenset({ActionType.ADD_INDEX, ActionType.ADD_PRIMARY_KEY, ActionType.MODIFY_COLUMN})


def multi_schema_change(
    job: Document, documents: Documents, moment: Moment, result: Result | None, step: Step
) -> Change | Reorg:
    if job["state"] == JobState.ROLLING_BACK:
        return _roll_back(running(job, moment), documents, moment, step)
    job = running(job, moment)
    info = job["multi_schema_info"]
    subs = info["sub_jobs"]
    if info["revertible"]:
        for at, sub in enumerate(subs):
            if sub["revertible"]:
                return _prepare(job, at, documents, moment, result, step)
        return _together(job, documents, moment, step)
    for at, sub in enumerate(subs):
        if sub["state"] not in _FINISHED:
            return _remove(job, at, documents, moment, step)
    job["state"] = int(JobState.DONE)
    job["binlog"]["SchemaVersion"] = max(s["schema_version"] for s in subs)
    job["binlog"]["TableInfo"] = documents.table(job["schema_id"], job["table_id"])
    return Change(job, None)


# A sub-job as a job of its own


def _as_job(parent: Document, sub: Document) -> Document:
    job = {**parent, **{key: sub[key] for key in _OWN}}
    job["multi_schema_info"] = None
    job["binlog"] = {**parent["binlog"]}
    job["reorg_meta"] = {**(parent["reorg_meta"] or {})}
    return job


def _note(parent: Document, sub: Document, job: Document, version: int) -> None:
    """Keep in the parent what the sub-job's step left."""
    for key in _OWN:
        sub[key] = job[key]
    sub["schema_version"] = version
    sub["reorg_tp"] = (job["reorg_meta"] or {}).get("reorg_tp", 0)


def _prepare(
    job: Document, at: int, documents: Documents, moment: Moment, result: Result | None, step: Step
) -> Change | Reorg:
    """One step of a clause that can still be undone."""
    sub = job["multi_schema_info"]["sub_jobs"][at]
    sub_job = _as_job(job, sub)
    if sub["type"] in _AT_ONCE or _is_in_place(sub, documents, job):
        return _commit_to(job, sub, documents, moment, 0)
    is_filled = sub["type"] in _FILLED and sub["schema_state"] == SchemaState.WRITE_REORG
    if is_filled and isinstance(result, Done):
        sub["row_count"] = result.rows
        is_index = sub["type"] != ActionType.MODIFY_COLUMN
        return _commit_to(job, sub, documents, moment, moment.version if is_index else 0)
    done = step(sub_job, documents, moment, result)
    if not isinstance(done, Change):
        return done
    if done.job["state"] == JobState.ROLLING_BACK:
        return _start_roll_back(job, at, done)
    version = moment.version if done.diff is not None else 0
    _note(job, sub, done.job, version)
    if sub["type"] == ActionType.ADD_COLUMN and sub["schema_state"] == SchemaState.WRITE_REORG:
        sub["revertible"] = False
    if sub["state"] in _FINISHED:  # there was nothing to do
        sub["revertible"] = False
    return Change(job, done.diff, tables=done.tables)


def _is_in_place(sub: Document, documents: Documents, job: Document) -> bool:
    """A MODIFY COLUMN that only replaces what is written about a column, NULLs looked for already."""
    if sub["type"] != ActionType.MODIFY_COLUMN:
        return False
    return is_replacement(documents.table(job["schema_id"], job["table_id"]), sub["raw_args"])


def _commit_to(job: Document, sub: Document, documents: Documents, moment: Moment, version: int) -> Change:
    """The clause waits for the others. It has changed nothing; the table's revision counts it all the same."""
    sub["revertible"] = False
    if sub["state"] == JobState.QUEUEING:
        sub.update(state=int(JobState.RUNNING), real_start_ts=moment.start_ts)
    sub["schema_version"] = version
    if version == 0 and sub["type"] == ActionType.MODIFY_COLUMN and sub["schema_state"] == SchemaState.WRITE_REORG:
        return Change(job, None)
    table = touch(documents.table(job["schema_id"], job["table_id"]), moment)
    if version == 0:
        return Change(job, None, tables=((job["schema_id"], table),))
    return Change(job, diff_of(job, type=sub["type"]), tables=((job["schema_id"], table),))


def _together(job: Document, documents: Documents, moment: Moment, step: Step) -> Change:
    """The common step: each clause sees what those before it did."""
    schema_id, table_id = job["schema_id"], job["table_id"]
    info = job["multi_schema_info"]
    info["revertible"] = False
    tables = dict(documents.tables)
    counters: tuple[tuple[int, int, int], ...] = ()
    is_first = True
    for sub in info["sub_jobs"]:
        if sub["state"] in _FINISHED:
            continue
        done = step(_as_job(job, sub), Documents(documents.databases, tables), moment, Done(sub["row_count"]))
        if not isinstance(done, Change):
            raise AssertionError("a clause asks for rows in the common step")
        _note(job, sub, done.job, moment.version if is_first else 0)
        is_first = False
        counters += done.counters
        for owner, table in done.tables:
            tables[owner, table["id"]] = table
    job["binlog"]["TableInfo"] = tables[schema_id, table_id]
    # In Go a list of bytes is written as base64, and the kinds of actions are bytes.
    kinds = base64.b64encode(bytes(s["type"] for s in info["sub_jobs"])).decode()
    diff: Document = {}
    for key, value in diff_of(job).items():
        diff[key] = value
        if key == "table_id":
            diff["sub_action_types"] = kinds
    return Change(job, diff, tables=((schema_id, tables[schema_id, table_id]),), counters=counters)


def _remove(job: Document, at: int, documents: Documents, moment: Moment, step: Step) -> Change:
    """One of the steps that are left to a clause after the common one."""
    sub = job["multi_schema_info"]["sub_jobs"][at]
    done = step(_as_job(job, sub), documents, moment, None)
    if not isinstance(done, Change):
        raise AssertionError("a clause asks for rows after the common step")
    _note(job, sub, done.job, moment.version)
    job["binlog"] = done.job["binlog"]
    return Change(job, done.diff, tables=done.tables)


# Going back


def _start_roll_back(job: Document, at: int, done: Change) -> Change:
    sub = job["multi_schema_info"]["sub_jobs"][at]
    error = done.job["err"]
    _note(job, sub, done.job, 0)
    roll_back(job, error["code"], error["message"])
    return Change(job, done.diff, tables=done.tables)


def _roll_back(job: Document, documents: Documents, moment: Moment, step: Step) -> Change:
    for sub in reversed(job["multi_schema_info"]["sub_jobs"]):
        if sub["state"] in _FINISHED:
            continue
        if sub["state"] == JobState.QUEUEING or sub["type"] in _AT_ONCE or _never_began(sub):
            sub["state"] = int(JobState.CANCELLED)
            continue
        sub["state"] = int(JobState.ROLLING_BACK)
        done = step(_as_job(job, sub), documents, moment, None)
        if not isinstance(done, Change):
            raise AssertionError("a clause asks for rows while it goes back")
        _note(job, sub, done.job, moment.version if done.diff is not None else 0)
        return Change(job, done.diff, tables=done.tables)
    job.update(state=int(JobState.ROLLBACK_DONE), schema_state=int(SchemaState.NONE))
    return Change(job, None)


def _never_began(sub: Document) -> bool:
    """An in-place MODIFY that had only said that it is ready."""
    return (
        sub["type"] == ActionType.MODIFY_COLUMN
        and sub["schema_state"] == SchemaState.NONE
        and "changing_column" not in sub["raw_args"]
    )
