"""Rows into a real MariaDB: again after a loss, through restarts, and what is said when it refuses."""

import base64
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, KEY, column, rows_of, table_of
from tests.mariadb import PASSWORD, MariaDb, need_mariadb
from tests.rounds import examples
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tests.sinks.mysql.upstreams import Past, create_table, keyed_table, pasts
from tidemill.errors import SinkError
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import DownstreamUnavailableError, failures, parse_mysql_uri, write_rows

END = Ts(COMMIT_TS + 1000)
PLAIN = table_of(
    column("id", ColumnType.LONGLONG, KEY), column("v", ColumnType.VARCHAR, flen=10), schema="writing", name="plain"
)


@pytest.fixture
def sink(mariadb: MariaDb) -> Iterator[MysqlHalves]:
    mariadb.query(
        "CREATE OR REPLACE DATABASE writing", "CREATE TABLE writing.plain (id BIGINT PRIMARY KEY, v VARCHAR(10))"
    )
    found = mysql_sink(parse_mysql_uri(mariadb.uri("worker-count=3&max-txn-row=50")), None, patience_seconds=60)
    found.recover(START)
    yield found
    found.close()


def write(sink: MysqlHalves, table: TableInfo, *changes: Any, ts: Any = None) -> None:
    write_rows(sink.target(table, table.id, (Ts(0), END)), iter([rows_of(table, *changes, ts=ts)]))


def inserted(count: int, first: int = 0) -> list[tuple[None, dict[str, Any]]]:
    return [(None, {"id": n, "v": f"row {n}"}) for n in range(first, first + count)]


@pytest.mark.parametrize("parameters", ["", "transaction-atomicity=table", "multi-stmt-enable=false"])
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(past=pasts(5), data=st.data())
def test_batches_one_after_the_other_and_some_of_them_twice(
    mariadb: MariaDb, parameters: str, past: Past, data: st.DataObject
) -> None:
    table = keyed_table("again", text_key=data.draw(st.booleans()))
    mariadb.query("CREATE OR REPLACE DATABASE again", create_table(table))
    sink = mysql_sink(parse_mysql_uri(mariadb.uri(f"worker-count=2&max-txn-row=2&{parameters}")), None)
    sink.recover(START)
    done = 0
    while done < len(past.transactions):
        end = data.draw(st.integers(done + 1, len(past.transactions)))
        if data.draw(st.booleans()):  # written, and lost before anybody noted it
            write_rows(sink.target(table, table.id, (Ts(0), END)), iter([past.rows(table, done, end)]))
            sink.recover(START)
        write_rows(sink.target(table, table.id, (Ts(0), END)), iter([past.rows(table, done, end)]))
        sink.commit(END, [])
        done = end
    sink.close()
    found = mariadb.query("SELECT id, a, b, v FROM again.t")
    assert sorted(map(repr, found)) == sorted(repr(tuple(row.values())) for row in past.states[-1])


def test_a_server_that_is_killed_and_comes_back_in_mid_batch_is_survived(tmp_path: Path) -> None:
    need_mariadb()
    with MariaDb(tmp_path / "m") as server:
        server.query("CREATE DATABASE writing", "CREATE TABLE writing.plain (id BIGINT PRIMARY KEY, v VARCHAR(10))")
        sink = mysql_sink(parse_mysql_uri(server.uri("worker-count=4&max-txn-row=1")), None, patience_seconds=90)
        sink.recover(START)
        sink.commit(Ts(1), [])  # from here on plain INSERT
        rows = inserted(4000)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                target = replace(sink.target(PLAIN, PLAIN.id, (Ts(0), END)), away_seconds=90)
                write_rows(target, iter([rows_of(PLAIN, *rows, ts=[COMMIT_TS] * len(rows))]))
            except BaseException as error:
                failed.append(error)

        writer = threading.Thread(target=work)
        writer.start()
        while not server.query("SELECT COUNT(*) > 20 FROM writing.plain")[0][0]:
            assert writer.is_alive()
        server.kill()
        server.start()
        writer.join(120)
        assert not writer.is_alive()
        assert failed == []
        assert server.query("SELECT COUNT(*), MIN(id), MAX(id) FROM writing.plain") == [(4000, 0, 3999)]
        sink.close()


def test_rows_that_are_there_already_are_replaced(sink: MysqlHalves, mariadb: MariaDb) -> None:
    mariadb.query("INSERT INTO writing.plain VALUES (7, 'foreign')")
    sink.commit(Ts(1), [])
    write(sink, PLAIN, *inserted(20))
    assert mariadb.query("SELECT COUNT(*), SUM(v = 'row 7') FROM writing.plain") == [(20, 1)]


