"""MySQL's words for a column's type, read: ``varchar(16)``, ``int unsigned zerofill``, ``enum('a','b')``."""

import re
from functools import cache, lru_cache

from tidemill.flow.reader.shape import UnclearError
from tidemill.flow.reader.tables import ColumnSeen
from tidemill.model.table import STRING_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.mysql_type import type_word

_TYPE = re.compile(r"([a-z0-9]+)(?:\((.*)\))?((?: unsigned| zerofill)*)", re.DOTALL)
_ELEMENT = re.compile(r"'((?:[^']|'')*)'(?:,|$)", re.DOTALL)


@cache
def _types() -> dict[str, tuple[ColumnType, bool]]:
    """By word: the type, and whether it holds bytes."""
    found: dict[str, tuple[ColumnType, bool]] = {}
    for kind in ColumnType:
        for charset in ("utf8mb4", "binary"):
            column = ColumnInfo(0, "", 0, kind, 0, -1, -1, charset, charset)
            found.setdefault(type_word(column), (kind, charset == "binary" and kind in STRING_TYPES))
    return found


@lru_cache(maxsize=4096)
def column_seen(name: str, text: str, *, is_key: bool = False) -> ColumnSeen:
    """A column of this type. Raises UnclearError for a word that MySQL has not."""
    found = _TYPE.fullmatch(text)
    known = _types().get(found.group(1)) if found else None
    if found is None or known is None:
        raise UnclearError(f"column {name} is of an unknown type")
    kind, is_binary = known
    inner, more = found.group(2) or "", found.group(3)
    numbers = [int(number) for number in re.findall(r"\d+", inner)] if "'" not in inner else []
    is_time = kind in (ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.DURATION)
    return ColumnSeen(
        name,
        kind,
        is_binary=is_binary,
        is_unsigned="unsigned" in more or kind in (ColumnType.BIT, ColumnType.YEAR),
        is_zerofill="zerofill" in more,
        is_nullable=not is_key,
        is_handle=is_key,
        is_primary=is_key,
        flen=numbers[0] if numbers and not is_time else -1,
        decimal=numbers[-1] if len(numbers) > 1 or (numbers and is_time) else -1,
        elems=tuple(element.replace("''", "'") for element in _ELEMENT.findall(inner)) if "'" in inner else (),
    )
