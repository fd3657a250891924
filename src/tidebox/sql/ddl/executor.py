"""DDL statements of a session: planned, queued, run to their end, and answered as a MySQL client expects."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidebox.sql.catalog import SchemaCache
from tidebox.sql.ddl.defaults import Settings
from tidebox.sql.ddl.jobs import Document, set_zone
from tidebox.sql.ddl.plan import Asking, plan
from tidebox.sql.ddl.refusals import deprecations, noted
from tidebox.sql.ddl.worker import Worker
from tidebox.sql.node import DdlRequest
from tidebox.sql.parse import parse
from tidebox.sql.parse.statements import CancelJobs, ShowJobs
from tidebox.sql.wire.columns import Column
from tidebox.sql.wire.errors import Errno, SqlError
from tidebox.sql.wire.session import Affected, Result, Rows
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnType
from tidemill.model.ts import physical_ms
from tidemill.tidb.documents import JobState, SchemaState

_MOST_SHOWN: Final = 10
_FAILED: Final = (JobState.ROLLBACK_DONE, JobState.CANCELLED)
_SQLSTATES: Final = {int(e): e.sqlstate for e in Errno}


@dataclass(frozen=True, slots=True)
class DdlExecutor:
    """For the sessions of one node: ``cache`` is its schema, ``now_ts`` the cluster's clock."""

    worker: Worker
    cache: SchemaCache
    now_ts: Callable[[], int]

    def execute(self, request: DdlRequest) -> Result:
        statement = parse(request.text)
        match statement:
            case CancelJobs(ids):
                return self._cancel(ids)
            case ShowJobs(limit):
                return self._show(limit)
        now = datetime.fromtimestamp(physical_ms(self.now_ts()) / 1000, UTC)
        settings = Settings(request.time_zone, request.is_strict)
        # What other nodes have changed since is wanted here too: this node may be a version behind.
        self.cache.reload()
        planned = plan(statement, self.cache.current(), Asking(request.database or None, request.text, now, settings))
        for one in planned.jobs:
            set_zone(one.job, request.time_zone)
            job = self._run(self.worker.submit(one), request.is_interrupted)
            self.cache.reload()
            if job["state"] in _FAILED and job["err"] is not None:
                raise _error_of(job)
        if planned.error is not None:
            raise planned.error
        notes = (*deprecations(statement), *map(noted, planned.notes))
        return Affected(warnings=len(notes), notes=notes)

    def _run(self, job_id: int, is_interrupted: Callable[[], bool]) -> Document:
        """Run a job; one whose client wants it no more is cancelled, if it still can be."""
        asked = False

        def check() -> None:
            nonlocal asked
            if not asked and is_interrupted():
                asked = True
                with suppress(SqlError):
                    self.worker.cancel(job_id)

        return self.worker.run(job_id, check)

    # ADMIN

    def _cancel(self, ids: tuple[int, ...]) -> Rows:
        rows: list[tuple[str, str]] = []
        for job_id in ids:
            try:
                self.worker.cancel(job_id)
                rows.append((str(job_id), "successful"))
            except SqlError as error:
                rows.append((str(job_id), f"error: {error.message}"))
        return Rows(tuple(_text(name) for name in ("JOB_ID", "RESULT")), rows)

    def _show(self, limit: int | None) -> Rows:
        running, past = self.worker.jobs()
        newest = sorted(past, key=lambda job: -int(job["id"]))[: _MOST_SHOWN if limit is None else limit]
        names = ("JOB_ID", "DB_NAME", "TABLE_NAME", "JOB_TYPE", "SCHEMA_STATE", "SCHEMA_ID", "TABLE_ID", "ROW_COUNT")
        columns = tuple(_text(name) for name in (*names, "STATE"))
        listed = [*sorted(running, key=lambda job: -int(job["id"])), *newest]
        return Rows(columns, [_shown(job) for job in listed])


def _error_of(job: Document) -> SqlError:
    error = job["err"]
    return SqlError(error["code"], _SQLSTATES.get(error["code"], "HY000"), error["message"])


def _shown(job: Document) -> tuple[str, ...]:
    kind = ActionType(job["type"]).name.lower().replace("_", " ")
    state = SchemaState(job["schema_state"]).name.lower().replace("_", " ")
    names = job["schema_name"], job["table_name"]
    numbers = str(job["schema_id"]), str(job["table_id"]), str(job["row_count"])
    return (str(job["id"]), *names, kind, state, *numbers, JobState(job["state"]).name.lower().replace("_", " "))


def _text(name: str) -> Column:
    return Column(name, ColumnType.VARCHAR)
