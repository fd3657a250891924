"""Readers meet wherever a value may pass to another partition; who obeys has the table in the end, in any order."""

import random

import numpy as np
import pytest

from tests.flow.dispatcher.conflict_world import Change, Downstream, Row, changes, hashed
from tests.flow.encoder.samples import KEY, NOT_NULL, column, rows_of, table_of
from tidemill.consumer.alignment import Alignment, Consistency, Position, Write
from tidemill.flow.dispatcher.conflicts import Crossings, key_hashes
from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.model.event import ResolvedSeen
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

PARTITIONS = 3


def placed(some: list[Change]) -> np.ndarray:
    keys = [(new or old or (0,))[0] for _, old, new in some]
    return np.array([key % PARTITIONS for key in keys], np.int32)


def meetings(some: list[Change], portion: int, most_keys: int = 1 << 20) -> list[int]:
    crossings, found = Crossings(most_keys), list[int]()
    for first in range(0, len(some), portion):
        part = some[first : first + portion]
        stamps = np.array([ts for ts, _, _ in part], np.uint64)
        found += crossings.meetings(hashed(part), placed(part), stamps)
    return found


@pytest.mark.parametrize(
    ("some", "wanted"),
    [
        pytest.param([(10, None, (0, 1, 1)), (20, None, (1, 2, 2))], [9], id="others have nothing to do with it"),
        pytest.param([(10, None, (0, 1, 1)), (20, (0, 1, 1), None)], [9], id="a row by itself"),
        pytest.param(
            [(10, None, (0, 1, 1)), (20, (0, 1, 1), None), (30, None, (1, 1, 5))], [9, 29], id="taken over elsewhere"
        ),
        pytest.param(
            [(10, None, (0, 1, 1)), (20, (0, 1, 1), None), (30, None, (3, 1, 5))], [9], id="taken over in the partition"
        ),
        pytest.param(
            [(10, (0, 1, 1), None), (10, None, (1, 1, 5)), (20, None, (2, 3, 3))], [9], id="within a transaction"
        ),
        pytest.param(
            [(10, (0, 1, 1), None), (10, None, (1, 1, 5)), (20, (1, 1, 5), None)], [9, 19], id="and used after that"
        ),
    ],
)
def test_where_readers_meet(some: list[Change], wanted: list[int]) -> None:
    assert meetings(some, len(some)) == wanted


def test_portions_that_part_a_transaction_forget_nothing_of_it() -> None:
    some: list[Change] = [(10, (0, 1, 1), None), (10, None, (1, 1, 5)), (20, (1, 1, 5), None)]
    assert set(meetings(some, 1)) >= {9, 19}


def read_by_rows(some: list[Change], met: list[int], rng: random.Random) -> Downstream:
    """Each partition as far as the alignment lets it; some of it twice."""
    downstream, where = Downstream(), placed(some)
    alignment = Alignment(range(PARTITIONS), Position(), Consistency.ROW, ddls_in_first_only=False)
    for ts in met:
        alignment.meet(Ts(ts))
    steps = sorted({ts for ts, _, _ in some})
    told = dict.fromkeys(range(PARTITIONS), 0)
    while any(at < len(steps) for at in told.values()) or alignment.step() is not None:
        behind = [p for p, at in told.items() if at < len(steps)]
        if behind:  # a partition hears of a resolved-ts, some sooner than others
            partition = rng.choice(behind)
            told[partition] = rng.randint(told[partition] + 1, len(steps))
            alignment.resolve(partition, ResolvedSeen(Ts(steps[told[partition] - 1])))
        step = alignment.step()
        if isinstance(step, Write):
            applied = dict(alignment.position.applied)
            end_ts = rng.choice(
                [max(step.to.values()), rng.randint(1, steps[-1])]
            )  # less may be done, all ending alike
            to = {p: Ts(max(applied[p], min(ts, end_ts))) for p, ts in step.to.items()}
            for change, at in zip(some, where, strict=True):  # in the order of their ts, whatever partition they are in
                if applied[at] < change[0] <= to.get(at, 0):
                    downstream.apply(change)
            if rng.random() < 0.8:  # else it is lost that this was done, and a part of it is done again
                alignment.written(to)
    return downstream


@pytest.mark.parametrize("number", range(60))
def test_a_table_whose_values_are_swapped_is_right_in_the_end(number: int) -> None:
    rng = random.Random(number)
    some, wanted = changes(rng, 40)
    met = meetings(some, rng.choice([1, 3, 7, 1000]), rng.choice([0, 5, 1 << 20]))
    assert read_by_rows(some, met, rng).rows == wanted


