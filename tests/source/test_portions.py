"""Which tables are read together, and how their changes are told apart again."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.sorter.sorter_changes import batch, change, rows
from tidemill.source.portions import by_table, portions, span_of
from tidemill.tidb.keys import encode_bytes, record_key, record_prefix, table_prefix


@pytest.mark.parametrize(
    ("ids", "strangers", "most", "expected"),
    [
        pytest.param([], [], 2, [], id="no tables need no reading"),
        pytest.param([1, 3], [], 2, [[1], [3]], id="few tables are read one by one"),
        pytest.param([1, 3, 5, 7, 9], [], 2, [[1, 3, 5], [7, 9]], id="neighbours are read together, gaps or not"),
        pytest.param([1, 3, 5, 7], [4], 2, [[1, 3], [5, 7]], id="between two portions a stranger costs nothing"),
        pytest.param([1, 3, 5, 7], [2], 2, [[1], [3, 5], [7]], id="no portion reaches across a stranger"),
        pytest.param([1, 3, 5, 7], [2, 4, 6], 2, [[1, 3], [5, 7]], id="too many strangers are read along"),
        pytest.param([4, 5], [1, 9], 1, [[4, 5]], id="strangers outside do not matter"),
    ],
)
def test_portions(ids: list[int], strangers: list[int], most: int, expected: list[list[int]]) -> None:
    assert portions(ids, strangers, most) == expected


@given(st.sets(st.integers(0, 300)), st.sets(st.integers(0, 300)), st.integers(1, 20))
def test_every_table_is_in_one_portion_and_there_are_never_many(ids: set[int], others: set[int], most: int) -> None:
    strangers = sorted(others - ids)
    found = portions(sorted(ids), strangers, most)
    assert [i for portion in found for i in portion] == sorted(ids)
    assert len(found) <= 2 * most
    crossed = [s for s in strangers for portion in found if portion[0] < s < portion[-1]]
    runs = 1 + sum(any(a < s < b for s in strangers) for a, b in zip(sorted(ids), sorted(ids)[1:], strict=False))
    assert not crossed or runs > most


def test_the_span_of_a_portion_has_every_row_of_its_tables_and_none_beside_them() -> None:
    span = span_of([5, 7, 9])
    inside = [record_key(5, -(1 << 63)), record_key(7, 0), record_prefix(9) + b"\xff" * 20]
    outside = [record_key(4, (1 << 63) - 1), table_prefix(5) + b"_i", table_prefix(9) + b"_s", record_key(10, 0)]
    assert [encode_bytes(key) in span for key in inside + outside] == [True] * 3 + [False] * 4


KEYS = st.one_of(
    st.tuples(st.sampled_from([-1, 1, 2, 256, 1 << 40]), st.binary(min_size=1, max_size=12)).map(
        lambda k: record_prefix(k[0]) + k[1]
    ),
    st.sampled_from([b"", b"t", b"m" * 20, table_prefix(1) + b"_i" + b"x" * 9, record_prefix(1), b"u" * 12]),
)


@given(st.lists(st.tuples(st.integers(1, 50), KEYS)), st.data())
def test_changes_are_given_to_their_tables_in_order_and_what_is_no_row_to_none(
    made: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    changes = [change(ts, key) for ts, key in made]
    low = data.draw(st.integers(0, len(changes)))
    expected = defaultdict(list)
    for one in changes[low:]:
        if len(one[3]) > 11 and one[3][:1] == b"t" and one[3][9:11] == b"_r":
            expected[int.from_bytes(one[3][1:9], "big") - (1 << 63)].append(one)
    found = [(table, rows([part])) for table, part in by_table(batch(changes).slice(low))]
    assert found == sorted(expected.items())


def test_changes_of_one_table_are_passed_on_as_they_are() -> None:
    changes = batch([change(5, record_key(3, 1)), change(4, record_key(3, 2))])
    ((table, part),) = by_table(changes)
    assert table == 3
    assert part is changes
