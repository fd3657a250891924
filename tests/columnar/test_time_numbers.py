"""Dates and times as numbers and back, beside Python's own calendar."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.columnar import moment_text, time_numbers
from tidemill.columnar.time_numbers import DAY_MICROS, Numbers

EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)


def seen(found: Numbers) -> list[int | None]:
    pairs = zip(found.value.tolist(), found.is_number.tolist(), strict=True)
    return [value if is_number else None for value, is_number in pairs]


@given(st.lists(st.none() | st.datetimes()), st.integers(0, 6), st.integers(0, 3))
def test_a_datetime_is_the_microseconds_since_1970(moments: list[datetime | None], places: int, begin: int) -> None:
    unit = 10 ** (6 - places)
    cut = [m and m.replace(microsecond=m.microsecond // unit * unit) for m in moments]
    texts = [m and (m.isoformat(" ", "microseconds")[: 20 + places] if places else str(m)[:19]) for m in cut]
    found = time_numbers.moments(pa.array(texts, pa.string()).slice(begin))
    assert seen(found) == [m and (m - EPOCH) // MICROSECOND for m in cut[begin:]]


@given(st.lists(st.dates()))
def test_a_date_is_its_days_since_1970(dates: list[date]) -> None:
    found = time_numbers.moments(pa.array([d.isoformat() for d in dates], pa.string()))
    assert [value // DAY_MICROS for value in found.value.tolist()] == [(d - EPOCH.date()).days for d in dates]
    assert found.is_number.all()


@pytest.mark.parametrize(
    ("text", "is_recent", "expected"),
    [
        ("0018-03-01", True, "2018-03-01"),
        ("0069-12-31", True, "2069-12-31"),
        ("0070-01-01", True, "1970-01-01"),
        ("0099-12-31", True, "1999-12-31"),
        ("0100-01-01", True, "0100-01-01"),
        ("0018-03-01", False, "0018-03-01"),
    ],
)
def test_small_years_are_recent_where_that_is_wanted(text: str, is_recent: bool, expected: str) -> None:
    found = time_numbers.moments(pa.array([text]), is_recent=is_recent)
    assert seen(found) == [(datetime.fromisoformat(expected) - EPOCH) // MICROSECOND]


@pytest.mark.parametrize(
    "text",
    [
        *("", "0000-00-00", "2024-00-01", "2024-01-00", "2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31"),
        *("2024-01-01 24:00:00", "2024-01-01 00:60:00", "2024-01-01T00:00:00", "20240101 1", "2024-01-01 "),
        *("2024-01-01 00:00:00.1234567", "2024-01-01 00:00:00,5", "2024-01-01 0:00:00", "x024-01-01", "2024-1-01"),
    ],
)
def test_what_is_no_moment_has_no_number(text: str) -> None:
    assert seen(time_numbers.moments(pa.array([text]))) == [None]


@given(st.lists(st.none() | st.timedeltas(timedelta(hours=-838), timedelta(hours=838))))
def test_a_time_is_its_microseconds(spans: list[timedelta | None]) -> None:
    texts = [None if span is None else written(span) for span in spans]
    found = time_numbers.durations(pa.array(texts, pa.string()))
    assert seen(found) == [None if span is None else span // MICROSECOND for span in spans]


def written(span: timedelta) -> str:
    micros = abs(span // MICROSECOND)
    seconds = micros // 1_000_000
    sign = "-" if span < timedelta() else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros % 1_000_000:06d}"


@pytest.mark.parametrize("text", ["", "-", "12", "12:34", "12:34:5x", "12:34:56.7.8", "12345:00:00", "--01:00:00"])
def test_what_is_no_time_has_no_number(text: str) -> None:
    assert seen(time_numbers.durations(pa.array([text]))) == [None]


@given(st.lists(st.datetimes(timezones=st.just(UTC))), st.integers(0, 6))
def test_moments_are_printed_as_python_prints_them(moments: list[datetime], places: int) -> None:
    numbers = [(m.replace(tzinfo=None) - EPOCH) // MICROSECOND for m in moments]
    there = np.ones(len(numbers), np.uint8)
    found = moment_text.zoned(np.array(numbers, np.int64), there, places, b"")
    found.validate(full=True)
    whole = [m.replace(tzinfo=None).isoformat("T", "microseconds") for m in moments]
    assert found.to_pylist() == [(text[: 20 + places] if places else text[:19]) + "Z" for text in whole]


def test_something_else_stands_where_no_moment_is() -> None:
    there = np.array([0, 1], np.uint8)
    assert moment_text.zoned(np.array([5, 0]), there, 1, b"none").to_pylist() == ["none", "1970-01-01T00:00:00.0Z"]