def test_without_meetings_it_would_not_be() -> None:
    wrong = 0
    for number in range(60):
        rng = random.Random(number)
        some, wanted = changes(rng, 40)
        wrong += read_by_rows(some, [], rng).rows != wanted
    assert wrong > 10


def test_what_is_sent_again_from_earlier_on_adds_meetings_and_takes_none_away() -> None:
    for number in range(60):
        rng = random.Random(number)
        some, wanted = changes(rng, 40)
        at = rng.randrange(len(some))
        met = meetings(some[:at], 5) + meetings([each for each in some if each[0] >= some[at][0]], 7)
        assert read_by_rows(some, met, rng).rows == wanted


def test_no_meeting_is_kept_once_all_have_been_there() -> None:
    alignment = Alignment(range(2), Position(), Consistency.ROW, ddls_in_first_only=False)
    alignment.meet(Ts(10))
    for partition, ts in ((0, 30), (1, 5)):
        alignment.resolve(partition, ResolvedSeen(Ts(ts)))
    assert alignment.step() == Write({0: Ts(10), 1: Ts(5)})
    alignment.written({0: Ts(10), 1: Ts(5)})
    assert alignment.step() is None
    assert not alignment.is_met(Ts(10))
    alignment.resolve(1, ResolvedSeen(Ts(12)))
    assert alignment.step() == Write({0: Ts(30), 1: Ts(12)})
    alignment.written({1: Ts(10)})
    assert alignment.is_met(Ts(10))
    assert alignment.step() == Write({0: Ts(30), 1: Ts(12)})
    alignment.meet(Ts(9))  # a copy
    assert alignment.is_met(Ts(9))


def test_whole_transactions_need_no_meetings() -> None:
    alignment = Alignment(range(2), Position(), Consistency.TRANSACTION, ddls_in_first_only=False)
    alignment.meet(Ts(10))
    for partition in range(2):
        alignment.resolve(partition, ResolvedSeen(Ts(30)))
    assert alignment.step() == Write({0: Ts(30), 1: Ts(30)})


def work(rng: random.Random, rows: int, count: int, swaps: float) -> list[Change]:
    """Updates of ``rows`` rows, of which a share swap a unique value with another row's."""
    there: list[Row] = [(key, key, key) for key in range(rows)]
    found: list[Change] = []
    while len(found) < count:
        ts, one, other = 10 * len(found) + 10, rng.randrange(rows), rng.randrange(rows)
        a, b = there[one], there[other]
        if one == other or rng.random() >= swaps:
            found.append((ts, a, a))
            continue
        there[one], there[other] = (one, b[1], a[2]), (other, a[1], b[2])
        found += [(ts, a, None), (ts, b, None), (ts, None, there[one]), (ts, None, there[other])]
    return found


@pytest.mark.parametrize(
    ("rows", "swaps", "most"),
    [
        pytest.param(100_000, 0.0, 100, id="no swaps"),
        pytest.param(100_000, 0.01, 1_000, id="one in a hundred, of many rows"),
        pytest.param(1_000, 0.01, 10_000, id="one in a hundred, of few rows"),
        pytest.param(1_000, 0.5, 30_000, id="every other one, of few rows"),
    ],
)
def test_how_often_readers_meet(rows: int, swaps: float, most: int) -> None:
    some = work(random.Random(1), rows, 50_000, swaps)
    info = table_of(
        *(column(name, ColumnType.LONGLONG, KEY if name == "id" else NOT_NULL, flen=20) for name in ("id", "a", "b")),
        uniques=[["a"], ["b"]],
    )
    images = [(row and dict(zip(("id", "a", "b"), row, strict=True))) for change in some for row in change[1:]]
    batch = rows_of(info, *zip(images[::2], images[1::2], strict=True), ts=[ts for ts, _, _ in some])
    rule = PartitionRule(Kind.CONFLICT)
    where, keys, met = rule.partitions(batch, 9), key_hashes(batch), 0
    for first in range(0, len(some), 20_000):  # rows of a batch
        crossings = Crossings()
        for at in range(first, min(first + 20_000, len(some)), 8192):
            part = slice(at, min(at + 8192, first + 20_000, len(some)))
            met += len(set(crossings.meetings(keys[part], where[part], batch.commit_ts[part])))
    skew = {
        kind.value: float(np.bincount(PartitionRule(kind).partitions(batch, 9), minlength=9).max() * 9 / len(some))
        for kind in (Kind.TABLE, Kind.INDEX_VALUE, Kind.CONFLICT)
    }
    per_million = met * 1_000_000 // len(some)
    print(f"largest partition over the mean {skew}, {per_million} meetings per million rows")
    assert skew["table"] == 9.0
    assert skew["conflict"] == skew["index-value"] < 1.2
    assert per_million <= most
