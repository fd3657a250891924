"""Transactions that are too large to be held, and ranges of keys."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.sorter.sorter_changes import Change, batch, change, in_order, rows
from tests.rounds import examples
from tidemill.flow.sorter import KeyRange, LargeTransaction, SpanSlices, pick_keys, read_portions, read_slices
from tidemill.flow.sorter.segment import write_segment


def written(folder: Path, parts: list[list[Change]]) -> SpanSlices:
    """Each part as a segment, all of it as one plan."""
    slices = [
        write_segment(folder / f"{i}.arrow", [(1, [batch(part)])]).cut(0, 0, 1 << 60)
        for i, part in enumerate(parts)
        if part
    ]
    found = tuple(each for each in slices if each is not None)
    return SpanSlices(1, sum(map(len, found)), 0, found)


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    large=st.integers(1, 400),
    small=st.integers(0, 60),
    segments=st.integers(1, 6),
    batch_rows=st.integers(1, 40),
)
def test_a_transaction_of_any_size_comes_whole_and_in_order(
    seed: int, large: int, small: int, segments: int, batch_rows: int
) -> None:
    chosen = Random(seed)
    changes = [change(50, b"%06d" % k, start_ts=chosen.choice([40, 41])) for k in chosen.sample(range(10_000), large)]
    changes += [change(chosen.randint(1, 99) | 1, b"%03d" % chosen.randrange(1000)) for _ in range(small)]
    parts: list[list[Change]] = [[] for _ in range(segments)]
    for each in changes:
        for part in chosen.sample(parts, chosen.randint(1, min(2, segments))):  # some are delivered twice
            part.append(each)
    with TemporaryDirectory() as folder:
        plan = written(Path(folder), parts)
        assert rows(read_slices(plan, batch_rows)) == in_order(changes)
        assert rows(read_slices(plan, batch_rows, batch_bytes=100)) == in_order(changes)


def test_a_large_transaction_is_read_in_pieces_and_again(tmp_path: Path) -> None:
    before, after = [change(8, b"b")], [change(10, b"a")]
    giant = [change(9, b"%05d" % i, value=b"v" * 20) for i in range(20_000)]
    shuffled = Random(1).sample(giant, len(giant))
    plan = written(tmp_path, [shuffled[i::3] for i in range(3)] + [before + after])
    first, transaction, last = read_portions(plan, batch_rows=1000)
    assert isinstance(transaction, LargeTransaction)
    assert not isinstance(first, LargeTransaction)
    assert not isinstance(last, LargeTransaction)
    assert (rows([first]), rows([last])) == (before, after)
    for _ in range(2):
        pieces = list(transaction.read())
        assert rows(pieces) == giant
        assert len(pieces) >= 18
        assert max(map(len, pieces)) <= 1_500
    assert transaction.commit_ts == 9
    assert len(transaction) == 20_000


def test_a_few_huge_rows_among_many_small_ones_are_read_in_pieces_by_bytes(tmp_path: Path) -> None:
    """They lie between two samples of rows, and within one window of keys that is cut by the average size."""
    small = [change(8, b"%04d" % i, value=b"v") for i in range(500)]
    giant = [change(9, b"%04d" % i, value=b"v" * (2_000 if 100 <= i < 200 else 1)) for i in range(400)]
    segment = write_segment(tmp_path / "0.arrow", [(1, [batch(small + giant)])], sample_bytes=5_000)
    part = segment.cut(0, 0, 9)
    assert part is not None
    before, transaction = read_portions(SpanSlices(1, len(part), 0, (part,)), batch_bytes=20_000)
    assert isinstance(transaction, LargeTransaction)
    assert not isinstance(before, LargeTransaction)
    pieces = list(transaction.read())
    assert rows([before, *pieces]) == in_order(small + giant)
    assert max(sum(len(row[3]) + len(row[4]) + len(row[5]) for row in rows([piece])) for piece in pieces) <= 20_000


@pytest.mark.parametrize(("value", "expected"), [(b"x" * 1000, True), (b"x", False)])
def test_few_rows_are_large_if_they_are_wide(tmp_path: Path, value: bytes, expected: bool) -> None:
    plan = written(tmp_path, [[change(9, b"%d" % i, value=value) for i in range(100)]])
    [found] = read_portions(plan, batch_bytes=10_000)
    assert isinstance(found, LargeTransaction) is expected
    if isinstance(found, LargeTransaction):
        assert max(each.nbytes for each in found.read()) < 20_000


@pytest.mark.parametrize(
    ("value", "old_value", "kinds"),
    [
        (b"", b"o", (True, False, False)),
        (b"v", b"o", (False, True, False)),
        (b"v", b"", (False, False, True)),
    ],
)
def test_what_is_in_a_large_transaction_is_known_before_it_is_read(
    tmp_path: Path, value: bytes, old_value: bytes, kinds: tuple[bool, bool, bool]
) -> None:
    plan = written(tmp_path, [[(*change(9, b"%d" % i)[:4], value, old_value) for i in range(100)]])
    [found] = read_portions(plan, batch_rows=10)
    assert isinstance(found, LargeTransaction)
    assert found.kinds() == kinds


@settings(max_examples=examples(40), deadline=None)
@given(
    changes=st.lists(
        st.builds(change, st.integers(1, 9), st.integers(0, 40).map(lambda k: b"%02d" % k)), min_size=1, max_size=300
    ),
    segments=st.integers(1, 4),
    bounds=st.lists(st.binary(max_size=3), max_size=4, unique=True),
    batch_rows=st.integers(2, 100),
)
def test_ranges_of_keys_together_are_the_whole_and_keep_each_key_in_order(
    changes: list[Change], segments: int, bounds: list[bytes], batch_rows: int
) -> None:
    ends: list[bytes | None] = [*sorted(b for b in bounds if b), None]
    with TemporaryDirectory() as folder:
        plan = written(Path(folder), [changes[i::segments] for i in range(segments)])
        low, found = b"", []
        for end in ends:
            part = SpanSlices(1, plan.rows, plan.bytes, plan.slices, KeyRange(low, end))
            found.append(rows(read_slices(part, batch_rows)))
            assert found[-1] == in_order(found[-1])
            assert all(low <= c[3] and (end is None or c[3] < end) for c in found[-1])
            low = end or b""
    assert in_order(c for part in found for c in part) == in_order(changes)
    assert sum(map(len, found)) == len(set(changes))


def test_picked_keys_cut_the_changes_into_equal_parts(tmp_path: Path) -> None:
    chosen = Random(3)
    changes = [change(ts, b"%05d" % int(chosen.gauss(50_000, 5_000))) for ts in range(1, 9_000)]
    plan = written(tmp_path, [changes[:5_000], changes[5_000:8_000], changes[8_000:]])
    keys = pick_keys(plan, 200)
    assert 180 <= len(keys) <= 220
    middle = keys[len(keys) // 2]
    below = sum(c[3] < middle for c in changes)
    assert 0.4 < below / len(changes) < 0.6
