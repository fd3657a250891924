"""A writer of an earlier generation, continued after a take-over at every step: nothing of it gets through.

A gate between the writer and the server stands for SIGSTOP: it holds the writer right before it sends something.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.e2e.processes import wait_until
from tests.flow.encoder.samples import COMMIT_TS, rows_of
from tests.mariadb import MariaDb
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tests.sinks.mysql.test_ddl import event
from tests.sinks.mysql.test_writing import END, PLAIN, inserted
from tidemill.errors import SinkError
from tidemill.model.ddl import ActionType
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri, write_rows
from tidemill.sinks.mysql.session import POOL

PATIENCE_SECONDS = 120
_QUIT = b"\x01\0\0\0\x01"


class Gate:
    """A port that passes bytes to the server. The ``hold_at``-th message of a client waits until ``open`` is called."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.hold_at: int | None = None
        self.sent = 0
        self.is_held, self._is_open = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def holding(self, step: int, work: Callable[[], Any]) -> Iterator[list[SinkError]]:
        """Begin ``work`` and hold it at its ``step``-th message meanwhile; gives what it raises afterwards."""
        failed: list[SinkError] = []

        def run() -> None:
            try:
                work()
            except SinkError as error:
                failed.append(error)

        self.is_held.clear()
        self._is_open.clear()
        self.hold_at = self.sent + step
        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        assert self.is_held.wait(PATIENCE_SECONDS)
        yield failed
        self.hold_at = None
        self.open()
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()

    def open(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        self.open()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            threading.Thread(target=self._pass, args=(client, server, self._count), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, lambda data: None), daemon=True).start()

    def _count(self, data: bytes) -> None:
        if data == _QUIT:  # of a session that is closed some time
            return
        self.sent += 1
        if self.sent == self.hold_at:
            self.is_held.set()
            self._is_open.wait(PATIENCE_SECONDS)

    def _pass(self, source: socket.socket, target: socket.socket, before: Callable[[bytes], None]) -> None:
        try:
            while data := source.recv(1 << 20):
                before(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                with suppress(OSError):  # closing it alone ends no read of another thread, nor the connection then
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


@pytest.fixture
def gate(mariadb: MariaDb) -> Iterator[Gate]:
    mariadb.query(
        "CREATE OR REPLACE DATABASE writing", "CREATE TABLE writing.plain (id BIGINT PRIMARY KEY, v VARCHAR(10))"
    )
    found = Gate(mariadb.port)
    yield found
    found.close()


def open_sink(mariadb: MariaDb, port: int, parameters: str = "") -> MysqlHalves:
    options = replace(parse_mysql_uri(mariadb.uri(f"worker-count=1&{parameters}")), port=port, changefeed="fenced")
    sink = mysql_sink(options, None, patience_seconds=PATIENCE_SECONDS)
    sink.recover(START)
    return sink


def messages_of(gate: Gate, work: Callable[[], Any]) -> int:
    before = gate.sent
    work()
    return gate.sent - before


CHANGES = [(None, {"id": n, "v": "old"}) for n in range(3)]


@pytest.mark.parametrize("parameters", ["", "multi-stmt-enable=false"])
@pytest.mark.parametrize("is_idle", [False, True], ids=["a new session", "a session from the pool"])
def test_an_earlier_writer_is_stopped_wherever_it_was_held(
    gate: Gate, mariadb: MariaDb, parameters: str, is_idle: bool
) -> None:
    def write(sink: MysqlHalves, ts: int = 1000) -> None:
        write_rows(sink.target(PLAIN, PLAIN.id, (Ts(0), Ts(COMMIT_TS + ts))), iter([rows_of(PLAIN, *CHANGES)]))

    first = open_sink(mariadb, gate.port, parameters)
    if is_idle:
        write(first)
    steps = messages_of(gate, lambda: write(first))
    first.close()
    for step in range(max(1, steps - 6), steps + 1):  # a session that has only connected has done nothing yet
        mariadb.query("DELETE FROM writing.plain")
        POOL.close()
        earlier = open_sink(mariadb, gate.port, parameters)
        if is_idle:
            write(earlier)
            mariadb.query("DELETE FROM writing.plain")
        target = earlier.target(PLAIN, PLAIN.id, (Ts(0), END))
        with gate.holding(step, partial(write_rows, target, iter([rows_of(PLAIN, *CHANGES)]))) as failed:
            later = open_sink(mariadb, mariadb.port, parameters)  # while the earlier one is held
        assert [str(error)[:15] for error in failed] == ["stopped writing"], f"step {step} of {steps}"
        assert mariadb.query("SELECT * FROM writing.plain") == [], f"step {step} of {steps}"
        later.close()


def test_recovery_ends_what_the_same_process_still_writes(gate: Gate, mariadb: MariaDb) -> None:
    """A sibling of a killed worker works on while the batch begins again."""
    sink = open_sink(mariadb, mariadb.port)
    target = sink.target(PLAIN, PLAIN.id, (Ts(0), END))
    write_rows(target, iter([rows_of(PLAIN, *inserted(1))]))
    sink.recover(START)
    with pytest.raises(SinkError, match="another process has taken it over"):
        write_rows(target, iter([rows_of(PLAIN, *inserted(1, first=5))]))
    write_rows(sink.target(PLAIN, PLAIN.id, (Ts(0), END)), iter([rows_of(PLAIN, *inserted(1, first=9))]))
    assert mariadb.query("SELECT id FROM writing.plain ORDER BY id") == [(0,), (9,)]
    sink.close()


def test_a_writer_that_is_closed_ends_what_it_does_in_this_process(gate: Gate, mariadb: MariaDb) -> None:
    """It waits for a lock, which may take longer than anybody waits for the process to end."""
    sink, failed = open_sink(mariadb, mariadb.port), list[SinkError]()
    target = sink.target(PLAIN, PLAIN.id, (Ts(0), END))
    write_rows(target, iter([rows_of(PLAIN, *inserted(1))]))
    holder = mariadb.connect()
    with holder.cursor() as cursor:
        cursor.execute("LOCK TABLES writing.plain WRITE")

    def write() -> None:
        try:
            write_rows(target, iter([rows_of(PLAIN, *inserted(1, first=5))]))
        except SinkError as error:
            failed.append(error)

    worker = threading.Thread(target=write, daemon=True)
    worker.start()
    waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"
    wait_until(lambda: bool(mariadb.query(waiting)), "the writer to wait for the lock")
    sink.close()
    worker.join(PATIENCE_SECONDS / 2)
    assert [error.retryable for error in failed] == [True]
    holder.close()


def test_a_writer_that_is_closed_begins_nothing_more_in_this_process(gate: Gate, mariadb: MariaDb) -> None:
    """Of several units, a stop may come between two."""
    sink = open_sink(mariadb, mariadb.port)
    target = sink.target(PLAIN, PLAIN.id, (Ts(0), END))
    write_rows(target, iter([rows_of(PLAIN, *inserted(1))]))
    sink.close()
    with pytest.raises(SinkError, match="gave up writing") as refused:
        write_rows(target, iter([rows_of(PLAIN, *inserted(1, first=5))]))
    assert refused.value.retryable
    assert mariadb.query("SELECT id FROM writing.plain") == [(0,)]


def test_an_earlier_generations_ddl_is_refused_and_one_at_work_is_ended(gate: Gate, mariadb: MariaDb) -> None:
    create = event("create table writing.made (id int primary key)", ActionType.CREATE_TABLE, 1, schema="writing")
    counting = open_sink(mariadb, gate.port)
    steps = messages_of(gate, lambda: counting.ddl(create))
    counting.close()
    for step in range(max(1, steps - 9), steps + 1):
        mariadb.query("DROP TABLE IF EXISTS writing.made", "DELETE FROM tidb_cdc.tidemill_ddl_v2")
        earlier = open_sink(mariadb, gate.port)
        with gate.holding(step, partial(earlier.ddl, create)) as failed:
            later = open_sink(mariadb, mariadb.port)
            was_there = bool(mariadb.query("SHOW TABLES FROM writing LIKE 'made'"))
        assert bool(mariadb.query("SHOW TABLES FROM writing LIKE 'made'")) == was_there, f"step {step} of {steps}"
        if failed:
            assert "taken it over" in str(failed[0]), f"step {step} of {steps}"
        later.close()
        earlier.close()


def test_other_changefeeds_and_clusters_are_left_alone(gate: Gate, mariadb: MariaDb) -> None:
    sink = open_sink(mariadb, mariadb.port)
    target = sink.target(PLAIN, PLAIN.id, (Ts(0), END))
    write_rows(target, iter([rows_of(PLAIN, *inserted(1))]))
    options = replace(parse_mysql_uri(mariadb.uri()), changefeed="fenced", cluster_id="another")
    other = mysql_sink(options, None)
    other.recover(START)
    write_rows(target, iter([rows_of(PLAIN, *inserted(1, first=5))]))
    assert mariadb.query("SELECT COUNT(*) FROM writing.plain") == [(2,)]
    sink.close()
    other.close()
