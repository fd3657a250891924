"""A changefeed that is nobody else's business: TLS upstream, a closed folder, no password where others could see it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.authority import Authority
from tests.e2e.processes import Command
from tests.e2e.sqlclient import Client
from tests.mariadb import PASSWORD, MariaDb, need_mariadb
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions

pytestmark = pytest.mark.spark

SECRET = PASSWORD[:6]  # as it is before and after it is put into a URI


def closed(path: Path) -> bool:
    return path.lstat().st_mode & 0o077 == 0


def looser(folder: Path) -> list[str]:
    """What in the folder others might look at, were it not for the folder."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_symlink() and not closed(path)]


def test_rows_and_changes_go_over_tls_and_stay_private(spark: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    server, client = authority.security("server"), authority.security("client")
    before = os.umask(0)
    try:
        with EmbeddedUpstream.start(stores=2, sql_port=0, resolved_interval_seconds=0.05, security=server) as upstream:
            with Client(upstream.sql_addresses[0]) as sql:
                sql.run("create database shop")
                sql.run("create table shop.item (id int primary key, name text)")
                sql.run("insert into shop.item values (1, 'copied')")
                start_ts = upstream.tso()
                sql.run("insert into shop.item values (2, 'streamed')")
            feed = Changefeed(
                RunOptions(
                    f"https://{upstream.pd_address}", f"file://{tmp_path}/out?protocol=csv", tmp_path / "data",
                    start_ts=start_ts, target_ts=upstream.tso(), initial_copy=True, security=client,
                )
            )  # fmt: skip
            try:
                feed.start()
                while not feed.poll():
                    assert closed(tmp_path / "data")
                    assert looser(tmp_path / "data") == []
            finally:
                feed.close(is_finished=True)
            frame = spark.read.format("tidemill").option("pd", f"https://{upstream.pd_address}").options(
                table="shop.item", ca=client.ca_path, cert=client.cert_path, key=client.key_path
            )  # fmt: skip
            assert frame.load().count() == 2
    finally:
        os.umask(before)
    assert not any(closed(path) for path in (tmp_path / "out").rglob("*.csv")), "readers have users of their own"
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*.csv"))
    assert "copied" in written
    assert "streamed" in written


def test_no_process_of_a_changefeed_shows_the_password(tmp_path: Path) -> None:
    need_mariadb()
    with (
        EmbeddedUpstream.start(sql_port=0, resolved_interval_seconds=0.05) as upstream,
        MariaDb(tmp_path / "mariadb") as downstream,
    ):
        uri = tmp_path / "uri"
        uri.write_text(downstream.uri() + "\n")
        assert SECRET in uri.read_text()
        data = tmp_path / "data"
        flags = {"pd": upstream.pd_address, "sink_uri": f"@{uri}", "data_dir": data, "log_level": "debug"}
        with Command(tmp_path, "run", is_serving=True, **flags) as feed:
            feed.ready()
            process = psutil.Process(feed.pid)
            family = [process, *process.children(recursive=True)]
            assert len(family) > 1, "Spark's own are missing"
            for each in family:
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    assert SECRET not in " ".join(each.cmdline())
                    assert SECRET not in " ".join(each.environ().values())
            assert feed.terminate() == 0, feed.errors
        assert SECRET not in feed.errors + feed.output
        for path in data.rglob("*"):
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
