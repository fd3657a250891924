"""Rows written while a lossy MODIFY COLUMN runs decode to what a session saw, the window after its swap included.

TiCDC reads such rows by the column that is going, up to the job's FinishedTS: a cast back, or nothing.
"""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tests.store.sql.ddl.versions import versions
from tests.store.sql.plain_ddl import session_on
from tidemill.flow.mounter.mount import mount
from tidemill.flow.schema.store import SchemaStore
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.ts import Ts
from tidemill.store.sql.ddl.plan import Asking, plan
from tidemill.store.sql.nodes import SqlNodes
from tidemill.store.sql.parse import parse
from tidemill.store.sql.transaction import Transaction
from tidemill.store.upstream import EmbeddedUpstream
from tidemill.upstream.documents import JobState
from tidemill.upstream.keys import record_range
from tidemill.upstream.meta import JOB_TABLE_ID


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        yield upstream.cluster


def raw_changes(cluster, table_id: int) -> list[pa.RecordBatch]:
    old: dict[bytes, bytes] = {}
    out = []
    for commit_ts, start_ts, key, value in versions(cluster, *record_range(table_id)):
        row = start_ts, commit_ts, int(Op.PUT if value else Op.DELETE), key, value, old.get(key, b"")
        out.append(dict(zip(RAW_CHANGE_SCHEMA.names, row, strict=True)))
        old[key] = value
    return [pa.RecordBatch.from_pylist([row], RAW_CHANGE_SCHEMA) for row in out]


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        pytest.param("alter table t modify column v varchar(20)", ("abc", "7"), id="int to varchar"),
        pytest.param("alter table t change column v w varchar(20) first", ("abc", "7"), id="renamed and moved"),
        pytest.param("alter table t modify column v varchar(20), add column n int", ("abc", "7"), id="with others"),
        pytest.param("alter table t modify column v decimal(10,3)", ("1.125", "7"), id="int to decimal"),
    ],
)
def test_rows_of_the_window_decode_to_the_true_value(cluster, request, ddl, values):
    sql = SqlNodes(cluster, 2)
    session = session_on(sql.nodes[0])
    schema = f"w{abs(hash(request.node.name)) % 10**9}"
    session.execute(f"create database {schema}")
    session.execute(f"use {schema}")
    session.execute("create table t (id int primary key, v int)")
    session.execute("insert into t values (1, 10), (2, 20)")
    start = Ts(int(cluster.tso.next()))
    pairs = [*Transaction(cluster).scan(b"m", b"n"), *Transaction(cluster).scan(*record_range(JOB_TABLE_ID))]
    store = SchemaStore.from_snapshot(pairs, start)
    told = len(versions(cluster, *record_range(JOB_TABLE_ID)))

    behind = session_on(sql.nodes[1], schema)
    table_id = sql.nodes[0].cache.current().table(schema, "t").id
    (planned,) = plan(parse(ddl), sql.nodes[0].cache.current(), Asking(schema, ddl, datetime.now(UTC))).jobs
    job_id = sql.worker.submit(planned)
    expected: dict[int, str | None] = {}
    next_id = 100
    while sql.worker.job(job_id)["state"] != JobState.SYNCED:
        for writer, node in ((session, sql.nodes[0]), (behind, sql.nodes[1])):
            name = next(c.name for c in node.cache.current().table(schema, "t").info.columns if c.name in ("v", "w"))
            is_new = node.cache.current().table(schema, "t").info.columns
            is_new = any(c.name == name and c.type != 3 for c in is_new)
            value = values[0] if is_new else values[1]
            writer.execute(f"insert into t (id, {name}) values ({next_id}, '{value}')")
            expected[next_id] = value
            next_id += 1
        sql.nodes[1].cache.release()
        sql.nodes[1].cache.reload()
        sql.nodes[1].cache.hold()
        sql.worker.advance(job_id)
    sql.nodes[1].cache.release()

    store.apply(versions(cluster, *record_range(JOB_TABLE_ID))[told:])
    seen = {}
    for change in raw_changes(cluster, table_id):
        commit_ts = change.column("commit_ts")[0].as_py()
        if commit_ts <= start:
            continue
        table = store.table(table_id, commit_ts)
        assert table is not None
        (image,) = mount(table, table_id, change).new.to_pylist()
        seen[image["id"]] = image
    assert seen.keys() == expected.keys()
    for row_id, image in seen.items():
        value = next(v for k, v in image.items() if k in ("v", "w"))
        shown = value.decode() if isinstance(value, bytes) else str(value)
        assert float(shown) == float(expected[row_id]) if expected[row_id] != "abc" else shown == "abc"
    session.close()
    behind.close()
