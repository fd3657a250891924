"""Each step of a job is the step that TiDB took, replayed from its histories: job row, documents and diff."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.histories import History, load
from tidebox.sql.ddl.jobs import Change, Documents, Done, Failed, Moment, Result
from tidebox.sql.ddl.steps import step
from tidebox.sql.meta import hash_range, string_key
from tidemill.flow.schema.jobs import cell
from tidemill.tidb.keys import decode_int
from tidemill.tidb.meta import database_key, split_hash_key, table_key

Document = dict[str, Any]
SERVED = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 17, 18, 22, 26, 32, 33, 41, 47}
FOREIGN_KEYS = {("ddl", 267)}  # outside of the subset


class Transition:
    """A job's row before and after one of its steps."""

    def __init__(self, history: History, before: Document, after: Document, start_ts: int, commit_ts: int) -> None:
        self.history, self.before, self.after = history, before, after
        self.start_ts, self.commit_ts = start_ts, commit_ts
        self.version = int(history.value_at(string_key(b"SchemaVersionKey"), commit_ts) or 0)

    @property
    def is_lossy(self) -> bool:
        return "changing_column" in (self.before["raw_args"] or {})

    def take(self) -> Change:
        job = copy.deepcopy(self.before)
        taken = step(job, self.documents(), Moment(self.start_ts, self.version), self.result())
        assert isinstance(taken, Change)
        return taken

    def result(self) -> Result | None:
        """What filling in rows must have come to, for TiDB to take this step."""
        if self.after["state"] == 4:
            return Done(self.after["row_count"])
        if self.after["state"] == 2 and self.before["state"] == 1:
            return Failed(self.after["err"]["code"], self.after["err"]["message"])
        return None

    def documents(self) -> Documents:
        args = self.before["raw_args"] or {}
        owners = {self.before["schema_id"], args.get("old_schema_id") or self.before["schema_id"]}
        for pair in args.get("rename_table_infos") or ():
            owners |= {pair["old_schema_id"], pair["new_schema_id"]}
        tables: dict[tuple[int, int], Document] = {}
        databases: dict[int, Document] = {}
        for owner in owners:
            raw = self.history.value_at(database_key(owner), self.commit_ts - 1)
            if raw:
                databases[owner] = json.loads(raw)
            for key, value in self.history.scan_at(*hash_range(b"DB:%d" % owner), self.commit_ts - 1):
                field = (split_hash_key(key) or (b"", b""))[1]
                if field.startswith(b"Table:"):
                    tables[owner, int(field[6:])] = json.loads(value)
        return Documents(databases, tables)

    def recorded(self, key: bytes) -> Document | None:
        raw = self.history.value_at(key, self.commit_ts)
        return json.loads(raw) if raw else None


def transitions(name: str) -> Iterator[Transition]:
    history = load(name)
    changes = history.job_changes()
    rows: dict[int, Document] = {}
    columns = [changes.column(c).to_pylist() for c in ("commit_ts", "start_ts", "key", "value")]
    for commit_ts, start_ts, key, value in zip(*columns, strict=True):
        job_id = decode_int(key[-8:])
        raw = cell(value, 5) if value else None
        after = json.loads(raw) if raw else None
        before = rows.pop(job_id, None)
        if after is not None:
            rows[job_id] = after
        if before and after and before["type"] in SERVED and (name, job_id) not in FOREIGN_KEYS:
            yield Transition(history, before, after, start_ts, commit_ts)


@pytest.mark.parametrize(("name", "count"), [("types", 80), ("ddl", 258), ("online", 138)])
def test_a_step_writes_what_tidb_wrote(name: str, count: int) -> None:
    compared = 0
    for transition in transitions(name):
        if transition.is_lossy and transition.after["state"] == 4:
            continue  # the recorded version swaps and removes at once; see below
        taken = transition.take()
        if transition.after["snapshot_ver"] != transition.before["snapshot_ver"]:
            taken.job["snapshot_ver"] = transition.after["snapshot_ver"]  # a ts of its own
        assert json.dumps(taken.job) == json.dumps(transition.after)
        for schema_id, table in taken.tables:
            assert json.dumps(table) == json.dumps(transition.recorded(table_key(schema_id, table["id"])))
        for database in taken.databases:
            assert database == transition.recorded(database_key(database["id"]))
        for gone in taken.gone:
            assert transition.recorded(table_key(gone.schema_id, gone.table_id)) is None
        if taken.diff is not None:
            diff = {"version": transition.version, **taken.diff}
            assert json.dumps(diff) == json.dumps(transition.recorded(string_key(b"Diff:%d" % transition.version)))
        compared += 1
    assert compared == count


def test_after_its_swap_a_lossy_change_takes_two_more_steps_to_tidbs_table() -> None:
    compared = 0
    for name in ("ddl", "online"):
        for transition in transitions(name):
            if not (transition.is_lossy and transition.after["state"] == 4):
                continue
            documents = transition.documents()
            job, states = transition.before, []
            result: Result | None = transition.result()
            while job["state"] != 4:
                taken = step(job, documents, Moment(transition.start_ts, transition.version), result)
                assert isinstance(taken, Change)
                job, result = taken.job, None
                ((schema_id, table),) = taken.tables
                documents = Documents(documents.databases, {(schema_id, table["id"]): table})
                states.append([c["state"] for c in table["cols"] if c["name"]["O"].startswith("_Tombstone$_")])
                assert job["schema_state"] == 5
            wanted = transition.recorded(table_key(job["schema_id"], job["table_id"]))
            assert wanted is not None
            assert states == [[2], [1], []]
            assert {**table, "revision": wanted["revision"]} == wanted
            assert job["binlog"]["TableInfo"] == table
            compared += 1
    assert compared == 16
