"""Bounds on a table's handle, and the ranges of keys that they leave.

Rows lie in the order of their handle: an integer, or the columns of a clustered primary key. Where the first of
those is an integer, bounds on it are bounds on the keys. The ranges may hold more than was asked for, never less.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemill.model.table import INTEGER_TYPES, ColumnFlag, ColumnInfo, TableInfo
from tidemill.tidb.keys import encode_int, record_prefix, record_range

KeyRange = tuple[bytes, bytes]  # [start, end) of plain keys

_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1
_MIDDLE = 1 << 63
_FLAG_INT, _FLAG_UINT = b"\x03", b"\x04"


@dataclass(frozen=True, slots=True)
class HandleBounds:
    """Intervals of integers, both ends included, in ascending order and apart. Begins with all of them."""

    intervals: tuple[tuple[int, int], ...] = ((_LOWEST, _HIGHEST),)

    def within(self, low: int | None, high: int | None) -> "HandleBounds":
        """Only what lies in ``[low, high]`` too; None: without end on that side."""
        low, high = _LOWEST if low is None else low, _HIGHEST if high is None else high
        cut = ((max(a, low), min(b, high)) for a, b in self.intervals)
        return HandleBounds(tuple((a, b) for a, b in cut if a <= b))

    def among(self, values: Iterable[int]) -> "HandleBounds":
        wanted = sorted({v for v in values if any(a <= v <= b for a, b in self.intervals)})
        return HandleBounds(tuple((v, v) for v in wanted))

    @property
    def is_everything(self) -> bool:
        return self.intervals == ((_LOWEST, _HIGHEST),)


def bounded_column(table: TableInfo) -> ColumnInfo | None:
    """The column whose bounds are bounds on the keys; None: this table's keys tell nothing of that kind."""
    column: ColumnInfo | None = None
    if table.pk_is_handle:
        column = next((c for c in table.columns if c.flag & ColumnFlag.PRI_KEY), None)
    elif table.is_common_handle:
        column = next(iter(table.primary_key), None)
    return column if column is not None and column.type in INTEGER_TYPES else None


def key_ranges(table: TableInfo, physical_id: int, bounds: HandleBounds) -> list[KeyRange]:
    """The keys of rows within the bounds, in key order."""
    column = bounded_column(table)
    if column is None or bounds.is_everything:
        return [record_range(physical_id)]
    prefix = record_prefix(physical_id)
    ranges = []
    for low, high in bounds.intervals:
        for first, last in _encoded(column.is_unsigned, not table.pk_is_handle, low, high):
            start, end = prefix + first, prefix + last
            # Behind the last handle: the first key that does not begin with it.
            ranges.append((start, _behind(end)))
    return sorted(ranges)


def _encoded(is_unsigned: bool, is_common: bool, low: int, high: int) -> Iterator[tuple[bytes, bytes]]:
    if is_common and is_unsigned:
        low, high = max(low, 0), min(high, (1 << 64) - 1)
        if low <= high:
            yield _FLAG_UINT + low.to_bytes(8, "big"), _FLAG_UINT + high.to_bytes(8, "big")
        return
    flag = _FLAG_INT if is_common else b""
    if not is_unsigned:
        low, high = max(low, -_MIDDLE), min(high, _MIDDLE - 1)
        if low <= high:
            yield flag + encode_int(low), flag + encode_int(high)
        return
    # An unsigned handle is kept as the signed integer of the same bits, so its upper half lies before the lower.
    if high >= _MIDDLE:
        yield encode_int(max(low, _MIDDLE) - (1 << 64)), encode_int(high - (1 << 64))
    if low < _MIDDLE:
        low, high = max(low, 0), min(high, _MIDDLE - 1)
        if low <= high:
            yield encode_int(low), encode_int(high)


def _behind(key: bytes) -> bytes:
    number = int.from_bytes(key, "big") + 1
    return number.to_bytes(len(key), "big")
