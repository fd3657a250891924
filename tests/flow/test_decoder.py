"""What a unit's raw changes mean, and that nothing but its decoder knows."""

import asyncio
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tests.flow.mounter.tables import ID, column, primary, table
from tests.flow.test_pipeline import PLAIN, changes
from tests.reference.encode import int_cell, record_key, row_v2
from tidemill.errors import RowUndecodableError
from tidemill.flow.decoder import Reading, TableDecoder
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.skew import share_skewed
from tidemill.flow.sorter import Sorter
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.progress import Extent
from tidemill.model.receipt import Receipt, Undecodable
from tidemill.model.row import LargeRows, RowBatch
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts


def test_of_several_rows_that_cannot_be_decoded_the_first_committed_is_named() -> None:
    info = table(primary(), column(2, ColumnType.LONG), column(3, ColumnType.LONG), pk_is_handle=True)
    good, bad_second, bad_first = (
        row_v2({2: int_cell(1), 3: int_cell(1)}),
        row_v2({2: int_cell(1), 3: b"\1\2\3"}),  # no integer has three bytes
        row_v2({2: b"\1\2\3", 3: int_cell(1)}),
    )
    rows = [
        {"start_ts": ts - 1, "commit_ts": ts, "op": Op.PUT, "key": record_key(ID, ts), "value": value, "old_value": b""}
        for ts, value in [(10, good), (20, good), (30, bad_second), (40, good), (50, bad_first), (60, good)]
    ]
    decoder = TableDecoder(info, ID)
    batch = pa.RecordBatch.from_pylist(rows, RAW_CHANGE_SCHEMA)
    with pytest.raises(RowUndecodableError, match="commit-ts 30") as raised:
        decoder.decode(batch, Reading("UTC"), [])
    assert (raised.value.key, raised.value.column, raised.value.commit_ts) == (record_key(ID, 30), "c3", 30)
    assert len(decoder.decode(batch.slice(0, 2), Reading("UTC"), [])) == 2


def test_what_cannot_be_decoded_is_set_aside_where_that_is_wanted() -> None:
    batch = changes(ID, (10, 1, 5, None), (20, 2, 6, None))
    damaged = pa.RecordBatch.from_pylist(
        [{**row, "value": b"\x80\x00"} if row["commit_ts"] == 20 else row for row in batch.to_pylist()],
        RAW_CHANGE_SCHEMA,
    )
    aside: list[Undecodable] = []
    rows = TableDecoder(PLAIN, ID).decode(damaged, Reading("UTC", sets_aside=True), aside)
    assert (rows.commit_ts.tolist(), [entry.commit_ts for entry in aside]) == ([10], [20])


@pytest.mark.parametrize(("is_mixed", "allowed"), [(False, True), (False, False), (True, True)])
def test_a_table_is_shared_where_the_sink_allows_it_and_its_keys_are_its_rows(is_mixed: bool, allowed: bool) -> None:
    decoder = TableDecoder(PLAIN, ID, is_mixed)
    assert decoder.may_share(lambda found: found is PLAIN and allowed) is (allowed and not is_mixed)


def test_a_decoder_travels_to_executors() -> None:
    assert pickle.loads(pickle.dumps(TableDecoder(PLAIN, ID, True))) == TableDecoder(PLAIN, ID, True)


@dataclass(frozen=True)
class Plain:
    """Of no table that anybody asks for: the value of each change is a row's only column, as it is."""

    is_mixed: bool = False

    def may_share(self, allows: Callable[[TableInfo], bool]) -> bool:
        return True

    def pieces(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from (changes.slice(at, 2) for at in range(0, len(changes), 2))

    def decode(self, changes: pa.RecordBatch, reading: Reading, aside: list[Undecodable]) -> RowBatch:
        rows = TableDecoder(PLAIN, ID).decode(changes, reading, aside)
        return RowBatch(PLAIN, 0, rows.op, rows.start_ts, rows.commit_ts, rows.new, rows.old)


@dataclass
class Taken:
    batches: list[RowBatch] = field(default_factory=list)

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        found = [each for each in rows if isinstance(each, RowBatch)]
        self.batches += found
        return Receipt("", 0, 0, sum(map(len, found)), 0)

    def share(self, number: int) -> "Taken":
        return self


def test_the_pipeline_asks_the_decoder_alone(tmp_path: Path) -> None:
    sorter = Sorter(tmp_path, segment_bytes=1)

    async def fill() -> None:
        sorter.open_span(ID, Ts(0))
        await sorter.add(ID, changes(ID, *((ts, ts, ts, None) for ts in range(1, 6))))
        sorter.advance(ID, Ts(100))

    asyncio.run(fill())
    [slices] = sorter.plan(Extent(Ts(0), Ts(100)))
    target = Taken()
    units = share_skewed([Unit(Plain(), slices, target)], 2, lambda _: False, least_bytes=1)
    assert len(units) == 2, "the sink's word is for tables"
    assert sum(Pipeline("UTC").process(unit).rows for unit in units) == 5
    assert {batch.physical_id for batch in target.batches} == {0}
    assert max(map(len, target.batches)) <= 2
    sorter.close()
