"""Every kind of difference in every kind of target, found and named: rows, values, columns and whole tables.

The targets hold a recorded history as the sinks write it. The upstream holds the same and then changes, so that what it
has gained, the targets lack.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.histories import FOLDER, load
from tests.mariadb import MariaDb
from tests.sinks.files.storage.buckets import bucket
from tests.sinks.halves import mysql_sink
from tests.sinks.lake.replay import Replay
from tests.sinks.moments import START
from tests.sinks.mysql.replay import replay
from tests.verify.conftest import run
from tests.verify.test_files_and_lakes import write_tree
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.filter import TableFilter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri
from tidemill.source.scan import ScanClient
from tidemill.verify import Check, CheckOptions, MysqlDownstream, MysqlSide, Report, Side, chosen_tables
from tidemill.verify.lake import LakeSide

CHANGES = [
    "insert into kinds.k_unsigned values (77, 7)",
    "delete from kinds.ints where id = 6",
    "update kinds.sets set e = 'b' where id = 1",
    "update kinds.times set ts3 = ts3 + interval 1 hour where id = 5",
    "update kinds.docs set j = json_set(j, '$.a', 0.5) where id = 2",
    "update kinds.k_clustered_str set c = null where b = -1",  # from ''
    "alter table kinds.vecs add column later int default 5",
    "create table kinds.fresh (id int primary key)",
]
ROWS = {
    "kinds.k_unsigned": [("missing", {"id": "77"}, [])],
    "kinds.ints": [("extra", {"id": "6"}, [])],
    "kinds.sets": [("changed", {"id": "1"}, ["e"])],
    "kinds.times": [("changed", {"id": "5"}, ["ts3"])],
    "kinds.docs": [("changed", {"id": "2"}, ["j"])],
    "kinds.k_clustered_str": [("changed", {"a": "", "b": "-1"}, ["c"])],
}
MISSING_TABLE = {
    "mysql": "the downstream has no such table, or its user may not see it",
    "files": "there are no files of this table",
    "lake": "the lake has no such table at this ts",
}
PLACE = {"mysql": "downstream", "files": "in the files", "lake": "in the lake"}


@pytest.fixture(scope="module")
def changed() -> Iterator[Any]:
    with (
        EmbeddedUpstream.start(load=FOLDER / "types" / "history.parquet", resolved_interval_seconds=3600) as upstream,
        ScanClient(upstream.pd_address) as client,
    ):
        session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
        for statement in CHANGES:
            session.execute(statement)
        session.close()
        yield upstream.pd_address, client, Ts(client.now())


def compare(changed: Any, side: Side) -> Report:
    pd, client, ts = changed
    tables = chosen_tables(client, ts, [], TableFilter(ChangefeedConfig())).tables
    return Check(client, side, run, CheckOptions(pd)).check(tables, ts)


def assert_found(report: Report, kind: str, *, but: tuple[str, ...] = ()) -> None:
    """Exactly the planted differences, named as the kind of target names them. ``but``: tables that it cannot hold."""
    rows = {
        table.table: [(d.kind.value, dict(d.key), [c.column for c in d.cells]) for d in table.differences]
        for table in report.tables
        if table.differences and table.table not in but
    }
    assert rows == {table: found for table, found in ROWS.items() if table not in but}
    sentences = {table.table: table.schema for table in report.tables if table.schema and table.table not in but}
    assert sentences == {
        "kinds.fresh": [MISSING_TABLE[kind]],
        "kinds.vecs": [f"column 'later' is missing {PLACE[kind]}"],
    }


@pytest.mark.parametrize(
    "parameters", ["protocol=canal-json&enable-tidb-extension=true", "protocol=csv&include-commit-ts=true"]
)
def test_in_files(changed: Any, tmp_path: Path, parameters: str) -> None:
    assert_found(compare(changed, write_tree(f"file://{tmp_path}", parameters, changed[2])), "files")


def test_in_a_bucket(changed: Any) -> None:
    with bucket("planted") as held:
        parameters = f"protocol=canal-json&enable-tidb-extension=true&{held.parameters}"
        side = write_tree("s3://planted/out", parameters, changed[2])
        assert_found(compare(changed, side), "files")


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_in_a_lake(changed: Any, tmp_path: Path, kind: str) -> None:
    written = Replay("types", kind, tmp_path / "lake")
    written.run()
    written.sink.commit(changed[2], ())  # complete up to where it is compared, as far as it knows
    written.sink.publish(changed[2])
    assert_found(compare(changed, LakeSide(written.options)), "lake")


def test_in_a_database(changed: Any, mariadb: MariaDb) -> None:
    options = parse_mysql_uri(mariadb.uri())
    sink = mysql_sink(options, None)
    sink.recover(START)
    try:
        replay(load("types"), sink, lambda ts: None)
        assert_found(compare(changed, MysqlSide(MysqlDownstream(options))), "mysql")
    finally:
        sink.close()
        mariadb.query("DROP DATABASE IF EXISTS kinds")
