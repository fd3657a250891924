"""How a column of TiDB is held in a lake table, and how its values get there.

    integers, YEAR, BIT up to 63     int64                        DATE          date
    BIGINT UNSIGNED, BIT(64)         decimal(20,0)                DATETIME      timestamp without zone, microseconds
    DECIMAL up to 38 digits          decimal(p,s), else string    TIMESTAMP     timestamp in UTC, microseconds
    FLOAT, DOUBLE                    float, double                TIME          string: it may be longer than a day
    text, ENUM, SET, JSON, VECTOR    string                       bytes         binary

MySQL lets a date be what no calendar has (``0000-00-00``, ``2024-02-31``). Such a value is null in its column, and
its text stands in the row's ``_unfit``, a JSON object by column name, so that nothing is lost. Runs on executors.
"""

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import CorruptDataError
from tidemill.flow.mounter.defaults import fill_of
from tidemill.model.row import arrow_type
from tidemill.model.table import INTEGER_TYPES, ColumnInfo, ColumnType

UINT64 = pa.decimal128(20, 0)
MOMENT = pa.timestamp("us", "UTC")
CLOCK = pa.timestamp("us")
_LONGEST_DECIMAL = 38
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)

_BY_NAME = {
    str(kind): kind
    for kind in (pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), CLOCK, MOMENT)
}

Unfit = dict[int, str]  # row → text of a value that its column's type cannot hold


def lake_type(column: ColumnInfo) -> pa.DataType:
    kind = column.type
    if kind in INTEGER_TYPES:
        return UINT64 if column.is_unsigned and kind is ColumnType.LONGLONG else pa.int64()
    match kind:
        case ColumnType.YEAR:
            return pa.int64()
        case ColumnType.BIT:
            return UINT64 if column.flen >= 64 else pa.int64()
        case ColumnType.NEWDECIMAL:
            precision, scale = column.flen if column.flen > 0 else 10, max(column.decimal, 0)
            return pa.decimal128(precision, scale) if precision <= _LONGEST_DECIMAL else pa.string()
        case ColumnType.DATE | ColumnType.NEWDATE:
            return pa.date32()
        case ColumnType.DATETIME:
            return CLOCK
        case ColumnType.TIMESTAMP:
            return MOMENT
        case ColumnType.ENUM | ColumnType.SET:
            return pa.string()
    return arrow_type(column)


def type_named(name: str) -> pa.DataType:
    """The type that ``str`` gave the name of."""
    found = _DECIMAL.fullmatch(name)
    return pa.decimal128(int(found[1]), int(found[2])) if found else _BY_NAME[name]


def holds_exactly(wider: pa.DataType, narrower: pa.DataType) -> bool:
    """Whether a plain cast takes every value of ``narrower`` to the same value of ``wider``."""
    if wider == narrower:
        return True
    if pa.types.is_decimal(wider):
        whole = wider.precision - wider.scale
        if narrower == pa.int64():
            return bool(whole >= 19)
        return bool(
            pa.types.is_decimal(narrower)
            and wider.scale >= narrower.scale
            and whole >= (narrower.precision - narrower.scale)
        )
    return bool(wider == pa.float64() and narrower == pa.float32())


def to_lake(column: ColumnInfo, values: pa.Array) -> tuple[pa.Array, Unfit]:
    """Values as the mounter gives them, in the column's lake type; and those that do not fit, which are null there."""
    target = lake_type(column)
    if column.type is ColumnType.ENUM:
        return _enum_names(column, values), {}
    if column.type is ColumnType.SET:
        return _set_names(column, values), {}
    if values.type == target:
        return values, {}
    if pa.types.is_temporal(target):
        return _times(values, target)
    return values.cast(target), {}


def default_of(column: ColumnInfo) -> tuple[pa.Scalar, bool]:
    """What rows older than the column have in it; and whether that fits into its type."""
    fill = fill_of(column, "UTC")
    held = arrow_type(column)
    value = fill.decode() if isinstance(fill, bytes) and held == pa.string() else fill
    values, unfit = to_lake(column, pa.array([value], held))
    return values[0], not unfit


def _times(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, Unfit]:
    plain = CLOCK if target == MOMENT else target
    try:
        return values.cast(plain).cast(target), {}  # text in UTC: the cast to a zone changes no value
    except pa.ArrowInvalid:
        fits = _is_in_calendar(values)
    places = np.flatnonzero(~fits)
    texts = values.take(pa.array(places)).to_pylist()
    kept = pc.if_else(pa.array(fits), values, pa.scalar(None, pa.string()))
    return kept.cast(plain).cast(target), dict(zip(places.tolist(), texts, strict=True))


def _is_in_calendar(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each text names a day that there is. Null counts as one."""
    year, month, day = (
        pc.utf8_slice_codeunits(values, begin, end).cast(pa.int64()).fill_null(1).to_numpy(zero_copy_only=False)
        for begin, end in ((0, 4), (5, 7), (8, 10))
    )
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    days = _DAYS[np.clip(month, 0, 12)] + (is_leap & (month == 2))
    fits: npt.NDArray[np.bool_] = (year > 0) & (month > 0) & (month < 13) & (day > 0) & (day <= days)
    return fits


def _enum_names(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """Index 0, which TiDB keeps for a value that was refused, has the empty name."""
    names = pa.array(["", *column.elems], pa.string())
    if (pc.max(values).as_py() or 0) >= len(names):
        raise _beyond(column)
    return names.take(values)


def _set_names(column: ColumnInfo, values: pa.Array) -> pa.Array:
    if (pc.max(values).as_py() or 0) >> len(column.elems):
        raise _beyond(column)
    encoded = values.dictionary_encode()
    names = [
        ",".join(elem for bit, elem in enumerate(column.elems) if bitmap >> bit & 1)
        for bitmap in encoded.dictionary.to_pylist()
    ]
    return pa.array(names, pa.string()).take(encoded.indices)


def _beyond(column: ColumnInfo) -> CorruptDataError:
    return CorruptDataError(
        f"column {column.name!r} holds a value beyond its {len(column.elems)} elements. "
        "Nothing was skipped; the changefeed stops before this row. Check the column upstream, then start again."
    )


SQL_TYPES: Mapping[str, Mapping[str, str]] = {
    "duckdb": {
        "int64": "BIGINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "string": "VARCHAR",
        "binary": "BLOB",
        "date32[day]": "DATE",
        str(CLOCK): "TIMESTAMP",
        str(MOMENT): "TIMESTAMPTZ",
    },
    "spark": {
        "int64": "BIGINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "string": "STRING",
        "binary": "BINARY",
        "date32[day]": "DATE",
        str(CLOCK): "TIMESTAMP_NTZ",
        str(MOMENT): "TIMESTAMP",
    },
}


def sql_type(name: str, dialect: str) -> str:
    found = _DECIMAL.fullmatch(name)
    return f"DECIMAL({found[1]},{found[2]})" if found else SQL_TYPES[dialect][name]
