"""Refusals of DDL that TiDB words in its own way, and what it warns of where it does as asked."""

from collections.abc import Iterator
from typing import Final

from tidemill.store.sql.parse.statements import CreateTable, Statement
from tidemill.store.sql.wire.errors import Errno, SqlError

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


def noted(error: SqlError) -> Note:
    return "Note", error.number, error.message
