"""Units of a batch, and what the fused stages make of them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.flow.mounter.tables import ID, column, primary, table, text
from tests.reference.encode import int_cell, record_key, row_v2
from tests.sinks.halves import file_sink
from tidemill.flow import decoder
from tidemill.flow.mounter import pieces
from tidemill.flow.pipeline import Part, Pipeline, make_units
from tidemill.flow.sorter import Sorter
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.progress import Extent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, IndexColumn, IndexInfo, PartitionInfo, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import parse_sink_uri

PLAIN = table(primary(), column(2, ColumnType.LONG), pk_is_handle=True)
PARTITIONED = replace(PLAIN, partitions=(PartitionInfo(201, "p0"), PartitionInfo(202, "p1")))
Row = tuple[int, int, int | None, int | None]  # commit-ts, id, new and old value of c2


def changes(physical_id: int, *rows: Row) -> pa.RecordBatch:
    def value(c2: int | None) -> bytes:
        return b"" if c2 is None else row_v2({2: int_cell(c2)})

    return pa.RecordBatch.from_pylist(
        [
            {
                "start_ts": ts - 1,
                "commit_ts": ts,
                "op": Op.DELETE if new is None else Op.PUT,
                "key": record_key(physical_id, key),
                "value": value(new),
                "old_value": value(old),
            }
            for ts, key, new, old in rows
        ],
        RAW_CHANGE_SCHEMA,
    )


def written(
    folder: Path, info: TableInfo, parts: dict[int, list[Row]], batch_rows: int = 1000
) -> dict[str, list[tuple[int, str, str, str]]]:
    """The messages (commit-ts, type, id, c2) of one batch of ``parts``, rows by physical id, per folder."""

    async def fill(sorter: Sorter) -> None:
        for physical_id, rows in parts.items():
            sorter.open_span(physical_id, Ts(0))
            await sorter.add(physical_id, changes(physical_id, *rows))
            sorter.advance(physical_id, Ts(100))

    config = parse_sink_uri(f"file://{folder}/out?protocol=canal-json&enable-tidb-extension=true&date-separator=none")
    sink, sorter = file_sink(config, None), Sorter(folder / "segments")
    try:
        asyncio.run(fill(sorter))
        planned: list[Part] = [(info, slices.span_id, slices) for slices in sorter.plan(Extent(Ts(0), Ts(100)))]
        units = make_units(planned, lambda table, physical_id: sink.target(table, physical_id, (Ts(0), Ts(100))))
        sink.commit(
            Ts(100),
            [
                Pipeline("UTC", splits_updates=config.splits_updates, batch_rows=batch_rows).process(unit)
                for unit in units
            ],
        )
    finally:
        sorter.close()
    found: dict[str, list[tuple[int, str, str, str]]] = {}
    for path in sorted((folder / "out").rglob("CDC*.json")):
        place = str(path.parent.relative_to(folder / "out"))
        for message in map(json.loads, path.read_bytes().splitlines()):
            (data,) = message["data"]
            found.setdefault(place, []).append((message["_tidb"]["commitTs"], message["type"], data["id"], data["c2"]))
    return found


def test_physical_ids_of_a_table_being_partitioned_are_written_as_one_table(tmp_path: Path) -> None:
    parts = {201: [(10, 2, 20, None), (30, 4, 41, 40)], 202: [(20, 1, 10, None), (40, 3, None, 30)]}
    assert written(tmp_path, PLAIN, parts) == {
        "test/t/0": [
            (10, "INSERT", "2", "20"),
            (20, "INSERT", "1", "10"),
            (30, "UPDATE", "4", "41"),
            (40, "DELETE", "3", "30"),
        ]
    }


def test_a_row_that_moves_between_them_is_deleted_before_it_is_inserted(tmp_path: Path) -> None:
    parts = {201: [(10, 7, 71, None), (10, 2, 20, None)], 202: [(10, 7, None, 70)]}
    assert written(tmp_path, PLAIN, parts) == {
        "test/t/0": [(10, "DELETE", "7", "70"), (10, "INSERT", "2", "20"), (10, "INSERT", "7", "71")]
    }


def test_table_partitions_are_written_apart(tmp_path: Path) -> None:
    parts: dict[int, list[Row]] = {201: [(10, 2, 20, None)], 202: [(20, 1, 10, None)]}
    assert written(tmp_path, PARTITIONED, parts) == {
        "test/t/0/201": [(10, "INSERT", "2", "20")],
        "test/t/0/202": [(20, "INSERT", "1", "10")],
    }


def test_a_large_transaction_has_its_deletes_first_then_updates_then_inserts(tmp_path: Path) -> None:
    """With c2 unique, rows take each other's place; the transaction is read in pieces of four rows or so."""
    unique = replace(PLAIN, indexes=(IndexInfo(2, "u", (IndexColumn(1, -1),), is_unique=True, is_primary=False),))
    moved = [(20, n, (n + 1) % 20, n) for n in range(20)]  # each takes the value of its neighbour
    others = [(20, 30, 300, None), (20, 31, None, 310), (20, 32, 320, 320)]
    rows: list[Row] = [(10, 1, 1, None), *moved, *others, (30, 1, None, 2)]
    (large,) = written(tmp_path / "large", unique, {ID: rows}, batch_rows=4).values()
    (small,) = written(tmp_path / "small", unique, {ID: rows}, batch_rows=1000).values()
    assert sorted(large) == sorted(small)
    kinds = [kind for ts, kind, _, _ in large if ts == 20]
    assert kinds == ["DELETE"] * 21 + ["UPDATE"] + ["INSERT"] * 21
    assert [ts for ts, *_ in large] == sorted(ts for ts, *_ in large)


