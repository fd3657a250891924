"""Stores fed from the recorded histories."""

import json
from functools import cache

from tests.histories import History, load
from tidemill.flow.schema import PastRead, SchemaChange, SchemaStore, past_reads, scan_ranges
from tidemill.model.ts import Ts
from tidemill.tidb.documents import Document
from tidemill.tidb.meta import hash_range, read_snapshot

NAMES = ("types", "ddl", "online")


def pairs_at(history: History, ts: int) -> list[tuple[bytes, bytes]]:
    return [pair for start, end in scan_ranges() for pair in history.scan_at(start, end, ts)]


def past_at(history: History, pairs: list[tuple[bytes, bytes]]) -> dict[PastRead, bytes | None]:
    return {read: history.value_at(read.key, read.ts) for read in past_reads(pairs)}


def job_tuples(history: History, above: int = 0, to: int = 1 << 64) -> list[tuple[int, int, bytes, bytes]]:
    batch = history.job_changes()
    columns = (batch.column(c).to_pylist() for c in ("commit_ts", "start_ts", "key", "value"))
    return [row for row in zip(*columns, strict=True) if above < row[0] <= to]


@cache
def fed_store(name: str) -> tuple[SchemaStore, tuple[SchemaChange, ...]]:
    """The store of a changefeed that saw the whole history, and all it reported. Not to be changed."""
    history = load(name)
    store = SchemaStore.from_snapshot(pairs_at(history, history.bootstrap_ts), Ts(history.bootstrap_ts))
    store.read_recovered_with(lambda schema_id, ts: _tables_of(history, schema_id, ts))
    return store, tuple(store.apply(history.job_changes()))


def _tables_of(history: History, schema_id: int, ts: Ts) -> list[Document]:
    pairs = history.scan_at(*hash_range(b"DB:%d" % schema_id), ts)
    return [json.loads(document) for document in read_snapshot(pairs).tables.values()]
