"""What a real TiDB committed, into MariaDB: all of it, and equal to TiDB's own answers at every mark."""

from dataclasses import replace

import pytest

from tests.histories import load
from tests.mariadb import MariaDb
from tests.sinks.halves import mysql_sink
from tests.sinks.moments import START
from tests.sinks.mysql.marks import check_mark, clear
from tests.sinks.mysql.replay import replay, rescan_of
from tidemill.sinks.mysql import parse_mysql_uri


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_table_that_has_a_key_is_equal_at_every_mark(name: str, mariadb: MariaDb) -> None:
    history = load(name)
    clear(mariadb, history)
    options = replace(parse_mysql_uri(mariadb.uri("worker-count=4")), changefeed="histories")
    sink, compared = mysql_sink(options, None, rescan=rescan_of(history)), []
    sink.recover(START)
    try:
        replay(history, sink, lambda ts: compared.append(check_mark(mariadb, history, ts)))
    finally:
        sink.close()
    assert sum(compared) == len(history.marks())
