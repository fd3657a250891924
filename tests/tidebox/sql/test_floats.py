"""Floating-point numbers as TiDB shows them to clients."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.sql.floats import show_double, show_float


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (-1.5, "-1.5"),
        (1e-5, "0.00001"),
        (1.25e-10, "0.000000000125"),
        (1e-15, "0.000000000000001"),
        (9.9e-16, "9.9e-16"),
        (999999999999999.0, "999999999999999"),
        (1e15, "1e15"),
        (1.5e20, "1.5e20"),
        (-1.7976931348623157e308, "-1.7976931348623157e308"),
        (5e-324, "5e-324"),
        (123456789012345.67, "123456789012345.67"),
        (float("inf"), "0"),
        (float("nan"), "0"),
    ],
)
def test_double(value, shown):
    assert show_double(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.1, "0.1"),
        (16777216.0, "16777216"),
        (3.4028234e38, "3.40282e38"),
        (1e15, "1e15"),
        (1e14, "100000000000000"),
        (1e-10, "0.0000000001"),
        (1.401298464324817e-45, "1.4013e-45"),
        (1e300, "0"),
        (float("-inf"), "0"),
    ],
)
def test_float(value, shown):
    assert show_float(value) == shown


def test_fixed_decimals_are_all_shown():
    assert show_double(1.5, 3) == "1.500"
    assert show_float(2.25, 1) == "2.2"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_shown_double_reads_back(value):
    assert float(show_double(value)) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=2.0**-46, max_value=2.0**46))
def test_a_shown_float_reads_back(value):
    assert struct.pack("<f", np.float32(show_float(value))) == struct.pack("<f", value)
