"""What a cluster begins with: a folder of ``tidemill run`` that it continues, and rows that were there before."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tree
from tests.e2e.captures import cluster
from tests.e2e.processes import Command, sink_uri, wait_until
from tests.e2e.sqlclient import Client
from tests.e2e.test_session import Session
from tests.etcd import running
from tidebox.upstream import EmbeddedUpstream

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, resolved_interval_seconds=0.1) as started:
        yield started


def keys(out: Path, table: str) -> list[int]:
    """Of a table's rows in the files, as often as they are there."""
    found = (m["data"] for m in tree.messages(out) if m["table"] == table and not m["isDdl"])
    return sorted(int(row["id"]) for rows in found for row in rows)


def test_a_cluster_continues_a_folder_and_copies_what_was_there(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    out, copied, data = tmp_path / "out", tmp_path / "copied", tmp_path / "data"
    with Client(upstream.sql_addresses[0]) as sql, running(tmp_path / "etcd") as etcd:
        sql.run("create database shop")
        sql.run("create table shop.orders (id int primary key, v varchar(20))")
        start_ts = upstream.tso()
        flags = {"pd": upstream.pd_address, "sink_uri": sink_uri(out), "data_dir": data, "start_ts": start_ts}
        with Command(tmp_path / "run", "run", **flags) as run:
            sql.run("insert into shop.orders values (1, 'run')")
            wait_until(lambda: keys(out, "orders") == [1], "the first row")
            run.signal(signal.SIGTERM)
            assert run.wait() == 0, run.errors

        with cluster(tmp_path, upstream.pd_address, etcd=etcd.address) as captures:
            captures.start(1)
            session = Session(captures)
            create = ("changefeed", "create", "shop", "--from-data-dir", data)
            refused = session.say(*create, "--sink-uri", sink_uri(tmp_path / "other"), exit_code=1)
            assert "Give the same --sink-uri" in refused
            sql.run("insert into shop.orders values (2, 'nobody runs')")
            said = session.say(*create, "--sink-uri", sink_uri(out))
            assert f"Created changefeed shop, which continues that of {data}" in said
            session.say(*create, "--sink-uri", sink_uri(out))  # again does no harm
            sql.run("insert into shop.orders values (3, 'cluster')")
            captures.until_past(["shop"], upstream.tso())
            assert keys(out, "orders") == [1, 2, 3]
            with Command(tmp_path / "late", "run", **flags) as late:
                assert late.wait() == 1
                assert "has been taken over by changefeed 'shop'" in late.errors

            words = ("changefeed", "create", "copy", "--sink-uri", sink_uri(copied), "--initial-scan")
            assert "Created changefeed copy" in session.say(*words)
            sql.run("insert into shop.orders values (4, 'after the copy')")
            captures.until_past(["copy"], upstream.tso())
            assert keys(copied, "orders") == [1, 2, 3, 4]
            sql.run("insert into shop.orders values (5, 'both')")
            captures.until_past(["shop", "copy"], upstream.tso())
            assert (keys(out, "orders"), keys(copied, "orders")) == ([1, 2, 3, 4, 5],) * 2
