"""Column types: as SQL writes them, and as TiDB's documents hold them (FieldType), both ways.

    TypeSpec ──► field_type ──► {"Tp": 3, "Flag": 0, "Flen": 11, …} ──► type_text ──► int(11)

Lengths, signs and character sets that SQL leaves out are filled in as TiDB fills them in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from tidebox.sql.parse.statements import TypeSpec
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import ColumnFlag, ColumnType

FieldType: TypeAlias = dict[str, Any]  # TiDB's JSON: written as it is, so that a document is kept key by key

UNSPECIFIED: Final = -1
NO_DEFAULT_FLAG: Final = 0x1000  # TiDB's own: NOT NULL and without a default
PREVENT_NULL_FLAG: Final = 1 << 20  # while NOT NULL is coming: no session may write a NULL any more

_MAX_VARCHAR_BYTES = 65535
_MAX_CHAR = 255
_MAX_BIT = 64
_MAX_DECIMAL, _MAX_SCALE = 65, 30
_MAX_FSP = 6
_MAX_VECTOR = 16383
_MAX_ELEMS_ENUM, _MAX_ELEMS_SET = 65535, 64

# Character set → its default collation and the most bytes a character takes.
CHARSETS: Final[Mapping[str, tuple[str, int]]] = {
    "utf8mb4": ("utf8mb4_bin", 4),
    "utf8": ("utf8_bin", 3),
    "ascii": ("ascii_bin", 1),
    "latin1": ("latin1_bin", 1),
    "binary": ("binary", 1),
    "gbk": ("gbk_chinese_ci", 2),
}
COLLATIONS: Final[Mapping[str, str]] = {
    "utf8mb4_bin": "utf8mb4",
    "utf8mb4_general_ci": "utf8mb4",
    "utf8mb4_unicode_ci": "utf8mb4",
    "utf8mb4_0900_ai_ci": "utf8mb4",
    "utf8mb4_0900_bin": "utf8mb4",
    "utf8_bin": "utf8",
    "utf8_general_ci": "utf8",
    "utf8_unicode_ci": "utf8",
    "ascii_bin": "ascii",
    "latin1_bin": "latin1",
    "binary": "binary",
    "gbk_bin": "gbk",
    "gbk_chinese_ci": "gbk",
}
_SAME_CHARSET = {"utf8mb3": "utf8"}
_SAME_COLLATION = {"utf8mb3_bin": "utf8_bin", "utf8mb3_general_ci": "utf8_general_ci"}

# Name → (type, length, decimal) where none are given.
_TYPES: Final[Mapping[str, tuple[ColumnType, int, int]]] = {
    "TINYINT": (ColumnType.TINY, 4, 0),
    "SMALLINT": (ColumnType.SHORT, 6, 0),
    "MEDIUMINT": (ColumnType.INT24, 9, 0),
    "INT": (ColumnType.LONG, 11, 0),
    "BIGINT": (ColumnType.LONGLONG, 20, 0),
    "YEAR": (ColumnType.YEAR, 4, 0),
    "BIT": (ColumnType.BIT, 1, 0),
    "FLOAT": (ColumnType.FLOAT, 12, UNSPECIFIED),
    "DOUBLE": (ColumnType.DOUBLE, 22, UNSPECIFIED),
    "DECIMAL": (ColumnType.NEWDECIMAL, 10, 0),
    "DATE": (ColumnType.DATE, 10, 0),
    "TIME": (ColumnType.DURATION, 10, 0),
    "DATETIME": (ColumnType.DATETIME, 19, 0),
    "TIMESTAMP": (ColumnType.TIMESTAMP, 19, 0),
    "CHAR": (ColumnType.STRING, 1, 0),
    "BINARY": (ColumnType.STRING, 1, 0),
    "VARCHAR": (ColumnType.VARCHAR, 5, 0),
    "VARBINARY": (ColumnType.VARCHAR, 5, 0),
    "TINYTEXT": (ColumnType.TINYBLOB, 255, 0),
    "TEXT": (ColumnType.BLOB, 65535, 0),
    "MEDIUMTEXT": (ColumnType.MEDIUMBLOB, 16777215, 0),
    "LONGTEXT": (ColumnType.LONGBLOB, 4294967295, 0),
    "TINYBLOB": (ColumnType.TINYBLOB, 255, 0),
    "BLOB": (ColumnType.BLOB, 65535, 0),
    "MEDIUMBLOB": (ColumnType.MEDIUMBLOB, 16777215, 0),
    "LONGBLOB": (ColumnType.LONGBLOB, 4294967295, 0),
    "ENUM": (ColumnType.ENUM, UNSPECIFIED, 0),
    "SET": (ColumnType.SET, UNSPECIFIED, 0),
    "JSON": (ColumnType.JSON, 4294967295, 0),
    "VECTOR": (ColumnType.VECTOR, UNSPECIFIED, 0),
}
_BLOB_SIZES = (
    (255, ColumnType.TINYBLOB),
    (65535, ColumnType.BLOB),
    (16777215, ColumnType.MEDIUMBLOB),
    (4294967295, ColumnType.LONGBLOB),
)
_TEXT_NAMES = frozenset({"CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET"})
_INTEGER_NAMES = frozenset({"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"})
_BLOB_TYPES = frozenset({ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB})
_STRING_TYPES = frozenset({ColumnType.STRING, ColumnType.VARCHAR, ColumnType.VARSTRING}) | _BLOB_TYPES
# They have the character set "binary" and the flag that says so.
_BINARY_FLAGGED = frozenset(
    {
        ColumnType.DATE,
        ColumnType.DURATION,
        ColumnType.DATETIME,
        ColumnType.TIMESTAMP,
        ColumnType.JSON,
        ColumnType.VECTOR,
    }
)


@dataclass(frozen=True, slots=True)
class Charset:
    name: str
    collate: str


def resolve_charset(name: str | None, collate: str | None, fallback: Charset) -> Charset:
    """A character set and its collation, from what was given of the two. 1115, 1253, 1273."""
    name = _SAME_CHARSET.get(name, name) if name else None
    collate = _SAME_COLLATION.get(collate, collate) if collate else None
    if name is not None and name not in CHARSETS:
        raise sql_error(Errno.UNKNOWN_CHARACTER_SET, name)
    if collate is not None:
        if collate not in COLLATIONS:
            raise sql_error(Errno.UNKNOWN_COLLATION, collate)
        if name is not None and COLLATIONS[collate] != name:
            raise sql_error(Errno.COLLATION_CHARSET_MISMATCH, collate, name)
        return Charset(COLLATIONS[collate], collate)
    return Charset(name, CHARSETS[name][0]) if name is not None else fallback


def field_type(spec: TypeSpec, column: str, fallback: Charset) -> FieldType:
    """The document of a column's type. ``fallback``: the table's character set. Flags of keys and NOT NULL are not
    among it. Errors name ``column``."""
    _check(spec, column)
    kind, length, decimal = _TYPES[spec.name]
    flag = _sign_flags(spec)
    if spec.name in _INTEGER_NAMES:
        length = spec.length if spec.length is not None else _integer_length(kind, length, spec.is_unsigned)
    elif spec.name in ("FLOAT", "DOUBLE", "DECIMAL"):
        kind, length, decimal = _real(spec, kind, length, decimal)
    elif spec.name in ("TIME", "DATETIME", "TIMESTAMP"):
        if spec.decimal:
            length, decimal = length + 1 + spec.decimal, spec.decimal
    elif spec.name in ("ENUM", "SET"):
        length = _elements_length(spec)
    elif spec.length is not None and spec.name not in ("YEAR", "TEXT", "BLOB"):
        length = spec.length
    charset = _charset(spec, fallback)
    if spec.name in ("TEXT", "BLOB") and spec.length is not None:
        kind, length = _blob_for(spec.length * CHARSETS[charset.name][1])
    if kind in _BINARY_FLAGGED or (kind in _STRING_TYPES and charset.name == "binary"):
        flag |= ColumnFlag.BINARY
    _check_length(kind, length, charset, column)
    return {
        "Tp": int(kind),
        "Flag": int(flag),
        "Flen": length,
        "Decimal": decimal,
        "Charset": charset.name,
        "Collate": charset.collate,
        "Elems": [_trimmed(e, charset) for e in spec.elems] or None,
        "ElemsIsBinaryLit": None,
        "Array": False,
    }


def _sign_flags(spec: TypeSpec) -> int:
    flag = 0
    if spec.is_unsigned or spec.is_zerofill or spec.name in ("BIT", "YEAR"):
        flag |= ColumnFlag.UNSIGNED
    if spec.is_zerofill or spec.name == "YEAR":
        flag |= ColumnFlag.ZEROFILL
    return flag


def _integer_length(kind: ColumnType, length: int, is_unsigned: bool) -> int:
    """The sign takes a place, but for BIGINT, whose unsigned numbers are one digit longer."""
    return length - 1 if is_unsigned and kind is not ColumnType.LONGLONG else length


def _real(spec: TypeSpec, kind: ColumnType, length: int, decimal: int) -> tuple[ColumnType, int, int]:
    if spec.name == "DECIMAL":
        return kind, spec.length if spec.length is not None else length, spec.decimal or 0
    if spec.length is None:
        return kind, length, decimal
    if spec.decimal is None and spec.name == "FLOAT":
        # FLOAT(p) only chooses between the two widths.
        return (ColumnType.DOUBLE, 22, UNSPECIFIED) if spec.length > 24 else (kind, length, decimal)
    return kind, spec.length, spec.decimal if spec.decimal is not None else decimal


def _elements_length(spec: TypeSpec) -> int:
    sizes = [len(e.rstrip(" ").encode()) for e in spec.elems]
    return max(sizes) if spec.name == "ENUM" else sum(sizes) + len(sizes) - 1


def _trimmed(element: str, charset: Charset) -> str:
    return element if charset.name == "binary" else element.rstrip(" ")


def _charset(spec: TypeSpec, fallback: Charset) -> Charset:
    if spec.name not in _TEXT_NAMES:
        return Charset("binary", "binary")
    charset = resolve_charset(spec.charset, spec.collate, fallback)
    if spec.is_binary:
        binary = "binary" if charset.name == "binary" else f"{charset.name}_bin"
        return replace(charset, collate=binary)
    return charset


def _blob_for(size: int) -> tuple[ColumnType, int]:
    """The smallest of the four that holds so many bytes: TEXT(100) may be a TINYTEXT."""
    for most, kind in _BLOB_SIZES:
        if size <= most:
            return kind, most
    return _BLOB_SIZES[-1][1], _BLOB_SIZES[-1][0]


# Checks


def _check(spec: TypeSpec, column: str) -> None:
    length, decimal = spec.length, spec.decimal
    if spec.name in ("FLOAT", "DOUBLE", "DECIMAL"):
        if decimal is not None and decimal > _MAX_SCALE:
            raise sql_error(Errno.TOO_BIG_SCALE, decimal, column, _MAX_SCALE)
        if spec.name == "DECIMAL" and length is not None and length > _MAX_DECIMAL:
            raise sql_error(Errno.TOO_BIG_PRECISION, length, column, _MAX_DECIMAL)
        if decimal is not None and length is not None and length < decimal:
            raise sql_error(Errno.M_BIGGER_THAN_D, column)
        if spec.name != "DECIMAL" and length is not None and length > (255 if decimal is not None else 53):
            raise sql_error(Errno.WRONG_FIELD_SPEC, column)
    elif spec.name in ("TIME", "DATETIME", "TIMESTAMP") and (decimal or 0) > _MAX_FSP:
        raise sql_error(Errno.TOO_BIG_PRECISION, decimal, column, _MAX_FSP)
    elif spec.name == "BIT" and length is not None and not 0 < length <= _MAX_BIT:
        if length == 0:
            raise sql_error(Errno.INVALID_FIELD_SIZE, column)
        raise sql_error(Errno.TOO_BIG_DISPLAYWIDTH, column, _MAX_BIT)
    elif spec.name in _INTEGER_NAMES and length is not None and length > _MAX_CHAR:
        raise sql_error(Errno.TOO_BIG_DISPLAYWIDTH, column, _MAX_CHAR)
    elif spec.name in ("ENUM", "SET"):
        _check_elements(spec, column)
    elif spec.name == "VECTOR" and length is not None and length > _MAX_VECTOR:
        raise sql_error(Errno.UNKNOWN_ERROR, f"vector cannot have more than {_MAX_VECTOR} dimensions")


def _check_elements(spec: TypeSpec, column: str) -> None:
    if len(spec.elems) > (_MAX_ELEMS_ENUM if spec.name == "ENUM" else _MAX_ELEMS_SET):
        raise sql_error(Errno.TOO_BIG_SET, column)
    seen: set[str] = set()
    for element in spec.elems:
        if spec.name == "SET" and "," in element:
            raise sql_error(Errno.ILLEGAL_VALUE_FOR_TYPE, "set", element)
        folded = element.rstrip(" ").lower() if (spec.collate or "").endswith("_ci") else element.rstrip(" ")
        if folded in seen:
            raise sql_error(Errno.DUPLICATED_VALUE_IN_TYPE, column, element, spec.name)
        seen.add(folded)


def _check_length(kind: ColumnType, length: int, charset: Charset, column: str) -> None:
    if kind is ColumnType.STRING and length > _MAX_CHAR:
        raise sql_error(Errno.TOO_BIG_FIELDLENGTH, column, _MAX_CHAR)
    most = _MAX_VARCHAR_BYTES // CHARSETS[charset.name][1]
    if kind is ColumnType.VARCHAR and length > most:
        raise sql_error(Errno.TOO_BIG_FIELDLENGTH, column, most)


def is_text(document: FieldType) -> bool:
    """CHAR, VARCHAR and the TEXT and BLOB families, whatever their character set is."""
    return document["Tp"] in _STRING_TYPES


def is_blob(document: FieldType) -> bool:
    return document["Tp"] in _BLOB_TYPES
