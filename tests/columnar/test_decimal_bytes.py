"""Decimals as bytes, beside Python's own whole numbers."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.columnar.decimal_bytes import unscaled
from tidemill.errors import CorruptDataError


def shortest(number: int) -> bytes:
    """Two's complement in as few bytes as hold it."""
    size = ((number if number >= 0 else ~number).bit_length() + 8) // 8
    return number.to_bytes(size, "big", signed=True)


def written(number: int, scale: int) -> str:
    digits = f"{abs(number):0{scale + 1}d}"
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return ("-" if number < 0 else "") + whole + ("." + fraction if scale else "")


@given(st.lists(st.none() | st.integers(-(10**65) + 1, 10**65 - 1)), st.integers(0, 30), st.integers(0, 3))
def test_a_decimal_is_its_digits_as_one_number(numbers: list[int | None], scale: int, begin: int) -> None:
    texts = [None if n is None else written(n, scale) for n in numbers]
    found = unscaled(pa.array(texts, pa.string()).slice(begin), scale)
    found.validate(full=True)
    assert found.to_pylist() == [None if n is None else shortest(n) for n in numbers[begin:]]


@pytest.mark.parametrize(
    ("text", "scale", "expected"),
    [
        ("0", 0, "00"),
        ("-0.00", 2, "00"),
        ("127", 0, "7f"),
        ("128", 0, "0080"),
        ("-128", 0, "80"),
        ("-129", 0, "ff7f"),
        ("-12.50", 2, "fb1e"),
        ("12.5", 3, "30d4"),
        ("7", 2, "02bc"),
        ("9" * 65, 0, "00f316271c7fc3908a8bef464e3945ef7a253609ffffffffffffffff"),
    ],
)
def test_decimals(text: str, scale: int, expected: str) -> None:
    assert unscaled(pa.array([text]), scale)[0].as_py().hex() == expected


@pytest.mark.parametrize("text", ["", "-", "1.234", "1e5", "1.2.3", "9" * 80, " 1", "+1"])
def test_what_is_no_decimal_of_the_scale_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="no decimal of this scale"):
        unscaled(pa.array([text]), 2)
