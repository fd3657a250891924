"""SQL nodes from their start to their end: leases, jobs that a restart has left, threads that end."""

import threading
from contextlib import suppress

import pymysql
import pytest

from tests.tidebox.sql.plain_ddl import session_on
from tests.tidebox.stub import DEADLINE_SECONDS
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UsageError
from tidemill.tidb.documents import SchemaState


class SetClock:
    """Stands still until it is told otherwise; the time of day is the machine's."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return SYSTEM_CLOCK.now()

    def monotonic(self) -> float:
        return self.seconds


def number_of(session, statement: str) -> int:
    with pytest.raises(SqlError) as caught:
        session.execute(statement)
    return caught.value.number


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def pair(clock):
    """Two nodes whose leases nobody renews but the test."""
    with EmbeddedUpstream.start(resolved_interval_seconds=3600, clock=clock) as upstream:
        nodes = SqlNodes(upstream.cluster, 2, lease_seconds=10)
        session_on(nodes.nodes[0]).execute("create table t (id int primary key, v int)")
        yield nodes
        nodes.stop()


def test_a_node_that_cannot_renew_serves_until_its_lease_is_over_and_again_after_it(pair, clock):
    session = session_on(pair.nodes[1])
    pair.nodes[1].cache.hold()
    clock.seconds += 9.5
    pair.nodes[1].cache.reload()
    session.execute("insert into t values (1, 1)")
    clock.seconds += 1
    for statement in ("select * from t", "insert into t values (2, 2)", "create table u (id int)", "use test"):
        assert number_of(session, statement) == 8027
    pair.nodes[1].cache.release()
    pair.nodes[1].cache.reload()
    session.execute("insert into t values (2, 2)")


def test_what_was_begun_in_time_is_not_committed_when_the_lease_is_over(pair, clock):
    session = session_on(pair.nodes[1])
    pair.nodes[1].cache.hold()
    session.execute("begin")
    session.execute("insert into t values (1, 1)")
    clock.seconds += 11
    assert number_of(session, "commit") == 8027
    pair.nodes[0].cache.reload()
    assert session_on(pair.nodes[0]).execute("select * from t").rows == []


def test_what_another_node_has_altered_meanwhile_is_not_committed(pair):
    session = session_on(pair.nodes[1])
    session.execute("begin")
    session.execute("insert into t values (1, 1)")
    session_on(pair.nodes[0]).execute("alter table t drop column v")
    assert number_of(session, "commit") == 8028


def test_ddl_waits_for_a_node_that_is_held_and_no_longer_than_its_lease(pair, clock):
    pair.nodes[1].cache.hold()
    done = threading.Event()

    def alter() -> None:
        session_on(pair.nodes[0]).execute("alter table t add column w int")
        done.set()

    thread = threading.Thread(target=alter)
    thread.start()
    while pair.nodes[0].cache.version == pair.nodes[1].cache.version:
        pass
    assert not done.is_set()
    assert pair.nodes[0].cache.version == pair.nodes[1].cache.version + 1  # never more than two
    clock.seconds += 9
    pair.nodes[0].cache.reload()
    clock.seconds += 2
    assert done.wait(DEADLINE_SECONDS)
    thread.join()
    assert number_of(SqlSession(pair.nodes[1]), "select 1 from test.t") == 8027


def test_without_pd_there_is_no_timestamp_and_then_no_lease(clock):
    with EmbeddedUpstream.start(resolved_interval_seconds=3600, clock=clock) as upstream:
        nodes = SqlNodes(upstream.cluster, lease_seconds=10)
        session = session_on(nodes.nodes[0])
        upstream.pd_away()
        assert number_of(session, "select * from mysql.tidb") == 9001
        with pytest.raises(SqlError, match="PD is away"):
            nodes.nodes[0].cache.reload()
        clock.seconds += 11
        assert number_of(session, "select * from mysql.tidb") == 8027
        upstream.pd_back()
        nodes.nodes[0].cache.reload()
        assert session.execute("select count(*) from mysql.tidb").rows == [[4]]
        nodes.stop()


@pytest.mark.parametrize("state", [SchemaState.NONE, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG])
def test_a_job_that_was_not_done_is_carried_on_by_the_next_start(tmp_path, state):
    with EmbeddedUpstream.start(data_dir=tmp_path, resolved_interval_seconds=3600) as upstream:
        nodes = SqlNodes(upstream.cluster)
        session = session_on(nodes.nodes[0])
        session.execute("create table t (id int primary key, v int)")
        session.execute("insert into t values (1, 10), (2, 20), (3, 30)")
        held = threading.Event()

        def at_state(job) -> bool:
            if job["type"] == 7 and job["schema_state"] == state:
                held.set()
                return True
            return False

        nodes.worker.hold(at_state)
        failed: list[int] = []
        thread = threading.Thread(target=lambda: failed.append(number_of(session, "alter table t add index kv (v)")))
        thread.start()
        assert held.wait(DEADLINE_SECONDS)
        nodes.stop()
        thread.join()
        assert failed == [1053]
        session.close()
    with EmbeddedUpstream.start(data_dir=tmp_path, resolved_interval_seconds=3600, sql_port=0) as upstream:
        worker = upstream.sql.worker
        deadline = SYSTEM_CLOCK.monotonic() + DEADLINE_SECONDS
        while worker.jobs()[0]:
            assert SYSTEM_CLOCK.monotonic() < deadline, "the job is left behind"
        session = session_on(upstream.sql.nodes[0])
        assert session.execute("select id from t use index (kv) where v > 10").rows == [[2], [3]]
        session.execute("admin check table t")
        session.close()


def test_all_threads_end_with_the_upstream_also_of_sessions_in_the_middle_of_something():
    before = set(threading.enumerate())
    with EmbeddedUpstream.start(sql_port=0, sql_nodes=2) as upstream:
        clients = []
        for address in upstream.sql_addresses:
            client = pymysql.connect(host="127.0.0.1", port=int(address.split(":")[1]), user="root", database="test")
            clients.append(client)
        first, second = (client.cursor() for client in clients)
        first.execute("create table t (id int primary key, v int)")
        first.execute("insert into t values (1, 1)")
        clients[0].commit()
        first.execute("begin pessimistic")
        first.execute("update t set v = 2")  # its lock has to be kept alive

        def wait_for_lock() -> None:
            with suppress(pymysql.Error):  # or it gets the lock, when the other session ends first
                second.execute("update t set v = 3")

        waiting = threading.Thread(target=wait_for_lock)
        waiting.start()
        while not upstream.cluster.transactions.waits.waiting():
            assert waiting.is_alive()
    waiting.join()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("count", [0, 65])
def test_there_are_as_many_nodes_as_can_be(count):
    with pytest.raises(UsageError, match="choose 1 to 64"):
        EmbeddedUpstream.start(sql_port=0, sql_nodes=count)


def test_the_ts_of_an_open_transaction_can_be_asked(pair):
    session = session_on(pair.nodes[0])
    assert session.execute("select @@tidb_current_ts").rows == [[0]]
    session.execute("begin")
    [[ts]] = session.execute("select @@tidb_current_ts").rows
    assert 0 < ts < pair.nodes[0].cluster.tso.next()
    session.execute("rollback")


def test_the_snapshot_may_be_set_by_an_expression(pair):
    session = session_on(pair.nodes[0])
    session.execute("insert into t values (1, 1)")
    session.execute("set @@tidb_snapshot = now(3)")
    assert number_of(session, "insert into t values (2, 2)") == 1105
    session.execute("set @@tidb_snapshot = ''")
    session.execute("insert into t values (2, 2)")
