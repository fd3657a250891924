"""Deletes that hold the columns of the handle key only."""

from collections.abc import Sequence

from tidemill.errors import SinkError
from tidemill.model.table import ColumnInfo, TableInfo


def deleted_columns(table: TableInfo, columns: Sequence[tuple[int, ColumnInfo]]) -> Sequence[tuple[int, ColumnInfo]]:
    """Of ``columns``, each with its place, those of the handle key. Raises SinkError where the table has none."""
    keys = {column.offset for column in table.handle_key}
    if not keys:
        raise SinkError(
            f"cannot encode deletes of table {table.full_name} with delete-only-output-handle-key-columns: it has no "
            "handle key. Give the table a primary key, or take the option out of the sink URI."
        )
    return [(place, column) for place, column in columns if column.offset in keys]
