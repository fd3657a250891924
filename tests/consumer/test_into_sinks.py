"""A topic into every kind of sink, each change once, although the consumer dies between a batch and its own state."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.story import Story, tell
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.mariadb import MariaDb, need_mariadb
from tests.mariadb import running as running_mariadb
from tidemill.clock import SYSTEM_CLOCK
from tidemill.consumer import state as states
from tidemill.consumer.alignment import Consistency
from tidemill.consumer.applying import Applying, Written
from tidemill.consumer.consume import Consume, ConsumeOptions
from tidemill.consumer.staging import Plan
from tidemill.model.ts import Ts
from tidemill.sinks.lake.reader import open_lake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROTOCOLS = {
    "open": "protocol=open-protocol",
    "canal": "protocol=canal-json&enable-tidb-extension=true",
    "simple": "protocol=simple",
    "debezium": "protocol=debezium&enable-tidb-extension=true",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


class DiedError(Exception):
    """In place of kill -9: nothing of ours runs behind it."""


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have the consumer die in front of its n-th save, when the sink has the batch already."""
    left = [0]
    save = states.ConsumerDir.save

    def saving(self: states.ConsumerDir, state: states.ConsumerState) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise DiedError
        save(self, state)

    monkeypatch.setattr(states.ConsumerDir, "save", saving)

    def after(saves: int) -> None:
        left[0] = saves

    return after


def consume(uri: str, to: str, folder: Path, end_ts: int, **more: Any) -> Consume:
    """Until it is there."""
    feed = Consume(ConsumeOptions(uri, to, folder, **more))
    deadline = SYSTEM_CLOCK.monotonic() + 240
    try:
        feed.start(lambda: False)
        while not feed.is_at(Ts(end_ts)):
            assert SYSTEM_CLOCK.monotonic() < deadline, feed.status()
            feed.poll()
        feed.stop()
        feed.drain()
    finally:
        feed.close()
    return feed


def through(
    uri: str, to: str, folder: Path, story: Story, dies: Callable[[int], None], monkeypatch: Any, **more: Any
) -> None:
    """Small batches; it dies three times."""
    monkeypatch.setattr("tidemill.consumer.consume._MOST_ROWS", dict.fromkeys(Consistency, 9))
    for saves in (3, 4, 6):
        dies(saves)
        with pytest.raises(DiedError):
            consume(uri, to, folder, story.ts, **more)
    dies(0)
    feed = consume(uri, to, folder, story.ts, **more)
    assert feed.last.applied_ts >= story.ts


def topic_of(broker: Broker, folder: Path, protocol: str) -> str:
    return broker.uri(f"t-{folder.name}".replace("[", "-").replace("]", ""), f"{PROTOCOLS[protocol]}&partition-num=3")


