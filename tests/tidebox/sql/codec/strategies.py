"""Any value of any column type."""

from datetime import timedelta
from decimal import Decimal

from hypothesis import strategies as st

from tests.tidebox.sql.codec.tables import UNSIGNED, column, text
from tidebox.sql.codec import (
    Datum,
    Json,
    JsonDuration,
    JsonOpaque,
    JsonTime,
    JsonTimeKind,
    JsonUint,
    JsonValue,
    Time,
)
from tidemill.model.table import ColumnInfo
from tidemill.model.table import ColumnType as T

I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False).map(lambda v: v + 0.0)  # no negative zero
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda v: v + 0.0)
TIMES = st.builds(
    Time,
    st.integers(0, 9999),
    st.integers(0, 12),
    st.integers(0, 31),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(0, 59),
    st.integers(0, 999999),
)
DATES = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)).map(lambda parts: Time(*parts))
DURATIONS = st.integers(-3020399999999, 3020399999999).map(lambda n: timedelta(microseconds=n))
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
BYTES = st.binary(max_size=30)
VECTORS = st.lists(FLOATS, max_size=8).map(tuple)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale) if precision < 28 else _shifted(n, scale))


def _shifted(number: int, scale: int) -> Decimal:
    """Exactly, which arithmetic in the default context would not be."""
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


_LEAVES: st.SearchStrategy[JsonValue] = st.one_of(
    st.none(),
    st.booleans(),
    I64,
    st.integers(2**63, 2**64 - 1),
    U64.filter(lambda n: n < 2**63).map(JsonUint),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.builds(JsonOpaque, st.integers(0, 255), BYTES),
    st.builds(JsonTime, st.sampled_from(JsonTimeKind), TIMES),
    st.builds(JsonDuration, DURATIONS, st.integers(0, 6)),
)
DOCUMENTS = st.recursive(
    _LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4))
).map(Json)

COLUMNS: dict[str, tuple[ColumnInfo, st.SearchStrategy[Datum]]] = {
    "tinyint": (column(1, T.TINY), st.integers(-128, 127)),
    "smallint": (column(1, T.SHORT), st.integers(-(2**15), 2**15 - 1)),
    "mediumint": (column(1, T.INT24), st.integers(-(2**23), 2**23 - 1)),
    "int": (column(1, T.LONG), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (column(1, T.LONGLONG), I64),
    "tinyint unsigned": (column(1, T.TINY, flag=UNSIGNED), st.integers(0, 2**8 - 1)),
    "smallint unsigned": (column(1, T.SHORT, flag=UNSIGNED), st.integers(0, 2**16 - 1)),
    "mediumint unsigned": (column(1, T.INT24, flag=UNSIGNED), st.integers(0, 2**24 - 1)),
    "int unsigned": (column(1, T.LONG, flag=UNSIGNED), st.integers(0, 2**32 - 1)),
    "bigint unsigned": (column(1, T.LONGLONG, flag=UNSIGNED), U64),
    "float": (column(1, T.FLOAT), FLOATS),
    "double": (column(1, T.DOUBLE), DOUBLES),
    "decimal(10,3)": (column(1, T.NEWDECIMAL, flen=10, decimal=3), decimals(10, 3)),
    "decimal(65,30)": (column(1, T.NEWDECIMAL, flen=65, decimal=30), decimals(65, 30)),
    "decimal(30,30)": (column(1, T.NEWDECIMAL, flen=30, decimal=30), decimals(30, 30)),
    "decimal(1,0)": (column(1, T.NEWDECIMAL, flen=1, decimal=0), decimals(1, 0)),
    "varbinary": (column(1, T.VARCHAR), BYTES),
    "binary": (column(1, T.STRING), BYTES),
    "var_string": (column(1, T.VARSTRING), BYTES),
    "tinyblob": (column(1, T.TINYBLOB), BYTES),
    "blob": (column(1, T.BLOB), BYTES),
    "mediumblob": (column(1, T.MEDIUMBLOB), BYTES),
    "longblob": (column(1, T.LONGBLOB), BYTES),
    "varchar": (text(1), TEXTS),
    "char": (text(1, T.STRING), TEXTS.map(lambda t: t.rstrip(" "))),
    "tinytext": (text(1, T.TINYBLOB), TEXTS),
    "text": (text(1, T.BLOB), TEXTS),
    "mediumtext": (text(1, T.MEDIUMBLOB), TEXTS),
    "longtext": (text(1, T.LONGBLOB), TEXTS),
    "date": (column(1, T.DATE), DATES),
    "newdate": (column(1, T.NEWDATE), DATES),
    "datetime(6)": (column(1, T.DATETIME, decimal=6), TIMES),
    "timestamp(6)": (column(1, T.TIMESTAMP, decimal=6), TIMES),
    "time(6)": (column(1, T.DURATION, decimal=6), DURATIONS),
    "year": (column(1, T.YEAR, flag=UNSIGNED), st.integers(0, 2155)),
    "bit(64)": (column(1, T.BIT, flen=64, flag=UNSIGNED), U64),
    "enum": (column(1, T.ENUM, elems=tuple("abc")), st.integers(0, 3)),
    "set": (column(1, T.SET, elems=tuple("abcdef")), st.integers(0, 63)),
    "json": (column(1, T.JSON), DOCUMENTS),
    "vector": (column(1, T.VECTOR), VECTORS),
}
NOT_IN_KEYS = ("json", "vector")
NOT_WHOLE_IN_KEYS = (*NOT_IN_KEYS, "tinytext", "text", "mediumtext", "longtext")  # of these a key has a prefix at most
EXACT_IN_KEYS = [name for name in COLUMNS if name not in (*NOT_IN_KEYS, "varchar") and not name.endswith("text")]