def test_a_deadlock_is_tried_again(sink: MysqlHalves, mariadb: MariaDb) -> None:
    write(sink, PLAIN, *inserted(3))
    holder = mariadb.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT * FROM writing.plain WHERE id = 1 FOR UPDATE")
    mariadb.query("SET GLOBAL innodb_lock_wait_timeout = 1")
    try:
        rows = [({"id": 1, "v": "row 1"}, {"id": 1, "v": "new"})]
        writer = threading.Thread(target=lambda: write(sink, PLAIN, *rows))
        writer.start()
        while not mariadb.query("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")[0][
            0
        ]:
            assert writer.is_alive()
        holder.rollback()
        writer.join(60)
    finally:
        holder.close()
        mariadb.query("SET GLOBAL innodb_lock_wait_timeout = 50")
    assert mariadb.query("SELECT v FROM writing.plain WHERE id = 1") == [("new",)]


# What is refused


def test_a_row_that_does_not_fit_is_named_by_its_key(sink: MysqlHalves) -> None:
    rows = inserted(120)
    rows[77] = (None, {"id": 77, "v": "much too long for the column"})
    with pytest.raises(SinkError, match=r"refused a row of table writing\.plain, the row with id = 77: Data too long"):
        write(sink, PLAIN, *rows)


def test_a_table_that_is_not_there_is_named(sink: MysqlHalves) -> None:
    with pytest.raises(SinkError, match=r"has no table writing\.other: .*1146.*Create it as it is upstream"):
        write(sink, replace(PLAIN, name="other"), *inserted(1))


def test_a_table_with_other_columns_is_named(sink: MysqlHalves, mariadb: MariaDb) -> None:
    mariadb.query("ALTER TABLE writing.plain CHANGE COLUMN v w VARCHAR(10)")
    with pytest.raises(SinkError, match=r"table writing\.plain of .* has other columns.*Unknown column 'v'"):
        write(sink, PLAIN, *inserted(1))


def test_a_user_without_rights_is_told_which_are_missing(sink: MysqlHalves, mariadb: MariaDb) -> None:
    mariadb.query("CREATE OR REPLACE USER poor@'%'", "GRANT ALL ON tidb_cdc.* TO poor@'%'")
    poor = mysql_sink(parse_mysql_uri(mariadb.uri(user="poor", password="")), None)
    poor.recover(START)
    with pytest.raises(SinkError, match=r"does not let us write table writing\.plain.*Grant the user"):
        write(poor, PLAIN, *inserted(1))
    mariadb.query("REVOKE ALL ON tidb_cdc.* FROM poor@'%'")
    with pytest.raises(SinkError, match=r"cannot take over the downstream .*tidb_cdc"):
        mysql_sink(parse_mysql_uri(mariadb.uri(user="poor", password="")), None).recover(START)
    wrong = mysql_sink(parse_mysql_uri(mariadb.uri(password="not-it-at-all")), None)
    with pytest.raises(SinkError, match="1045") as raised:
        wrong.recover(START)
    assert "not-it-at-all" not in str(raised.value)


def test_a_password_in_base64_is_taken_too(sink: MysqlHalves, mariadb: MariaDb) -> None:
    encoded = base64.b64encode(PASSWORD.encode()).decode()
    mysql_sink(parse_mysql_uri(mariadb.uri(password=encoded)), None).recover(START)


def test_a_server_that_stays_away_is_given_up_as_retryable() -> None:
    gone = mysql_sink(parse_mysql_uri("mysql://root@127.0.0.1:1/?timeout=1s"), None, patience_seconds=0.2)
    with pytest.raises(DownstreamUnavailableError, match=r"cannot take over the downstream at 127\.0\.0\.1:1"):
        gone.recover(START)
    assert DownstreamUnavailableError.retryable


def test_a_table_without_a_key_is_refused(sink: MysqlHalves) -> None:
    keyless = table_of(column("a", ColumnType.LONG), schema="writing", name="keyless")
    with pytest.raises(SinkError, match=r"writing\.keyless: it has neither a primary key"):
        write(sink, keyless, (None, {"a": 1}))


def test_what_a_lost_batch_inserted_and_a_later_one_deletes_is_gone(sink: MysqlHalves, mariadb: MariaDb) -> None:
    """The lost batch comes again in two: the first has nothing of the row, the second sees it come and go."""
    first, middle, last = Ts(COMMIT_TS + 10), Ts(COMMIT_TS + 20), Ts(COMMIT_TS + 30)
    row = {"id": 1, "v": "came"}
    write_rows(sink.target(PLAIN, PLAIN.id, (Ts(0), middle)), iter([rows_of(PLAIN, (None, row), ts=[middle])]))
    sink.recover(START)
    write_rows(sink.target(PLAIN, PLAIN.id, (Ts(0), first)), iter([rows_of(PLAIN, *inserted(1), ts=[first])]))
    sink.commit(first, [])
    changes = rows_of(PLAIN, (None, row), (row, None), ts=[middle, last])
    write_rows(sink.target(PLAIN, PLAIN.id, (first, last)), iter([changes]))
    assert mariadb.query("SELECT id FROM writing.plain") == [(0,)]
    sink.commit(last, [])
    assert sink.target(PLAIN, PLAIN.id, (first, last)).is_safe  # of a table that a DDL had kept behind
    assert not sink.target(PLAIN, PLAIN.id, (middle, last)).is_safe


