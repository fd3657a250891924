"""Reads the upstream's metadata at a ts and makes a schema store of them."""

from collections.abc import Mapping

from tidemill.errors import StartTsCollectedError, UpstreamError
from tidemill.flow.schema.snapshot import PastRead, past_reads
from tidemill.flow.schema.store import SchemaStore
from tidemill.log import get_logger
from tidemill.model.ts import Ts
from tidemill.upstream.meta import scan_ranges
from tidemill.upstream.snapshot import SnapshotReader

log = get_logger("schema")


async def load_schema(
    reader: SnapshotReader, ts: Ts, base_ts: Ts, versions: Mapping[int, Ts], *, is_for_every_table: bool = False
) -> SchemaStore:
    """A store for rows with commit-ts above ``ts``; the rest as ``from_snapshot`` says."""
    pairs: list[tuple[bytes, bytes]] = []
    for start, end in scan_ranges():
        async for batch in reader.scan(start, end, ts):
            pairs.extend(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    past: dict[PastRead, bytes | None] = {}
    for read in past_reads(pairs):
        try:
            past[read] = await _value(reader, read)
        except (StartTsCollectedError, UpstreamError) as error:
            # The store then takes what is public in the present document.
            log.warning("cannot read a table as it was before a running DDL", ts=read.ts, reason=str(error))
    store = SchemaStore.from_snapshot(
        pairs, ts, past=past, base_ts=base_ts, versions=versions, is_for_every_table=is_for_every_table
    )
    log.info("schema loaded", ts=ts, tables=len(store.followed()), documents=len(pairs))
    return store


async def _value(reader: SnapshotReader, read: PastRead) -> bytes | None:
    """By a scan of one key. TiDB's own store (unistore) tells nothing of keys that were deleted since when asked
    for the key itself, and the table of a job that changes its id is deleted with the job."""
    async for batch in reader.scan(read.key, read.key + b"\0", read.ts):
        value: bytes = batch.column("value")[0].as_py()
        return value
    return None