def in_files(root: Path) -> dict[str, list[dict[str, Any]]]:
    """All changes by table, each file in its order, and versions in theirs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for table in sorted(path for path in (root / "shop").iterdir() if path.name != "meta"):
        versions = sorted((path for path in table.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        for version in versions:
            for file in sorted(version.rglob("CDC*.json")):
                found.setdefault(table.name, []).extend(json.loads(line) for line in file.read_text().splitlines())
    return found


def told(document: dict[str, Any]) -> tuple[int, str, int]:
    op = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}[document["type"]]
    return int(document["_tidb"]["commitTs"]), op, int(document["data"][0]["id"])


@pytest.mark.parametrize("protocol", ["open", "simple", pytest.param("canal", marks=pytest.mark.soak)])
def test_files_hold_every_change_once(
    spark: Any, broker: Broker, tmp_path: Path, protocol: str, dies: Callable[[int], None], monkeypatch: Any
) -> None:
    uri = topic_of(broker, tmp_path, protocol)
    story = tell(uri)
    root = tmp_path / "files"
    to = f"file://{root}?protocol=canal-json&enable-tidb-extension=true&date-separator=none"
    through(uri, to, tmp_path / "consumer", story, dies, monkeypatch)
    found = in_files(root)
    assert {name: sorted(map(told, rows)) for name, rows in found.items()} == {
        name: sorted(changes) for name, changes in story.changes.items()
    }
    for rows in found.values():
        assert [told(row)[0] for row in rows] == sorted(told(row)[0] for row in rows)
    assert json.loads((root / "metadata").read_text())["checkpoint-ts"] >= story.ts - 10
    queries = [json.loads(path.read_text()) for path in sorted((root / "shop" / "thing" / "meta").iterdir())]
    (renamed,) = (document for document in queries if "RENAME COLUMN" in document["Query"])
    assert [column["ColumnName"] for column in renamed["TableColumns"]] == [
        c.name for c in story.table("thing").columns
    ]
    assert [c["ColumnPrecision"] for c in renamed["TableColumns"] if c["ColumnName"] == "price"] == ["10"]


LAKES = {
    "iceberg": "iceberg://{root}",
    "delta": "delta://{root}",
    "parquet": "file://{root}?protocol=parquet",
}


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        ("iceberg", "open"),
        pytest.param("delta", "canal"),
        pytest.param("parquet", "simple", marks=pytest.mark.soak),
        pytest.param("iceberg", "debezium", marks=pytest.mark.soak),
    ],
)
def test_lakes_hold_every_moment_of_a_topic(
    spark: Any, broker: Broker, tmp_path: Path, kind: str, protocol: str, dies: Callable[[int], None], monkeypatch: Any
) -> None:
    uri = topic_of(broker, tmp_path, protocol)
    story = tell(uri)
    to = LAKES[kind].format(root=tmp_path / "lake")
    through(uri, to, tmp_path / "consumer", story, dies, monkeypatch)
    lake = open_lake(to)
    things = {row["id"]: row for row in lake.rows_at("shop", "thing").to_pylist()}
    assert {
        id: (str(row["price"]), row["code"], row["note"], row["kind"], bytes(row["raw"])) for id, row in things.items()
    } == {
        id: (row["price"], row["code"], row["note"], "ab"[row["kind"] - 1], row["raw"])
        for id, row in story.rows["thing"].items()
    }
    assert [(row["id"], row["v"]) for row in lake.rows_at("shop", "other").to_pylist()] == [(7, 70)]
    held = lake.changes(lake.table("shop", "thing")).to_pylist()
    seen = sorted((row["_commit_ts"], row["_op"], row["id"]) for row in held if row["_op"] != "T")
    both = [*story.changes["item"], *story.changes["thing"]]
    assert seen == sorted(both)


def test_the_lines_of_python_that_the_page_shows(spark: Any, broker: Broker, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/read-topics.md"
    (shown,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    uri = topic_of(broker, tmp_path, "open")
    tell(uri)
    lines = shown.replace("kafka://127.0.0.1:9092/shop?protocol=open-protocol", uri).replace("/tmp/", f"{tmp_path}/")
    exec(compile(lines, str(page), "exec"), {})
    assert sum(map(len, in_files(tmp_path / "shop-changes").values())) >= 10


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with running_mariadb(tmp_path_factory.mktemp("mariadb")) as started:
        yield started


@pytest.mark.parametrize(
    ("protocol", "consistency"),
    [
        ("simple", Consistency.TRANSACTION),
        ("open", Consistency.ROW),
        pytest.param("canal", Consistency.ROW, marks=pytest.mark.soak),
        pytest.param("debezium", Consistency.TRANSACTION, marks=pytest.mark.soak),
    ],
)
def test_a_database_is_kept_equal(
    spark: Any, broker: Broker, mariadb: MariaDb, tmp_path: Path, protocol: str, consistency: Consistency,
    dies: Callable[[int], None], monkeypatch: Any,
) -> None:  # fmt: skip
    mariadb.query("DROP DATABASE IF EXISTS shop")
    uri = topic_of(broker, tmp_path, protocol)
    story = tell(uri)
    through(uri, mariadb.uri(), tmp_path / "consumer", story, dies, monkeypatch, consistency=consistency)
    held = mariadb.query("SELECT id, code, CAST(price AS CHAR), kind + 0, raw, note FROM shop.thing ORDER BY id")
    assert [tuple(row) for row in held] == [
        (id, row["code"], row["price"], row["kind"], row["raw"], row["note"])
        for id, row in sorted(story.rows["thing"].items())
    ]
    assert [tuple(row) for row in mariadb.query("SELECT id, v FROM shop.other")] == [(7, 70)]


def test_a_batch_that_readers_may_have_seen_comes_again_as_it_was(
    spark: Any, broker: Broker, mariadb: MariaDb, tmp_path: Path, dies: Callable[[int], None], monkeypatch: Any
) -> None:
    """Though batches are smaller after the restart. A part of it would take some rows back to an earlier moment."""
    mariadb.query("DROP DATABASE IF EXISTS shop")
    uri = topic_of(broker, tmp_path, "open")
    story = tell(uri)
    written: list[tuple[int, int]] = []
    write = Applying.write

    def writing(self: Applying, plan: Plan, what: str) -> Written:
        found = write(self, plan, what)
        written.append((plan.rows, max(plan.to.values())))
        if len(written) == 3:
            dies(1)  # in front of the save behind it
        return found

    monkeypatch.setattr(Applying, "write", writing)
    monkeypatch.setattr("tidemill.consumer.consume._MOST_ROWS", dict.fromkeys(Consistency, 9))
    with pytest.raises(DiedError):
        consume(uri, mariadb.uri(), tmp_path / "consumer", story.ts)
    monkeypatch.setattr("tidemill.consumer.consume._MOST_ROWS", dict.fromkeys(Consistency, 3))
    dies(0)
    consume(uri, mariadb.uri(), tmp_path / "consumer", story.ts)
    assert written[2][0] > 3
    assert written[3] == written[2]
    assert all(rows <= 4 for rows, _ in written[4:])  # the last transaction counts in full
