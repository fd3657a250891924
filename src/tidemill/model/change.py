"""Raw changes: what one committed transaction did to one key, not decoded.

They travel as Arrow record batches of ``RAW_CHANGE_SCHEMA``. Order is by
``(commit_ts, start_ts, key)``; ``(key, commit_ts)`` identifies a change, so a second
delivery of the same change is recognised and dropped.
"""

from enum import IntEnum

import pyarrow as pa


class Op(IntEnum):
    PUT = 1
    DELETE = 2


RAW_CHANGE_SCHEMA = pa.schema(
    [
        pa.field("start_ts", pa.uint64(), nullable=False),
        pa.field("commit_ts", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),  # Op
        pa.field("key", pa.binary(), nullable=False),  # as a client sends it, not memcomparable
        pa.field("value", pa.binary(), nullable=False),  # empty for a delete
        pa.field("old_value", pa.binary(), nullable=False),  # empty where there was no row before
    ]
)
