"""Columns of floats as text, against Python's own digits."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.columnar.float_text import general, positional

FINITE = {"allow_nan": False, "allow_infinity": False}
COLUMNS = st.one_of(
    st.lists(st.none() | st.floats(**FINITE), max_size=8).map(lambda values: pa.array(values, pa.float64())),
    st.lists(st.none() | st.floats(width=32, **FINITE), max_size=8).map(lambda values: pa.array(values, pa.float32())),
)


def shortest(value: float, kind: pa.DataType) -> str:
    return str(np.float32(value)) if kind == pa.float32() else repr(value)


def positional_of(text: str) -> str:
    shown = f"{Decimal(text):f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


@given(COLUMNS)
def test_positional_has_the_shortest_digits_and_no_exponent(column: pa.Array) -> None:
    expected = [None if v is None else positional_of(shortest(v, column.type)) for v in column.to_pylist()]
    found = positional(column)
    found.validate(full=True)
    assert found.to_pylist() == expected


@given(COLUMNS)
def test_general_has_the_same_digits_and_an_exponent_for_the_large_and_the_small(column: pa.Array) -> None:
    for value, text in zip(column.to_pylist(), general(column).to_pylist(), strict=True):
        if value is None:
            assert text is None
            continue
        exact = Decimal(shortest(value, column.type))
        assert Decimal(text) == exact
        assert ("e" in text) is (exact != 0 and not -4 <= exact.adjusted() <= 5)


@pytest.mark.parametrize(
    ("value", "plain", "short"),
    [
        (0.0, "0", "0"),
        (-0.0, "-0", "-0"),
        (1e-4, "0.0001", "0.0001"),
        (9.5e-5, "0.000095", "9.5e-05"),
        (999999.0, "999999", "999999"),
        (1e6, "1000000", "1e+06"),
        (-1.5e21, "-1500000000000000000000", "-1.5e+21"),
        (1e100, "1" + 100 * "0", "1e+100"),
        (5e-324, "0." + 323 * "0" + "5", "5e-324"),
        (float("nan"), "0", "0"),
        (float("-inf"), "0", "0"),
    ],
)
def test_layouts(value: float, plain: str, short: str) -> None:
    column = pa.array([value])
    assert positional(column).to_pylist() == [plain]
    assert general(column).to_pylist() == [short]


def test_a_part_of_a_column_is_printed_as_such() -> None:
    column = pa.array([1.5, None, 2.5, None, 3.5]).slice(1, 3)
    assert positional(column).to_pylist() == [None, "2.5", None]
