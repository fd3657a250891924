"""The sweep: each DDL, held at each of its states, with writers a version behind and writers at the state.

    nodes of two versions ── insert, update, delete, duplicate key ──► store ── EventFeed ──► schema store, mounter

What was written is remembered as sessions see it, and what comes out of the change stream is compared with it.

    python -m tests.tidebox.sql.ddl.sweep        rewrites the table of docs/concepts/ddl-sweep.md
"""

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.tidebox.sql.ddl.cases import CASES, Case
from tests.tidebox.sql.ddl.stream import Stream, upstream
from tests.tidebox.sql.plain_ddl import session_on
from tidebox.sql.ddl.plan import Asking, plan
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.parse import parse
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.mounter.mount import mount
from tidemill.flow.schema import Absent
from tidemill.model.change import RAW_CHANGE_SCHEMA
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import JobState, SchemaState
from tidemill.tidb.keys import is_record_key, physical_id_of
from tidemill.tidb.meta import JOB_TABLE_ID

PAGE = Path(__file__).parents[4] / "docs/concepts/ddl-sweep.md"
SEEDS = 200  # rows from before the DDL
OPERATIONS = ("insert", "update", "delete", "duplicate key")
_GENERATED = re.compile(r"(?<=<!-- generated: begin -->\n).*?(?=<!-- generated: end -->)", re.DOTALL)

RowKey = tuple[int, int]  # id and u: without a primary key two rows may have the same id
Image = dict[str, str | None]


@dataclass(slots=True)
class _Write:
    """One statement: between which ts it committed, the rows that it changed, and what is true of them."""

    state: int  # the number of the state
    writer: str
    operation: str
    outcome: str
    above: int
    to: int
    rows: dict[RowKey, Image | None] = field(default_factory=dict)  # None: the row is nowhere to be seen
    schemas: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Swept:
    """What came of a case: its states in order, and by state, writer and operation what happened."""

    case: Case
    states: list[str]
    writes: list[_Write]
    is_undone: bool
    is_too_late: bool  # to be cancelled
    table: TableInfo | None  # that it left behind

    def lines(self) -> list[str]:
        """Of the table in the page: one per state."""
        found = []
        for number, state in enumerate(self.states):
            cells = [self.case.name if number == 0 else "", state]
            for operation in OPERATIONS:
                cells.append(" / ".join(self._outcome(number, writer, operation) for writer in ("behind", "ahead")))
            cells.append(" / ".join(self._schemas(number, writer) for writer in ("behind", "ahead")))
            found.append(f"| {' | '.join(cells)} |")
        return found

    def _outcome(self, state: int, writer: str, operation: str) -> str:
        outcomes = [w.outcome for w in self.writes if (w.state, w.writer, w.operation) == (state, writer, operation)]
        return ", ".join(dict.fromkeys(outcomes)) or "–"

    def _schemas(self, state: int, writer: str) -> str:
        found = {name for w in self.writes if (w.state, w.writer) == (state, writer) for name in w.schemas}
        return ", ".join(sorted(found)) or "–"