def test_what_an_earlier_run_may_have_written_is_written_safely(mariadb: MariaDb, sink: MysqlHalves) -> None:
    later = mysql_sink(parse_mysql_uri(mariadb.uri()), None, written_ts=END)
    later.recover(START)
    later.commit(Ts(END - 1), [])
    assert later.target(PLAIN, PLAIN.id, (Ts(END - 1), END)).is_safe
    later.commit(END, [])
    assert not later.target(PLAIN, PLAIN.id, (END, Ts(END + 1))).is_safe
    later.close()


# Generations


def test_an_earlier_generation_cannot_write_any_more(sink: MysqlHalves, mariadb: MariaDb) -> None:
    target = sink.target(PLAIN, PLAIN.id, (Ts(0), END))
    write_rows(target, iter([rows_of(PLAIN, *inserted(1))]))
    later = mysql_sink(parse_mysql_uri(mariadb.uri()), None)
    later.recover(START)
    with pytest.raises(SinkError, match="another process has taken it over"):
        write_rows(target, iter([rows_of(PLAIN, *inserted(1, first=5))]))
    write(later, PLAIN, *inserted(1, first=9))
    assert mariadb.query("SELECT id FROM writing.plain ORDER BY id") == [(0,), (9,)]
    later.close()


def test_a_session_that_merely_got_the_number_of_an_earlier_one_is_left_alone(
    sink: MysqlHalves, mariadb: MariaDb
) -> None:
    """A server that was restarted counts from the beginning."""
    write(sink, PLAIN, *inserted(1))
    stranger = mariadb.connect()
    mine = "changefeed = 'default' AND cluster = 'default'"
    mariadb.query(f"UPDATE tidb_cdc.tidemill_writer_v4 SET session = {stranger.thread_id()} WHERE {mine}")
    later = mysql_sink(parse_mysql_uri(mariadb.uri()), None)
    later.recover(START)
    stranger.ping(reconnect=False)
    assert mariadb.query(f"SELECT * FROM tidb_cdc.tidemill_writer_v4 WHERE {mine}") == []
    stranger.close()
    later.close()


def test_any_number_of_earlier_sessions_is_ended(sink: MysqlHalves, mariadb: MariaDb) -> None:
    """Each session leaves its slot behind, so there are many after some weeks of one generation."""
    (before,) = mariadb.query("SELECT @@GLOBAL.max_allowed_packet")[0]
    mariadb.query(
        "INSERT INTO tidb_cdc.tidemill_writer_v4 SELECT seq, 'default', 'default', 'main', 'earlier', 0, 0 "
        "FROM writing.seq_1_to_5000",
        "SET GLOBAL max_allowed_packet = 32768",
    )
    try:
        later = mysql_sink(parse_mysql_uri(mariadb.uri()), None, patience_seconds=1.0)
        later.recover(START)
        later.close()
    finally:
        mariadb.query(f"SET GLOBAL max_allowed_packet = {before}")
    left = "SELECT COUNT(*) FROM tidb_cdc.tidemill_writer_v4 WHERE changefeed = 'default' AND cluster = 'default'"
    assert mariadb.query(left) == [(0,)]


def test_a_statement_of_an_earlier_generation_is_ended_before_the_next_one_writes(
    sink: MysqlHalves, mariadb: MariaDb
) -> None:
    write(sink, PLAIN, *inserted(1))
    holder = mariadb.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT * FROM writing.plain WHERE id = 0 FOR UPDATE")
    failed: list[BaseException] = []

    def stale() -> None:
        try:
            write(sink, PLAIN, ({"id": 0, "v": "row 0"}, {"id": 0, "v": "stale"}))
        except SinkError as error:
            failed.append(error)

    writer = threading.Thread(target=stale)
    writer.start()
    while not mariadb.query("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")[0][0]:
        assert writer.is_alive()
    later = mysql_sink(parse_mysql_uri(mariadb.uri()), None)
    later.recover(START)
    holder.rollback()
    holder.close()
    writer.join(60)
    assert [str(error)[:15] for error in failed] == ["stopped writing"]
    assert mariadb.query("SELECT v FROM writing.plain") == [("row 0",)]
    later.close()


