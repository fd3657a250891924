"""The schema is read from an upstream as it was, also in the middle of a job."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pyarrow as pa
import pytest

from tests.flow.schema.stores import fed_store, job_tuples
from tests.histories import History, load
from tidemill.flow.schema.loader import load_schema
from tidemill.model.ts import Ts
from tidemill.upstream.snapshot import PAIR_SCHEMA, SnapshotReader


class Unistore:
    """Answers from a history as TiDB's own store does: a key that was deleted later is found by scans only."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def scan(self, start: bytes, end: bytes, ts: Ts) -> AsyncIterator[pa.RecordBatch]:
        pairs = list(self._history.scan_at(start, end, ts))
        if pairs:
            yield pa.RecordBatch.from_pylist([{"key": k, "value": v} for k, v in pairs], PAIR_SCHEMA)

    async def get(self, key: bytes, ts: Ts) -> bytes | None:
        is_there = self._history.value_at(key, self._history.end_ts) is not None
        return self._history.value_at(key, ts) if is_there else b""


@pytest.mark.parametrize("name", ["ddl", "online"])
def test_a_start_within_any_job_finds_the_tables_as_they_were_before_it(name: str) -> None:
    history, (full, _) = load(name), fed_store(name)
    reader = cast("SnapshotReader", Unistore(history))
    for ts in sorted({commit_ts for commit_ts, *_ in job_tuples(history, above=history.bootstrap_ts)}):
        store = asyncio.run(load_schema(reader, Ts(ts), Ts(history.bootstrap_ts), full.versions(ts)))
        for followed in store.followed():
            assert store.table(followed.physical_id, ts + 1) == full.table(followed.physical_id, ts + 1), ts
