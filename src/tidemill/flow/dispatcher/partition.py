"""The partition of each row: by its table, by values of an index or of columns, or by its commit-ts.

Values are those of the new row; of a delete, those of the old one. Runs on executors.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import ConfigError
from tidemill.flow.dispatcher.conflicts import unique_keys
from tidemill.flow.dispatcher.hashing import add_column, hash_names, modulo, modulo_ts
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, IndexInfo, TableInfo


class Kind(Enum):
    TABLE = "table"
    INDEX_VALUE = "index-value"
    COLUMNS = "columns"
    TS = "ts"
    CONFLICT = "conflict"


_WORDS = {
    "": Kind.TABLE,
    "default": Kind.TABLE,
    "table": Kind.TABLE,
    "index-value": Kind.INDEX_VALUE,
    "rowid": Kind.INDEX_VALUE,
    "columns": Kind.COLUMNS,
    "ts": Kind.TS,
    "conflict": Kind.CONFLICT,
}


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """Small and picklable. ``place`` stands for it in messages."""

    kind: Kind = Kind.TABLE
    index: str = ""  # of INDEX_VALUE; empty: the handle key
    columns: tuple[str, ...] = ()  # of COLUMNS
    place: str = "sink.dispatchers"

    @classmethod
    def read(cls, word: str, index: str, columns: tuple[str, ...], place: str) -> "PartitionRule":
        """Raises ConfigError. A word that nobody knows is refused; TiCDC takes it for ``table``, with a warning."""
        kind = _WORDS.get(word.lower())
        if kind is None:
            known = ", ".join(repr(each) for each in _WORDS if each)
            raise ConfigError(f"{place}.partition is {word!r}; it must be one of {known}.")
        if index and kind is not Kind.INDEX_VALUE:
            raise ConfigError(f"{place}.index is for partition = 'index-value'. Take it out, or change 'partition'.")
        if kind is Kind.COLUMNS and not columns:
            raise ConfigError(f"{place}.columns is empty: partition = 'columns' needs the names of some columns.")
        if columns and kind is not Kind.COLUMNS:
            raise ConfigError(f"{place}.columns is for partition = 'columns'. Take it out, or change 'partition'.")
        return cls(kind, index, columns, place)

    def hashed_columns(self, table: TableInfo) -> tuple[ColumnInfo, ...]:
        """Those whose values decide. Raises ConfigError where the rule does not fit the table."""
        match self.kind:
            case Kind.INDEX_VALUE:
                return self._of_index(table) if self.index else table.handle_key
            case Kind.COLUMNS:
                return self._named(table)
            case Kind.CONFLICT:
                unique_keys(table)  # refused here where one cannot be seen
                return table.handle_key
            case _:
                return ()

    def keeps_row_order(self, table: TableInfo) -> bool:
        """Whether all changes of what may be one row downstream go to one partition: its key is all that decides, and
        there is no other by which rows could stand in each other's way."""
        match self.kind:
            case Kind.TABLE | Kind.CONFLICT:  # where others could stand in its way, readers meet
                return True
            case Kind.TS:
                return False
            case _:
                decides = {column.offset for column in self.hashed_columns(table)}
                key = {column.offset for column in table.handle_key}
                return decides <= key and all(
                    {part.offset for part in index.columns} == key for index in table.indexes if index.is_unique
                )

    def allows(self, table: TableInfo) -> bool:
        """Whether changes of ranges of row keys may be sent apart: rows of different keys are in no order anyway, and
        all of one row share a key."""
        is_row_key = table.pk_is_handle or table.is_common_handle
        return self.kind is Kind.INDEX_VALUE and is_row_key and self.keeps_row_order(table)

    def partitions(self, rows: RowBatch, count: int) -> npt.NDArray[np.int32]:
        """Of ``count`` partitions, that of each change."""
        table = rows.table
        if self.kind is Kind.TS:
            return modulo_ts(rows.commit_ts, count)
        found = np.full(len(rows), hash_names(table.schema, table.name), np.uint32)
        columns = self.hashed_columns(table)
        if columns and count > 1:
            _add_columns(found, rows, columns)
        return modulo(found, count)

    def _of_index(self, table: TableInfo) -> tuple[ColumnInfo, ...]:
        index = _index_of(table, self.index)
        if index is None and table.pk_is_handle and self.index.lower() == "primary":
            return table.primary_key
        if index is None or not index.is_unique:
            unique = sorted(each.name for each in table.indexes if each.is_unique)
            raise ConfigError(
                f"{self.place}.index: table {table.full_name} has no unique index {self.index!r} with all its columns. "
                f"Its unique indexes are {', '.join(unique) or 'none'}."
            )
        return tuple(table.columns[part.offset] for part in index.columns)

    def _named(self, table: TableInfo) -> tuple[ColumnInfo, ...]:
        by_name = {column.name.lower(): column for column in table.stored_columns}
        missing = [name for name in self.columns if name.lower() not in by_name]
        if missing:
            raise ConfigError(
                f"{self.place}.columns: table {table.full_name} has no column {missing[0]!r} that goes out. Name "
                "others (virtual generated columns, and those that sink.column-selectors leaves out, cannot be used)."
            )
        return tuple(by_name[name.lower()] for name in self.columns)


def _index_of(table: TableInfo, name: str) -> IndexInfo | None:
    return next((index for index in table.indexes if index.name.lower() == name.lower()), None)


def _add_columns(found: npt.NDArray[np.uint32], rows: RowBatch, columns: tuple[ColumnInfo, ...]) -> None:
    is_delete = rows.op == RowOp.DELETE
    deletes, others = np.flatnonzero(is_delete), np.flatnonzero(~is_delete)
    old_rows = pa.array((np.cumsum(rows.op != RowOp.INSERT) - 1)[deletes])
    places = {column.offset: place for place, column in enumerate(rows.table.stored_columns)}
    of_deletes, of_others = found[deletes], found[others]
    for column in columns:
        place = places.get(column.offset)
        if place is None:
            continue  # a virtual column of a handle key: never hashed
        if len(others):
            add_column(of_others, column.name, rows.new.column(place))
        if len(deletes):
            add_column(of_deletes, column.name, rows.old.column(place).take(old_rows))
    found[others], found[deletes] = of_others, of_deletes
