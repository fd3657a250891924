"""Keys and values as rows: a part of a keyspace is one table that never changes, with a row for each key.

    raw changes (prefix of the keyspace, user key) ──► KeyDecoder ──► rows that are wanted: key, value, expire_seconds

A change has no old value: a put is an insert, whether there was a value before or not, and a delete names its key
alone. Whoever keeps one row for a key takes its last change.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError
from tidemill.flow.decoder import Reading
from tidemill.model.change import Op, filled
from tidemill.model.keys import ALL_KEYS, KeyApi, KeyFilter
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

RAW_SCHEMA, TXN_SCHEMA = "rawkv", "txnkv"  # of parts of keyspaces; no table of a TiDB has these columns there
RAW_TABLE_ID = 1  # of the first part, or of the only one
PREFIX_BYTES = 4  # mode and keyspace, in front of each user key
_PAST_ANY_KEY = 1 << 20  # bytes; TiKV takes keys of 8 KiB
_COLUMNS = ["key", "value", "expire_seconds"]


def key_tables(api: KeyApi, keyspace: str, since_ts: Ts, count: int) -> list[TableInfo]:
    """The tables that ``count`` parts of a keyspace are, for a changefeed from ``since_ts`` on. The only part has the
    keyspace's name, and of several each has its number behind it, so that each has a place of its own in files."""
    if count == 1:
        return [key_table(api, keyspace, since_ts)]
    return [key_table(api, f"{keyspace}-{number}", since_ts, number) for number in range(1, count + 1)]


def raw_table(keyspace: str, since_ts: Ts) -> TableInfo:
    return key_table(KeyApi.raw, keyspace, since_ts)


def key_table(api: KeyApi, name: str, since_ts: Ts, number: int = RAW_TABLE_ID) -> TableInfo:
    columns = (
        _column(1, "key", ColumnType.VARCHAR, ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY),
        _column(2, "value", ColumnType.LONGBLOB, ColumnFlag(0)),
        _column(3, "expire_seconds", ColumnType.LONGLONG, ColumnFlag.NOT_NULL | ColumnFlag.UNSIGNED),
    )
    index = IndexInfo(1, "PRIMARY", (IndexColumn(0, -1),), is_unique=True, is_primary=True)
    schema = RAW_SCHEMA if api is KeyApi.raw else TXN_SCHEMA
    return TableInfo(number, number, schema, name, since_ts, columns, (index,), is_common_handle=True)


def is_raw(table: TableInfo) -> bool:
    """Whether it is a part of RawKV."""
    return table.schema == RAW_SCHEMA and _has_keys(table)


def is_of_keys(table: TableInfo) -> bool:
    """Whether it is a part of a keyspace, by whatever API."""
    return table.schema in (RAW_SCHEMA, TXN_SCHEMA) and _has_keys(table)


def _has_keys(table: TableInfo) -> bool:
    return [column.name for column in table.columns] == _COLUMNS


def _column(number: int, name: str, kind: ColumnType, flag: ColumnFlag) -> ColumnInfo:
    charset = "" if kind is ColumnType.LONGLONG else "binary"
    return ColumnInfo(number, name, number - 1, kind, int(flag), -1, -1, charset, charset)


@dataclass(frozen=True, slots=True)
class KeyDecoder:
    """Rows of the ``table`` that a part of a keyspace is, of those that the filter lets pass."""

    table: TableInfo
    prefix_bytes: int = PREFIX_BYTES
    filter: KeyFilter = ALL_KEYS

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
        keys = pc.binary_slice(changes.column("key"), self.prefix_bytes, stop=_PAST_ANY_KEY)
        is_put = changes.column("op").to_numpy() == Op.PUT
        if self.filter:
            wanted = passes(self.filter, keys, changes.column("value"), pa.array(is_put))
            changes, keys, is_put = changes.filter(wanted), keys.filter(wanted), is_put[wanted.to_numpy(False)]
        columns = [keys, changes.column("value"), changes.column("expire_seconds")]
        schema = arrow_schema(self.table)
        puts = pa.array(is_put)
        new = pa.RecordBatch.from_arrays([column.filter(puts) for column in columns], schema=schema)
        gone = keys.filter(pa.array(~is_put))
        nothing = pa.array(np.zeros(len(gone), np.uint64))
        old = pa.RecordBatch.from_arrays([gone, pa.nulls(len(gone), pa.binary()), nothing], schema=schema)
        return RowBatch(
            self.table,
            self.table.id,
            np.where(is_put, RowOp.INSERT, RowOp.DELETE).astype(np.uint8),
            changes.column("start_ts").to_numpy(),
            changes.column("commit_ts").to_numpy(),
            new,
            old,
        )


def passes(wanted: KeyFilter, keys: pa.Array, values: pa.Array, is_put: pa.Array) -> pa.Array:
    """Which changes are wanted. Where no prefix is given any key has one; a delete has no value to be tested."""
    found = pa.array(np.full(len(keys), not wanted.prefixes))
    for prefix in wanted.prefixes:
        found = pc.or_(found, pc.starts_with(keys, pattern=prefix))
    if wanted.key_pattern:
        found = pc.and_(found, pc.match_substring_regex(keys, pattern=wanted.key_pattern))
    if wanted.value_pattern:
        matches = pc.match_substring_regex(values, pattern=wanted.value_pattern)
        found = pc.and_(found, pc.or_(pc.invert(is_put), matches))
    return found


def check_pattern(pattern: str, option: str) -> None:
    """Raises UsageError for what is no regular expression."""
    try:
        pc.match_substring_regex(pa.array([b""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"{option} {pattern!r} is not a regular expression of RE2: {str(error).splitlines()[0]}. Correct it."
        ) from error
