"""A table at a ts by parts: every row once, whatever the regions do between planning and reading, and within."""

import itertools
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import StartTsCollectedError, UsageError
from tidemill.model.change import Op
from tidemill.model.ts import Ts
from tidemill.source.scan import HandleBounds, Presenter, ScanClient, TableName, read_part
from tidemill.source.scan.hold import ReadHold
from tidemill.source.scan.parts import joined
from tidemill.source.scan.snapshot import pieces
from tidemill.tidb.keys import record_key
from tidemill.upstream.pairs import PAIR_SCHEMA

NAME = TableName("bench", "sbtest")


@pytest.fixture
def bench() -> Any:
    path = load("bench-narrow").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.02) as upstream:
        yield upstream


def ids_at(ts: int) -> list[int]:
    start, end = record_key(112, 0), record_key(112, 1 << 40)
    return [int.from_bytes(key[-8:], "big") - (1 << 63) for key, _ in load("bench-narrow").scan_at(start, end, ts)]


def read(parts: list[Any]) -> list[int]:
    return [i for part in parts for rows in read_part(part) for i in rows.new.column("id").to_pylist()]


def test_an_answer_of_large_rows_is_decoded_in_pieces() -> None:
    sizes = [10, 300, 5, 5, 990, 1]
    rows = [{"key": b"%d" % n, "value": b"v" * size} for n, size in enumerate(sizes)]
    answer = pa.RecordBatch.from_pylist(rows, schema=PAIR_SCHEMA)
    found = list(pieces(answer, 320))
    assert [len(piece) for piece in found] == [3, 1, 1, 1]
    assert [row for piece in found for row in piece.to_pylist()] == rows
    assert list(pieces(answer, 1 << 20)) == [answer]


def test_regions_of_unequal_size_each_give_a_part_and_each_row_once(bench: EmbeddedUpstream) -> None:
    for handle in (3, 4, 900):
        bench.split(record_key(112, handle))
    with ScanClient(bench.pd_address) as client:
        ts = client.now()
        parts = client.plan_scan(client.find_table(NAME, ts), ts, hold=ReadHold.new(ts))
    assert len(parts) == 4
    assert all(a.end == b.start for a, b in itertools.pairwise(parts))
    assert read(pickle.loads(pickle.dumps(parts))) == ids_at(ts)


def test_regions_that_change_while_a_part_is_read_do_not_matter(bench: EmbeddedUpstream) -> None:
    with ScanClient(bench.pd_address) as client:
        ts = client.now()
        [part] = client.plan_scan(client.find_table(NAME, ts), ts, hold=ReadHold.new(ts))
    for handle in (50, 1000):
        bench.split(record_key(112, handle))
    batches = read_part(part)
    first = next(batches)
    left, right = bench.split(record_key(112, 1500))[:2]
    bench.merge(right.id, left.id)
    bench.stop_store(2)
    rest = [i for rows in batches for i in rows.new.column("id").to_pylist()]
    assert first.new.column("id").to_pylist() + rest == ids_at(ts)
    assert np.unique(first.commit_ts).tolist() == [ts]


def test_later_commits_and_open_transactions_are_not_seen(bench: EmbeddedUpstream) -> None:
    ts = bench.tso()
    value = load("bench-narrow").value_at(record_key(112, 1), ts)
    assert value
    bench.commit([Mutation(Op.PUT, record_key(112, 77_777), value), Mutation(Op.DELETE, record_key(112, 1))])
    bench.orphan_lock(record_key(112, 2), ttl_ms=1)
    with ScanClient(bench.pd_address) as client:
        table = client.find_table(NAME, ts)
        assert read(client.plan_scan(table, ts, hold=ReadHold.new(ts))) == ids_at(ts)
        now = client.now()
        expected = sorted({*ids_at(ts), 77_777} - {1})
        assert read(client.plan_scan(table, now, hold=ReadHold.new(now))) == expected


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        pytest.param(HandleBounds().within(10, 20), range(10, 21), id="between"),
        pytest.param(HandleBounds().within(None, 5), range(6), id="up to"),
        pytest.param(HandleBounds().among([7, 3, 3]), [3, 7], id="some"),
        pytest.param(HandleBounds().within(5, 4), [], id="nothing"),
    ],
)
def test_bounds_on_the_handle_are_ranges_of_keys(bench: EmbeddedUpstream, bounds: HandleBounds, wanted: Any) -> None:
    bench.split(record_key(112, 15))
    with ScanClient(bench.pd_address) as client:
        ts = client.now()
        parts = client.plan_scan(client.find_table(NAME, ts), ts, bounds=bounds, hold=ReadHold.new(ts))
    assert read(parts) == [i for i in ids_at(ts) if i in set(wanted)]


def test_only_the_columns_that_are_wanted_are_decoded(bench: EmbeddedUpstream) -> None:
    with ScanClient(bench.pd_address) as client:
        ts = client.now()
        table = client.find_table(NAME, ts)
        presenter = Presenter(table, ["PAD"])
        parts = client.plan_scan(presenter.narrowed(table), ts, hold=ReadHold.new(ts))
    [rows] = [rows for part in parts for rows in read_part(part)]
    assert rows.new.schema.names == ["id", "pad"]
    assert presenter.present(rows).schema.names == ["pad"]


def test_a_reader_that_is_left_early_ends(bench: EmbeddedUpstream) -> None:
    with ScanClient(bench.pd_address) as client:
        ts = client.now()
        [part] = client.plan_scan(client.find_table(NAME, ts), ts, hold=ReadHold.new(ts))
    batches = read_part(part)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator


def test_an_executor_finds_out_that_the_past_is_gone(bench: EmbeddedUpstream) -> None:
    ts = bench.tso()
    with ScanClient(bench.pd_address) as client:
        [part] = client.plan_scan(client.find_table(NAME, ts), ts, hold=ReadHold.new(ts))
        bench.set_gc_safepoint(client.now())
    with pytest.raises(StartTsCollectedError, match="cannot read at"):
        list(read_part(part))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(TableName("bensh", "sbtest"), "no database 'bensh' .*Did you mean 'bench'", id="no database"),
        pytest.param(TableName("bench", "sbtast"), "no table 'sbtast' .*Did you mean 'sbtest'", id="no table"),
        pytest.param(TableName("bench", "xxxxxx"), "no table 'xxxxxx' .*Check the option table", id="nothing like it"),
    ],
)
def test_a_name_that_means_nothing_is_refused(bench: EmbeddedUpstream, name: TableName, message: str) -> None:
    with ScanClient(bench.pd_address) as client, pytest.raises(UsageError, match=message):
        client.find_table(name, client.now())


def test_names_are_found_in_any_case(bench: EmbeddedUpstream) -> None:
    with ScanClient(bench.pd_address) as client:
        assert client.find_table(TableName("BENCH", "SbTest"), Ts(client.now())).id == 112


@pytest.mark.parametrize(("count", "most", "groups"), [(0, 3, 0), (1, 3, 1), (7, 3, 3), (8, 8, 8), (100, 8, 8)])
def test_neighbours_are_joined_to_at_most_so_many(count: int, most: int, groups: int) -> None:
    ranges = [(b"%03d" % i, b"%03d" % (i + 1)) for i in range(count)]
    found = list(joined(ranges, most))
    assert len(found) == groups
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
    if ranges:
        assert (found[0][0], found[-1][1]) == (ranges[0][0], ranges[-1][1])
