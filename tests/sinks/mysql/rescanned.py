"""An upstream whose rows can be asked for by physical id, as a scan at a DDL's ts would find them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.flow.encoder.samples import COMMIT_TS, Row, rows_of
from tests.mariadb import MariaDb
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri, write_rows


class Upstream:
    def __init__(self, mariadb: MariaDb) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self._mariadb = mariadb
        self.sink = self.open()

    def open(self, changefeed: str = "default") -> MysqlHalves:
        options = replace(parse_mysql_uri(self._mariadb.uri("worker-count=2")), changefeed=changefeed)
        sink = mysql_sink(options, None, rescan=self._rescan)
        sink.recover(START)
        return sink

    def _rescan(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        self.asked.append((table.name, tuple(physical_ids)))
        for physical_id in physical_ids:
            yield rows_of(table, *((None, row) for row in self.rows.get(physical_id, [])))

    def insert(self, table: TableInfo, physical_id: int, *rows: Row) -> None:
        """By a change that is delivered."""
        self.rows.setdefault(physical_id, []).extend(rows)
        changes = rows_of(table, *((None, row) for row in rows))
        write_rows(self.sink.target(table, physical_id, (Ts(0), Ts(COMMIT_TS + 1))), iter([changes]))

    def run(self, *events: DdlEvent) -> None:
        """Each DDL, and once more as after a crash before it was noted."""
        for one in events:
            self.sink.ddl(one)
            self._mariadb.query("UPDATE tidb_cdc.tidemill_ddl_v2 SET is_done = 0")
            self.sink.ddl(one)

    def select(self, query: str) -> list[tuple[Any, ...]]:
        return self._mariadb.query(query)

    def partitions(self, table: str) -> list[str]:
        found = self._mariadb.query(
            "SELECT partition_name FROM information_schema.partitions WHERE table_schema = 'ddls' AND "
            f"table_name = '{table}' AND partition_name IS NOT NULL ORDER BY partition_ordinal_position"
        )
        return [name for (name,) in found]


def upstream_into(mariadb: MariaDb) -> Iterator[Upstream]:
    """For a fixture: one whose database ``ddls`` is empty downstream."""
    mariadb.query("CREATE OR REPLACE DATABASE ddls", "DROP DATABASE IF EXISTS tidb_cdc")
    found = Upstream(mariadb)
    yield found
    found.sink.close()
