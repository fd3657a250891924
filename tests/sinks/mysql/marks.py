"""What MariaDB holds of a recorded history, beside what TiDB answered at a mark."""

import base64
import json
from typing import Any

from tests.histories import History
from tests.mariadb import MariaDb

# Tables without a key when the history ends: their rows cannot be told apart, so none of them is captured.
WITHOUT_KEY = {("kinds", "k_none"), ("kinds", "k_uk_null"), ("kinds", "p_list"), ("shop", "sh")}


def clear(mariadb: MariaDb, history: History) -> None:
    """Drop all that another run of the history may have left."""
    schemas = sorted({mark["schema"] for mark in history.marks()})
    mariadb.query(*(f"DROP DATABASE IF EXISTS {_name(schema)}" for schema in [*schemas, "tidb_cdc"]))


def check_mark(mariadb: MariaDb, history: History, ts: int) -> int:
    """Compare all tables with what TiDB selected at the mark of ``ts``; how many there are."""
    marks = [mark for mark in history.marks() if mark["ts"] == ts]
    for mark in marks:
        check(mariadb, mark)
    return len(marks)


def check(mariadb: MariaDb, mark: dict[str, Any]) -> None:
    place = mark["schema"], mark["table"]
    if place in WITHOUT_KEY:
        return
    columns = [(n, c, t) for n, (c, t) in enumerate(zip(mark["columns"], mark["types"], strict=True))]
    names = ",".join(_selected(column, kind) for _, column, kind in columns)
    connection = mariadb.connect(conv={}, init_command="SET time_zone='+00:00'")
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {names} FROM {_name(place[0])}.{_name(place[1])}")
            ours = [
                [_value(v, kind) for v, (_, _, kind) in zip(row, columns, strict=True)] for row in cursor.fetchall()
            ]
    finally:
        connection.close()
    theirs = [[_value(row[n], kind) for n, _, kind in columns] for row in mark["rows"]]
    assert sorted(ours, key=repr) == sorted(theirs, key=repr), f"{place} at mark {mark['mark']}"


def _name(text: str) -> str:
    return "`" + text.replace("`", "``") + "`"


def _selected(column: str, kind: str) -> str:
    """FLOAT is printed with six digits unless it is made a double; ZEROFILL is how a client prints a number."""
    is_number = kind.startswith(("float", "bit")) or "ZEROFILL" in kind
    return f"{_name(column)} + 0" + ("e0" if kind.startswith("float") else "") if is_number else _name(column)


def _value(value: Any, kind: str) -> Any:
    """What both sides spell differently, in one spelling."""
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    if value is None:
        return None
    if kind.startswith("float"):
        return float(f"{float(value):.7g}")  # TiDB prints the shortest text of a FLOAT
    if kind.startswith("double"):
        return float(value)
    if kind.startswith("json"):
        return json.loads(value)
    if kind.startswith("year"):
        return int(value)
    return value
