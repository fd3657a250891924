"""Jobs that are held: who waits for whom, who takes on what is left behind, who gives up."""

import threading
from datetime import UTC, datetime

import pytest

from tests.tidebox.sql.plain_ddl import session_on
from tidebox.sql.ddl.plan import Asking, plan
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.parse import parse
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.ddl import ActionType
from tidemill.tidb.documents import JobState, SchemaState

DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        yield upstream.cluster


class World:
    """Two nodes, of which one can be kept a version behind, and a job that is taken step by step."""

    def __init__(self, cluster, schema: str) -> None:
        self.sql = SqlNodes(cluster, 2)
        self.schema = schema
        admin = session_on(self.sql.nodes[0])
        admin.execute(f"create database {schema}")
        admin.close()
        self.behind, self.ahead = (session_on(node, schema) for node in self.sql.nodes)

    def queue(self, statement: str) -> int:
        cache = self.sql.nodes[1].cache
        asking = Asking(self.schema, statement, datetime(2026, 1, 1, tzinfo=UTC))
        (planned,) = plan(parse(statement), cache.current(), asking).jobs
        return self.sql.worker.submit(planned)

    def advance(self, job_id: int) -> bool:
        """One step that only the second node follows."""
        for node in self.sql.nodes:
            node.cache.release()
            node.cache.reload()
        self.sql.nodes[0].cache.hold()
        return self.sql.worker.advance(job_id)

    def finish(self, job_id: int) -> None:
        self.sql.nodes[0].cache.release()
        self.sql.worker.run(job_id)

    def job(self, job_id: int):
        return self.sql.worker.job(job_id)

    def close(self) -> None:
        for session in (self.behind, self.ahead):
            session.close()


@pytest.fixture
def world(cluster, request):
    world = World(cluster, f"h{abs(hash(request.node.name)) % 10**9}")
    yield world
    world.close()


def test_a_node_that_stays_behind_holds_the_job_until_its_lease_is_over(world):
    world.ahead.execute("create table t (id int primary key)")
    job_id = world.queue("alter table t add column n int")
    assert world.advance(job_id)
    assert not world.sql.worker.advance(job_id)
    world.sql.nodes[0].cache.release()
    assert world.sql.worker.advance(job_id)


def test_a_job_that_nobody_runs_is_taken_on_by_who_waits_for_its_table(world):
    world.ahead.execute("create table t (id int primary key)")
    left = world.queue("alter table t add column n int")
    world.advance(left)
    world.sql.nodes[0].cache.release()
    world.ahead.execute("alter table t add column m int")
    assert world.job(left)["state"] == JobState.SYNCED
    table = world.sql.nodes[1].cache.current().table(world.schema, "t")
    assert [c.name for c in table.info.columns] == ["id", "n", "m"]


def test_a_statement_that_is_interrupted_cancels_its_job(world):
    world.ahead.execute("create table t (id int primary key, v int)")
    reached = threading.Event()

    def until_cancelled(job) -> bool:
        is_there = job["type"] == ActionType.ADD_INDEX and job["schema_state"] == SchemaState.WRITE_ONLY
        if is_there:
            reached.set()
        return is_there and job["state"] == JobState.RUNNING

    release = world.sql.worker.hold(until_cancelled)
    failures: list[SqlError | None] = []
    thread = threading.Thread(target=lambda: failures.append(_failure(world.ahead, "alter table t add index iv (v)")))
    thread.start()
    assert reached.wait(DEADLINE_SECONDS)
    world.ahead.interrupt()
    thread.join(DEADLINE_SECONDS)
    release()
    assert failures[0] is not None
    assert failures[0].number == 8214
    assert not world.sql.nodes[1].cache.current().table(world.schema, "t").document["index_info"]


def _failure(session, statement: str) -> SqlError | None:
    try:
        session.execute(statement)
    except SqlError as error:
        return error
    return None
