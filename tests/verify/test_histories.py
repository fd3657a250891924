"""Recorded histories of DDLs, checked at every mark: what the sinks wrote is found equal to what the upstream has."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.histories import FOLDER, load
from tests.mariadb import MariaDb
from tests.sinks.halves import mysql_sink
from tests.sinks.lake.replay import Replay
from tests.sinks.moments import START
from tests.sinks.mysql.marks import clear
from tests.sinks.mysql.replay import replay, rescan_of
from tests.verify.conftest import run
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.filter import TableFilter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri
from tidemill.source.scan import ScanClient
from tidemill.verify import Check, CheckOptions, MysqlDownstream, MysqlSide, Side, chosen_tables
from tidemill.verify.lake import LakeSide


@pytest.fixture(scope="module", params=["ddl", "online"])
def loaded(request: pytest.FixtureRequest) -> Any:
    history = FOLDER / request.param / "history.parquet"
    with EmbeddedUpstream.start(load=history) as upstream, ScanClient(upstream.pd_address) as client:
        yield request.param, upstream.pd_address, client


# Rows that came while their table had no key, and columns that TiDB reads otherwise after an EXCHANGE PARTITION.
OF_LAKES = {"shop.c": None, "shop2.c3": None, "shop.px": "w"}


def differing(loaded: Any, side: Side, ts: int, known: Mapping[str, str | None] = MappingProxyType({})) -> Any:
    """But for what is ``known``: tables, or a column of theirs."""
    _, pd, client = loaded
    tables = chosen_tables(client, Ts(ts), [], TableFilter(ChangefeedConfig())).tables
    report = Check(client, side, run, CheckOptions(pd)).check(tables, Ts(ts))
    found = {}
    for table in report.tables:
        rows = [
            (d.kind.value, dict(d.key), d.cells)
            for d in table.differences
            if table.table not in known or known[table.table] not in (None, *(c.column for c in d.cells))
        ]
        if rows or table.schema:
            found[table.table] = (table.schema, rows)
    return found


def test_a_database_is_equal_at_every_mark(loaded: Any, mariadb: MariaDb) -> None:
    history = load(loaded[0])
    clear(mariadb, history)
    options = parse_mysql_uri(mariadb.uri())
    sink = mysql_sink(options, None, rescan=rescan_of(history))
    sink.recover(START)
    try:
        replay(history, sink, lambda ts: _assert_none(differing(loaded, MysqlSide(MysqlDownstream(options)), ts)))
    finally:
        sink.close()
        clear(mariadb, history)


def test_a_lake_is_equal_at_every_mark(loaded: Any, tmp_path: Path) -> None:
    written = Replay(loaded[0], "parquet", tmp_path / "lake")
    written.run()
    for ts in sorted({mark["ts"] for mark in load(loaded[0]).marks()}):
        _assert_none(differing(loaded, LakeSide(written.options), ts, OF_LAKES))


def _assert_none(found: dict[str, Any]) -> None:
    assert found == {}
