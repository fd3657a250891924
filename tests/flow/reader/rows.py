"""Rows of a table with every type, for properties that hold for any of them."""

import numpy as np
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, NOT_NULL, UNSIGNED, Row, column, table_of
from tidemill.model.table import ColumnFlag, ColumnType

_UNIQUE = int(ColumnFlag.UNIQUE_KEY)
# In the order of their names, as classic TiCDC writes them: so a row's columns come back in their order.
EVERY_TYPE = table_of(
    column("a_id", ColumnType.LONGLONG, KEY),
    column("b_unsigned", ColumnType.LONGLONG, UNSIGNED),
    column("c_tiny", ColumnType.TINY),
    column("d_float", ColumnType.FLOAT),
    column("e_double", ColumnType.DOUBLE),
    column("f_decimal", ColumnType.NEWDECIMAL, flen=10, decimal=2),
    column("g_year", ColumnType.YEAR, UNSIGNED),
    column("h_bit", ColumnType.BIT, UNSIGNED),
    column("i_enum", ColumnType.ENUM, elems=("a", "b")),
    column("j_set", ColumnType.SET, elems=("a", "b")),
    column("k_char", ColumnType.STRING),
    column('l_"<é\\', ColumnType.VARCHAR, NOT_NULL | _UNIQUE),
    column("m_binary", ColumnType.STRING, int(ColumnFlag.BINARY), charset="binary"),
    column("n_varbinary", ColumnType.VARCHAR, int(ColumnFlag.BINARY), charset="binary"),
    column("o_text", ColumnType.BLOB),
    column("p_blob", ColumnType.LONGBLOB, int(ColumnFlag.BINARY), charset="binary"),
    column("q_json", ColumnType.JSON),
    column("r_datetime", ColumnType.DATETIME, decimal=6),
    column("s_timestamp", ColumnType.TIMESTAMP),
    column("t_time", ColumnType.DURATION),
    column("u_date", ColumnType.DATE),
    column("v_vector", ColumnType.VECTOR),
    column("w_generated", ColumnType.LONG, generated_expr="?", is_stored=True),
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_BYTES = st.binary(max_size=20) | _TEXT.map(lambda text: text.encode())
_SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: float(np.float32(x)))


def any_row() -> st.SearchStrategy[Row]:
    nullable = {
        "b_unsigned": st.integers(0, 2**64 - 1),
        "c_tiny": st.integers(-128, 127),
        "d_float": _SINGLE,
        "e_double": st.floats(allow_nan=False, allow_infinity=False),
        "f_decimal": st.sampled_from(["0.00", "-12345678.90"]),
        "g_year": st.integers(0, 2155),
        "h_bit": st.integers(0, 2**64 - 1),
        "i_enum": st.integers(0, 2),
        "j_set": st.integers(0, 2**64 - 1),
        "k_char": _TEXT,
        "m_binary": _BYTES,
        "n_varbinary": _BYTES,
        "o_text": _TEXT,
        "p_blob": _BYTES,
        "q_json": st.sampled_from(['{"a": [1, "\\"é"]}', "null"]),
        "r_datetime": st.sampled_from(["2024-02-29 01:02:03.000001", "0000-00-00 00:00:00.000000"]),
        "s_timestamp": st.just("2020-01-01 00:00:00"),
        "t_time": st.just("-838:59:59"),
        "u_date": st.just("2024-01-05"),
        "v_vector": st.just("[1,2.5]"),
        "w_generated": st.integers(-5, 5),
    }
    needed = {"a_id": st.integers(-(2**63), 2**63 - 1), 'l_"<é\\': _TEXT}
    row = {**needed, **{name: st.none() | values for name, values in nullable.items()}}
    return st.fixed_dictionaries({column.name: row[column.name] for column in EVERY_TYPE.columns})
