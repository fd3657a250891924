"""What people may write where a ts is wanted."""

from zoneinfo import ZoneInfo

import pytest

from tidemill.model.moments import ts_of
from tidemill.model.ts import compose

MOMENT = 1_772_360_100_000  # 2026-03-01 10:15:00 UTC
NOW_SECONDS = MOMENT / 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("464613566054400000", 464613566054400000, id="a TSO"),
        pytest.param("2026-03-01T10:15:00Z", compose(MOMENT), id="a time"),
        pytest.param("2026-03-01 11:15:00.250+01:00", compose(MOMENT + 250), id="a time with its zone"),
        pytest.param("2026-03-01", compose(MOMENT - (10 * 60 + 15) * 60_000), id="a day"),
        pytest.param(" Now ", compose(MOMENT), id="now"),
        pytest.param("-15m", compose(MOMENT - 15 * 60_000), id="a quarter of an hour ago"),
        pytest.param("-1d2h30m5s", compose(MOMENT - (26 * 3600 + 1805) * 1000), id="several units"),
        pytest.param("-0s", compose(MOMENT), id="no time ago"),
    ],
)
def test_a_moment(text: str, expected: int) -> None:
    assert ts_of(text, NOW_SECONDS) == expected


def test_a_time_without_a_zone_is_in_the_one_that_is_given() -> None:
    assert ts_of("2026-03-01 11:15:00", NOW_SECONDS, ZoneInfo("Europe/Berlin")) == compose(MOMENT)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("1772360100", "like seconds since 1970.*write 2026-03-01T10:15:00Z, or 4646", id="Unix seconds"),
        pytest.param(str(1 << 63), "too large", id="more than signed numbers hold"),
        pytest.param("-999999999d", "no cluster runs", id="before the calendar"),
        pytest.param("0001-01-01T00:00:00+14:00", "no cluster runs", id="the calendar's first day"),
        pytest.param("-15", "neither a time nor a ts", id="no unit"),
        pytest.param("-m", "neither", id="no number"),
        pytest.param("15m", "neither", id="no sign"),
        pytest.param("", "neither", id="nothing"),
        pytest.param("٣", "neither", id="digits of another script"),
        pytest.param("9" * 5000, "neither", id="thousands of digits"),
    ],
)
def test_what_is_no_moment_is_explained(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ts_of(text, NOW_SECONDS)
