"""Texts, bytes, elements, documents and vectors."""

from collections.abc import Callable
from typing import Any, Final

from tidebox.sql.assign.target import Assign, Target, rounded, shown_text
from tidebox.sql.codec.collation import sort_key, text_bytes
from tidebox.sql.codec.datum import Datum, Json, Time
from tidebox.sql.compute import convert
from tidebox.sql.compute.casts import to_json
from tidebox.sql.compute.kinds import Element, Kind, Type
from tidebox.sql.compute.vectors import parse_vector
from tidebox.sql.floats import positional
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.table import ColumnType

_TEXT_BLOBS: Final = frozenset({ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB})


def string(target: Target, kind: Type) -> Assign:
    column = target.column
    if column.is_binary:
        return _bytes(target, kind)
    is_char, is_blob = column.type is ColumnType.STRING, column.type in _TEXT_BLOBS
    flen = column.flen
    fits = _charset_check(column.charset)
    is_real = kind.kind is Kind.REAL
    bare = kind._replace(column=None) if kind.kind is Kind.INT else kind  # without the zeros of ZEROFILL

    def assign(value: Any, row: int) -> str:
        text = value if isinstance(value, str) else _digits(value, kind) if is_real else shown_text(value, bare)
        if isinstance(text, Element):
            text = str(text)
        if not text.isascii():
            bad = fits(text)
            if bad is not None:
                text = _bad_text(target, text, bad)
        if flen >= 0 and len(text) > flen if not is_blob else flen >= 0 and len(text) * 4 > flen:
            text = _cut(target, text, flen, is_blob, row)
        return text.rstrip(" ") if is_char else text

    return assign


def _bad_text(target: Target, text: str, at: int) -> str:
    raw = "".join(f"\\x{byte:02X}" for byte in text_bytes(text[at]))
    target.complain(SqlError(1366, "HY000", f"Incorrect string value '{raw}' for column '{target.column.name}'"))
    fits = _charset_check(target.column.charset)
    return "".join("?" if fits(character) is not None else character for character in text)


def _cut(target: Target, text: str, flen: int, is_blob: bool, row: int) -> str:
    if is_blob:
        raw = text_bytes(text)
        if len(raw) <= flen:
            return text
        target.too_long(row, len(raw))
        return raw[:flen].decode("utf-8", "ignore")
    if text[flen:].strip(" "):
        target.too_long(row, len(text))
    return text[:flen]


def _bytes(target: Target, kind: Type) -> Assign:
    column = target.column
    flen, is_padded = column.flen, column.type is ColumnType.STRING
    bare = kind._replace(column=None) if kind.kind is Kind.INT else kind

    def assign(value: Any, row: int) -> bytes:
        raw = text_bytes(_digits(value, kind) if kind.kind is Kind.REAL else convert.shown(value, bare))
        if 0 <= flen < len(raw):
            target.too_long(row, len(raw))
            raw = raw[:flen]
        return raw.ljust(flen, b"\0") if is_padded and flen > 0 else raw

    return assign


def enum(target: Target, kind: Type) -> Assign:
    column = target.column
    weigh = sort_key(column.collate)
    numbers = {weigh(name): number for number, name in enumerate(column.elems, 1)}

    def assign(value: Any, row: int) -> int:
        if kind.kind.is_string and kind.kind is not Kind.BITS:
            text = shown_text(value, kind)
            number = numbers.get(weigh(text), 0)
            if not number and text.isdigit() and 0 < int(text) <= len(column.elems):
                number = int(text)
        else:
            number = rounded(target.number(value, kind, row))
            if not 0 < number <= len(column.elems):
                number = 0
        if not number:
            target.truncated(row)
        return number

    return assign


def set_(target: Target, kind: Type) -> Assign:
    column = target.column
    weigh = sort_key(column.collate)
    numbers = {weigh(name): 1 << at for at, name in enumerate(column.elems)}

    def assign(value: Any, row: int) -> int:
        if kind.kind.is_string and kind.kind is not Kind.BITS:
            text = shown_text(value, kind)
            found, is_known = 0, True
            for name in text.split(",") if text else ():
                bit = numbers.get(weigh(name))
                is_known = is_known and bit is not None
                found |= bit or 0
            if not is_known and text.isdigit() and int(text) < 1 << len(column.elems):
                return int(text)
        else:
            found = rounded(target.number(value, kind, row))
            is_known = 0 <= found < 1 << len(column.elems)
            found &= (1 << len(column.elems)) - 1
        if not is_known:
            target.truncated(row)
        return found

    return assign


def json(target: Target, kind: Type) -> Assign:
    def assign(value: Any, row: int) -> Datum:
        if kind.kind is Kind.BITS or (kind.kind is Kind.BYTES and kind.column is None):
            raise sql_error(Errno.INVALID_JSON_CHARSET, "binary")
        try:
            if kind.kind is Kind.BYTES:
                return to_json(shown_text(value, kind), Type(Kind.TEXT), is_parsed=True)
            return to_json(value, kind, is_parsed=True)
        except SqlError as error:
            target.complain(error)
            return Json(None)

    return assign


def vector(target: Target, kind: Type) -> Assign:
    column = target.column

    def assign(value: Any, row: int) -> Datum:
        if kind.kind not in (Kind.TEXT, Kind.BYTES, Kind.VECTOR):
            target.refuse_kind(kind)
            return None
        found = (
            value if isinstance(value, tuple) and not isinstance(value, Time) else parse_vector(shown_text(value, kind))
        )
        if 0 < column.flen != len(found):
            message = f"vector has {len(found)} dimensions, does not fit VECTOR({column.flen})"
            raise sql_error(Errno.UNKNOWN_ERROR, message)
        return found

    return assign


def _digits(value: float, kind: Type) -> str:
    """A floating-point number as text in a column: all its digits, whatever its size."""
    is_single = kind.column is not None and kind.column.type is ColumnType.FLOAT
    return positional(value, is_single=is_single)


def _charset_check(charset: str) -> Callable[[str], int | None]:
    """From a text to the place of the first character that the character set has not."""

    def check(text: str) -> int | None:
        for at, character in enumerate(text):
            if "\ud800" <= character <= "\udfff" or not is_known(character):
                return at
        return None

    def is_known(character: str) -> bool:
        match charset:
            case "utf8mb4" | "latin1" | "utf8mb3":
                return True
            case "utf8":
                return character <= "\uffff"
            case "ascii":
                return character <= "\x7f"
            case "gbk":
                return _can_encode(character, "gbk")
            case _:
                return True

    return check


def _can_encode(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
