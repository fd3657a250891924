"""A sink that is away, at whichever call: the changefeed waits, says so, and continues by itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import tree
from tests.e2e.holding import settings_of
from tests.e2e.processes import PATIENCE_SECONDS, sink_uri
from tests.e2e.sqlclient import Client
from tests.sinks.around import Around, around
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkUnavailableError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Window
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt

pytestmark = pytest.mark.spark

CALLS = ("target", "write", "commit", "publish", "ddl", "recover")


class Outage:
    """A file that names the calls which fail: tasks in other processes see it, too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.end()

    def begin(self, *calls: str) -> None:
        self._path.write_text(" ".join(calls))

    def end(self) -> None:
        self._path.write_text("")

    def meet(self, call: str) -> None:
        if call in self._path.read_text().split():
            raise SinkUnavailableError(f"cannot {call}: nobody answers. Wait.")


class AwayOwner(Around):
    def __init__(self, half: Any, outage: Outage) -> None:
        super().__init__(half)
        self._outage = outage

    def publish(self, checkpoint_ts: Ts) -> None:
        self._outage.meet("publish")
        self.half.publish(checkpoint_ts)

    def ddl(self, event: DdlEvent) -> Any:
        self._outage.meet("ddl")
        return self.half.ddl(event)


class AwayWriter(Around):
    def __init__(self, half: Any, outage: Outage) -> None:
        super().__init__(half)
        self._outage = outage

    def recover(self, *words: Any) -> None:
        self._outage.meet("recover")
        self.half.recover(*words)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> Any:
        self._outage.meet("target")
        return self.half.target(table, physical_id, window)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> Any:
        self._outage.meet("commit")
        return self.half.commit(to_ts, receipts)


@dataclass(frozen=True)
class AwayPipeline(Pipeline):
    path: str = ""

    def process(self, unit: Unit) -> Receipt:
        if "write" in Path(self.path).read_text().split():
            raise SinkUnavailableError("cannot write: nobody answers. Wait.")
        return super().process(unit)


class AwayChangefeed(Changefeed):
    def __init__(self, options: RunOptions, path: Path) -> None:
        self.outage = Outage(path)
        away = around(lambda owner: AwayOwner(owner, self.outage), lambda writer: AwayWriter(writer, self.outage))
        super().__init__(options, sink=away)
        self._pipeline: Pipeline = AwayPipeline(*settings_of(self._pipeline), str(path))


def until(feed: Changefeed, holds: Callable[[], bool], what: str) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
    while not holds():
        feed.poll()
        assert SYSTEM_CLOCK.monotonic() < deadline, f"waited in vain for {what}"


def test_every_call_is_waited_out(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "files"
    with (
        EmbeddedUpstream.start(sql_port=0, sql_nodes=1, resolved_interval_seconds=0.05) as upstream,
        Client(upstream.sql_addresses[0]) as client,
    ):
        client.run("create database shop")
        client.run("create table shop.t (id int primary key)")
        options = RunOptions(upstream.pd_address, sink_uri(root), tmp_path / "data", Ts(upstream.tso()))
        feed = AwayChangefeed(options, tmp_path / "outage")
        try:
            feed.start()
            for number, call in enumerate(CALLS):
                # A recovery has a reason: what was lost before it.
                feed.outage.begin(*{call, "write"} if call == "recover" else {call})
                client.run(f"insert into shop.t values ({number})")
                if call == "ddl":
                    client.run("create table shop.u (id int primary key)")
                waits = f" (cannot {call}: nobody answers)"
                until(feed, lambda waits=waits: waits in feed.status().stage, waits)  # type: ignore[misc]
                feed.outage.end()
                ts = upstream.tso()
                until(feed, lambda ts=ts: feed.owner.owned.checkpoint_ts >= ts, "the checkpoint")  # type: ignore[misc]
                until(feed, lambda: "waiting" not in feed.status().stage or "resolved" in feed.status().stage, "calm")
        finally:
            feed.close()
    assert [int(m["data"][0]["id"]) for m in tree.messages(root)] == list(range(len(CALLS)))
    tree.check_layout(root)
