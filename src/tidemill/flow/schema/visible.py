"""From which transition of a job on sessions may read and write by the new schema.

For most DDLs that is when the job is done. For the others it comes earlier, and rows committed in
between may have been written under either form.
"""

from tidemill.model.ddl import ActionType
from tidemill.tidb.documents import Job, JobState, SchemaState, SubJob

_ON_THE_WAY_OUT = (SchemaState.WRITE_ONLY, SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG)

# States at which the new form is in use although the job is not done.
_EARLY: dict[int, tuple[SchemaState, ...]] = {
    # What is dropped is out of sight from the first step on.
    ActionType.DROP_SCHEMA: _ON_THE_WAY_OUT,
    ActionType.DROP_TABLE: _ON_THE_WAY_OUT,
    ActionType.DROP_VIEW: _ON_THE_WAY_OUT,
    ActionType.DROP_COLUMN: _ON_THE_WAY_OUT,
    ActionType.DROP_COLUMNS: _ON_THE_WAY_OUT,
    ActionType.DROP_INDEX: _ON_THE_WAY_OUT,
    ActionType.DROP_PRIMARY_KEY: _ON_THE_WAY_OUT,
    ActionType.DROP_TABLE_PARTITION: _ON_THE_WAY_OUT,
    ActionType.TRUNCATE_TABLE_PARTITION: (SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG),
    # Names move one transaction before done; a lossy change swaps columns and then removes the old one.
    ActionType.RENAME_TABLE: (SchemaState.PUBLIC,),
    ActionType.RENAME_TABLES: (SchemaState.PUBLIC,),
    ActionType.MODIFY_COLUMN: (SchemaState.PUBLIC,),
    # New physical ids are in use, and the old ones are emptied or let go.
    ActionType.REORGANIZE_PARTITION: (SchemaState.DELETE_REORG, SchemaState.PUBLIC),
    ActionType.ALTER_TABLE_PARTITIONING: (SchemaState.DELETE_REORG, SchemaState.PUBLIC),
    ActionType.REMOVE_PARTITIONING: (SchemaState.DELETE_REORG, SchemaState.PUBLIC),
}


def is_visible(job: Job) -> bool:
    """Whether, at this transition, sessions may use what the job brings (or any clause of it)."""
    if job.state == JobState.DONE:
        return True
    if not job.is_running or job.is_undone:
        return False
    return _is_early(job) or any(s.state == JobState.DONE or _is_early(s) for s in job.sub_jobs)


def _is_early(job: Job | SubJob) -> bool:
    is_started = job.state != JobState.QUEUEING
    return is_started and job.schema_state in _EARLY.get(job.type, ())