class Sweep:
    """Takes one DDL through its states. ``cancel_at``: the number of steps after which it is cancelled."""

    def __init__(self, served: EmbeddedUpstream, stream: Stream, case: Case, cancel_at: int | None = None) -> None:
        self._cluster = served.cluster
        self._stream = stream
        self._case = case
        self._cancel_at = cancel_at
        self._sql = SqlNodes(self._cluster, 2)
        self._schema = f"s{int(self._cluster.tso.next())}"
        admin = session_on(self._sql.nodes[0])
        admin.execute(f"create database {self._schema}")
        admin.close()
        self._sessions = dict(
            zip(("behind", "ahead"), (session_on(n, self._schema) for n in self._sql.nodes), strict=True)
        )
        self._next = 1001
        self._seed = 1
        self._writes: list[_Write] = []
        self._states: list[str] = []
        self._is_too_late = False

    def run(self) -> Swept:
        try:
            return self._run()
        finally:
            for node in self._sql.nodes:
                node.cache.release()
            for session in self._sessions.values():
                session.close()

    def _run(self) -> Swept:
        case, ahead = self._case, self._sessions["ahead"]
        ahead.execute(case.table)
        seeds = ", ".join(f"({n}, {case.old(n)}, {n})" for n in range(1, SEEDS + 1))
        ahead.execute(f"insert into t (id, {case.column}, u) values {seeds}")
        self._sql.nodes[0].cache.reload()
        self._table_id = self._catalog("ahead").table(self._schema, "t").id
        self.before = self._catalog("ahead").table(self._schema, "t").info
        self._start_ts = Ts(int(self._cluster.tso.next()))
        self._store = self._stream.load_schema(self._start_ts)

        job_id = self._queue()
        restarts: list[Ts] = []
        step = 0
        while True:
            if step >= (self._cancel_at or 0):  # up to there all goes as without a cancellation
                label = self._label(job_id)
                is_same = bool(self._states) and label == self._states[-1].removesuffix(", next step")
                self._write_all(f"{label}, next step" if is_same else label)
                restarts.append(Ts(int(self._cluster.tso.next())))
            if step == self._cancel_at:
                self._cancel(job_id)
            if not self._advance(job_id):
                break
            step += 1
            job = self._sql.worker.job(job_id)
            if job["state"] == JobState.SYNCED or job["binlog"]["FinishedTS"]:
                break
        for node in self._sql.nodes:
            node.cache.release()
        job = self._sql.worker.run(job_id)
        for node in self._sql.nodes:
            node.cache.reload()
        self._write_all("after it")
        is_undone = job["state"] != JobState.SYNCED
        self._compare(restarts)
        self._check_indexes()
        return Swept(case, self._states, self._writes, is_undone, self._is_too_late, self._shape())

    def _shape(self) -> TableInfo | None:
        found = self._final_table()
        return None if found is None else replace(found, version_ts=self.before.version_ts)

    # The job

    def _queue(self) -> int:
        asking = Asking(self._schema, self._case.statement, datetime(2026, 1, 1, tzinfo=UTC))
        (planned,) = plan(parse(self._case.statement), self._catalog("ahead"), asking).jobs
        return self._sql.worker.submit(planned)

    def _advance(self, job_id: int) -> bool:
        """One step that only the second node follows."""
        for node in self._sql.nodes:
            node.cache.release()
            node.cache.reload()
        self._sql.nodes[0].cache.hold()
        return self._sql.worker.advance(job_id)

    def _cancel(self, job_id: int) -> None:
        try:
            self._sql.worker.cancel(job_id)
        except SqlError as error:
            if error.number not in (8224, 8225, 8226):
                raise
            self._is_too_late = True  # it goes on

    def _label(self, job_id: int) -> str:
        """The state, by what of the table is not public."""
        job = self._sql.worker.job(job_id)
        if job["state"] == JobState.QUEUEING:
            return "queued"
        if job["state"] in (JobState.DONE, JobState.ROLLBACK_DONE, JobState.CANCELLED):
            return {JobState.DONE: "done", JobState.ROLLBACK_DONE: "rolled back"}.get(job["state"], "cancelled")
        back = "rolling back: " if job["state"] in (JobState.ROLLING_BACK, JobState.CANCELLING) else ""
        found = self._catalog("ahead").databases[self._schema].tables
        table = next((t for t in found.values() if t.id == self._table_id), None)
        if table is None:
            return f"{back}table gone"
        document = table.document
        parts = [("table", document["state"])]
        parts += [(c["name"]["O"], c["state"]) for c in document["cols"]]
        parts += [(i["idx_name"]["O"], i["state"]) for i in document["index_info"] or ()]
        open_parts = [f"`{n}` {_state_name(s)}" for n, s in parts if s != SchemaState.PUBLIC]
        return back + (", ".join(open_parts).replace("`table`", "table") or "in place")

    def _catalog(self, writer: str) -> Any:
        return self._sql.nodes[0 if writer == "behind" else 1].cache.current()

    # Writers

    def _write_all(self, label: str) -> None:
        number = len(self._states)
        self._states.append(label)
        rows = {writer: self._write_as(writer, number) for writer in ("behind", "ahead")}
        for writer, other in (("ahead", "behind"), ("behind", "ahead")):
            # Rows that the other version has just written: entries that it made are this one's to take away.
            changed, gone = rows[other]
            self._update(writer, number, changed)
            self._delete(writer, number, "delete", gone)

    def _write_as(self, writer: str, number: int) -> tuple[RowKey, RowKey]:
        """Each operation, on rows of before and of its own; two rows that it leaves to the other."""
        fresh, second, third = ((n, n) for n in range(self._next, self._next + 3))
        old, gone = ((n, n) for n in (self._seed, self._seed + 1))
        taken, free = self._seed + 2, self._next + 3
        self._next += 4
        self._seed += 3
        self._insert(writer, number, "insert", [fresh, second, third])
        for row in (fresh, old):
            self._update(writer, number, row)
        for row in (second, gone):
            self._delete(writer, number, "delete", row)
        for row in ((taken, free), (free, taken)):
            self._insert(writer, number, "duplicate key", [row])
            # Without a key in its way it is there now, and may not stand in the way of an index to come.
            self._delete(writer, number, "", row)
        return fresh, third

    def _insert(self, writer: str, number: int, operation: str, rows: list[RowKey]) -> None:
        name, column, form = self._target(writer)
        values = ", ".join(f"({row_id}, {form(max(row_id, u))}, {u})" for row_id, u in rows)
        self._statement(writer, number, operation, f"insert into {name} (id, {column}, u) values {values}", rows)

    def _update(self, writer: str, number: int, row: RowKey) -> None:
        name, column, form = self._target(writer)
        value = form(row[0] + (5000 if writer == "behind" else 10_000))
        self._statement(writer, number, "update", f"update {name} set {column} = {value} where {_is(row)}", [row])

    def _delete(self, writer: str, number: int, operation: str, row: RowKey) -> None:
        name, _, _ = self._target(writer)
        self._statement(writer, number, operation, f"delete from {name} where {_is(row)}", [row])

    def _target(self, writer: str) -> tuple[str, str, Any]:
        """The table, and the column with the form of its values, as this writer knows them."""
        case = self._case
        tables = self._catalog(writer).databases[self._schema].tables
        table = next((t for t in tables.values() if t.id == self._table_id), tables.get("t"))
        if table is None or table.state != SchemaState.PUBLIC:
            return "t", case.column, case.old
        before = next(c for c in self.before.columns if c.name == case.column)
        same = [c for c in table.info.columns if c.id == before.id]
        if same:
            return table.name, same[0].name, case.old if same[0].type == before.type else case.new
        column = next(c for c in table.info.columns if c.name in (case.column, "w"))
        return table.name, column.name, case.new

    def _statement(self, writer: str, number: int, operation: str, statement: str, rows: list[RowKey]) -> None:
        gone = {row: self._seen(writer, row) for row in rows} if statement.startswith("delete") else {}
        above = int(self._cluster.tso.next())
        try:
            affected = self._sessions[writer].execute(statement).rows
            outcome = "✓"
        except SqlError as error:
            outcome = str(error.number)
        to = int(self._cluster.tso.next())
        write = _Write(number, writer, operation, outcome, above, to)
        if outcome == "✓" and affected:  # else the row is in the other's table
            write.rows = gone or {row: self._seen(writer, row) for row in rows}
        self._writes.append(write)

    def _seen(self, writer: str, row: RowKey) -> Image | None:
        """A row as the newest version shows it, with what only the writer's version has; None if neither has it."""
        newest = self._select("ahead", row)
        if writer == "ahead":
            return newest
        own = self._select(writer, row)
        if newest is None:
            is_gone = self._catalog("ahead").find(self._schema, "t") is not None
            return None if is_gone else own
        only_own = {n: value for n, value in (own or {}).items() if not (n == "v" and "w" in newest)}
        return {**only_own, **newest}

    def _select(self, writer: str, row: RowKey) -> Image | None:
        name, _, _ = self._target(writer)
        try:
            result = self._sessions[writer].execute(f"select * from {name} where {_is(row)}")
        except SqlError as error:
            if error.number != 1146:
                raise
            return None
        found = [dict(zip((c.name for c in result.columns), map(_text, values), strict=True)) for values in result.rows]
        return found[0] if found else None

    # What the stream tells

    def _compare(self, restarts: list[Ts]) -> None:
        end = int(self._cluster.tso.next())
        changes = self._stream.changes(self._start_ts, end)
        jobs = [c for c in changes if physical_id_of(c["key"]) == JOB_TABLE_ID and is_record_key(c["key"])]
        self._store.apply(_batch(jobs))
        after = self._final_table()
        rows = [c for c in changes if is_record_key(c["key"]) and physical_id_of(c["key"]) in self._ids(after)]
        told = 0
        for write in self._writes:
            of_write = [c for c in rows if write.above < c["commit_ts"] <= write.to]
            told += len(of_write)
            self._check_write(write, of_write, after)
        assert told == len(rows), "the stream tells of rows that nobody wrote"
        for ts in restarts:
            self._check_restart(ts, jobs, rows)

    def _ids(self, after: TableInfo | None) -> set[int]:
        return {self._table_id} | ({after.id} if after is not None else set())

    def _final_table(self) -> TableInfo | None:
        tables = self._catalog("ahead").databases[self._schema].tables
        found = next((t for t in tables.values() if t.id == self._table_id), tables.get("t"))
        return found.info if found is not None else None

    def _check_write(self, write: _Write, changes: list[dict[str, Any]], after: TableInfo | None) -> None:
        decoded: dict[RowKey, Image] = {}
        skipped = 0
        for change in changes:
            physical_id = physical_id_of(change["key"])
            table = self._store.lookup(physical_id, change["commit_ts"])
            if not isinstance(table, TableInfo):
                assert table in (Absent.DROPPED, Absent.INELIGIBLE)
                write.schemas.add("skipped")
                skipped += 1
                continue
            write.schemas.add(self._name_of(table, after))
            batch = mount(table, physical_id, _batch([change]))
            images = batch.new.to_pylist() or batch.old.to_pylist()
            image = {name: _text(value) for name, value in images[0].items()}
            decoded[_number(image["id"]), _number(image["u"])] = image
        where = f"{write.operation} by the writer {write.writer} at {self._states[write.state]!r}"
        if skipped:
            assert skipped == len(changes), where
            assert all(seen is None for seen in write.rows.values()), f"{where}: a row that is there was skipped"
            return
        wanted = {row: seen for row, seen in write.rows.items() if seen is not None}
        assert decoded.keys() == wanted.keys(), where
        for row, seen in wanted.items():
            image = decoded[row]
            if "v" in image and "w" in seen:  # a new name counts when the DDL is done
                image = {**image, "w": image["v"]}
            if "w" in image and "v" in seen:
                image = {**image, "v": image["w"]}
            shared = image.keys() & seen.keys()
            assert {"id", "u"} <= shared
            told, true = {n: image[n] for n in shared}, {n: seen[n] for n in shared}
            assert told == true, f"{where}, row {row}"

    def _name_of(self, table: TableInfo, after: TableInfo | None) -> str:
        if _same(table, self.before):
            return "before"
        return "after" if after is not None and _same(table, after) else "swapped"

    def _check_restart(self, ts: Ts, jobs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        """A changefeed that goes on from ``ts`` chooses the same schema for each row behind it."""
        store = self._stream.load_schema(ts, self._store, self._start_ts)
        store.apply(_batch([job for job in jobs if job["commit_ts"] > ts]))
        for change in rows:
            if change["commit_ts"] > ts:
                at = physical_id_of(change["key"]), change["commit_ts"]
                chosen, again = self._store.lookup(*at), store.lookup(*at)
                if isinstance(chosen, TableInfo) and isinstance(again, TableInfo):
                    assert _same(chosen, again), f"started at {ts}, a row at {at[1]} is read by another schema"
                else:
                    assert not isinstance(chosen, TableInfo)
                    assert not isinstance(again, TableInfo)

    def _check_indexes(self) -> None:
        """Neither an entry without its row nor a row without its entry, in any table that is left."""
        for name in list(self._catalog("ahead").databases[self._schema].tables):
            self._sessions["ahead"].execute(f"admin check table {name}")


def _is(row: RowKey) -> str:
    return f"id = {row[0]} and u = {row[1]}"


def _number(text: str | None) -> int:
    assert text is not None
    return int(Decimal(text))


def _same(one: TableInfo, other: TableInfo) -> bool:
    return replace(one, version_ts=Ts(0)) == replace(other, version_ts=Ts(0))


def _state_name(state: int) -> str:
    return SchemaState(state).name.lower().replace("_", "-")


def _batch(changes: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(changes, RAW_CHANGE_SCHEMA)


def _text(value: Any) -> str | None:
    """A value as text that is the same whoever gives it."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else str(value)
    try:
        return str(Decimal(text).normalize() + 0)
    except InvalidOperation:
        return text


# The page


HEAD = [
    "| DDL | State | insert | update | delete | duplicate key | Rows are read by |",
    "|---|---|---|---|---|---|---|",
]


def table_of(swept: list[Swept]) -> str:
    return "\n".join([*HEAD, *(line for one in swept for line in one.lines())]) + "\n"


def page_with(table: str) -> str:
    return _GENERATED.sub(lambda _: table, PAGE.read_text())


if __name__ == "__main__":
    with upstream() as (served, stream):
        found = []
        for case in CASES:
            found.append(Sweep(served, stream, case).run())
            stream.forget()
            print("\n".join(found[-1].lines()))
    PAGE.write_text(page_with(table_of(found)))
