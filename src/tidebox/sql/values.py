"""A value on its way into a column: bent to the column's type, or refused as TiDB refuses it.

    expression's value and type ──► Assigner of a column ──► datum, as the codec wants it
                                                     └────► SqlError: 1048, 1264, 1265, 1292, 1366, 1406 …

Under strict rules what does not fit ends the statement; else it is bent to fit, with a warning. And back:
``reader`` turns a datum into the value that expressions compute with.
"""

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from typing import Any, Final

from tidebox.sql.assign import moments, numbers, texts
from tidebox.sql.assign.target import Assign, Target
from tidebox.sql.codec.datum import Datum
from tidebox.sql.codec.defaults import zero_value
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.kinds import Element, Settings, Type
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnFlag, ColumnInfo, ColumnType

_MAKERS: Final[dict[ColumnType, Callable[[Target, Type], Assign]]] = {
    **dict.fromkeys(INTEGER_TYPES, numbers.integer),
    **dict.fromkeys(STRING_TYPES, texts.string),
    **dict.fromkeys(TIME_TYPES, moments.moment),
    ColumnType.FLOAT: numbers.real,
    ColumnType.DOUBLE: numbers.real,
    ColumnType.NEWDECIMAL: numbers.decimal,
    ColumnType.YEAR: numbers.year,
    ColumnType.DURATION: moments.duration,
    ColumnType.ENUM: texts.enum,
    ColumnType.SET: texts.set_,
    ColumnType.BIT: numbers.bit,
    ColumnType.JSON: texts.json,
    ColumnType.VECTOR: texts.vector,
}


class Assigner(Target):
    """Puts values into one column."""

    def __init__(self, column: ColumnInfo, settings: Settings) -> None:
        super().__init__(column, settings)
        self._by_type: dict[Type, Assign] = {}

    def assign(self, value: Any, kind: Type, row: int = 1) -> Datum:
        """The datum for a value of ``kind``; 1048 if it is NULL and may not be."""
        if value is None:
            return self._null()
        assign = self._by_type.get(kind)
        if assign is None:
            assign = self._by_type[kind] = _MAKERS[self.column.type](self, kind)
        return assign(value, row)

    def _null(self) -> Datum:
        if not self.column.is_not_null:
            return None
        error = sql_error(Errno.BAD_NULL_ERROR, self.column.name)
        if self.column.type is ColumnType.VECTOR and self.settings.is_lenient:
            raise sql_error(Errno.UNKNOWN_ERROR, f"VECTOR column '{self.column.name}' cannot be null")
        if not self.settings.is_lenient:
            raise error
        self.note(error)
        return zero_value(self.column)


def reader(column: ColumnInfo, settings: Settings) -> Callable[[Any], Any] | None:
    """From a datum that is not NULL to what expressions compute with; None: it is the same."""
    match column.type:
        case ColumnType.ENUM:
            names = [Element("", 0), *(Element(name, at) for at, name in enumerate(column.elems, 1))]
            return lambda number: names[number] if number < len(names) else Element("", number)
        case ColumnType.SET:
            elements = column.elems
            return lambda bits: Element(",".join(n for at, n in enumerate(elements) if bits >> at & 1), bits)
        case ColumnType.TIMESTAMP:
            zone = settings.time_zone
            if zone is UTC:
                return None
            return lambda moment: temporal.from_utc(moment, zone)
        case ColumnType.STRING if not column.is_binary:
            return None
        case ColumnType.NEWDECIMAL:
            unit = Decimal(1).scaleb(-max(column.decimal, 0))
            return lambda value: value.quantize(unit, context=convert.MATH)
        case _:
            return None


def is_auto_increment(column: ColumnInfo) -> bool:
    return bool(column.flag & ColumnFlag.AUTO_INCREMENT)
