"""Cells of ``marks.jsonl`` and of presented rows in one form, in which they can be compared."""

import base64
from decimal import Decimal
from typing import Any

import numpy as np

from tidemill.model.table import ColumnInfo, ColumnType


def shown_cell(value: Any) -> Any:
    """A presented value, dates as text."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, bytes | bytearray):
        return {"b64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def told_cell(column: ColumnInfo, cell: Any) -> Any:
    """What TiDB selected."""
    if cell is None:
        return None
    if column.type is ColumnType.FLOAT:
        return float(np.float32(cell))
    return float(cell) if column.type is ColumnType.DOUBLE else cell
