"""RawKV as rows: a keyspace is one table that never changes, with a row for each key.

    raw changes (r, keyspace, user key) ──► RawDecoder ──► rows: key, value, expire_seconds

A change has no old value: a put is an insert, whether there was a value before or not, and a delete names its key
alone. Whoever keeps one row for a key takes its last change.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.decoder import Reading
from tidemill.model.change import Op, filled
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

RAW_SCHEMA = "rawkv"  # of the one table; no other source has a schema of this name and this id
RAW_TABLE_ID = 1
PREFIX_BYTES = 4  # mode and keyspace, in front of each user key
_PAST_ANY_KEY = 1 << 20  # bytes; TiKV takes keys of 8 KiB


def raw_table(keyspace: str, since_ts: Ts) -> TableInfo:
    """The table that a keyspace is, for a changefeed from ``since_ts`` on."""
    columns = (
        _column(1, "key", ColumnType.VARCHAR, ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY),
        _column(2, "value", ColumnType.LONGBLOB, ColumnFlag(0)),
        _column(3, "expire_seconds", ColumnType.LONGLONG, ColumnFlag.NOT_NULL | ColumnFlag.UNSIGNED),
    )
    index = IndexInfo(1, "PRIMARY", (IndexColumn(0, -1),), is_unique=True, is_primary=True)
    return TableInfo(
        RAW_TABLE_ID, RAW_TABLE_ID, RAW_SCHEMA, keyspace, since_ts, columns, (index,), is_common_handle=True
    )


def is_raw(table: TableInfo) -> bool:
    return table.schema == RAW_SCHEMA and [column.name for column in table.columns] == [
        "key",
        "value",
        "expire_seconds",
    ]


def _column(number: int, name: str, kind: ColumnType, flag: ColumnFlag) -> ColumnInfo:
    charset = "" if kind is ColumnType.LONGLONG else "binary"
    return ColumnInfo(number, name, number - 1, kind, int(flag), -1, -1, charset, charset)


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """Rows of the ``table`` of a keyspace."""

    table: TableInfo

    @property
    def is_mixed(self) -> bool:
        return False

    def may_share(self, allows: Callable[[TableInfo], bool]) -> bool:
        return allows(self.table)

    def pieces(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield changes

    def decode(self, changes: pa.RecordBatch, reading: Reading, aside: list[Undecodable]) -> RowBatch:
        """In the order of ``changes``. Nothing is undecodable: bytes are what they are."""
        changes = filled(changes)
        is_put = changes.column("op").to_numpy() == Op.PUT
        keys = pc.binary_slice(changes.column("key"), PREFIX_BYTES, stop=_PAST_ANY_KEY)
        columns = [keys, changes.column("value"), changes.column("expire_seconds")]
        schema = arrow_schema(self.table)
        puts = pa.array(is_put)
        new = pa.RecordBatch.from_arrays([column.filter(puts) for column in columns], schema=schema)
        gone = keys.filter(pa.array(~is_put))
        nothing = pa.array(np.zeros(len(gone), np.uint64))
        old = pa.RecordBatch.from_arrays([gone, pa.nulls(len(gone), pa.binary()), nothing], schema=schema)
        return RowBatch(
            self.table,
            RAW_TABLE_ID,
            np.where(is_put, RowOp.INSERT, RowOp.DELETE).astype(np.uint8),
            changes.column("start_ts").to_numpy(),
            changes.column("commit_ts").to_numpy(),
            new,
            old,
        )
