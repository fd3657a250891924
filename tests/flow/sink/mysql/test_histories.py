"""Recorded histories of a real TiDB into a real MariaDB: at every mark the rows are those that TiDB answered then."""

import pytest

from tests.flow.sink.mysql.marks import check_mark, clear
from tests.flow.sink.mysql.replay import replay
from tests.histories import load
from tests.mariadb import MariaDb
from tidemill.flow.sink.mysql import MysqlSink, parse_mysql_uri


@pytest.mark.parametrize("parameters", ["", "transaction-atomicity=table&safe-mode=true&max-txn-row=7"])
@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_at_every_mark_the_rows_are_tidbs(name: str, parameters: str, mariadb: MariaDb) -> None:
    history, compared = load(name), 0
    clear(mariadb, history)
    sink = MysqlSink(parse_mysql_uri(mariadb.uri(parameters)), None)
    sink.recover()

    def compare(ts: int) -> None:
        nonlocal compared
        compared += check_mark(mariadb, history, ts)

    try:
        replay(history, sink, compare)
    finally:
        sink.close()
    assert compared == len(history.marks())
