"""Refusals of DDL that TiDB words in its own way, and what it warns of where it does as asked."""

from collections.abc import Iterator
from typing import Final

from tidebox.sql.parse.expressions import Number
from tidebox.sql.parse.statements import CreateTable, Statement
from tidebox.sql.types import FieldType
from tidebox.sql.wire.errors import Errno, SqlError
from tidemill.model.table import STRING_TYPES, ColumnType
from tidemill.tidb.create_table import type_text

_DEPRECATED: Final = 1681
_WIDTH: Final = "Integer display width is deprecated and will be removed in a future release."
_ZEROFILL: Final = (
    "The ZEROFILL attribute is deprecated and will be removed in a future release. "
    "Use the LPAD function to zero-pad numbers, or store the formatted numbers in a CHAR column."
)
_INTEGERS: Final = frozenset({"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"})

Note = tuple[str, int, str]  # level, number, text


def unsupported(message: str) -> SqlError:
    """8200 where TiDB does not begin its text with ``Unsupported``."""
    return _worded(Errno.UNSUPPORTED_DDL_OPERATION, message)


def no_index(name: str) -> SqlError:
    return _worded(Errno.CANT_DROP_FIELD_OR_KEY, f"index {name} doesn't exist")


def no_key_column(name: str) -> SqlError:
    return _worded(Errno.KEY_COLUMN_DOES_NOT_EXIST, f"column does not exist: {name}")


def only_column(name: str, table: str) -> SqlError:
    return _worded(Errno.CANT_REMOVE_ALL_FIELDS, f"can't drop only column {name} in table {table}")


# What TiDB casts in no way that MySQL would: from these types to those.
_MOMENTS: Final = frozenset({ColumnType.DATE, ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.NEWDATE})
_CLOCKS: Final = _MOMENTS | {ColumnType.DURATION, ColumnType.YEAR}
_INEXACT: Final = frozenset({ColumnType.NEWDECIMAL, ColumnType.FLOAT, ColumnType.DOUBLE})
_NAMED: Final = frozenset({ColumnType.ENUM, ColumnType.SET})
_UNCASTABLE: Final = (
    (_CLOCKS | STRING_TYPES | {ColumnType.JSON}, frozenset({ColumnType.BIT})),
    (_CLOCKS | _INEXACT | {ColumnType.JSON, ColumnType.BIT}, _NAMED),
    (_NAMED | _INEXACT | {ColumnType.BIT}, _MOMENTS),
    (_NAMED | {ColumnType.BIT}, frozenset({ColumnType.DURATION})),
)


def can_change(old: FieldType, new: FieldType) -> bool:
    before, after = ColumnType(old["Tp"]), ColumnType(new["Tp"])
    if before is after:
        return True
    if ColumnType.VECTOR in (before, after):
        return False
    return not any(before in sources and after in targets for sources, targets in _UNCASTABLE)


def check_type_change(old: FieldType, new: FieldType) -> None:
    if not can_change(old, new):
        change = f"change from original type {type_text(old)} to {type_text(new)} is currently unsupported yet"
        what = f"modify column: [ddl:8200]Unsupported modify column: {change}"
        raise unsupported(f"Unsupported {what}")


def _worded(errno: Errno, message: str) -> SqlError:
    return SqlError(int(errno), errno.sqlstate, message)


def deprecations(statement: Statement) -> Iterator[Note]:
    """What CREATE TABLE says that will not be understood for ever. ALTER TABLE says nothing of it."""
    for column in statement.columns if isinstance(statement, CreateTable) else ():
        kind = column.type
        if kind.name in _INTEGERS and kind.length is not None and (kind.name, kind.length) != ("TINYINT", 1):
            yield "Warning", _DEPRECATED, _WIDTH
        if kind.is_zerofill or kind.name == "YEAR":
            yield "Warning", _DEPRECATED, _ZEROFILL
        if kind.name == "DECIMAL" and isinstance(column.default, Number):
            digits = column.default.text.partition(".")[2]
            if len(digits.rstrip("0")) > (kind.decimal or 0):
                yield (
                    "Warning",
                    int(Errno.TRUNCATED_WRONG_VALUE),
                    f"Truncated incorrect DECIMAL value: '{column.default.text}'",
                )


def noted(error: SqlError) -> Note:
    return "Note", error.number, error.message
