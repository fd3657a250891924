"""What a lake holds of a recorded history, read by DuckDB, beside what TiDB selected at its marks."""

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from tests.flow.mounter.test_histories import selected, tables_at
from tests.histories import History, load
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.sinks.lake.query import rows_at, rows_at_sql
from tidemill.sinks.lake.reader import Lake
from tidemill.sinks.lake.tables import LakeTable


def as_selected(column: ColumnInfo, value: Any) -> Any:
    """A value of the lake as TiDB's SELECT shows it in ``marks.jsonl``."""
    if value is None or column.type in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return value
    if isinstance(value, bytes | bytearray):
        return {"b64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, datetime):
        value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        text = value.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
        return text + (f".{value.microsecond:06d}"[: column.decimal + 1] if column.decimal > 0 else "")
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


@cache
def checked_marks(name: str) -> list[tuple[dict[str, Any], TableInfo]]:
    """Marks of tables that can be replicated. Those without a key carry no rows."""
    history = load(name)
    found = [(mark, tables_at(history, mark["ts"])[mark["schema"], mark["table"]]) for mark in history.marks()]
    return [(mark, table) for mark, table in found if table.is_eligible]


def expected_rows(mark: dict[str, Any], table: TableInfo) -> list[list[Any]]:
    stored = {c.name: c for c in table.stored_columns}
    return [
        [selected(stored[n], cell) for n, cell in zip(mark["columns"], row, strict=True) if n in stored]
        for row in mark["rows"]
    ]


def shown_rows(mark: dict[str, Any], table: TableInfo, lake: LakeTable, rows: pa.Table) -> list[list[Any]]:
    stored = {c.name: c for c in table.stored_columns}
    found = []
    for row in rows.to_pylist():
        unfit = json.loads(row["_unfit"] or "{}")
        found.append([unfit.get(n) or as_selected(stored[n], row[n]) for n in mark["columns"] if n in stored])
    return found


def check_marks(history: History, lake: Lake) -> None:
    changes: dict[str, pa.Table] = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for mark, info in checked_marks(history.name):
            table = lake.table(mark["schema"], mark["table"], mark["ts"])
            if table.id not in changes:
                changes[table.id] = lake.changes(table)
                connection.register(f"changes-{table.id}", changes[table.id])
            query = rows_at_sql(table, mark["ts"], f'"changes-{table.id}"', with_unfit=True)
            expected = sorted(expected_rows(mark, info), key=repr)
            by_duckdb = connection.sql(query).to_arrow_table()
            assert sorted(shown_rows(mark, info, table, by_duckdb), key=repr) == expected, (
                mark["mark"],
                info.full_name,
            )
            ours = rows_at(table, mark["ts"], changes[table.id])
            assert sorted(shown_rows(mark, info, table, ours), key=repr) == expected, (mark["mark"], info.full_name)