@pytest.mark.parametrize(
    ("level", "number", "is_harmless"),
    [
        ("Warning", 1287, True),  # 'VALUES function' is deprecated: in MySQL 8.0.20 and newer
        ("Note", 1265, True),  # digits of a DECIMAL, which a strict session rounds as well
        ("Warning", 1265, False),
        ("Warning", 1264, False),
        ("Warning", 1366, False),
    ],
)
def test_a_lenient_session_may_warn_of_what_a_strict_one_takes(level: str, number: int, is_harmless: bool) -> None:
    assert failures.is_harmless(level, number) is is_harmless


def test_a_row_with_an_enum_of_zero_is_kept_and_what_does_not_fit_refused(sink: MysqlHalves, mariadb: MariaDb) -> None:
    mariadb.query("CREATE OR REPLACE TABLE writing.moods (id BIGINT PRIMARY KEY, e ENUM('a', 'b'), v VARCHAR(3))")
    moods = table_of(
        column("id", ColumnType.LONGLONG, KEY), column("e", ColumnType.ENUM, elems=("a", "b")),
        column("v", ColumnType.VARCHAR, flen=3), schema="writing", name="moods",
    )  # fmt: skip
    write(sink, moods, (None, {"id": 1, "e": 0, "v": "abc"}), (None, {"id": 2, "e": 2, "v": "x"}))
    with pytest.raises(SinkError, match="refused a row"):
        write(sink, moods, (None, {"id": 3, "e": 0, "v": "abcd"}))
    assert mariadb.query("SELECT id, e + 0, v FROM writing.moods ORDER BY id") == [(1, 0, "abc"), (2, 2, "x")]


def test_a_generated_column_that_cannot_hold_its_value_is_cut_as_upstream(sink: MysqlHalves, mariadb: MariaDb) -> None:
    """A session of TiDB that is not strict keeps such rows; no other column may be cut on that occasion."""
    mariadb.query(
        "CREATE OR REPLACE TABLE writing.sums (id BIGINT PRIMARY KEY, g INT, v VARCHAR(3), s INT AS (g + 1) STORED, "
        "n INT AS (v + 0) STORED)"
    )
    sums = table_of(
        column("id", ColumnType.LONGLONG, KEY), column("g", ColumnType.LONG), column("v", ColumnType.VARCHAR, flen=3),
        column("s", ColumnType.LONG, generated_expr="`g` + 1", is_stored=True),
        column("n", ColumnType.LONG, generated_expr="`v` + 0", is_stored=True), schema="writing", name="sums",
    )  # fmt: skip
    write(sink, sums, (None, {"id": 1, "g": 2147483647, "v": "abc"}), (None, {"id": 2, "g": 7, "v": "5"}))
    with pytest.raises(SinkError, match=r"refused a row.* id = 3: .*'v'"):
        write(sink, sums, (None, {"id": 3, "g": 2147483647, "v": "abcd"}))
    assert mariadb.query("SELECT * FROM writing.sums") == [(1, 2147483647, "abc", 2147483647, 0), (2, 7, "5", 8, 5)]


def test_no_null_is_lost_beside_a_generated_column_that_is_cut(sink: MysqlHalves, mariadb: MariaDb) -> None:
    """Of a column that somebody has made NOT NULL downstream. The warning of it names the column in other words."""
    mariadb.query(
        "CREATE OR REPLACE TABLE writing.sums (id BIGINT PRIMARY KEY, g INT, v VARCHAR(3) NOT NULL, "
        "s INT AS (g + 1) STORED)"
    )
    sums = table_of(
        column("id", ColumnType.LONGLONG, KEY), column("g", ColumnType.LONG), column("v", ColumnType.VARCHAR, flen=3),
        column("s", ColumnType.LONG, generated_expr="`g` + 1", is_stored=True), schema="writing", name="sums",
    )  # fmt: skip
    with pytest.raises(SinkError, match=r"refused a row.* id = 2"):
        write(sink, sums, (None, {"id": 1, "g": 2147483647, "v": "abc"}), (None, {"id": 2, "g": 7, "v": None}))
    assert mariadb.query("SELECT COUNT(*) FROM writing.sums WHERE v = ''") == [(0,)]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Out of range value for column 'g1' at row 1", "g1"),
        ("Incorrect integer value: 'x' for column `d`.`t`.`a``b` at row 12", "a``b"),
        ("Incorrect integer value: 'for column 'z' at row 1' for column `g`.`g`.`v` at row 2", "v"),
        ("Truncated incorrect DOUBLE value: 'abc'", ""),
        ("Division by 0", ""),
    ],
)
def test_a_warning_names_its_column(said: str, name: str) -> None:
    assert failures.column_of(said) == name
