"""TiDB's formats, written byte for byte as TiDB writes them, one row at a time.

    datum ──► cells      values in rows of format v2           numbers, times, documents, vectors
          ──► flagged    values in keys and in rows of v1       collation: sort keys
    row   ──► table      TableCodec: records and index entries  rows, indexes, checksums, defaults

In: Python values (datum.py says which for which column) and the schema of the writer. Out: keys and values
for the store, and rows back from them. Reading rows in bulk is the mounter's.
"""

from tidebox.sql.codec.datum import (
    Datum,
    Json,
    JsonDuration,
    JsonOpaque,
    JsonTime,
    JsonTimeKind,
    JsonUint,
    JsonValue,
    Row,
    Time,
    Vector,
)
from tidebox.sql.codec.indexes import IndexEntry, split_index_key, split_index_value
from tidebox.sql.codec.rows import ChecksumVersion, RowFormat
from tidebox.sql.codec.table import Record, TableCodec, handle_in, rowid_handle

__all__ = [
    "ChecksumVersion",
    "Datum",
    "IndexEntry",
    "Json",
    "JsonDuration",
    "JsonOpaque",
    "JsonTime",
    "JsonTimeKind",
    "JsonUint",
    "JsonValue",
    "Record",
    "Row",
    "RowFormat",
    "TableCodec",
    "Time",
    "Vector",
    "handle_in",
    "rowid_handle",
    "split_index_key",
    "split_index_value",
]
