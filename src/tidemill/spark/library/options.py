"""The options of ``format("tidemill")``: read once, into something that cannot be wrong. No Spark in here."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from enum import Enum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UsageError, suggestion
from tidemill.model.keys import DEFAULT_KEYSPACE, KeyApi, KeyRange
from tidemill.model.keytext import KeyFormat, read_key
from tidemill.model.moments import is_now, shortened, ts_of
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts
from tidemill.source.scan import Dates, TableName, parse_addresses

DAY_SECONDS = 86_400


class Now(Enum):
    """The moment at which the upstream is asked."""

    NOW = "now"


Moment = Ts | Now


@dataclass(frozen=True, slots=True)
class ReadOptions:
    pd: str
    table: TableName
    security: Security = PLAIN
    as_of: Moment | None = None
    starting_ts: Moment | None = None
    ending_ts: Moment | None = None
    columns: tuple[str, ...] | None = None
    dates: Dates = Dates.ERROR
    time_zone: str = "UTC"
    max_interval_seconds: int | None = None
    gc_ttl_seconds: int = DAY_SECONDS

    @property
    def reads_changes(self) -> bool:
        return self.starting_ts is not None

    @property
    def mount_zone(self) -> str:
        """Typed TIMESTAMPs are moments and need no zone; as text they are shown in one."""
        return self.time_zone if self.dates is Dates.TEXT else "UTC"


@dataclass(frozen=True, slots=True)
class Option:
    """What the reference page says of one."""

    name: str
    default: str
    help: str


OPTIONS = (
    Option("pd", "required", "Addresses of PD, as `host:port` or `host:port,host:port`."),
    Option("table", "required", "The table, as `database.table`."),
    Option("asOf", "now", "The table as of this moment: a TSO, a time, `now`, or how long ago, such as `-15m`."),
    Option("startingTs", "", "Changes with commit-ts above this; a moment, as `asOf`. A stream needs it."),
    Option("endingTs", "now", "Changes up to this commit-ts, itself included; a moment, as `asOf`. Not for streams."),
    Option("columns", "all", "Names of columns, separated by commas: no others are decoded."),
    Option("invalidDates", "error", "What becomes of dates no calendar has: `error`, `null`, or `text` for all dates."),
    Option("timeZone", "UTC", "The zone of times given without one, and of TIMESTAMPs read as text."),
    Option("maxIntervalSeconds", "unbounded", "A stream's batch takes the commits of no more than so many seconds."),
    Option("keyspace", "DEFAULT", "In place of `table`: keys of this keyspace, by its name."),
    Option("startKey", "", "In place of `table`: keys from this one on; empty: from the first."),
    Option("endKey", "", "And below this one; empty: to the last."),
    Option("keyFormat", "hex", "How both are written: `hex`, `raw` or `escaped`."),
    Option("kvApi", "raw", "How keys are written: `raw`, or `txn`: by transactions, without SQL."),
    Option("gcTtlSeconds", str(DAY_SECONDS), "How long a stopped stream keeps the upstream from collecting its past."),
    Option("ca", "", "File with the certificate of the cluster's authority, the same path on driver and executors."),
    Option("cert", "", "File with our own certificate, where the cluster wants one; with `key`."),
    Option("key", "", "File with the key of our own certificate."),
)


@dataclass(frozen=True, slots=True)
class KeyReadOptions:
    pd: str
    keys: KeyRange
    security: Security = PLAIN
    as_of: Moment | None = None
    starting_ts: Moment | None = None
    max_interval_seconds: int | None = None


_OF_KEYS = ("keyspace", "startkey", "endkey", "keyformat", "kvapi")
_ALSO_OF_KEYS = ("pd", "ca", "cert", "key", "asof", "startingts", "timezone", "maxintervalseconds")


def asks_for_keys(given: Mapping[str, str]) -> bool:
    """Whether they name keys, in place of a table."""
    return any(name.lower() in _OF_KEYS for name in given)


def parse_key_options(given: Mapping[str, str]) -> KeyReadOptions:
    """As ``parse_options``, of those that ask for keys."""
    values = {name.lower(): value for name, value in given.items()}
    known = {option.name.lower(): option.name for option in OPTIONS}
    for name in values:
        if name not in known:
            raise UsageError(f"unknown option {name!r} of format 'tidemill'.{_suggestion(name, known)}")
        if name not in (*_OF_KEYS, *_ALSO_OF_KEYS):
            raise UsageError(f"the option {known[name]!r} is for tables, and keys are read. Leave it out.")
    form = _word("keyFormat", values.get("keyformat", "hex"), KeyFormat)
    keyspace = values.get("keyspace", "").strip()
    keys = KeyRange(
        read_key(values.get("startkey", ""), form, "startKey"),
        read_key(values.get("endkey", ""), form, "endKey"),
        "" if keyspace == DEFAULT_KEYSPACE else keyspace,
        api=_word("kvApi", values.get("kvapi", "raw"), KeyApi),
    )
    zone = _zone(values.get("timezone", "UTC"))
    moments = {
        _MOMENTS[name]: _moment(known[name], values[name], zone) for name in ("asof", "startingts") if name in values
    }
    security = Security(*(values.get(name, "").strip() for name in ("ca", "cert", "key")))
    interval = values.get("maxintervalseconds")
    options = KeyReadOptions(
        _required(values, "pd", "the address of PD, as in '127.0.0.1:2379'"),
        keys,
        security,
        max_interval_seconds=None if interval is None else _seconds("maxIntervalSeconds")(interval),
        **moments,
    )
    if options.as_of is not None and keys.api is KeyApi.raw and not isinstance(options.as_of, Now):
        raise UsageError(
            "RawKV keeps no versions, so keys are read as they are now. Leave asOf out, or read kvApi 'txn'."
        )
    parse_addresses(options.pd, options.security)
    return options


E = TypeVar("E", bound=Enum)


def _word(name: str, text: str, kind: type[E]) -> E:
    try:
        return kind(text.strip().lower())
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise UsageError(f"the option {name} is {text!r}: choose one of {known}.") from None


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """``given`` as Spark hands them over, names in any case."""
    values = {name.lower(): value for name, value in given.items()}
    known = {option.name.lower(): option.name for option in OPTIONS}
    for name in values:
        if name not in known:
            raise UsageError(f"unknown option {name!r} of format 'tidemill'.{_suggestion(name, known)}")
    zone_name = values.get("timezone", "UTC")
    zone = _zone(zone_name)
    moments = {name: _moment(known[name], values[name], zone) for name in _MOMENTS if name in values}
    read: dict[str, Any] = {
        "pd": _required(values, "pd", "the address of PD, as in '127.0.0.1:2379'"),
        "table": _table(_required(values, "table", "as in 'shop.orders'")),
        "security": Security(*(values.get(name, "").strip() for name in ("ca", "cert", "key"))),
        "time_zone": zone_name,
        **{_MOMENTS[name]: moment for name, moment in moments.items()},
    }
    for name, (field, parse) in _OTHERS.items():
        if name in values:
            read[field] = parse(values[name])
    options = ReadOptions(**read)
    parse_addresses(options.pd, options.security)
    _check_together(options)
    return options


def _check_together(options: ReadOptions) -> None:
    if options.as_of is not None and (options.starting_ts is not None or options.ending_ts is not None):
        raise UsageError(
            "asOf reads a table as it was, startingTs and endingTs read its changes: give one or the other. "
            "For both, read twice, with startingTs equal to asOf."
        )
    if options.ending_ts is not None and options.starting_ts is None:
        raise UsageError("endingTs needs a startingTs: changes are read between the two. For a table, use asOf.")
    start, end = options.starting_ts, options.ending_ts
    if isinstance(start, int) and isinstance(end, int) and end < start:
        raise UsageError(f"endingTs {end} lies before startingTs {start}. Give the earlier one as startingTs.")


def _suggestion(name: str, known: Mapping[str, str]) -> str:
    if name == "path":
        return " There are no paths here: name the table with the option table."
    return suggestion(name, known.values()) or f" There are: {', '.join(known.values())}."


def _required(values: Mapping[str, str], name: str, what: str) -> str:
    value = values.get(name, "").strip()
    if not value:
        raise UsageError(f"the option {name!r} is missing: {what}.")
    return value


def _table(text: str) -> TableName:
    quoted, plain = r"`((?:[^`]|``)+)`", r"([^.`]+)"
    found = re.fullmatch(rf"(?:{quoted}|{plain})\.(?:{quoted}|{plain})", text)
    if found is None:
        raise UsageError(
            f"the option table is {text!r}: give database and table, as in 'shop.orders'; a name with a dot goes "
            "between backquotes."
        )
    return TableName(*(name.replace("``", "`") for name in found.groups() if name is not None))


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(
            f"the option timeZone is {name!r}, which is no time zone. Give a name such as 'Europe/Berlin', or 'UTC'."
        ) from error


def _moment(name: str, text: str, zone: tzinfo) -> Moment:
    if is_now(text):
        return Now.NOW  # by the upstream's clock
    try:
        return ts_of(text, SYSTEM_CLOCK.now(), zone)
    except ValueError as wrong:
        raise UsageError(f"the option {name}: {shortened(text)} {wrong}") from None


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().strip("`") for name in text.split(","))
    if not all(names):
        raise UsageError(f"the option columns is {text!r}: give names separated by commas, as in 'id, name'.")
    return names


def _dates(text: str) -> Dates:
    try:
        return Dates(text.strip().lower())
    except ValueError as error:
        raise UsageError(f"the option invalidDates is {text!r}: choose 'error', 'null' or 'text'.") from error


def _seconds(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text.strip()) or int(text) == 0:
            raise UsageError(f"the option {name} is {text!r}: give whole seconds, at least 1.")
        return int(text)

    return parse


_MOMENTS = {"asof": "as_of", "startingts": "starting_ts", "endingts": "ending_ts"}
_OTHERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "columns": ("columns", _columns),
    "invaliddates": ("dates", _dates),
    "maxintervalseconds": ("max_interval_seconds", _seconds("maxIntervalSeconds")),
    "gcttlseconds": ("gc_ttl_seconds", _seconds("gcTtlSeconds")),
}
