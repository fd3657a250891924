"""In which time zone a DDL was typed, as far as it matters.

``DEFAULT '2026-01-01 00:00:00'`` of a TIMESTAMP column means another moment in every time zone, and a job does not say
in which one its session was. But the table as it is afterwards has the moment in UTC; the difference to what stands in
the statement is the session's offset.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from tidemill.model.ddl import DdlEvent
from tidemill.model.table import ColumnType, TableInfo

_STRING = re.compile(r"""'((?:[^'\\]|\\.|'')*)'|"((?:[^"\\]|\\.|"")*)\"""", re.DOTALL)
_MOST = timedelta(hours=14)
_STEP = timedelta(minutes=15)


def typed_offset(event: DdlEvent) -> str | None:
    """``+08:00``: the offset that explains the defaults of all TIMESTAMP columns that came or changed; None if there
    are none, or no single offset does."""
    typed = set(_moments(event.query))
    stored = _defaults(event.table_info) - _defaults(event.pre_table_info)
    explaining = [{t - default for t in typed if _is_offset(t - default)} for _, default in stored]
    common = set.intersection(*explaining) if explaining else set()
    if not common or (len(common) > 1 and timedelta(0) not in common):
        return None
    offset = timedelta(0) if timedelta(0) in common else common.pop()
    minutes = abs(offset) // timedelta(minutes=1)
    return f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _defaults(table: TableInfo | None) -> set[tuple[int, datetime]]:
    columns = table.columns if table else ()
    found = ((c.id, _moment(c.default)) for c in columns if c.type == ColumnType.TIMESTAMP and c.default)
    return {(column_id, moment) for column_id, moment in found if moment is not None}


def _moments(query: str) -> Iterator[datetime]:
    for found in _STRING.finditer(query):
        moment = _moment(found.group(1) or found.group(2) or "")
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
