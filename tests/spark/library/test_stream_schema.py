"""A stream whose table changes its columns: it stops before the first row of the new form, and continues there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.e2e.sqlclient import Client
from tidebox.upstream import EmbeddedUpstream

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, resolved_interval_seconds=0.02) as started:
        yield started


class Query:
    """A stream of ``test.t`` into JSON. ``load`` fixes its form; ``run`` takes what is there by then, and ends."""

    def __init__(self, spark: Any, upstream: EmbeddedUpstream, folder: Path) -> None:
        self._spark = spark
        self._options = {"pd": upstream.pd_address, "table": "test.t", "startingTs": upstream.tso()}
        self._folder = folder
        self._frame: Any = None

    def load(self) -> None:
        self._frame = self._spark.readStream.format("tidemill").options(**self._options).load()

    def run(self) -> None:
        writer = self._frame.drop("_commit_ts", "_start_ts").writeStream.format("json")
        writer = writer.option("path", str(self._folder / "rows"))
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self) -> list[dict[str, Any]]:
        files = (self._folder / "rows").glob("*.json")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(found, key=lambda row: row["id"])


def test_each_row_comes_once_with_all_of_its_columns_whatever_becomes_of_the_table(
    spark: Any, upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    steps = [
        ("add column x int", "column 'x' added", "insert into t values (2, 20)"),
        ("rename column x to y", "column 'x' renamed to 'y'", "insert into t (id, y) values (3, 30)"),
        ("modify column y varchar(9)", "column 'y' changed from int32 to string", "insert into t values (4, 'four')"),
        ("drop column y", "column 'y' dropped", "insert into t values (5)"),
    ]
    expected: list[dict[str, Any]] = [
        {"id": 1},
        {"id": 2, "x": 20},
        {"id": 3, "y": 30},
        {"id": 4, "y": "four"},
        {"id": 5},
        {"id": 6},
    ]
    with Client(upstream.sql_addresses[0], "test") as client:
        client.run("create table t (id int primary key)")
        query = Query(spark, upstream, tmp_path)
        client.run("insert into t values (1)")
        for at, (ddl, said, insert) in enumerate(steps, 1):
            query.load()
            client.run(f"alter table t {ddl}")
            client.run(insert)
            with pytest.raises(StreamingQueryException, match=re.escape(said)) as failed:
                query.run()
            assert re.search(r"schema of table test\.t changed at .* \(ts \d+\)", str(failed.value))
            assert "No row of the new schema has been taken. Start the query again" in str(failed.value)
            assert [row["id"] for row in query.rows()] == list(range(1, at + 1))
        query.load()
        client.run("create index i on t (id)")  # the same columns, so nobody needs to stop
        client.run("insert into t values (6)")
        query.run()
    assert query.rows() == [{**row, "_op": "insert"} for row in expected]


def test_a_stream_of_some_columns_does_not_mind_the_others(
    spark: Any, upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    with Client(upstream.sql_addresses[0], "test") as client:
        client.run("create table u (id int primary key, v int)")
        query = Query(spark, upstream, tmp_path)
        query._options |= {"table": "test.u", "columns": "id"}
        query.load()
        client.run("insert into u values (1, 1)")
        client.run("alter table u add column w int")
        client.run("alter table u drop column v")
        client.run("insert into u values (2, 2)")
        query.run()
    assert query.rows() == [{"id": 1, "_op": "insert"}, {"id": 2, "_op": "insert"}]
