"""Reads the upstream's metadata at a ts and makes a schema store of them."""

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tidemill.errors import StartTsCollectedError, UpstreamError
from tidemill.flow.schema.effects import Recovered
from tidemill.flow.schema.snapshot import PastRead, past_reads
from tidemill.flow.schema.store import SchemaStore
from tidemill.log import get_logger
from tidemill.model.ts import Ts
from tidemill.tidb.documents import Document
from tidemill.tidb.meta import MetaSnapshot, hash_range, read_snapshot, scan_ranges
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
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


def recovered_reader(connect: Callable[[], PdClient]) -> Recovered:
    """Reads what a database that comes back holds. Blocks, with connections and a loop of its own: it is needed in the
    midst of a step that cannot wait, and about never."""

    async def read(schema_id: int, ts: Ts) -> list[Document]:
        pd = connect()
        await pd.connect()
        reader = SnapshotReader(pd, RegionCache(pd))
        snapshot = MetaSnapshot()
        try:
            async for batch in reader.scan(*hash_range(b"DB:%d" % schema_id), ts):
                pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
                read_snapshot(pairs, into=snapshot)
        finally:
            await reader.close()
            await pd.close()
        return [json.loads(document) for (found, _), document in snapshot.tables.items() if found == schema_id]

    def recovered(schema_id: int, ts: Ts) -> list[Document]:
        with ThreadPoolExecutor(1, thread_name_prefix="recovered") as threads:
            return threads.submit(asyncio.run, read(schema_id, ts)).result()

    return recovered


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
