"""A segment's file: what is read of it is what was written, or an error that names it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.flow.sorter.sorter_changes import Change, batch, change, full_batch, in_order, rows
from tidemill.errors import SegmentCorruptError
from tidemill.flow.sorter.segment import BLOCK_BYTES, Segment, write_segment
from tidemill.flow.sorter.slices import SpanSlices, read_slices
from tidemill.flow.sorter.sorter import FRAME_BYTES
from tidemill.model.change import FULL_CHANGE_SCHEMA, without_rare

MANY = [change(1 + ts // 3, b"%05d" % ts) for ts in range(4000)]


def slices_of(segment: Segment, low_ts: int, high_ts: int, section: int = 0) -> SpanSlices:
    part = segment.cut(section, low_ts, high_ts)
    return SpanSlices(1, 0, 0, () if part is None else (part,))


def test_a_segment_is_an_arrow_file_that_anyone_can_open(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "s.arrow", [(1, [batch(MANY[2000:]), batch(MANY[:2500])])])
    with pa.ipc.open_file(segment.layout.path) as reader:
        assert rows([reader.read_all().combine_chunks().to_batches()[0]]) == in_order(MANY)


@pytest.mark.parametrize("plain", [0, 1300])
def test_a_segment_keeps_expiry_and_source(tmp_path: Path, plain: int) -> None:
    parts = [full_batch(MANY[2000:]), full_batch(MANY[plain:2000]), *([batch(MANY[:plain])] if plain else [])]
    segment = write_segment(tmp_path / "s.arrow", [(1, parts)])
    with pa.ipc.open_file(segment.layout.path) as reader:
        assert reader.schema.names == FULL_CHANGE_SCHEMA.names
        whole = reader.read_all()
    found = pa.Table.from_batches(read_slices(slices_of(segment, 0, 5000), batch_rows=700))
    assert found.schema == FULL_CHANGE_SCHEMA
    assert found.to_pylist() == whole.to_pylist()
    assert found.to_pylist()[plain:] == full_batch(MANY).to_pylist()[plain:]
    assert rows([without_rare(each) for each in found.to_batches()]) == MANY
    assert sum(row["expire_seconds"] for row in found.to_pylist()[:plain]) == 0


def test_segments_with_and_without_them_are_merged(tmp_path: Path) -> None:
    one = write_segment(tmp_path / "1.arrow", [(1, [full_batch(MANY[::2])])])
    two = write_segment(tmp_path / "2.arrow", [(1, [batch(MANY[1::2])])])
    slices = tuple(part for each in (one, two) if (part := each.cut(0, 0, 5000)) is not None)
    found = [row for each in read_slices(SpanSlices(1, 0, 0, slices), batch_rows=500) for row in each.to_pylist()]
    assert [row["key"] for row in found] == [change[3] for change in MANY]
    assert [row.get("txn_source", 0) for row in found[::2]] == [change[1] % 5 for change in MANY[::2]]
    assert {row.get("txn_source", 0) for row in found[1::2]} == {0}


@pytest.mark.parametrize("make", [batch, full_batch])
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_file_is_not_larger_than_what_is_reserved_for_it(
    tmp_path: Path, count: int, make: Callable[[list[Change]], pa.RecordBatch]
) -> None:
    parts = [make([change(ts, b"k" * (ts % 9)) for ts in range(first, first + 3)]) for first in range(1, 3 * count, 3)]
    segment = write_segment(tmp_path / "a.arrow", [(1, parts)])
    assert segment.layout.file_bytes <= sum(part.nbytes for part in parts) + FRAME_BYTES


def test_slices_of_bigger_batches_are_written_as_what_they_show(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "s.arrow", [(1, [batch(MANY).slice(700, 900)])])
    assert rows(read_slices(slices_of(segment, 0, 5000))) == MANY[700:1600]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 5000), (340, 342), (341, 342), (1, 1333), (1332, 1334), (700, 701)]
)
def test_a_range_of_ts_is_read_without_its_neighbours(tmp_path: Path, low: int, high: int) -> None:
    segment = write_segment(tmp_path / "s.arrow", [(1, [batch(MANY)]), (2, [batch(MANY[::7])])])
    for section, written in ((0, MANY), (1, MANY[::7])):
        expected = [c for c in written if low < c[1] <= high]
        assert rows(read_slices(slices_of(segment, low, high, section))) == expected


def test_one_segment_is_read_without_a_copy(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "s.arrow", [(1, [batch(MANY)])])
    [a, b] = read_slices(slices_of(segment, 10, 1000), batch_rows=1500)
    before = pa.total_allocated_bytes()
    again = list(read_slices(slices_of(segment, 10, 1000), batch_rows=1500))
    assert pa.total_allocated_bytes() == before
    assert again == [a, b]


def test_a_file_that_was_cut_short_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    plan = slices_of(write_segment(path, [(1, [batch(MANY)])]), 0, 5000)
    written = path.read_bytes()
    for end in (*range(0, len(written), 512), len(written) - 1):
        path.write_bytes(written[:end])
        found = rf"s\.arrow is not as it was written: it has {end} bytes instead of {len(written)}.*start again"
        with pytest.raises(SegmentCorruptError, match=found):
            list(read_slices(plan))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    plan = slices_of(write_segment(tmp_path / "s.arrow", [(1, [batch(MANY)])]), 0, 5000)
    (tmp_path / "s.arrow").unlink()
    with pytest.raises(SegmentCorruptError, match="cannot be read"):
        list(read_slices(plan))


@pytest.mark.parametrize("seed", range(50))
def test_a_flipped_bit_is_found_or_touches_nothing_that_is_read(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    path = tmp_path / "s.arrow"
    wide = [change(c[1], c[3], value=c[4] * 9) for c in MANY]
    segment = write_segment(path, [(1, [batch(wide)])])
    low, high = sorted(random.choice(1334, 2, replace=False).tolist())
    plan = slices_of(segment, low, high)
    damaged = bytearray(path.read_bytes())
    at = int(random.integers(len(damaged)))
    damaged[at] ^= 1 << int(random.integers(8))
    path.write_bytes(damaged)
    found: list[Change] | None = None
    with suppress(SegmentCorruptError):
        found = rows(read_slices(plan))
    # Guarded are whole blocks, so a flip beside what is read may be found as well; beyond them nothing is.
    guarded = {run.first + i for run in plan.slices[0].sums for i in range(len(run))}
    assert found == [c for c in wide if low < c[1] <= high] or (found is None and at // BLOCK_BYTES in guarded)


def test_every_bit_of_a_small_segment_that_is_read_is_guarded(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    plan = slices_of(write_segment(path, [(1, [batch(MANY[:3])])]), 0, 5000)
    written = path.read_bytes()
    for at in range(len(written)):
        path.write_bytes(written[:at] + bytes([written[at] ^ 0x10]) + written[at + 1 :])
        with pytest.raises(SegmentCorruptError):
            list(read_slices(plan))


def test_the_writer_also_checks_what_it_looks_up(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    segment = write_segment(path, [(1, [batch(MANY)])])
    written = path.read_bytes()
    at = segment.layout.fixed[1] + 8 * 1500
    path.write_bytes(written[:at] + b"\xff" + written[at + 1 :])
    with pytest.raises(SegmentCorruptError, match="have the checksum"):
        segment.cut(0, 0, MANY[1500][1])


def test_what_exceeds_a_column_is_cut_between_two_keys(tmp_path: Path) -> None:
    giant = [change(9, b"%04d" % i, value=b"v" * 100) for i in range(900)]
    parts = [
        write_segment(tmp_path / f"{i}.arrow", [(1, [batch(giant[i::3] + giant[:10])])]).cut(0, 0, 9) for i in range(3)
    ]
    plan = SpanSlices(1, 0, 0, tuple(part for part in parts if part is not None))
    batches = list(read_slices(plan, most_bytes=10_000))
    assert rows(batches) == giant
    assert len(batches) > 5
    assert {str(b.schema.field("value").type) for b in batches} == {"binary"}
