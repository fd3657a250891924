"""``tidemill verify`` as a user runs it: exit codes, what it prints, and what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run_refusals import Said, Tidemill, closed_port, tidemill  # noqa: F401  # a fixture
from tests.mariadb import MariaDb, need_mariadb
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A table of three rows on both sides; downstream one is missing, one too many, one different."""
    need_mariadb()
    with (
        EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream,
        MariaDb(tmp_path_factory.mktemp("mariadb")) as mariadb,
    ):
        session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
        create = "create table shop.item (id int primary key, name varchar(20))"
        for statement in (
            "create database shop",
            create,
            "insert into shop.item values (1, 'one'), (2, 'two'), (3, 'three')",
        ):
            session.execute(statement)
            mariadb.query(statement)
        session.execute("create table shop.other (id int primary key)")
        session.execute("create table shop.log (line text)")
        mariadb.query(
            "update shop.item set name = 'Zwei' where id = 2",
            "delete from shop.item where id = 3",
            "insert into shop.item values (4, 'four')",
            "create user poor identified by 'p'",
        )
        yield upstream, mariadb
        session.close()


@pytest.mark.spark
def test_what_differs_is_printed_with_the_sql_that_mends_it(
    world: Any,
    tidemill: Tidemill,  # noqa: F811
    spark: Any,
) -> None:
    upstream, mariadb = world

    def verify(*words: str) -> Said:
        known = ("--pd", upstream.pd_address, "--sink-uri", mariadb.uri(), "--at", upstream.tso())
        return tidemill("verify", *known, *words)

    done = verify("--table", "shop.item")
    assert done.code == 1, done.errors
    assert done.output.splitlines()[:6] == [
        "shop.item: 1 missing, 1 extra, 1 changed",
        "  ~ changed row id = '2'",
        "      name: upstream 'two', downstream 'Zwei'",
        "  - missing row id = '3'",
        "  + extra row id = '4'",
        "",
    ]
    statements = [line for line in done.output.splitlines() if line.endswith(";")]
    assert statements[1:] == [
        "DELETE FROM `shop`.`item` WHERE `id` IN (4);",
        "REPLACE INTO `shop`.`item` (`id`,`name`) VALUES (2,'two');",
        "REPLACE INTO `shop`.`item` (`id`,`name`) VALUES (3,'three');",
    ]
    mariadb.query(*statements)
    equal = verify("--table", "shop.item", "--output", "json")
    assert equal.code == 0, equal.errors
    document = json.loads(equal.output)
    assert (document["equal"], document["rows"]) == (True, 3)
    whole = verify("--output", "json")
    assert whole.code == 1
    assert json.loads(whole.output)["left_out"] == ["shop.log"]
    assert {t["table"]: t["schema"] for t in json.loads(whole.output)["tables"]} == {
        "shop.item": [],
        "shop.other": ["the downstream has no such table, or its user may not see it"],
    }


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        pytest.param({"--table": "item"}, 2, "is not the name of a table", id="a table without database"),
        pytest.param({"--table": "shop.itm"}, 2, "Did you mean 'item'?", id="no such table"),
        pytest.param({"--at": None}, 2, "which ts is to be checked?", id="no ts"),
        pytest.param({"--at": "2020-01-01T00:00:00Z"}, 1, "cannot read at", id="a ts that was collected"),
        pytest.param({"--at": "2099-01-01T00:00:00Z"}, 2, "upstream's future", id="a ts to come"),
        pytest.param({"--data-dir": "/nowhere"}, 2, "holds no changefeed", id="no changefeed"),
        pytest.param({"--sink-uri": "blackhole://"}, 2, "nothing to check", id="a sink that keeps nothing"),
        pytest.param({"--sink-uri": "mysql://root@{closed}/"}, 1, "cannot connect at", id="nobody there"),
        pytest.param({"--sink-uri": "mysql://poor:x@{mariadb}/"}, 1, "error 1045", id="a wrong password"),
        pytest.param({"--pd": "{closed}"}, 1, "PD", id="no upstream"),
        pytest.param({"--spark-master": "there"}, 2, "is not a Spark master", id="a master that is none"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    world: Any,
    tidemill: Tidemill,  # noqa: F811
    tmp_path: Path,
    flags: dict[str, str | None],
    code: int,
    says: str,
) -> None:
    upstream, mariadb = world
    if (flags.get("--at") or "").startswith("2020"):
        upstream.set_gc_safepoint(upstream.tso())
    given = {"--pd": upstream.pd_address, "--sink-uri": mariadb.uri(), "--at": str(upstream.tso()), **flags}
    words = [
        word.replace("{closed}", closed_port()).replace("{mariadb}", f"127.0.0.1:{mariadb.port}")
        for name, value in given.items()
        if value is not None
        for word in (name, value)
    ]
    said = tidemill("verify", *words)
    assert (said.code, says in said.errors) == (code, True), said
