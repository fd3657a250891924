"""A table with a column of every kind, its rows, and the expressions asked of it.

``expressions.json`` holds what a real TiDB (its master of 2026) answered to each expression for each row, 1, 0 or NULL:

    python -m tests.flow.filter.sample HOST:PORT        asks it again and rewrites the file
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.flow.encoder.samples import KEY, UNSIGNED, column, table_of
from tidemill.model.row import arrow_schema
from tidemill.model.table import ColumnInfo, ColumnType

ANSWERS = Path(__file__).parent / "expressions.json"


def text(name: str, kind: ColumnType = ColumnType.VARCHAR, collate: str = "utf8mb4_bin", **more: Any) -> ColumnInfo:
    return replace(column(name, kind, **more), collate=collate)


TABLE = table_of(
    column("id", ColumnType.LONGLONG, KEY),
    column("i", ColumnType.LONG),
    column("u", ColumnType.LONGLONG, UNSIGNED),
    column("f", ColumnType.FLOAT),
    column("d", ColumnType.DOUBLE),
    column("n", ColumnType.NEWDECIMAL, flen=10, decimal=2),
    column("big", ColumnType.NEWDECIMAL, flen=40, decimal=10),
    text("s"),
    text("ci", collate="utf8mb4_general_ci"),
    column("b", ColumnType.VARCHAR, charset="binary"),
    column("dt", ColumnType.DATE),
    column("ts", ColumnType.DATETIME, decimal=3),
    column("t", ColumnType.DURATION),
    column("y", ColumnType.YEAR),
    text("e", ColumnType.ENUM, elems=("red", "green", "Blue")),
    text("st", ColumnType.SET, elems=("a", "b", "c")),
    column("bt", ColumnType.BIT, UNSIGNED, flen=8),
    column("j", ColumnType.JSON),
    name="t",
)
CREATE = """create table t (id bigint primary key, i int, u bigint unsigned, f float, d double, n decimal(10,2),
big decimal(40,10), s varchar(50) collate utf8mb4_bin, ci varchar(50) collate utf8mb4_general_ci, b varbinary(50),
dt date, ts datetime(3), t time, y year, e enum('red','green','Blue') collate utf8mb4_bin,
st set('a','b','c') collate utf8mb4_bin, bt bit(8), j json)"""

_NAMES = [c.name for c in TABLE.stored_columns]
_ROWS: list[tuple[Any, ...]] = [
    (1, 1, 1, 1.5, 1.5, "1.50", "1.0000000000", "abc", "abc", b"abc", "2020-01-02", "2020-01-02 03:04:05.678",
     "10:11:12", 2020, 1, 1, 1, "1"),
    (2, 0, 0, 0.0, 0.0, "0.00", "0.0000000000", "", "", b"", "1970-01-01", "1970-01-01 00:00:00.000",
     "00:00:00", 1970, 2, 0, 0, "0"),
    (3, -7, 2**64 - 1, -0.1, -0.1, "-99999999.99", "-123456789012345678901234567890.1234567890", "ABC ", "ÄBC ",
     b"ABC ", "9999-12-31", "9999-12-31 23:59:59.999", "-838:59:59", 2155, 3, 7, 255, '"x"'),
    (4, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None),
    (5, 2147483647, 2**63, 0.1, 0.1, "0.10", "99999999999999999999.5000000000", "12abc", "strasse", b"\xff\x00",
     "2020-02-29", "2020-02-29 12:00:00.500", "-00:00:01", 1999, 1, 5, 16, "{}"),
    (6, 9007199, 9007199254740993, 1e10, 1e300, "12345.67", "0.0000000001", " 3.5e1x", "straße", b"12",
     "2020-01-01", "2020-01-02 03:04:05.000", "838:59:59", 2000, 2, 2, 100, "null"),
    (7, 5, 5, 5.0, 5.0, "5.00", "5.0000000000", "a%c_d\\", "zoË", b"a%c", "2024-11-30", "2024-11-30 23:00:00.000",
     "23:00:00", 2024, 3, 3, 5, "[]"),
]  # fmt: skip
ROWS = [dict(zip(_NAMES, row, strict=True)) for row in _ROWS]

COMPARED = {
    "id": ["3", "3.0", "'3'", "2.5", "3e0"],
    "i": ["0", "1", "-7", "'1'", "'1.0'", "'abc'", "'5x'", "0.5", "1e0", "null", "true", "0x05", "u", "n", "d", "-7.0",
          "s", "9223372036854775808"],
    "u": ["0", "-1", "18446744073709551615", "9007199254740992", "'9007199254740993'", "1.5", "i", "d", "big"],
    "f": ["0.1", "1.5", "'1.5'", "10000000000", "d"],
    "d": ["0.1", "0", "'0.1'", "5", "i", "n", "1e300"],
    "n": ["0.1", "0.10", "'0.1'", "5", "12345.67", "12345.670001", "1e-1", "-99999999.99", "i", "big"],
    "big": ["1", "0.0000000001", "'99999999999999999999.5'", "99999999999999999999.5", "0.00000000011", "n"],
    "s": ["'abc'", "'ABC'", "'abc  '", "''", "12", "35", "0", "'b'", "ci"],
    "ci": ["'ABC'", "'äbc'", "'STRASSE'", "'straße'", "'strase'", "'ZOE'", "'b'", "''", "0"],
    "b": ["'abc'", "'ABC'", "'ABC '", "x'ff00'", "12", "s"],
    "dt": ["'2020-01-02'", "'2020-1-2'", "20200102", "'2020-01-02 00:00:00'", "'2020-01-01 23:59:59.9'", "ts",
           "date '2020-02-29'", "'20-01-02'", "timestamp '2020-01-02 00:00:01'", "'20200102'", "'1970.01.01'"],
    "ts": ["'2020-01-02 03:04:05.678'", "'2020-01-02 03:04:05'", "20200102030405", "'2020-02-29'",
           "'2020-02-29T12:00:00.5'", "dt", "timestamp '2020-01-02 03:04:05'", "'9999-12-31 23:59:59.999'"],
    "t": ["'10:11:12'", "'00:00:00'", "101112", "'-00:00:01'", "'838:59:59'", "time '23:00:00'", "'1 00:00:00'", "'-1'",
          "'10:11'"],
    "y": ["2020", "'2020'", "70", "99", "20", "0", "1970", "'1999'"],
    "e": ["'red'", "'Blue'", "'blue'", "1", "2.5", "'green'"],
    "st": ["'a'", "'a,b,c'", "'b'", "5", "''", "'a,c'"],
    "bt": ["0", "255", "5", "100.5", "'1'", "0x10", "b'101'"],
}  # fmt: skip
SIGNS = ("=", "<>", "<", ">=", "<=>")
OTHERS = [
    "i is null", "i is not null", "s is null or i = 1", "i and u", "i or u", "i xor u", "not i", "!i", "not (i = 1)",
    "i = 1 and s = 'abc'", "null and i", "null or i", "i is true", "i is false", "i is unknown", "i is not true",
    "i = 1 is true", "i in (1, 5, -7)", "i in (1, null)", "i not in (1, null)", "i not in (1, 5)",
    "s in ('abc', '12abc')", "ci in ('ABC')", "i in ('1', 5.0)", "u in (18446744073709551615, 1)", "n in (0.1, 5)",
    "dt in ('2020-01-02')", "i between 0 and 5", "i not between 0 and 5", "n between '0.1' and 5",
    "dt between '2020-01-01' and '2020-12-31'", "s between 'a' and 'b'", "i between null and 5",
    "t between '00:00:00' and '23:59:59'", "s like 'a%'", "s like '%c%'", "s like 'a_c'", "s like 'a\\%c\\_d%'",
    "s like 'a|%c%' escape '|'", "s not like 'a%'", "s like ''", "s like 'ABC'", "s like 'ABC '", "ci like 'ab%'",
    "ci like 'STRA_E'", "ci like '%Ss%'", "b like 'a%'", "i like '1%'", "dt like '2020%'", "e like 'r%'",
    "s like null", "u like '%5'", "s like '%\\\\'", "s regexp '^a'", "s regexp 'B'", "ci regexp '^a'",
    "ci regexp 'ASS'", "s rlike '[0-9]+'", "s not regexp 'c'", "i + 1 = 2", "i - 8 < -8", "i * 2 = 10", "-i = 7",
    "- -i = -7", "i / 2 = 0.5", "i / 2 = 2.5", "i / 3 > 0.333333333", "i / 3 = 0.333333333", "1 / i = 0.2",
    "i / 0 is null", "i div 2 = -3", "i div 2 = 2", "i div 0 is null", "i % 3 = -1", "i mod 2 = 1", "mod(i, 5) = 0",
    "i % 0 is null", "u % 10 = 5", "u div 10 = 1844674407370955161", "n + 0.1 = 0.2", "n * n = 25", "n * 1.5 = 7.5",
    "n / 2 = 0.05", "n / 3 = 0.033333333", "n / 3 > 1.666666666666", "n - 1 > 0", "d + 0.1 = 0.2", "d * 2 = 10",
    "d / 2 = 2.5", "d + i = 10", "big + 1 > 2", "big * 2 = 10", "big / 7 > 0.7", "s + 1 = 13", "s + 0 = 35",
    "'3' + i = 4", "i + true = 2", "y + 1 = 2021", "bt + 1 = 256", "e + 0 = 3", "st + 0 = 7", "i", "u", "i = 1 = 1",
    "i > 0 > 0", "5", "1", "0", "null", "true", "i + 0", "u + 0", "if(i > 0, 1, 0) = 1", "if(i, s, 'x') = 'x'",
    "ifnull(i, 1) = 1", "ifnull(s, 'abc') = 'abc'", "coalesce(null, i, 5) = 5", "nullif(i, 1) is null", "isnull(i)",
    "if(i > 0, n, 0) = 0.1", "if(i is null, null, 3) = 3", "ifnull(u, i) = 1",
    "case when i > 0 then 'p' when i < 0 then 'n' end = 'n'", "case i when 1 then 2 when 5 then 3 else 0 end = 3",
    "case s when 'abc' then 1 else 0 end", "length(s) = 3", "length(ci) = 4", "char_length(ci) = 4", "length(b) = 2",
    "length(i) = 1", "octet_length(s) > 4", "lower(s) = 'abc'", "upper(s) = 'ABC'", "trim(s) = 'ABC'",
    "ltrim(s) = '3.5e1x'", "rtrim(s) = 'ABC'", "concat(s, '-', i) = 'abc-1'", "concat(s, null) is null",
    "left(s, 2) = 'ab'", "right(s, 2) = 'bc'", "left(s, 0) = ''", "right(s, 100) = 'abc'", "substring(s, 2) = 'bc'",
    "substr(s, 1, 2) = '12'", "substring(s, -2) = 'bc'", "substring(s, -3, 2) = 'ab'", "substring(s, 0) = ''",
    "mid(s, 2, 1) = 'b'", "substring(s, -100) = ''", "left(s, -1) = ''", "substring(s, 2, 0) = ''", "length(e) = 3",
    "concat(e, st) = 'reda'", "abs(i) = 7", "abs(n) > 5", "abs(d) = 0.1", "floor(n) = 0", "ceil(n) = 1",
    "floor(d) = -1", "ceiling(d) = 1", "ceil(n) = -99999999", "floor(n) = -100000000", "floor(i) = 5",
    "greatest(i, 3) = 3", "least(i, 3) = 3", "greatest(i, n, 1.2) = 1.5", "greatest(i, null) is null",
    "least(u, 10) = 10", "year(dt) = 2020", "month(dt) = 2", "day(dt) = 29", "dayofmonth(ts) = 2", "hour(ts) = 3",
    "minute(ts) = 4", "second(ts) = 5", "hour(t) = 838", "hour(t) = 10", "minute(t) = 59", "second(t) = 12",
    "hour(dt) = 0", "date(ts) = '2020-01-02'", "date(ts) = dt", "date(dt) < '2000-01-01'",
    "year(ts) between 2020 and 2024", "i = 1 or s like 'z%' and not n > 5", "not i = 1", "not i is null",
    "i = 1 xor u = 1 xor d > 1", "i && u || n", "`i` = 1", "t.i = 1", "ID = 1", "I=1/* c */", "(((i)))=1",
    "s = 'a''b'", 's = "abc"', "s = 'ab' 'c'", "s <> '\\'\\n'", "x'616263' = s", "s = 0x616263", "i = 0x01",
    "i <=> null", "null <=> null", "null is null", "1 = 1", "'a' = 'A'", "'a' = 'a '", "j is null", "j is not null",
    "i >= 1 and i <= 5", "s > ''", "s >= 'ABC'", "b > 'a'", "ci < 'b'", "-u = -5", "u - 1 = 4", "u + i = 10",
    "u > i", "i != 1", "s <=> ci", "dt is null", "i = -7 and u = 18446744073709551615",
]  # fmt: skip
EXPRESSIONS = [f"{name} {sign} {other}" for name, others in COMPARED.items() for other in others for sign in SIGNS]
EXPRESSIONS += OTHERS


def image() -> pa.RecordBatch:
    """The rows as a RowBatch holds them."""
    schema = arrow_schema(TABLE)
    return pa.RecordBatch.from_pylist(ROWS, schema)


def _record(address: str) -> None:
    import pymysql

    host, _, port = address.rpartition(":")
    with pymysql.connect(host=host, port=int(port), user="root", autocommit=True) as session:
        cursor = session.cursor()
        cursor.execute("drop database if exists filters")
        cursor.execute("create database filters")
        cursor.execute("use filters")
        cursor.execute(CREATE)
        for row in ROWS:
            cursor.execute(f"insert into t values ({', '.join(['%s'] * len(row))})", tuple(row.values()))
        cursor.execute("set time_zone = '+00:00'")
        answers: dict[str, Any] = {}
        for text in EXPRESSIONS:
            try:
                cursor.execute(f"select ({text}) from t order by id")
                answers[text] = [_plain(value) for (value,) in cursor.fetchall()]
            except pymysql.MySQLError as error:
                answers[text] = f"error {error.args[0]}"
    ANSWERS.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in answers.items()) + "\n}\n")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)


if __name__ == "__main__":
    _record(sys.argv[1])
