"""Moments and durations."""

from datetime import timedelta
from typing import Any, Final

from tidebox.sql.assign.target import Assign, Target, shown_text
from tidebox.sql.codec.datum import Time
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.kinds import Kind, Settings, Type
from tidebox.sql.wire.errors import SqlError
from tidemill.model.table import ColumnType

_TIMESTAMP_MIN: Final = Time(1970, 1, 1, 0, 0, 1)
_TIMESTAMP_MAX: Final = Time(2038, 1, 19, 3, 14, 7, 999999)


def moment(target: Target, kind: Type) -> Assign:
    column, settings = target.column, target.settings
    is_date, is_stamp = column.type is ColumnType.DATE, column.type is ColumnType.TIMESTAMP
    fsp = max(column.decimal, 0)
    is_odd = kind.kind in (Kind.REAL, Kind.BIT, Kind.BITS, Kind.ENUM, Kind.SET, Kind.VECTOR)

    def assign(value: Any, row: int) -> Time | None:
        if is_odd:
            target.refuse_kind(kind)
            return None
        found = _moment_of(value, kind, settings)
        if found is None or not _is_allowed(target, found):
            target.incorrect(value, kind, row)
            return temporal.ZERO
        if is_date:
            return temporal.date_of(found)
        try:
            found = temporal.round_moment(found, fsp)
            if is_stamp:
                found = temporal.to_utc(found, settings.time_zone)
        except (ValueError, OverflowError):
            target.incorrect(value, kind, row)
            return temporal.ZERO
        if is_stamp and found != temporal.ZERO and not _TIMESTAMP_MIN <= found <= _TIMESTAMP_MAX:
            target.incorrect(value, kind, row)
            return temporal.ZERO
        return found

    return assign


def _is_allowed(target: Target, moment: Time) -> bool:
    settings = target.settings
    if temporal.is_zero(moment):
        return not settings.no_zero_date
    if temporal.has_zero_part(moment):
        return not settings.no_zero_in_date and target.column.type is not ColumnType.TIMESTAMP
    return temporal.is_possible(moment)


def duration(target: Target, kind: Type) -> Assign:
    fsp = max(target.column.decimal, 0)
    is_odd = kind.kind in (Kind.BIT, Kind.BITS, Kind.ENUM, Kind.SET, Kind.VECTOR)

    def assign(value: Any, row: int) -> timedelta | None:
        if is_odd:
            target.refuse_kind(kind)
            return None
        found = _duration_of(value, kind)
        if found is None:
            target.incorrect(value, kind, row)
            return timedelta()
        found = temporal.round_duration(found, fsp)
        if abs(found) > temporal.MAX_DURATION:
            target.complain(SqlError(1292, "22007", f"Truncated incorrect time value: '{shown_text(value, kind)}'"))
            return temporal.MAX_DURATION if found > timedelta() else -temporal.MAX_DURATION
        return found

    return assign


def _moment_of(value: Any, kind: Type, settings: Settings) -> Time | None:
    """Silently: who asks complains in its own words."""
    quiet = Settings(settings.time_zone, is_strict=False)
    return convert.moment(value, kind, quiet)


def _duration_of(value: Any, kind: Type) -> timedelta | None:
    match kind.kind:
        case Kind.TIME:
            return value  # type: ignore[no-any-return]  # a timedelta
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return temporal.clock_of(value)
        case _:
            return temporal.parse_duration(shown_text(value, kind))