def test_a_large_transaction_of_one_kind_keeps_the_order_of_its_keys(tmp_path: Path) -> None:
    rows: list[Row] = [(20, n, n, None) for n in range(50)]
    (large,) = written(tmp_path, PLAIN, {ID: rows}, batch_rows=4).values()
    assert large == [(20, "INSERT", str(n), str(n)) for n in range(50)]


@pytest.mark.parametrize("batch_rows", [1000, 2])
@pytest.mark.parametrize("kind", ["a default", "a set", "an enum"])
def test_rows_that_become_far_longer_than_they_are_go_through_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int, kind: str
) -> None:
    """Ten rows of some bytes each; what they become would be too much at once."""
    long = {
        "a default": replace(text(3), origin_default="x" * 1000),
        "a set": column(3, ColumnType.SET, elems=("x" * 499, "é" * 249)),
        "an enum": column(3, ColumnType.ENUM, elems=("x", "x" * 999)),
    }[kind]
    grown = table(primary(), column(2, ColumnType.LONG), long, pk_is_handle=True)
    monkeypatch.setattr(pieces, "_MOST_ADDED_BYTES", 3000)
    assert pieces.rows_at_once(grown) == 3
    sizes = []
    mount = decoder.mount

    def noted(known: TableInfo, physical_id: int, some: pa.RecordBatch, *more: str, **others: bool) -> RowBatch:
        sizes.append(len(some))
        return mount(known, physical_id, some, *more, **others)

    monkeypatch.setattr(decoder, "mount", noted)
    rows: list[Row] = [(10 + key // 4, key, key, None) for key in range(10)]  # transactions of 4, 4 and 2 rows
    expected = [(ts, "INSERT", str(key), str(c2)) for ts, key, c2, _ in rows]
    assert written(tmp_path, grown, {ID: rows}, batch_rows) == {"test/t/0": expected}
    assert max(sizes) <= 3
    if batch_rows == 1000:
        assert sizes == [3, 1, 3, 3]  # cut between two transactions where that is possible


def test_a_table_alone_keeps_its_id(tmp_path: Path) -> None:
    assert written(tmp_path, PLAIN, {ID: [(10, 1, 5, None)]}) == {"test/t/0": [(10, "INSERT", "1", "5")]}
