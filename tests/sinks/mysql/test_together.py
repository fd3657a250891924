"""DDLs that are run at the same time leave what they leave one after the other, whatever happens in between."""

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.flow.schema.stores import fed_store
from tests.histories import load
from tests.mariadb import MariaDb
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tests.sinks.mysql.replay import rescan_of
from tests.sinks.mysql.test_ddl import TABLE, event, sink, tables
from tests.sinks.mysql.test_fence import PATIENCE_SECONDS, Gate, gate, messages_of, open_sink
from tidemill.errors import SinkError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.sinks.mysql import MysqlOwner, parse_mysql_uri
from tidemill.sinks.mysql.waves import waves
from tidemill.tidb.lexer import quoted

__all__ = ["gate", "sink"]  # fixtures

SYSTEM = ("mysql", "sys", "information_schema", "performance_schema", "tidb_cdc", "writing", "ddls")
SEED, CHUNK, MOST = 20261119, 40, 160


def untold(count: int) -> None:
    """Nobody waits for some of them."""


def called(name: str) -> TableInfo:
    return replace(TABLE, name=name)


def creating(name: str, ts: int = 10, schema: str = "ddls") -> DdlEvent:
    query = f"create table {schema}.{name} (id int primary key)"
    return event(query, ActionType.CREATE_TABLE, ts, called(name), schema=schema, creation=query)


def altering(name: str, ts: int = 10) -> DdlEvent:
    return event(f"alter table {name} add column more int", ActionType.ADD_COLUMN, ts, called(name))


def columns(mariadb: MariaDb) -> list[tuple[Any, ...]]:
    found = mariadb.query("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema='ddls'")
    return sorted(found)


def everything(mariadb: MariaDb) -> dict[str, str]:
    """How each table of a user's would be made."""
    places = mariadb.query(
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM}"
    )
    found = {
        f"{schema}.{name}": mariadb.query(f"SHOW CREATE TABLE {quoted(schema)}.{quoted(name)}")
        for schema, name in places
    }
    databases = mariadb.query(f"SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT IN {SYSTEM}")
    return {place: rows[0][1] for place, rows in found.items()} | {name: "" for (name,) in databases}


def clear(mariadb: MariaDb) -> None:
    databases = [place for place, text in everything(mariadb).items() if not text]
    mariadb.query(*(f"DROP DATABASE {quoted(name)}" for name in databases), "DROP DATABASE IF EXISTS tidb_cdc")


@pytest.fixture
def clean(mariadb: MariaDb) -> Iterator[MariaDb]:
    clear(mariadb)
    yield mariadb
    clear(mariadb)


def told(mariadb: MariaDb, name: str, run: Callable[[MysqlOwner, Sequence[DdlEvent]], None]) -> dict[str, str]:
    """What is there when all DDLs of a history have run; those that bring rows, as the owner of a changefeed runs
    them, by themselves."""
    clear(mariadb)
    history, waiting = load(name), list[DdlEvent]()
    found = mysql_sink(parse_mysql_uri(mariadb.uri()), None, rescan=rescan_of(history))
    found.recover(START)
    try:
        for each in [each for change in fed_store(name)[1] for each in change.events][:MOST]:
            if each.gives_key:
                run(found.owner, waiting)
                found.owner.ddl(each)
                waiting = []
            else:
                waiting.append(each)
        run(found.owner, waiting)
    finally:
        found.close()
    return everything(mariadb)


def one_by_one(owner: MysqlOwner, events: Sequence[DdlEvent]) -> None:
    for each in events:
        owner.ddl(each)


def chunks(events: Sequence[DdlEvent]) -> Iterator[Sequence[DdlEvent]]:
    return (events[first : first + CHUNK] for first in range(0, len(events), CHUNK))


def at_once(owner: MysqlOwner, events: Sequence[DdlEvent]) -> None:
    for chunk in chunks(events):
        owner.ddls(chunk, untold)


@pytest.mark.parametrize("name", ["bench-ddl", "ddl"])
def test_a_history_leaves_the_same_tables_as_one_by_one(clean: MariaDb, name: str) -> None:
    """Also where some of the last of them are not noted to be done, as if the owner had been killed among them."""
    rng = random.Random(SEED)

    def at_once_and_again(owner: MysqlOwner, events: Sequence[DdlEvent]) -> None:
        for chunk in chunks(events):
            owner.ddls(chunk, untold)
            for each in waves(chunk)[-1]:
                if rng.random() < 0.5:
                    clean.query(f"UPDATE tidb_cdc.tidemill_ddl_v2 SET is_done=0 WHERE finished_ts={each.finished_ts}")
            owner.ddls(chunk, untold)

    wanted = told(clean, name, one_by_one)
    assert wanted
    assert told(clean, name, at_once) == wanted
    if name == "bench-ddl":
        assert told(clean, name, at_once_and_again) == wanted


