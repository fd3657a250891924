"""A session with real captures, by commands and over HTTP: what is asked happens, and answers have TiCDC's shapes."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.api.strangers import not_broken
from tests.e2e import tree
from tests.e2e.captures import CHANGEFEEDS, Captures, cluster
from tests.e2e.processes import sink_uri
from tests.e2e.sqlclient import Client
from tests.rounds import examples
from tidebox.upstream import EmbeddedUpstream
from tidemill.cli.commands import application
from tidemill.tidb.keys import table_prefix

pytestmark = pytest.mark.spark

COMMON = {"upstream_id", "namespace", "id", "state", "checkpoint_tso", "checkpoint_time", "error"}
# What is empty is left out, as TiCDC does.
DETAIL = {
    "upstream_id", "namespace", "id", "sink_uri", "create_time", "start_ts", "resolved_ts", "checkpoint_ts",
    "checkpoint_time", "state", "creator_version", "config", "task_status",
}  # fmt: skip


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, resolved_interval_seconds=0.1) as started:
        yield started


class Session:
    """Commands in this process: to start one for each would take longer than all else."""

    def __init__(self, captures: Captures) -> None:
        self._captures = captures

    def say(self, *words: object, exit_code: int = 0) -> str:
        where = f"http://{self._captures.address(self._captures.running[-1])}"
        out, err, code = io.StringIO(), io.StringIO(), 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                application((str(words[0]),))([*map(str, words), "--server", where], standalone_mode=False)
            except Exception as error:
                code = getattr(error, "exit_code", 1)
                err.write(str(error))
        assert (code != 0) == (exit_code != 0), f"{words}: {out.getvalue()}{err.getvalue()}"
        return out.getvalue() + err.getvalue()

    def json(self, *words: object) -> Any:
        return json.loads(self.say(*words, "--output", "json"))


def rows(out: Path, table: str) -> int:
    """Of a table, in the files."""
    return sum(len(m["data"]) for m in tree.messages(out) if m["table"] == table and not m["isDdl"])


def test_a_session_of_commands_and_requests(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Client(upstream.sql_addresses[0]) as sql, cluster(tmp_path, upstream.pd_address) as captures:
        sql.run("create database shop")
        for table in ("orders", "items", "stock"):
            sql.run(f"create table shop.{table} (id int primary key, v varchar(20))")
        captures.start(2)
        session = Session(captures)

        # Create, and see it.
        words = ("changefeed", "create", "shop", "--sink-uri", sink_uri(out), "--start-ts", upstream.tso())
        assert "Created changefeed shop" in session.say(*words)
        assert "there is one of that name" in session.say(*words, exit_code=1)
        sql.run("insert into shop.orders values (1, 'tea')")
        captures.until_past(["shop"], upstream.tso())
        assert rows(out, "orders") == 1
        (listed,) = session.json("changefeed", "list")
        assert (listed["id"], listed["summary"]["state"]) == ("shop", "normal")
        assert captures.changefeed("shop").keys() >= DETAIL
        assert session.json("changefeed", "query", "shop", "--simple").keys() == COMMON
        ids = {each["id"] for each in session.json("capture", "list")}
        assert len(ids) == 2

        _why(session, captures, upstream, sql)

        # Pause, change, resume.
        assert "Paused changefeed shop" in session.say("changefeed", "pause", "shop")
        paused = captures.changefeed("shop")
        assert (paused["state"], "held_back_by" in paused) == ("stopped", False)
        config = tmp_path / "shop.toml"
        config.write_text('[filter]\nrules = ["shop.*", "!shop.items"]\n')
        session.say("changefeed", "update", "shop", "--config", config, "--no-confirm")
        elsewhere = ("changefeed", "update", "shop", "--sink-uri", "blackhole://", "--no-confirm")
        assert "it would write to another place" in session.say(*elsewhere, exit_code=1)
        sql.run("insert into shop.items values (1, 'left out')")
        sql.run("insert into shop.orders values (2, 'while it was paused')")
        captures.ask("POST", f"{CHANGEFEEDS}/shop/resume", {})
        captures.until(lambda: captures.changefeed("shop")["state"] == "normal", "a changefeed that is resumed")
        captures.until_past(["shop"], upstream.tso())
        assert (rows(out, "orders"), rows(out, "items")) == (2, 0)

        # Move, rebalance, drain.
        captures.until(lambda: captures.placement("shop"), "tables that somebody has")
        captures.until_all_have_some("shop", 2)
        placed = captures.placement("shop")
        source = max(placed, key=lambda capture: len(placed[capture]))
        (target,) = ids - {source}
        table = min(placed[source])
        assert "Asked to move" in session.say("span", "move", "shop", "--table", table, "--to", target)
        captures.until(lambda: table in captures.placement("shop").get(target, set()), "a table that has moved")
        shown = captures.ask("GET", f"/api/v2/processors/shop/{target}")
        assert table in shown["table_ids"]
        owner = captures.id_of(captures.owner())
        (other,) = ids - {owner}
        assert "it is the owner" in session.say("capture", "drain", owner, exit_code=1)
        assert "has no tables" in session.say("capture", "drain", other, "--wait")
        assert captures.placement("shop").keys() <= {owner}
        sql.run("insert into shop.stock values (1, 'after all that')")
        captures.until_past(["shop"], upstream.tso())
        assert (rows(out, "orders"), rows(out, "stock")) == (2, 1)

        # Remove.
        assert "Removed changefeed shop" in session.say("changefeed", "remove", "shop")
        assert session.json("changefeed", "list", "--all") == []
        assert "no changefeed named 'shop'" in session.say("changefeed", "query", "shop", exit_code=1)

        _a_stranger(captures)


def _why(session: Session, captures: Captures, upstream: EmbeddedUpstream, sql: Client) -> None:
    """A region that is silent, then a transaction that is open, are named as long as they hold the checkpoint back."""
    ((table,),) = sql.run(
        "select tidb_table_id from information_schema.tables where table_schema = 'shop' and table_name = 'orders'"
    )
    key = table_prefix(int(table)) + b"_r" + b"\x80" + bytes(6) + b"\x63"
    region = upstream.region_of(key).id

    def causes() -> dict[str, str]:
        return {each["cause"]: each["subject"] for each in captures.changefeed("shop").get("held_back_by", [])}

    captures.until(lambda: not causes(), "a changefeed that nothing holds back")
    upstream.hold_resolved(region)
    captures.until(lambda: f"region {region}" in causes().get("region", ""), "the region that holds it back")
    assert f"region {region}, table 'shop." in session.say("changefeed", "query", "shop")
    upstream.release_resolved(region)
    captures.until(lambda: not causes(), "a region that does not hold it back any more")
    start_ts = upstream.orphan_lock(key, ttl_ms=25_000)
    captures.until(lambda: "lock" in causes(), "the transaction that holds it back")
    assert f"a transaction of start-ts {start_ts} is open there" in session.say("changefeed", "query", "shop")
    captures.until_past(["shop"], upstream.tso())  # the lock is resolved once its time is up
    captures.until(lambda: not causes(), "a changefeed that nothing holds back")


def _a_stranger(captures: Captures) -> None:
    """Requests along the lines of the document, to a capture that is at work; see also ``tests/api``."""
    where = f"http://{captures.address(captures.running[-1])}"
    schema = schemathesis.openapi.from_url(f"{where}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]

    @settings(
        max_examples=examples(60), deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate], derandomize=True,
    )  # fmt: skip
    @given(data=st.data())
    def try_it(data: st.DataObject) -> None:
        case = data.draw(data.draw(st.sampled_from(operations)).as_strategy())
        answer = case.call(timeout=60.0)
        not_broken(f"{case.method} {case.formatted_path}", answer.status_code, answer.text)

    try_it()
    assert all(each.is_running() for each in captures.running)
