"""Rows as TiCDC's own mounter decodes them (``ticdc-rows.jsonl.gz``), in the form in which ours are held."""

import base64
from typing import Any

import numpy as np

from tests.histories import History
from tidemill.model.table import STRING_TYPES, ColumnType

_NUMBERS = ("int64", "uint64")


def oracle_rows(history: History) -> dict[int, dict[str, Any]]:
    """By ``seq``."""
    return {row["seq"]: row for row in history.ticdc_rows() if "columns" in row}


def image(columns: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return {column["name"]: _value(column) for column in columns} if columns else None


def _value(column: dict[str, Any]) -> Any:
    value = column["value"]
    if value is None:
        return None
    ((kind, held),) = value.items()
    if kind in _NUMBERS:
        return int(held)
    if kind in ("float32", "float64"):
        return float(np.float32(held)) if kind == "float32" else float(held)
    if kind == "bytes":
        data = base64.b64decode(held)
        return data if column["charset"] == "binary" and ColumnType(column["type"]) in STRING_TYPES else data.decode()
    return held