def test_one_that_is_refused_is_named_and_the_others_run_once(sink: MysqlHalves, mariadb: MariaDb) -> None:
    names = [f"t{n}" for n in range(6)]
    sink.owner.ddls([creating(name, number) for number, name in enumerate(names) if name != "t3"], untold)
    changes = [altering(name, 20 + number) for number, name in enumerate(names)]
    with pytest.raises(SinkError, match=r"refused the DDL on ddls\.t3 "):
        sink.owner.ddls(changes, untold)
    assert len(columns(mariadb)) == 10
    mariadb.query("CREATE TABLE ddls.t3 (id INT)", "ALTER TABLE ddls.t0 DROP COLUMN more")
    sink.recover(START)
    sink.owner.ddls(changes, untold)
    assert ("t3", "more") in columns(mariadb)
    assert ("t0", "more") not in columns(mariadb)  # noted to be done, it does not run again


def test_sessions_that_are_lost_are_opened_anew(sink: MysqlHalves, mariadb: MariaDb) -> None:
    sink.owner.ddls([creating(f"t{n}", n) for n in range(5)], untold)
    for (number,) in mariadb.query("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"):
        mariadb.query(f"KILL {number}")
    sink.owner.ddls([altering(f"t{n}", 20 + n) for n in range(5)], untold)
    assert len(columns(mariadb)) == 10


class Late(Gate):
    """Keeps the first TRUNCATE on its way until ``open`` is called, also if whoever sent it is gone."""

    def _count(self, data: bytes) -> None:
        if b"truncate" in data and not self.is_held.is_set():
            self.is_held.set()
            self._is_open.wait(PATIENCE_SECONDS)


def test_what_a_lost_session_has_sent_is_waited_for(mariadb: MariaDb) -> None:
    """It comes late, and would take rows along that were written behind the same DDL of another session."""
    mariadb.query("CREATE OR REPLACE DATABASE writing")
    late = Late(mariadb.port)
    lossy = open_sink(mariadb, late.port)
    lossy.owner.ddls([creating(f"t{n}", n, "writing") for n in range(2)], untold)
    emptying = [
        event(f"truncate table t{n}", ActionType.TRUNCATE_TABLE, 20 + n, called(f"t{n}"), schema="writing")
        for n in range(2)
    ]
    at_work = threading.Thread(target=lossy.owner.ddls, args=(emptying, untold), daemon=True)
    at_work.start()
    assert late.is_held.wait(PATIENCE_SECONDS)
    turn = lossy.owner._turn
    for each in list(turn.lines._connections):
        if each is not turn._session:
            with suppress(OSError, AttributeError):
                each._sock.shutdown(socket.SHUT_RDWR)
    at_work.join(1.5)
    assert at_work.is_alive()
    late.open()
    at_work.join(PATIENCE_SECONDS)
    assert not at_work.is_alive()
    lossy.close()
    late.close()


def test_notes_of_what_cannot_come_again_are_forgotten(sink: MysqlHalves, mariadb: MariaDb) -> None:
    first = [creating("a", 10), creating("b", 11)]
    sink.owner.ddls(first, untold)
    sink.owner.publish(first[1].finished_ts)
    sink.owner.ddls([creating("c", 20), creating("d", 21)], untold)
    noted = mariadb.query("SELECT finished_ts FROM tidb_cdc.tidemill_ddl_v2 ORDER BY 1")
    assert len(noted) == 3
    assert (first[1].finished_ts,) == noted[0]
    assert tables(mariadb) == ["a", "b", "c", "d"]


def test_of_an_earlier_generation_nothing_runs_behind_a_take_over(gate: Gate, mariadb: MariaDb) -> None:
    """It is held wherever it happens to be, in any of its sessions; the later one ends what is under way first."""
    made = [creating(f"made_{number}", number, "writing") for number in range(4)]
    counting = open_sink(mariadb, gate.port)
    steps = messages_of(gate, lambda: counting.owner.ddls(made, untold))
    counting.close()
    for step in range(1, steps - 3, 4):
        mariadb.query(*(f"DROP TABLE IF EXISTS writing.{each.table}" for each in made))
        mariadb.query("DELETE FROM tidb_cdc.tidemill_ddl_v2")
        earlier = open_sink(mariadb, gate.port)
        with gate.holding(step, partial(earlier.owner.ddls, made, untold)):
            later = open_sink(mariadb, mariadb.port)
            before = mariadb.query("SHOW TABLES FROM writing LIKE 'made%'")
        assert mariadb.query("SHOW TABLES FROM writing LIKE 'made%'") == before, f"step {step} of {steps}"
        later.close()
        earlier.close()
