"""The time zone in which a DDL was typed, told from what came of it."""

import pytest

from tests.flow.encoder.samples import KEY, column, table_of
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.zones import Clock, clock_of

ID = column("id", ColumnType.LONG, KEY)


def moment(default: str | None, kind: ColumnType = ColumnType.TIMESTAMP) -> ColumnInfo:
    return column("at", kind, default=default)


def alter(query: str, after: TableInfo, before: TableInfo | None = None) -> DdlEvent:
    kind = ActionType.MULTI_SCHEMA_CHANGE
    return DdlEvent(Ts(9), Ts(8), 0, kind, kind, query, "shop", "item", after, pre_table_info=before)


@pytest.mark.parametrize(
    ("query", "columns", "expected"),
    [
        ("ADD at TIMESTAMP DEFAULT '2026-01-01 08:00:00'", [moment("2026-01-01 00:00:00")], "+08:00"),
        ("ADD at TIMESTAMP DEFAULT '2026-01-01'", [moment("2025-12-31 18:30:00")], "+05:30"),
        ('ADD at TIMESTAMP DEFAULT "2026-01-01 00:00:00.5"', [moment("2026-01-01 03:00:00.5")], "-03:00"),
        ("ADD at TIMESTAMP DEFAULT '2026-01-01 00:00:00'", [moment("2026-01-01 00:00:00")], "+00:00"),
        (
            "ADD a TIMESTAMP DEFAULT '2026-01-01 08:00:00', ADD b TIMESTAMP DEFAULT '2026-01-01 10:00:00'",
            [moment("2026-01-01 00:00:00"), moment("2026-01-01 02:00:00")],
            "+08:00",
        ),
        ("ADD at TIMESTAMP DEFAULT 20260101080000", [moment("2026-01-01 00:00:00")], None),
        ("ADD at TIMESTAMP DEFAULT '2026-01-01 08:00:00+08:00'", [moment("2026-01-01 00:00:00")], None),
        ("ADD at TIMESTAMP DEFAULT '2026-01-03 00:00:00'", [moment("2026-01-01 00:00:00")], None),
        ("ADD at TIMESTAMP DEFAULT '0000-00-00 00:00:00'", [moment("0000-00-00 00:00:00")], None),
        ("ADD at TIMESTAMP DEFAULT CURRENT_TIMESTAMP", [moment("CURRENT_TIMESTAMP")], None),
        ("ADD at DATETIME DEFAULT '2026-01-01 08:00:00'", [moment("2026-01-01 08:00:00", ColumnType.DATETIME)], None),
        ("ADD at TIMESTAMP NULL", [moment(None)], None),
        ("ADD `it's` TIMESTAMP DEFAULT '2026-01-01 08:00:00'", [moment("2026-01-01 00:00:00")], "+08:00"),
        ("/* it's */ ADD at TIMESTAMP DEFAULT '2026-01-01 08:00:00'", [moment("2026-01-01 00:00:00")], "+08:00"),
    ],
)
def test_an_offset_explains_the_defaults(query: str, columns: list[ColumnInfo], expected: str | None) -> None:
    event = alter(f"ALTER TABLE item {query}", table_of(ID, *columns), table_of(ID))
    assert clock_of(event, event.query) == Clock(event.query, expected)


def test_defaults_that_were_there_before_say_nothing() -> None:
    table = table_of(ID, moment("2026-01-01 00:00:00"))
    event = alter("ALTER TABLE item COMMENT '2026-01-01 08:00:00'", table, table)
    assert clock_of(event, event.query) == Clock(event.query)


def test_a_zone_with_summer_time_has_two_offsets() -> None:
    after = table_of(
        ID, moment("2024-07-01 04:00:00"), moment("2024-01-01 05:00:00"),
        moment("2024-07-01 00:00:00", ColumnType.DATETIME),
    )  # fmt: skip
    text = (
        "ALTER TABLE item ADD a TIMESTAMP DEFAULT '2024-07-01 {:02}:00:00', ADD b timestamp DEFAULT "
        "'2024-01-01 {:02}:00:00', ADD c DATETIME DEFAULT '2024-07-01 00:00:00'"
    )
    event = alter(text.format(0, 0), after, table_of(ID))
    assert clock_of(event, event.query) == Clock(text.format(4, 5), "+00:00")


def test_a_moment_beside_two_offsets() -> None:
    now = {"default": "CURRENT_TIMESTAMP", "origin_default": "2026-01-01 10:00:00"}
    local = column("d", ColumnType.DATETIME, **{**now, "origin_default": "2026-01-01 05:00:00"})
    after = table_of(
        ID,
        moment("2024-07-01 04:00:00"),
        moment("2024-01-01 05:00:00"),
        column("c", ColumnType.TIMESTAMP, **now),
        local,
    )
    text = (
        "ALTER TABLE item ADD a TIMESTAMP DEFAULT '2024-{} {:02}:00:00', ADD b TIMESTAMP DEFAULT '2024-01-01 00:00:00'"
        ", ADD c TIMESTAMP DEFAULT CURRENT_TIMESTAMP, ADD d DATETIME DEFAULT CURRENT_TIMESTAMP"
    )
    event = alter(text.format("07-01", 0), after, table_of(ID))
    assert clock_of(event, event.query) == Clock(text.format("06-30", 23), "-05:00", "1767261600.000000")


@pytest.mark.parametrize("typed", ["", "ADD t TIMESTAMP DEFAULT '2025-12-31 19:00:00', "])
def test_a_moment_has_all_the_digits_that_any_column_has(typed: str) -> None:
    """One of seconds has cut it, one of microseconds has it whole, by the session's clock."""
    after = table_of(
        ID, *([moment("2026-01-01 00:00:00")] if typed else []),
        column("e", ColumnType.TIMESTAMP, default="CURRENT_TIMESTAMP", origin_default="2026-01-01 10:00:00"),
        column("f", ColumnType.DATETIME, default="CURRENT_TIMESTAMP", origin_default="2026-01-01 05:00:00.610258"),
    )  # fmt: skip
    query = f"ALTER TABLE item {typed}ADD e TIMESTAMP DEFAULT CURRENT_TIMESTAMP, ADD f DATETIME(6) DEFAULT NOW(6)"
    assert clock_of(alter(query, after, table_of(ID)), query) == Clock(query, "-05:00", "1767261600.610258")
