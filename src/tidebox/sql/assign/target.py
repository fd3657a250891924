"""A column that is to get values, and what it says to those that do not fit."""

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from tidebox.sql.codec.datum import Datum
from tidebox.sql.compute import convert
from tidebox.sql.compute.kinds import Kind, Settings, Telling, Type
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.table import INTEGER_TYPES, TIME_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.mysql_type import TYPE_WORDS

Assign = Callable[[Any, int], Datum]  # value that is not NULL, number of the row from 1

_KIND_NAMES: Final = {
    Kind.REAL: "double",
    Kind.BIT: "bit",
    Kind.BITS: "bit/hex literal",
    Kind.ENUM: "enum",
    Kind.SET: "set",
    Kind.VECTOR: "vector",
    Kind.INT: "bigint",
    Kind.DECIMAL: "decimal",
    Kind.DATE: "date",
    Kind.DATETIME: "datetime",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIME: "time",
    Kind.YEAR: "bigint",
    Kind.JSON: "json",
}


class Target:
    """``settings`` are those of the statement."""

    def __init__(self, column: ColumnInfo, settings: Settings) -> None:
        self.column = column
        self.settings = settings

    def note(self, error: SqlError) -> None:
        self.settings.warnings.append(("Warning", error.number, error.message))

    def complain(self, error: SqlError) -> None:
        """End the statement, or warn where values are bent."""
        if not self.settings.is_lenient:
            raise error
        self.note(error)

    @property
    def telling(self) -> Telling:
        return self.settings.telling

    def out_of_range(self, row: int, raw: str) -> None:
        """``raw``: what a cast says."""
        if self.telling is Telling.CAST:
            self.complain(SqlError(1690, "22003", raw))
        else:
            self.complain(sql_error(Errno.WARN_DATA_OUT_OF_RANGE, self.column.name, row))

    def overflows(self, value: Any, row: int) -> None:
        if isinstance(value, float):
            value = repr(value).removesuffix(".0")
        self.out_of_range(row, f"constant {value} overflows {TYPE_WORDS[self.column.type]}")

    def truncated(self, row: int) -> None:
        if self.telling is Telling.VALUES:
            self.complain(sql_error(Errno.WARN_DATA_TRUNCATED, self.column.name, row))
        else:
            self.complain(sql_error(Errno.WARN_DATA_TRUNCATED))  # TiDB leaves the places of its text unfilled

    def too_long(self, row: int, size: int | None = None) -> None:
        if self.telling is Telling.CAST:
            given = "" if size is None else f", data len {size}"
            self.complain(SqlError(1406, "22001", f"Data Too Long, field len {self.column.flen}{given}"))
        else:
            self.complain(sql_error(Errno.DATA_TOO_LONG, self.column.name, row))

    def incorrect(self, value: Any, kind: Type, row: int) -> None:
        shown = value if isinstance(value, str) else shown_text(value, kind)
        name = TYPE_WORDS[self.column.type]
        if self.telling is not Telling.VALUES:
            self.complain(self._cast_error(shown, kind))
        elif self.column.type in TIME_TYPES or self.column.type is ColumnType.DURATION:
            message = f"Incorrect {name} value: '{shown}' for column '{self.column.name}' at row {row}"
            self.complain(SqlError(1292, "22007", message))
        else:
            self.complain(sql_error(Errno.TRUNCATED_WRONG_VALUE_FOR_FIELD, name, shown, self.column.name, row))

    def _cast_error(self, shown: str, kind: Type) -> SqlError:
        column = self.column
        if column.type in TIME_TYPES:
            return SqlError(1292, "22007", f"Incorrect {TYPE_WORDS[column.type]} value: '{shown}'")
        if column.type is ColumnType.DURATION:
            is_far = kind.kind is Kind.INT and shown.lstrip("-").isdigit() and abs(int(shown)) > 8385959
            word = "Incorrect" if is_far else "Truncated incorrect"
            return SqlError(1292, "22007", f"{word} time value: '{shown}'")
        name = "DECIMAL" if column.type is ColumnType.NEWDECIMAL else "DOUBLE"
        if kind.kind is Kind.JSON:
            name = "INTEGER" if column.type in INTEGER_TYPES else "FLOAT" if name == "DOUBLE" else name
        return sql_error(Errno.TRUNCATED_WRONG_VALUE, name, shown.strip())

    def refuse_kind(self, kind: Type) -> None:
        source, target = _KIND_NAMES[kind.kind], TYPE_WORDS[self.column.type]
        if kind.kind is Kind.REAL and kind.column is not None and kind.column.type is ColumnType.FLOAT:
            source = "float"
        self.complain(sql_error(Errno.UNKNOWN_ERROR, f"cannot convert datum from {source} to type {target}"))

    def number(self, value: Any, kind: Type, row: int) -> int | float | Decimal:
        """Texts must be numbers as a whole."""
        if kind.kind in (Kind.TEXT, Kind.BYTES):
            text = shown_text(value, kind)
            prefix, is_whole = convert.numeric_prefix(text)
            if not is_whole:
                self.incorrect(text, kind, row)
            return Decimal(prefix)
        if kind.kind is Kind.BITS and len(value) > 8:
            self.overflows((1 << 64) - 1, row)
            return (1 << 64) - 1
        return convert.number(value, kind, self.settings)


def shown_text(value: Any, kind: Type) -> str:
    shown = value if isinstance(value, str) else convert.shown(value, kind)
    return shown if isinstance(shown, str) else shown.decode("utf-8", "surrogateescape")


def rounded(number: int | float | Decimal) -> int:
    if isinstance(number, int):
        return number
    if isinstance(number, float):
        return round(number) if math.isfinite(number) else (1 << 200 if number > 0 else -(1 << 200))
    return int(number.to_integral_value(ROUND_HALF_UP))
