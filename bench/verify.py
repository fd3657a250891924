"""verify.rows: rows/s of a check, upstream against MariaDB, in one process and one task at a time.

Floor: reading the same rows from the upstream and from MariaDB into Arrow, and dropping them.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.data import TABLE_ID, grow
from tests.mariadb import MariaDb, is_installed
from tests.sinks.halves import mysql_sink
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri, write_rows
from tidemill.source.scan import ReadHold, ScanClient, TableName, read_part
from tidemill.verify import Check, CheckOptions, MysqlDownstream, MysqlSide
from tidemill.verify.forms import Comparison
from tidemill.verify.mysql import reading
from tidemill.verify.resultset import select

Result = dict[str, Any]

_ROWS = 200_000


def bench_verify() -> list[Result]:
    if not is_installed():
        return []
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        history = grow("bench-narrow", _ROWS, Path(name) / "narrow")
        with EmbeddedUpstream.start(load=history) as upstream, MariaDb(Path(name) / "mariadb") as mariadb:
            return [_measure(upstream.pd_address, mariadb)]


def _measure(pd: str, mariadb: MariaDb) -> Result:
    name = TableName("bench", "sbtest")
    with ScanClient(pd) as client:
        ts = client.now()
        table = client.find_table(name, ts)
        parts = client.plan_scan(table, ts, hold=ReadHold.new(ts))
        options = parse_mysql_uri(mariadb.uri())
        mariadb.query("CREATE DATABASE bench", _create(table))
        sink = mysql_sink(options, None)
        rows = 0
        for part in parts:
            rows += write_rows(sink.target(table, TABLE_ID, (Ts(0), Ts(ts))), read_part(part)).rows
        sink.close()
        side = MysqlSide(MysqlDownstream(options))
        check = Check(client, side, _run, CheckOptions(pd))
        check.check([table], ts)  # compiles
        began = time.perf_counter()
        assert check.check([table], ts).is_equal
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        assert _drop(parts, side, Comparison(table)) == 2 * rows
        floor = time.perf_counter() - began
    return {
        "name": "verify.rows",
        "value": rows / seconds,
        "unit": "rows/s",
        "floor": rows / floor,
        "ratio": floor / seconds,
    }


def _run(tasks: Sequence[Any]) -> list[Any]:
    return [task.run() for task in tasks]


def _drop(parts: Sequence[Any], side: MysqlSide, comparison: Comparison) -> int:
    rows = sum(len(batch) for part in parts for batch in read_part(part))
    with reading(side.downstream.settings, comparison.table, None) as session:
        texts = select(session._session, f"SELECT * FROM `{comparison.table.schema}`.`{comparison.table.name}`")
        return rows + sum(len(columns[0]) for columns in texts)


def _create(table: Any) -> str:
    kinds = {3: "INT", 8: "BIGINT", 15: "VARCHAR(255)", 254: "CHAR(255)"}
    columns = ", ".join(f"`{c.name}` {kinds[int(c.type)]}" for c in table.columns)
    return f"CREATE TABLE bench.sbtest ({columns}, PRIMARY KEY (`{table.handle_key[0].name}`))"
