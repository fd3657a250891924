"""What a real TiDB committed, the whole way: embedded upstream, Spark, MariaDB or a lake, equal at every mark.

Loaded, the history lies there when the changefeed begins; replayed, it goes on while the changefeed runs. Into MariaDB
either way with every history. Into lakes each history and each kind of lake goes both ways, not each with each.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.histories import History, load
from tests.mariadb import MariaDb, need_mariadb, running
from tests.sinks.around import Around, around
from tests.sinks.lake.marks import check_marks
from tests.sinks.lake.replay import uri_of
from tests.sinks.mysql import marks as mysql_marks
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.model.ts import Ts
from tidemill.sinks.lake.reader import open_lake

pytestmark = pytest.mark.spark

NAMES = ("types", "ddl", "online")
PACE = {"types": 0.5, "ddl": 1.0, "online": 4.0}  # so that some of the history comes after the changefeed has begun
LAKES = [
    ("types", "iceberg", "loaded"),
    ("types", "delta", "replayed"),
    ("types", "parquet", "loaded"),
    ("ddl", "iceberg", "replayed"),
    ("ddl", "delta", "loaded"),
    ("ddl", "parquet", "replayed"),
    ("online", "iceberg", "loaded"),
    ("online", "delta", "replayed"),
    ("online", "parquet", "loaded"),
]
LONG = {("ddl", "delta", "loaded"), ("ddl", "parquet", "replayed"), ("online", "iceberg", "loaded")}


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


def served(history: History, way: str) -> EmbeddedUpstream:
    replay = PACE[history.name] if way == "replayed" else None
    path = history.folder / "history.parquet"
    return EmbeddedUpstream.start(stores=3, load=path, replay=replay, resolved_interval_seconds=0.05)


def options_of(history: History, upstream: EmbeddedUpstream, folder: Path, uri: str, target_ts: int) -> RunOptions:
    start_ts = Ts(history.bootstrap_ts)
    return RunOptions(upstream.pd_address, uri, folder / "data", start_ts=start_ts, target_ts=Ts(target_ts))


def run(feed: Changefeed) -> None:
    """Until it has reached its target."""
    try:
        feed.start()
        while not feed.poll():
            pass
    finally:
        feed.close(is_finished=True)


@pytest.mark.parametrize("name", NAMES)
def test_mariadb_is_equal_wherever_a_loaded_history_is_stopped(
    name: str, spark: Any, mariadb: MariaDb, tmp_path: Path
) -> None:
    history = load(name)
    mysql_marks.clear(mariadb, history)
    compared = 0
    with served(history, "loaded") as upstream:
        for ts in sorted({mark["ts"] for mark in history.marks()}):
            run(Changefeed(options_of(history, upstream, tmp_path, mariadb.uri("worker-count=4"), ts)))
            compared += mysql_marks.check_mark(mariadb, history, ts)
    assert compared == len(history.marks())


class MarkedOwner(Around):
    """Ends batches at the marks of a history, and compares there."""

    def __init__(self, half: Any, history: History, mariadb: MariaDb) -> None:
        super().__init__(half)
        self._history, self._mariadb = history, mariadb
        self._marks = sorted({mark["ts"] for mark in history.marks()})
        self.compared: dict[int, int] = {}  # by ts

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        return next((Ts(ts) for ts in self._marks if ts > checkpoint_ts), None)

    def sync(self, checkpoint_ts: Ts) -> Any:
        self.compared[checkpoint_ts] = mysql_marks.check_mark(self._mariadb, self._history, checkpoint_ts)
        return self.half.sync(checkpoint_ts)


@pytest.mark.parametrize("name", NAMES)
def test_mariadb_is_equal_at_every_mark_of_a_history_that_goes_on(
    name: str, spark: Any, mariadb: MariaDb, tmp_path: Path
) -> None:
    history, opened = load(name), list[MarkedOwner]()
    mysql_marks.clear(mariadb, history)

    def marked(owner: Any) -> MarkedOwner:
        opened.append(MarkedOwner(owner, history, mariadb))
        return opened[-1]

    # Statements of seven rows, written so that they may come again, and a table's transaction in one.
    uri = mariadb.uri("transaction-atomicity=table&safe-mode=true&max-txn-row=7")
    with served(history, "replayed") as upstream:
        options = options_of(history, upstream, tmp_path, uri, history.end_ts)
        run(Changefeed(options, sink=around(marked)))
        assert upstream.wait_replayed(60)  # its thread may have to end yet
    assert sum(opened[0].compared.values()) == len(history.marks())


@pytest.mark.parametrize(
    ("name", "kind", "way"),
    [pytest.param(*lake, id="-".join(lake), marks=[pytest.mark.soak] * (lake in LONG)) for lake in LAKES],
)
def test_a_lake_is_equal_at_every_mark(name: str, kind: str, way: str, spark: Any, tmp_path: Path) -> None:
    history, uri = load(name), uri_of(kind, tmp_path / "lake")
    quick = uri + ("&" if "?" in uri else "?") + "flush-interval=50ms"
    with served(history, way) as upstream:
        run(Changefeed(options_of(history, upstream, tmp_path, quick, history.end_ts)))
    lake = open_lake(uri)
    assert lake.checkpoint_ts == history.end_ts
    check_marks(history, lake)
