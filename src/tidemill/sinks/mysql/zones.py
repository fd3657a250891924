"""In which time zone a DDL was typed and at which moment, as far as it matters.

``DEFAULT '2026-01-01 00:00:00'`` of a TIMESTAMP column means another moment in every time zone, and a job does not say
in which one its session was. But the table as it is afterwards has the moment in UTC; the difference to what stands in
the statement is the session's offset. Likewise a column that is added with DEFAULT CURRENT_TIMESTAMP has what that was
for the rows that were there: for a TIMESTAMP in UTC, for a DATETIME by the session's clock.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.tidb.lexer import Kind, Piece, pieces

_MOST = timedelta(hours=14)
_STEP = timedelta(minutes=15)
_SECOND = timedelta(seconds=1)


# Servers differ in which offsets a session may have; all of them take these.
_LOWEST, _HIGHEST = timedelta(hours=-12, minutes=-59), timedelta(hours=13)


@dataclass(frozen=True, slots=True)
class Clock:
    """What a session is to be set to while it runs ``query``. ``time_zone``: ``+08:00``; None: as it is. ``moment``:
    what CURRENT_TIMESTAMP is, as Unix time; None: now. ``modes``: of sql_mode, beside those it has."""

    query: str
    time_zone: str | None = None
    moment: str | None = None
    modes: tuple[str, ...] = ()


def clock_of(event: DdlEvent, query: str) -> Clock:
    """For a ``query`` that is the event's, perhaps respelled."""
    return replace(_clock_of(event, query), modes=event.sql_modes)


def _clock_of(event: DdlEvent, query: str) -> Clock:
    typed, moments = typed_offset(event), _added_moments(event)
    offset = typed
    stamps = {moment for kind, moment in moments if kind is ColumnType.TIMESTAMP}
    locals_ = {moment for kind, moment in moments if kind is not ColumnType.TIMESTAMP}
    if stamps and locals_ and offset is None:
        found = min(locals_).replace(microsecond=0) - min(stamps).replace(microsecond=0)
        offset = found if _is_offset(found) else None
    stored = {default for _, default in _defaults(event.table_info) - _defaults(event.pre_table_info)}
    if offset is not None and not _LOWEST <= offset <= _HIGHEST:
        query, offset = _shifted(query, {default + offset: default for default in stored}), timedelta(0)
    elif typed is None and stored:
        # A zone with summer time has two offsets.
        shifted = _shifted_by_column(query, stored, offset or timedelta(0))
        query, offset = shifted, (offset or timedelta(0)) if shifted != query else offset
    if not moments:
        return Clock(query, None if offset is None else _shown(offset))
    offset = timedelta(0) if offset is None else offset
    about = min(stamps) if stamps else min(locals_) - offset
    told = [*stamps, *(each - offset for each in locals_)]
    moment = max(each for each in told if abs(each - about) < _SECOND)  # columns of fewer digits have cut it
    since = moment - datetime(1970, 1, 1)
    return Clock(query, _shown(offset), f"{since // timedelta(seconds=1)}.{since.microseconds:06}")


def added_now(event: DdlEvent) -> list[ColumnInfo]:
    """Columns that the event adds whose default is the moment, and which had rows to be filled in."""
    if event.type not in (ActionType.ADD_COLUMN, ActionType.ADD_COLUMNS, ActionType.MULTI_SCHEMA_CHANGE):
        return []
    known = {column.id for column in event.pre_table_info.columns} if event.pre_table_info else set()
    columns = event.table_info.columns if event.table_info else ()
    return [c for c in columns if c.id not in known and _is_now(c) and c.origin_default]


def typed_offset(event: DdlEvent) -> timedelta | None:
    """The offset that explains the defaults of all TIMESTAMP columns that came or changed; None if there are none, or
    no single offset does."""
    typed = set(_moments(event.query))
    stored = _defaults(event.table_info) - _defaults(event.pre_table_info)
    explaining = [{t - default for t in typed if _is_offset(t - default)} for _, default in stored]
    common = set.intersection(*explaining) if explaining else set()
    if not common or (len(common) > 1 and timedelta(0) not in common):
        return None
    return timedelta(0) if timedelta(0) in common else common.pop()


def _added_moments(event: DdlEvent) -> list[tuple[ColumnType, datetime]]:
    found = ((column.type, _moment(column.origin_default or "")) for column in added_now(event))
    return [(kind, moment) for kind, moment in found if moment is not None]


def _is_now(column: ColumnInfo) -> bool:
    is_moment = column.type in (ColumnType.TIMESTAMP, ColumnType.DATETIME)
    return is_moment and (column.default or "").upper().startswith("CURRENT_TIMESTAMP")


def _shown(offset: timedelta) -> str:
    minutes = abs(offset) // timedelta(minutes=1)
    return f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _shifted(query: str, moments: Mapping[datetime, datetime]) -> str:
    """With the defaults of TIMESTAMP columns in UTC."""

    def shifted(string: Piece) -> str:
        moment = _moment(string.text[1:-1])
        return f"'{moments[moment]}'" if moment is not None and moment in moments else string.text

    return _with_strings(query, shifted)


def _shifted_by_column(query: str, stored: Collection[datetime], offset: timedelta) -> str:
    """With each as at ``offset``, where none explains them all: only behind the word TIMESTAMP of the same column."""

    def shifted(string: Piece) -> str:
        moment = _moment(string.text[1:-1])
        column = query[: string.start].rpartition(",")[2]
        fitting = [s for s in stored if moment is not None and _is_offset(moment - s)]
        if len(fitting) != 1 or not re.search(r"\btimestamp\b", column, re.IGNORECASE):
            return string.text
        return f"'{fitting[0] + offset}'"

    return _with_strings(query, shifted)


def _with_strings(query: str, respelled: Callable[[Piece], str]) -> str:
    return "".join(respelled(piece) if piece.kind is Kind.STRING else piece.text for piece in pieces(query))


def _defaults(table: TableInfo | None) -> set[tuple[int, datetime]]:
    columns = table.columns if table else ()
    found = ((c.id, _moment(c.default)) for c in columns if c.type == ColumnType.TIMESTAMP and c.default)
    return {(column_id, moment) for column_id, moment in found if moment is not None}


def _moments(query: str) -> Iterator[datetime]:
    for piece in pieces(query):
        moment = _moment(piece.text[1:-1]) if piece.kind is Kind.STRING else None
        if moment is not None:
            yield moment


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:  # zeros, CURRENT_TIMESTAMP, or no moment at all
        return None
    return moment if moment.tzinfo is None else None  # with a zone of its own it means the same everywhere


def _is_offset(difference: timedelta) -> bool:
    return abs(difference) <= _MOST and difference % _STEP == timedelta(0)
