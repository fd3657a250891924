"""Functions of dates and times."""

from calendar import monthrange
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tidebox.sql.codec.datum import Time
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.kinds import DATE, INT, TEXT, Compute, Computed, Kind, Type
from tidebox.sql.compute.registry import function, integers, is_constant, strict, texts
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call
from tidebox.sql.wire.errors import Errno, sql_error

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MONTHS: Final = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
_DAYS: Final = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905


def _digits(arguments: list[Computed], context: Context) -> int:
    return int(integers(arguments, context)[0](()) or 0) if arguments else 0


def now_in_zone(context: Context) -> Time:
    return temporal.from_utc(context.now, context.settings.time_zone)


@function("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "SYSDATE", least=0, most=1)
def _now(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    digits = _digits(arguments, context)
    moment = temporal.truncate_moment(now_in_zone(context), digits)
    return Computed(Type(Kind.DATETIME, decimals=digits), lambda row: moment, True)


@function("UTC_TIMESTAMP", least=0, most=1)
def _utc_timestamp(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    digits = _digits(arguments, context)
    moment = temporal.truncate_moment(context.now, digits)
    return Computed(Type(Kind.DATETIME, decimals=digits), lambda row: moment, True)


@function("CURDATE", "CURRENT_DATE", least=0)
def _curdate(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    day = temporal.date_of(now_in_zone(context))
    return Computed(DATE, lambda row: day, True)


@function("UTC_DATE", least=0)
def _utc_date(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    day = temporal.date_of(context.now)
    return Computed(DATE, lambda row: day, True)


@function("CURTIME", "CURRENT_TIME", "UTC_TIME", least=0, most=1)
def _curtime(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    digits = _digits(arguments, context)
    moment = context.now if tree.name == "UTC_TIME" else now_in_zone(context)
    clock = temporal.clock_of(temporal.truncate_moment(moment, digits))
    return Computed(Type(Kind.TIME, decimals=digits), lambda row: clock, True)


@function("UNIX_TIMESTAMP", least=0, most=1)
def _unix_timestamp(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    zone = context.settings.time_zone
    if not arguments:
        seconds = (datetime(*context.now, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
        return Computed(INT, lambda row: seconds, True)
    digits = arguments[0].type.fsp if arguments[0].type.kind.is_moment else 0
    if arguments[0].type.kind is Kind.TEXT and arguments[0].is_constant:
        text = str(arguments[0].compute(()) or "")
        digits = min(len(text.rpartition(".")[2]), 6) if "." in text else 0

    def apply(moment: Time) -> Any:
        if not temporal.is_real(moment):
            return 0
        try:
            micros = (datetime(*temporal.to_utc(moment, zone), tzinfo=UTC) - _EPOCH) // _MICROSECOND
        except ValueError:
            return 0
        if micros < 0:
            return 0
        return Decimal(micros).scaleb(-6).quantize(Decimal(1).scaleb(-digits)) if digits else micros // 1_000_000

    kind = Type(Kind.DECIMAL, length=20, decimals=digits) if digits else INT
    return strict(kind, [_moment(arguments[0], context)], apply, is_constant(arguments))


@function("FROM_UNIXTIME", least=1, most=2)
def _from_unixtime(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    number = arguments[0].type
    digits = min(number.decimals, 6) if number.kind is Kind.DECIMAL else 6 if number.kind is not Kind.INT else 0
    zone, settings = context.settings.time_zone, context.settings

    def apply(value: Any) -> Time | None:
        seconds = convert.decimal(value, number, settings)
        if seconds < 0:
            return None
        utc = _EPOCH + timedelta(microseconds=int(seconds * 1_000_000))
        return temporal.of_datetime(utc.astimezone(zone))

    found = strict(Type(Kind.DATETIME, decimals=digits), [arguments[0].compute], apply, is_constant(arguments))
    if len(arguments) == 1:
        return found
    return _date_format(tree, [found, arguments[1]], context)


def _moment(argument: Computed, context: Context) -> Compute:
    kind, compute, settings = argument.type, argument.compute, context.settings

    def as_moment(row: Any) -> Time | None:
        value = compute(row)
        return None if value is None else convert.moment(value, kind, settings, context.now)

    return as_moment


def _duration(argument: Computed, context: Context) -> Compute:
    kind, compute, settings = argument.type, argument.compute, context.settings

    def as_duration(row: Any) -> timedelta | None:
        value = compute(row)
        return None if value is None else convert.duration(value, kind, settings)

    return as_duration


@function("DATE", least=1)
def _date(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(DATE, [_moment(arguments[0], context)], temporal.date_of, is_constant(arguments))


@function("TIME", least=1)
def _time(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = arguments[0].type
    digits = kind.fsp if kind.kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP) else 6 if kind.kind.is_string else 0
    return Computed(Type(Kind.TIME, decimals=digits), _duration(arguments[0], context), is_constant(arguments))


@function("TIMESTAMP", least=1)
def _timestamp(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = arguments[0].type
    digits = kind.fsp if kind.kind.is_moment else 6 if kind.kind.is_string else 0
    return Computed(Type(Kind.DATETIME, decimals=digits), _moment(arguments[0], context), is_constant(arguments))


_PARTS: Final[dict[str, Any]] = {
    "YEAR": lambda m: m.year,
    "MONTH": lambda m: m.month,
    "DAY": lambda m: m.day,
    "DAYOFMONTH": lambda m: m.day,
    "QUARTER": lambda m: (m.month + 2) // 3,
    "DAYOFWEEK": lambda m: datetime(*m).isoweekday() % 7 + 1 if temporal.is_real(m) else None,
    "WEEKDAY": lambda m: datetime(*m).weekday() if temporal.is_real(m) else None,
    "DAYOFYEAR": lambda m: datetime(*m).timetuple().tm_yday if temporal.is_real(m) else None,
    "TO_DAYS": lambda m: datetime(*m).toordinal() + 365 if temporal.is_real(m) else None,
}


@function(*_PARTS, least=1)
def _part(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(INT, [_moment(arguments[0], context)], _PARTS[tree.name], is_constant(arguments))


_CLOCK_PARTS: Final[dict[str, Any]] = {
    "HOUR": lambda d: abs(d) // timedelta(hours=1),
    "MINUTE": lambda d: abs(d) // timedelta(minutes=1) % 60,
    "SECOND": lambda d: abs(d) // timedelta(seconds=1) % 60,
    "MICROSECOND": lambda d: abs(d) // _MICROSECOND % 1_000_000,
    "TIME_TO_SEC": lambda d: (abs(d) // timedelta(seconds=1)) * (-1 if d < timedelta() else 1),
}


@function(*_CLOCK_PARTS, least=1)
def _clock_part(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(INT, [_duration(arguments[0], context)], _CLOCK_PARTS[tree.name], is_constant(arguments))


@function("EXTRACT", least=1)
def _extract(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if tree.unit in _CLOCK_PARTS:
        return strict(INT, [_duration(arguments[0], context)], _CLOCK_PARTS[tree.unit], is_constant(arguments))
    if tree.unit in _PARTS:
        return strict(INT, [_moment(arguments[0], context)], _PARTS[tree.unit], is_constant(arguments))
    if tree.unit == "YEAR_MONTH":
        return strict(INT, [_moment(arguments[0], context)], lambda m: m.year * 100 + m.month, is_constant(arguments))
    raise sql_error(Errno.NOT_SUPPORTED_YET, f"EXTRACT {tree.unit}")


@function("LAST_DAY", least=1)
def _last_day(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(moment: Time) -> Time | None:
        if moment.month == 0 or moment.year == 0:
            return None
        return Time(moment.year, moment.month, monthrange(moment.year, moment.month)[1])

    return strict(DATE, [_moment(arguments[0], context)], apply, is_constant(arguments))


@function("FROM_DAYS", least=1)
def _from_days(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(days: int) -> Time:
        return temporal.of_datetime(datetime.fromordinal(days - 365)) if days > 365 else temporal.ZERO

    return strict(DATE, integers(arguments, context), apply, is_constant(arguments))


@function("DATEDIFF", least=2)
def _datediff(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(a: Time, b: Time) -> int | None:
        if not temporal.is_real(a) or not temporal.is_real(b):
            return None
        return datetime(*a).toordinal() - datetime(*b).toordinal()

    return strict(INT, [_moment(each, context) for each in arguments], apply, is_constant(arguments))


_CLOCK_UNITS: Final = frozenset({"MICROSECOND", "SECOND", "MINUTE", "HOUR"})
_SIMPLE_UNITS: Final = _CLOCK_UNITS | {"DAY", "WEEK", "MONTH", "QUARTER", "YEAR"}


@function("DATE_ADD", "DATE_SUB", least=2)
def _date_add(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if tree.unit not in _SIMPLE_UNITS:
        raise sql_error(Errno.NOT_SUPPORTED_YET, f"INTERVAL {tree.unit}")
    base, settings = arguments[0].type, context.settings
    count_kind = arguments[1].type
    sign = 1 if tree.name == "DATE_ADD" else -1

    def count_of(row: Any) -> Decimal | None:
        value = arguments[1].compute(row)
        return None if value is None else sign * convert.decimal(value, count_kind, settings)

    finest = 6 if tree.unit == "MICROSECOND" or (tree.unit == "SECOND" and count_kind.kind is not Kind.INT) else 0
    if base.kind is Kind.TIME:
        return strict(
            Type(Kind.TIME, decimals=max(base.fsp, finest)),
            [arguments[0].compute, count_of],
            lambda size, count: size + temporal.interval_size(count, tree.unit),
            is_constant(arguments),
        )

    def apply(moment: Time, count: Decimal) -> Time | None:
        if not temporal.is_real(moment):
            shown = " ".join(map(str, moment))
            context.settings.warnings.append(("Warning", 1292, f"Incorrect time value: '{{{shown}}}'"))
            return None
        found = temporal.add_interval(moment, count, tree.unit)
        if found is None:
            context.settings.warnings.append(("Warning", 1441, "Datetime function: datetime field overflow"))
        return found

    computed = strict(
        Type(Kind.DATETIME, decimals=max(base.fsp if base.kind.is_moment else 0, finest)),
        [_moment(arguments[0], context), count_of],
        apply,
        is_constant(arguments),
    )
    if base.kind is Kind.DATE and tree.unit not in _CLOCK_UNITS:
        return Computed(DATE, computed.compute, computed.is_constant)
    if base.kind.is_moment:
        return computed
    return Computed(TEXT, _as_text(computed, is_date_kept=tree.unit not in _CLOCK_UNITS), computed.is_constant)


def _as_text(computed: Computed, *, is_date_kept: bool) -> Compute:
    """What is computed of a text is a text: a date if there is no time of day."""

    def compute(row: Any) -> Any:
        value = computed.compute(row)
        if value is None:
            return None
        if is_date_kept and temporal.clock_of(value) == timedelta():
            return convert.shown(value, DATE)
        digits = 6 if value.microsecond else 0
        return convert.shown(value, Type(Kind.DATETIME, decimals=digits))

    return compute


@function("TIMESTAMPADD", least=2)
def _timestampadd(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _date_add(Call("DATE_ADD", tree.arguments[::-1], unit=tree.unit), arguments[::-1], context)


@function("TIMESTAMPDIFF", least=2)
def _timestampdiff(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(a: Time, b: Time) -> int | None:
        if not temporal.is_real(a) or not temporal.is_real(b):
            return None
        if tree.unit in ("MONTH", "QUARTER", "YEAR"):
            first, second = (a, b) if a <= b else (b, a)
            months = (second.year - first.year) * 12 + second.month - first.month
            months -= second[2:] < first[2:]
            count = months // {"MONTH": 1, "QUARTER": 3, "YEAR": 12}[tree.unit]
            return count if a <= b else -count
        micros = (datetime(*b) - datetime(*a)) // _MICROSECOND
        size = temporal.interval_size(Decimal(1), tree.unit) // _MICROSECOND
        return abs(micros) // size * (1 if micros >= 0 else -1)

    return strict(INT, [_moment(each, context) for each in arguments], apply, is_constant(arguments))


@function("DATE_FORMAT", least=2)
def _date_format(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    computes = [_moment(arguments[0], context), *texts(arguments[1:])]
    return strict(TEXT, computes, _formatted, is_constant(arguments))


def _formatted(moment: Time, shape: str) -> str:
    out, at = [], 0
    while at < len(shape):
        if shape[at] != "%" or at + 1 == len(shape):
            out.append(shape[at])
            at += 1
            continue
        out.append(_format_part(moment, shape[at + 1]))
        at += 2
    return "".join(out)


def _format_part(m: Time, letter: str) -> str:
    hour12 = m.hour % 12 or 12
    half = "AM" if m.hour < 12 else "PM"
    simple: dict[str, Any] = {
        "Y": lambda: f"{m.year:04}",
        "y": lambda: f"{m.year % 100:02}",
        "m": lambda: f"{m.month:02}",
        "c": lambda: str(m.month),
        "d": lambda: f"{m.day:02}",
        "e": lambda: str(m.day),
        "H": lambda: f"{m.hour:02}",
        "k": lambda: str(m.hour),
        "h": lambda: f"{hour12:02}",
        "I": lambda: f"{hour12:02}",
        "l": lambda: str(hour12),
        "i": lambda: f"{m.minute:02}",
        "s": lambda: f"{m.second:02}",
        "S": lambda: f"{m.second:02}",
        "f": lambda: f"{m.microsecond:06}",
        "p": lambda: half,
        "T": lambda: f"{m.hour:02}:{m.minute:02}:{m.second:02}",
        "r": lambda: f"{hour12:02}:{m.minute:02}:{m.second:02} {half}",
        "M": lambda: _MONTHS[m.month - 1] if m.month else "",
        "b": lambda: _MONTHS[m.month - 1][:3] if m.month else "",
        "W": lambda: _DAYS[datetime(*m).weekday()],
        "a": lambda: _DAYS[datetime(*m).weekday()][:3],
        "w": lambda: str(datetime(*m).isoweekday() % 7),
        "j": lambda: f"{datetime(*m).timetuple().tm_yday:03}",
    }
    make = simple.get(letter)
    return make() if make is not None else letter


@function("DAYNAME", "MONTHNAME", least=1)
def _names(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(moment: Time) -> str | None:
        if tree.name == "MONTHNAME":
            return _MONTHS[moment.month - 1] if moment.month else None
        return _DAYS[datetime(*moment).weekday()] if temporal.is_real(moment) else None

    return strict(TEXT, [_moment(arguments[0], context)], apply, is_constant(arguments))


@function("SEC_TO_TIME", least=1)
def _sec_to_time(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(seconds: int) -> timedelta:
        return max(min(timedelta(seconds=seconds), temporal.MAX_DURATION), -temporal.MAX_DURATION)

    return strict(Type(Kind.TIME, decimals=0), integers(arguments, context), apply, is_constant(arguments))


@function("TIDB_PARSE_TSO", least=1)
def _parse_tso(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    zone = context.settings.time_zone

    def apply(ts: int) -> Time | None:
        if ts <= 0:
            return None
        return temporal.of_datetime((_EPOCH + timedelta(milliseconds=ts >> 18)).astimezone(zone))

    return strict(Type(Kind.DATETIME, decimals=6), integers(arguments, context), apply, is_constant(arguments))


@function("TIDB_CURRENT_TSO", least=0)
def _current_tso(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return Computed(INT, lambda row: context.current_ts())
