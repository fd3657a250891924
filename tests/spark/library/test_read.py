"""``spark.read``: columns typed, changes between two ts, filters pushed down, bad options refused."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.tidb.keys import record_key

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    path = load("types").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=2, load=path, resolved_interval_seconds=0.02) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def bench() -> Iterator[EmbeddedUpstream]:
    path = load("bench-narrow").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.02) as upstream:
        for handle in (500, 1000, 1500):
            upstream.split(record_key(112, handle))
        yield upstream


def reader(spark: Any, upstream: EmbeddedUpstream, table: str, **options: Any) -> Any:
    given = {"pd": upstream.pd_address, "table": table, **options}
    return spark.read.format("tidemill").options(**given)


TYPES = {
    "ints": {
        "t1": "tinyint",
        "t2": "smallint",
        "s1": "smallint",
        "s2": "int",
        "m1": "int",
        "m2": "int",
        "i1": "int",
        "i2": "bigint",
        "b1": "bigint",
        "b2": "decimal(20,0)",
        "y": "int",
    },
    "reals": {"f": "float", "d": "double", "n2": "decimal(10,2)", "n3": "string", "n5": "decimal(30,30)"},
    "chars": {"c": "string", "b": "binary", "vb": "binary", "tx": "string", "bl": "binary", "g": "string"},
    "times": {"d": "date", "dt": "timestamp_ntz", "dt6": "timestamp_ntz", "ts": "timestamp", "t": "string", "y": "int"},
    "sets": {"e": "string", "s": "string", "bt1": "bigint", "bt33": "bigint", "bt64": "decimal(20,0)"},
    "docs": {"j": "string"},
    "vecs": {"v": "string"},
}


@pytest.mark.parametrize("table", TYPES)
def test_columns_have_the_types_that_users_of_spark_expect(spark: Any, upstream: EmbeddedUpstream, table: str) -> None:
    found = dict(reader(spark, upstream, f"kinds.{table}").load().dtypes)
    assert {name: found[name] for name in TYPES[table]} == TYPES[table]


def test_dates_that_no_calendar_has_are_never_silently_something_else(spark: Any, upstream: EmbeddedUpstream) -> None:
    frame = reader(spark, upstream, "kinds.times").load()
    with pytest.raises(Exception, match=r"holds a date that no calendar has.*invalidDates"):
        frame.toArrow()
    texts = reader(spark, upstream, "kinds.times", invalidDates="text").load().orderBy("id").toArrow().to_pylist()
    typed = reader(spark, upstream, "kinds.times", invalidDates="null").load().orderBy("id").toArrow().to_pylist()
    assert any(row["d"] == "0000-00-00" for row in texts)
    for text, row in zip(texts, typed, strict=True):
        for name in ("d", "dt", "dt3", "dt6", "ts", "ts3", "ts6"):
            assert row[name] == parsed(text[name], name), (text["id"], name)


def parsed(text: str | None, column: str) -> date | datetime | None:
    if text is None or "-00" in text[:10] or text.startswith("0000"):
        return None
    if column == "d":
        return date.fromisoformat(text)
    return datetime.fromisoformat(text).replace(tzinfo=UTC if column.startswith("ts") else None)


def test_filters_on_the_handle_leave_out_the_other_regions(spark: Any, bench: EmbeddedUpstream) -> None:
    frame = reader(spark, bench, "bench.sbtest").load()
    assert frame.rdd.getNumPartitions() == 4
    near = frame.where("id >= 600 and id < 610")
    assert near.rdd.getNumPartitions() == 1
    assert sorted(row.id for row in near.collect()) == sorted(row.id for row in frame.collect() if 600 <= row.id < 610)
    some = frame.where("id in (3, 1200) and k > 0")
    assert some.rdd.getNumPartitions() == 2


def test_only_the_columns_asked_for_are_read(spark: Any, bench: EmbeddedUpstream) -> None:
    frame = reader(spark, bench, "bench.sbtest", columns="K, id").load()
    assert frame.columns == ["k", "id"]
    assert frame.count() == reader(spark, bench, "bench.sbtest").load().count()


def test_changes_between_two_ts_come_with_what_was_done_and_when(spark: Any, bench: EmbeddedUpstream) -> None:
    row = load("bench-narrow").value_at(record_key(112, 1), load("bench-narrow").end_ts)
    assert row
    start = bench.tso()
    first = bench.commit([Mutation(Op.PUT, record_key(112, 40_000 + i), row) for i in range(3)])
    second = bench.commit(
        [Mutation(Op.PUT, record_key(112, 40_000), row), Mutation(Op.DELETE, record_key(112, 40_001))]
    )
    bench.commit([Mutation(Op.DELETE, record_key(112, 40_002))])
    frame = reader(spark, bench, "bench.sbtest", startingTs=start, endingTs=second[1]).load()
    assert frame.dtypes[-3:] == [("_op", "string"), ("_commit_ts", "bigint"), ("_start_ts", "bigint")]
    rows = frame.select("id", "_op", "_commit_ts", "_start_ts").toArrow().to_pylist()
    assert sorted(tuple(r.values()) for r in rows) == [
        (40_000, "insert", first[1], first[0]),
        (40_000, "update", second[1], second[0]),
        (40_001, "delete", second[1], second[0]),
        (40_001, "insert", first[1], first[0]),
        (40_002, "insert", first[1], first[0]),
    ]
    assert reader(spark, bench, "bench.sbtest", startingTs=start, endingTs=start).load().count() == 0


def test_a_frame_stays_as_of_the_moment_it_was_loaded(spark: Any, bench: EmbeddedUpstream) -> None:
    frame = reader(spark, bench, "bench.sbtest").load()
    before = frame.count()
    row = load("bench-narrow").value_at(record_key(112, 1), load("bench-narrow").end_ts)
    assert row
    bench.commit([Mutation(Op.PUT, record_key(112, 60_000), row)])
    assert frame.count() == before
    assert reader(spark, bench, "bench.sbtest").load().count() == before + 1


def test_spark_finds_the_format_by_itself(spark: Any, bench: EmbeddedUpstream) -> None:
    other = spark.newSession()
    frame = reader(other, bench, "bench.sbtest").load()
    one = frame.where(f"id = {frame.first().id}")
    assert one.rdd.getNumPartitions() == 4  # nothing is pushed down: Spark was not told to allow it
    assert one.count() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"asof": "yesterday"}, "asOf: yesterday is neither a time nor a ts", id="no moment"),
        pytest.param({"asOff": "now"}, "unknown option 'asoff'.*Did you mean 'asOf'", id="an unknown option"),
        pytest.param({"table": "bench.sbtast"}, "no table 'sbtast'.*Did you mean 'sbtest'", id="no such table"),
        pytest.param({"columns": "id, x"}, "cannot read column 'x' of bench.sbtest.*There are: id, k", id="no column"),
        pytest.param({"asOf": 1 << 62}, "asOf lies in the future", id="the future"),
    ],
)
def test_bad_options_are_refused_in_words(
    spark: Any, bench: EmbeddedUpstream, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        reader(spark, bench, **{"table": "bench.sbtest", **options}).load()


def test_a_schema_of_ones_own_is_refused(spark: Any, bench: EmbeddedUpstream) -> None:
    with pytest.raises(Exception, match="has a schema of its own"):
        reader(spark, bench, "bench.sbtest").schema("id string").load().count()
