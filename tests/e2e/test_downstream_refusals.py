"""What a MariaDB refuses in mid-stream stops the changefeed before it, with what to do next; mended, it goes on.

What keeps us out altogether: ``tests/cli/test_sink_refusals.py``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sqlclient import Client
from tests.mariadb import PASSWORD, MariaDb, need_mariadb
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.options import RunOptions
from tidemill.capture.running import run_changefeed
from tidemill.errors import SinkError
from tidemill.model.ts import Ts

pytestmark = pytest.mark.spark

TABLE = "create table shop.t (id int primary key, v varchar(20), u int unique)"
USER = "clerk"


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with MariaDb(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def upstream(spark: Any) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, sql_nodes=1, resolved_interval_seconds=0.05) as started:
        with Client(started.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run(TABLE)
        yield started


def execute(upstream: EmbeddedUpstream, *statements: str) -> None:
    with Client(upstream.sql_addresses[0]) as client:
        for statement in statements:
            client.run(statement)


@pytest.mark.parametrize(
    ("downstream", "statement", "says", "mend"),
    [
        pytest.param(
            [f"revoke insert on shop.* from {USER}", "flush privileges"],
            "insert into shop.t values (1, 'one', 1)",
            r"does not let us write table shop\.t: INSERT command denied.*Grant the user of the sink URI",
            f"grant insert on shop.* to {USER}",
            id="no right to insert",
        ),
        pytest.param(
            [f"revoke alter on shop.* from {USER}", "flush privileges"],
            "alter table shop.t add column w int",
            r"does not let us run the DDL on shop\.t .*ALTER command denied.*Grant the user of the sink URI CREATE",
            f"grant alter on shop.* to {USER}",
            id="no right to alter",
        ),
        pytest.param(
            ["drop table shop.t"],
            "insert into shop.t values (1, 'one', 1)",
            r"has no table shop\.t: .*1146.*Create it as it is upstream",
            TABLE,
            id="a table that is not there",
        ),
        pytest.param(
            ["alter table shop.t drop column v"],
            "insert into shop.t values (1, 'one', 1)",
            r"table shop\.t of .* has other columns than upstream: Unknown column 'v'.*Alter it",
            "alter table shop.t add column v varchar(20)",
            id="a column that is not there",
        ),
        pytest.param(
            ["alter table shop.t modify v varchar(3)"],
            "insert into shop.t values (1, 'one', 1), (2, 'three', 2), (3, 'six', 3)",
            r"refused a row of table shop\.t, the row with id = 2: Data too long for column 'v'.*stops before this row",
            "alter table shop.t modify v varchar(20)",
            id="a column that is narrower",
        ),
        pytest.param(
            ["alter table shop.t modify u tinyint"],
            "insert into shop.t values (1, 'one', 1), (2, 'two', 2000)",
            r"the row with id = 2: Out of range value for column 'u'.*Make the downstream's column hold it",
            "alter table shop.t modify u int",
            id="a number out of range",
        ),
        pytest.param(
            ["alter table shop.t add column must int not null"],
            "insert into shop.t values (1, 'one', 1)",
            r"refused a row of table shop\.t, the row with id = 1: Field 'must' doesn't have a default value",
            "alter table shop.t drop column must",
            id="a column too many that must be given",
        ),
        pytest.param(
            [
                "create table shop.others (id int primary key)",
                "alter table shop.t add constraint of_others check (id > 100)",
            ],
            "insert into shop.t values (1, 'one', 1)",
            None,
            "",
            id="a check of its own is not asked",
        ),
        pytest.param(
            ["insert into shop.t values (77, 'theirs', 1)"],
            "insert into shop.t values (1, 'one', 1)",
            None,
            "",
            id="somebody's own row with the same unique value makes way",
        ),
    ],
)
def test_what_is_refused(
    upstream: EmbeddedUpstream,
    mariadb: MariaDb,
    tmp_path: Path,
    downstream: list[str],
    statement: str,
    says: str | None,
    mend: str,
) -> None:
    execute(upstream, "drop table if exists shop.t", TABLE)
    mariadb.query("drop database if exists shop", "create database shop", TABLE)
    mariadb.query(f"create or replace user {USER} identified by 'pw'")
    mariadb.query(f"grant all on tidb_cdc.* to {USER}", f"grant all on shop.* to {USER}")
    start_ts = upstream.tso()
    execute(upstream, statement)
    target_ts = upstream.tso()
    mariadb.query(*downstream)
    options = RunOptions(
        pd=upstream.pd_address,
        sink_uri=mariadb.uri("worker-count=2", user=USER, password="pw"),
        data_dir=tmp_path / "data",
        start_ts=Ts(start_ts),
        target_ts=Ts(target_ts),
    )

    def run() -> bool:
        return run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)[0]

    if says is not None:
        with pytest.raises(SinkError, match=f"(?s){says}") as raised:
            run()
        assert PASSWORD not in str(raised.value)
        assert raised.value.exit_code == 1
        state = json.loads((tmp_path / "data" / "changefeed.json").read_bytes())
        assert state["checkpoint_ts"] < target_ts
        mariadb.query(mend)
    assert run()
    with Client(upstream.sql_addresses[0]) as client:
        wanted = client.run("select id, v, u from shop.t order by id")
    assert [tuple(map(str, row)) for row in mariadb.query("select id, v, u from shop.t order by id")] == wanted
