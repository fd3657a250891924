"""A changefeed that starts while its sink is slow or away. No Spark is needed to get that far."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import BothHalves
from tests.sinks.around import instead
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.errors import SinkUnavailableError, StoppedError
from tidemill.model.ddl import DdlEvent

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        session = SqlSession(SqlNodes(started.cluster, 1, lease_seconds=3600).nodes[0])
        session.execute("create database shop")
        session.execute("create table shop.t (id int primary key)")
        yield started


class RefusingSink(BothHalves):
    """Refuses its first DDLs for a reason that passes."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.ddls: list[str] = []

    def ddl(self, event: DdlEvent) -> None:
        if self.refusals:
            self.refusals -= 1
            raise SinkUnavailableError("the sink sleeps. Wake it.")
        self.ddls.append(event.query.partition("(")[0].strip())


def test_a_changefeed_can_be_stopped_while_its_sink_is_being_opened(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    """A bucket or a catalog that does not answer is waited for within the call."""
    is_opening, gives_up = threading.Event(), threading.Event()

    def opening() -> Any:
        is_opening.set()
        assert gives_up.wait(PATIENCE_SECONDS)
        raise SinkUnavailableError("the sink sleeps. Wake it.")

    feed = Changefeed(RunOptions(upstream.pd_address, "blackhole://", tmp_path / "data"), sink=instead(opening))
    with pytest.raises(StoppedError):
        feed.start(is_opening.is_set)
    closing = threading.Thread(target=feed.close)
    closing.start()
    closing.join(PATIENCE_SECONDS / 3)
    is_closed = not closing.is_alive()
    gives_up.set()
    closing.join()
    assert is_closed


def test_a_sink_that_is_away_when_tables_are_made_for_a_copy_is_waited_for(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    sink = RefusingSink(1)
    options = RunOptions(upstream.pd_address, "mysql://root@127.0.0.1:1/", tmp_path / "data", initial_copy=True)
    feed = Changefeed(options, sink=instead(lambda: sink))
    try:
        feed.start()
        databases = ["CREATE DATABASE IF NOT EXISTS `shop`", "CREATE DATABASE IF NOT EXISTS `test`"]
        assert sorted(sink.ddls) == [*databases, "CREATE TABLE IF NOT EXISTS `shop`.`t`"]
    finally:
        feed.close()
