"""``readStream``: changes from a ts on, each once, also across a restart from Spark's checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.tidb.keys import record_key

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def bench() -> Iterator[EmbeddedUpstream]:
    path = load("bench-narrow").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.02) as upstream:
        yield upstream


def a_row() -> bytes:
    value = load("bench-narrow").value_at(record_key(112, 1), load("bench-narrow").end_ts)
    assert value
    return value


def insert(upstream: EmbeddedUpstream, *handles: int) -> int:
    return upstream.commit([Mutation(Op.PUT, record_key(112, handle), a_row()) for handle in handles])[1]


def delete(upstream: EmbeddedUpstream, *handles: int) -> int:
    return upstream.commit([Mutation(Op.DELETE, record_key(112, handle)) for handle in handles])[1]


class Stream:
    """A query into files that takes what there is and ends; ``rows`` are what it has written so far."""

    def __init__(self, spark: Any, upstream: EmbeddedUpstream, folder: Path, **options: Any) -> None:
        self._spark = spark
        self._pd = upstream.pd_address
        self._folder = folder
        self._options = options

    def run(self) -> list[Any]:
        """Run until it has come to the present; return what it did, batch by batch."""
        reader = self._spark.readStream.format("tidemill").option("pd", self._pd).option("table", "bench.sbtest")
        frame = reader.options(**self._options).load()
        writer = frame.writeStream.format("parquet").option("path", str(self._folder / "rows"))
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return list(query.recentProgress)

    def rows(self) -> list[tuple[int, str, int]]:
        frame = self._spark.read.parquet(str(self._folder / "rows"))
        found = frame.select("id", "_op", "_commit_ts").toArrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def offsets(self) -> list[dict[str, str]]:
        """The offset of each batch, in order."""
        files = sorted((self._folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def test_a_stream_goes_on_from_its_checkpoint_with_neither_gap_nor_overlap(
    spark: Any, bench: EmbeddedUpstream, tmp_path: Path
) -> None:
    start = bench.tso()
    first = insert(bench, 50_001, 50_002)
    stream = Stream(spark, bench, tmp_path, startingTs=start)
    stream.run()
    assert stream.rows() == [(50_001, "insert", first), (50_002, "insert", first)]
    second = insert(bench, 50_002, 50_003)
    bench.split(record_key(112, 50_002))
    third = delete(bench, 50_001)
    stream.run()
    assert stream.rows() == [
        (50_001, "delete", third),
        (50_001, "insert", first),
        (50_002, "insert", first),
        (50_002, "update", second),
        (50_003, "insert", second),
    ]
    stream.run()
    assert len(stream.rows()) == 5


def test_a_batch_that_was_planned_but_not_committed_comes_again_the_same(
    spark: Any, bench: EmbeddedUpstream, tmp_path: Path
) -> None:
    start = bench.tso()
    first = insert(bench, 51_001)
    stream = Stream(spark, bench, tmp_path, startingTs=start)
    stream.run()
    # As a crash between the write of the rows and the note of it would leave it.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    second = insert(bench, 51_002)
    stream.run()
    assert stream.rows() == [(51_001, "insert", first), (51_002, "insert", second)]


def test_a_long_past_is_taken_in_batches_of_so_many_seconds(
    spark: Any, bench: EmbeddedUpstream, tmp_path: Path
) -> None:
    start = bench.tso()
    later = start + (3000 << 18)
    bench.commit([Mutation(Op.PUT, record_key(112, 52_001), a_row())], later - 1, later)
    stream = Stream(spark, bench, tmp_path, startingTs=start, maxIntervalSeconds=1)
    batches = stream.run()
    assert len(batches) >= 3
    assert stream.rows() == [(52_001, "insert", later)]


def test_the_upstream_keeps_what_a_stopped_stream_has_not_read(
    spark: Any, bench: EmbeddedUpstream, tmp_path: Path
) -> None:
    start = bench.tso()
    stream = Stream(spark, bench, tmp_path, startingTs=start, gcTtlSeconds=600)
    stream.run()
    with bench.cluster.mutex:
        held = {barrier.service.decode(): barrier.ts for barrier in bench.cluster.safepoints.state().barriers}
    offset = stream.offsets()[-1]
    assert start - 1 <= held[offset["hold"]] <= int(offset["ts"])


def test_a_stream_whose_past_is_gone_says_so(spark: Any, bench: EmbeddedUpstream, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(
        stores=1, load=load("bench-narrow").folder / "history.parquet", resolved_interval_seconds=0.02
    ) as upstream:
        start = upstream.tso()
        upstream.set_gc_safepoint(upstream.tso())
        with pytest.raises(Exception, match=r"cannot read at .*garbage-collected up to"):
            Stream(spark, upstream, tmp_path, startingTs=start).run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({}, "a stream needs to know where it begins", id="no start"),
        pytest.param({"startingTs": "now", "endingTs": "now"}, "a stream has no endingTs", id="an end"),
        pytest.param({"startingTs": 1 << 62}, "lies in the future", id="a start to come"),
    ],
)
def test_options_that_make_no_stream_are_refused(
    spark: Any, bench: EmbeddedUpstream, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        Stream(spark, bench, tmp_path, **options).run()
