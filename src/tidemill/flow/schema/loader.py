"""Reads the upstream's metadata at a ts and makes a schema store of them."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tidemill.errors import StartTsCollectedError, UpstreamError
from tidemill.flow.schema.snapshot import PastRead, past_reads
from tidemill.flow.schema.store import SchemaStore
from tidemill.log import get_logger
from tidemill.model.ts import Ts
from tidemill.upstream.meta import MetaSnapshot, read_snapshot, scan_ranges
from tidemill.upstream.snapshot import SnapshotReader

log = get_logger("schema")


async def load_schema(
    reader: SnapshotReader, ts: Ts, base_ts: Ts, versions: Mapping[int, Ts], *, is_for_every_table: bool = False
) -> SchemaStore:
    """A store for rows with commit-ts above ``ts``; the rest as ``from_snapshot`` says."""
    snapshot = MetaSnapshot()
    for start, end in scan_ranges():
        async for batch in reader.scan(start, end, ts):
            pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            read_snapshot(pairs, into=snapshot)
    documents = len(snapshot.tables)
    past: dict[PastRead, bytes | None] = {}
    for read in past_reads(snapshot):
        try:
            past[read] = await _value(reader, read)
        except (StartTsCollectedError, UpstreamError) as error:
            # The store then takes what is public in the present document.
            log.warning("cannot read a table as it was before a running DDL", ts=read.ts, reason=str(error))
    with _uncollected():
        store = SchemaStore.from_snapshot(
            snapshot, ts, past=past, base_ts=base_ts, versions=versions, is_for_every_table=is_for_every_table
        )
    log.info("schema loaded", ts=ts, tables=len(store.followed()), documents=documents)
    return store


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles: there are none in what is made here, and with a hundred thousand tables
    it would be searched again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _value(reader: SnapshotReader, read: PastRead) -> bytes | None:
    """By a scan of one key. TiDB's own store (unistore) tells nothing of keys that were deleted since when asked
    for the key itself, and the table of a job that changes its id is deleted with the job."""
    async for batch in reader.scan(read.key, read.key + b"\0", read.ts):
        value: bytes = batch.column("value")[0].as_py()
        return value
    return None
