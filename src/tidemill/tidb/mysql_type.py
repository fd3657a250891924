"""MySQL's words for a column's type, and the numbers that Java gives to them."""

from dataclasses import dataclass

from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnFlag, ColumnInfo, ColumnType

TYPE_WORDS = {
    ColumnType.TINY: "tinyint",
    ColumnType.SHORT: "smallint",
    ColumnType.INT24: "mediumint",
    ColumnType.LONG: "int",
    ColumnType.LONGLONG: "bigint",
    ColumnType.FLOAT: "float",
    ColumnType.DOUBLE: "double",
    ColumnType.NEWDECIMAL: "decimal",
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.DATE: "date",
    ColumnType.NEWDATE: "date",
    ColumnType.DURATION: "time",
    ColumnType.DATETIME: "datetime",
    ColumnType.YEAR: "year",
    ColumnType.BIT: "bit",
    ColumnType.ENUM: "enum",
    ColumnType.SET: "set",
    ColumnType.JSON: "json",
    ColumnType.VECTOR: "vector",
}
_TEXT_WORDS = {  # as text, as bytes
    ColumnType.VARCHAR: ("varchar", "varbinary"),
    ColumnType.VARSTRING: ("varchar", "varbinary"),
    ColumnType.STRING: ("char", "binary"),
    ColumnType.TINYBLOB: ("tinytext", "tinyblob"),
    ColumnType.BLOB: ("text", "blob"),
    ColumnType.MEDIUMBLOB: ("mediumtext", "mediumblob"),
    ColumnType.LONGBLOB: ("longtext", "longblob"),
}

_JAVA_CODES = {
    ColumnType.TINY: -6,
    ColumnType.SHORT: 5,
    ColumnType.INT24: 4,
    ColumnType.LONG: 4,
    ColumnType.LONGLONG: -5,
    ColumnType.FLOAT: 7,
    ColumnType.DOUBLE: 8,
    ColumnType.NEWDECIMAL: 3,
    ColumnType.TIMESTAMP: 93,
    ColumnType.DATE: 91,
    ColumnType.NEWDATE: 91,
    ColumnType.DURATION: 92,
    ColumnType.DATETIME: 93,
    ColumnType.YEAR: 12,
    ColumnType.BIT: -7,
    ColumnType.ENUM: 4,
    ColumnType.SET: -7,
    ColumnType.JSON: 12,
    ColumnType.VECTOR: 12,
}
_PROMOTIONS = {  # of unsigned integers: above this value, that code
    ColumnType.TINY: (127, 5),
    ColumnType.SHORT: (32767, 4),
    ColumnType.LONG: (2147483647, -5),
    ColumnType.LONGLONG: (9223372036854775807, 3),
}


@dataclass(frozen=True, slots=True)
class JavaType:
    """A java.sql.Types code; unsigned values above ``limit`` (0: none is) need ``promoted``."""

    code: int
    limit: int = 0
    promoted: int = 0


def type_word(column: ColumnInfo) -> str:
    """``varchar``, ``blob``, ``bigint``: without sign, length or elements."""
    if column.type in STRING_TYPES:
        text, binary = _TEXT_WORDS[column.type]
        return binary if column.is_binary else text
    return TYPE_WORDS[column.type]


def mysql_type(column: ColumnInfo) -> str:
    """``int unsigned zerofill``: what canal-json calls ``mysqlType``."""
    word = type_word(column)
    if column.is_unsigned and column.type not in (ColumnType.BIT, ColumnType.YEAR):
        word += " unsigned"
    if column.flag & ColumnFlag.ZEROFILL and column.type is not ColumnType.YEAR:
        word += " zerofill"
    return word


def full_mysql_type(column: ColumnInfo) -> str:
    """``varchar(16)``, ``decimal(10,2) unsigned``, ``enum('a','b')``: as in MySQL's own SHOW COLUMNS."""
    word = type_word(column)
    return word + _parameters(column) + mysql_type(column).removeprefix(word)


def default_length(kind: ColumnType) -> int:
    """The display length TiDB assumes where a column gives none; -1: there is none."""
    return _DEFAULT_LENGTHS.get(kind, (-1, -1))[0]


def default_decimal(kind: ColumnType) -> int:
    return _DEFAULT_LENGTHS.get(kind, (-1, -1))[1]


def java_type(column: ColumnInfo) -> JavaType:
    if column.type in STRING_TYPES:
        if column.is_binary:
            return JavaType(2004)
        is_blob = column.type not in (ColumnType.VARCHAR, ColumnType.VARSTRING, ColumnType.STRING)
        return JavaType(2005 if is_blob else 1 if column.type is ColumnType.STRING else 12)
    code = _JAVA_CODES[column.type]
    if column.is_unsigned and column.type in _PROMOTIONS:
        return JavaType(code, *_PROMOTIONS[column.type])
    return JavaType(code)


_DEFAULT_LENGTHS = {  # display length, fractional digits
    ColumnType.BIT: (1, 0),
    ColumnType.TINY: (4, 0),
    ColumnType.SHORT: (6, 0),
    ColumnType.INT24: (9, 0),
    ColumnType.LONG: (11, 0),
    ColumnType.LONGLONG: (20, 0),
    ColumnType.DOUBLE: (22, -1),
    ColumnType.FLOAT: (12, -1),
    ColumnType.NEWDECIMAL: (10, 0),
    ColumnType.DURATION: (10, 0),
    ColumnType.DATE: (10, 0),
    ColumnType.TIMESTAMP: (19, 0),
    ColumnType.DATETIME: (19, 0),
    ColumnType.YEAR: (4, 0),
    ColumnType.STRING: (1, 0),
    ColumnType.VARCHAR: (5, 0),
    ColumnType.VARSTRING: (5, 0),
    ColumnType.TINYBLOB: (255, 0),
    ColumnType.BLOB: (65535, 0),
    ColumnType.MEDIUMBLOB: (16777215, 0),
    ColumnType.LONGBLOB: (4294967295, 0),
    ColumnType.JSON: (4294967295, 0),
    ColumnType.SET: (-1, 0),
    ColumnType.ENUM: (-1, 0),
}


def elements_text(column: ColumnInfo) -> str:
    """The elements of an ENUM or SET as they stand in its type."""
    return ",".join("'" + element.replace("'", "''") + "'" for element in column.elems)


def _parameters(column: ColumnInfo) -> str:
    kind = column.type
    if kind in (ColumnType.ENUM, ColumnType.SET):
        return f"({elements_text(column)})"
    length = column.flen if column.flen >= 0 else default_length(kind)
    if kind in (ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.DURATION):
        return f"({column.decimal})" if column.decimal > 0 else ""
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return f"({length},{column.decimal})" if column.decimal > 0 else ""
    if kind is ColumnType.NEWDECIMAL:
        return f"({length},{max(column.decimal, 0)})"
    if kind is ColumnType.VECTOR:
        return f"({column.flen})" if column.flen >= 0 else ""
    has_length = kind in INTEGER_TYPES or kind in (
        ColumnType.BIT,
        ColumnType.YEAR,
        ColumnType.VARCHAR,
        ColumnType.VARSTRING,
        ColumnType.STRING,
    )
    return f"({length})" if has_length else ""
