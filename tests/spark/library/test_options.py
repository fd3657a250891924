"""The options of the format: read once, bad ones refused in words that say what to do."""

import pytest

from tidemill.errors import UsageError
from tidemill.model.ts import compose
from tidemill.source.scan import Dates, TableName
from tidemill.spark.library.options import Now, parse_options

GOOD = {"pd": "127.0.0.1:2379", "table": "shop.orders"}
MOMENT = 1_772_360_100_000  # 2026-03-01 10:15:00 UTC


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"pd": ""}, "'pd' is missing", id="no pd"),
        pytest.param({"table": " "}, "'table' is missing: as in 'shop.orders'", id="no table"),
        pytest.param({"table": "orders"}, "table is 'orders': give database and table", id="no database"),
        pytest.param({"table": "a.b.c"}, "between backquotes", id="too many dots"),
        pytest.param({"tabel": "x"}, "unknown option 'tabel'.*Did you mean 'table'", id="misspelt"),
        pytest.param({"path": "x"}, "There are no paths here", id="load with a path"),
        pytest.param({"zzz": "x"}, "unknown option 'zzz'.*There are: pd, table", id="like nothing"),
        pytest.param({"asOf": "tomorrow"}, "asOf: tomorrow is neither a time nor a ts", id="no moment"),
        pytest.param({"asOf": "1772360100"}, "asOf: 1772360100 is not a ts", id="seconds"),
        pytest.param({"asOf": "1772360100000"}, "like milliseconds since 1970", id="milliseconds"),
        pytest.param({"startingTs": "-5"}, "startingTs: -5 is neither", id="below zero"),
        pytest.param({"startingTs": str(1 << 63)}, "is not a ts: it is too large", id="too big"),
        pytest.param({"startingTs": "1772360100123456789"}, "like nanoseconds since 1970", id="nanoseconds"),
        pytest.param({"startingTs": "9" * 5000}, "neither a time nor a ts", id="thousands of digits"),
        pytest.param({"asOf": "0001-01-01T00:00:00+14:00"}, "at which no cluster runs", id="before all calendars"),
        pytest.param({"asOf": "9999-12-31T23:59:59-14:00"}, "at which no cluster runs", id="after all calendars"),
        pytest.param({"asOf": "1066-10-14"}, "at which no cluster runs", id="before all clusters"),
        pytest.param({"endingTs": "now"}, "endingTs needs a startingTs", id="an end alone"),
        pytest.param({"asOf": "now", "startingTs": "now"}, "give one or the other", id="table and changes"),
        pytest.param(
            {"startingTs": "2026-03-02", "endingTs": "2026-03-01"}, "lies before startingTs", id="turned around"
        ),
        pytest.param({"columns": "a,,b"}, "give names separated by commas", id="a column without a name"),
        pytest.param({"invalidDates": "skip"}, "choose 'error', 'null' or 'text'", id="dates"),
        pytest.param({"timeZone": "Mars/Base"}, "'Mars/Base', which is no time zone", id="zone"),
        pytest.param({"maxIntervalSeconds": "0"}, "whole seconds, at least 1", id="no time"),
        pytest.param({"pd": "127.0.0.1:99999"}, "a port is a number from 1 to 65535", id="a port"),
        pytest.param({"pd": "https://127.0.0.1:2379"}, "asks for TLS.*options ca, cert and key", id="no files"),
        pytest.param({"ca": "ca.pem", "cert": "client.pem"}, "give both cert and key", id="half a certificate"),
        pytest.param({"gcTtlSeconds": "1.5"}, "gcTtlSeconds is '1.5'", id="half a second"),
    ],
)
def test_bad_options_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options({**GOOD, **given})


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        pytest.param("464613566054400000", "UTC", 464613566054400000, id="a TSO"),
        pytest.param("2026-03-01 10:15:00", "UTC", compose(MOMENT), id="a time"),
        pytest.param("2026-03-01 11:15:00", "Europe/Berlin", compose(MOMENT), id="a time in the zone"),
        pytest.param("2026-03-01T11:15:00.250+01:00", "UTC", compose(MOMENT + 250), id="a time with its own zone"),
        pytest.param("NOW", "UTC", Now.NOW, id="now"),
    ],
)
def test_a_moment_is_a_tso_a_time_or_now(text: str, zone: str, expected: object) -> None:
    assert parse_options({**GOOD, "asOf": text, "timeZone": zone}).as_of == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop.orders", TableName("shop", "orders")),
        ("`a.b`.c", TableName("a.b", "c")),
        ("`we``ird`.`x y`", TableName("we`ird", "x y")),
    ],
)
def test_names_are_quoted_as_in_sql(text: str, name: TableName) -> None:
    assert parse_options({**GOOD, "table": text}).table == name


def test_names_of_options_are_the_same_in_any_case() -> None:
    options = parse_options({"PD": "h:1", "Table": "a.b", "INVALIDDATES": "Text", "Columns": "x, `y`"})
    assert (options.dates, options.columns, options.mount_zone) == (Dates.TEXT, ("x", "y"), "UTC")
    assert not options.reads_changes
