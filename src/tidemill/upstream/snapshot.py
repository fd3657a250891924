"""Reads of the upstream as it was at a ts: one key, some keys, or a range as Arrow batches.

Keys are plain, as a client sends them. The ts must lie above the GC safepoint, which the caller
keeps from passing it. A read waits for transactions that may still commit at or below its ts.
"""

from collections.abc import AsyncIterator, Iterable, Sequence

import pyarrow as pa

from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.model.ts import Ts
from tidemill.upstream.keyspace import TXN_V1, Keyspace, earlier
from tidemill.upstream.kv import KvClient, decoder
from tidemill.upstream.locks import LockWaiter
from tidemill.upstream.pairs import PAIR_SCHEMA, locked_by, read_scan
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.topology import Region

ROWS_PER_SCAN = 4096
KEYS_PER_GET = 1024

_get_answer = decoder(kvrpcpb_pb2.GetResponse)
_batch_answer = decoder(kvrpcpb_pb2.BatchGetResponse)

__all__ = ["PAIR_SCHEMA", "SnapshotReader"]


class SnapshotReader:
    """For one event loop; ``close`` when done. ``keyspace`` is whose logical keys are read."""

    def __init__(
        self, pd: PdClient, regions: RegionCache, *, keyspace: Keyspace = TXN_V1, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._pd = pd
        self._clock = clock
        self._kv = KvClient(regions, keyspace=keyspace, clock=clock)

    async def close(self) -> None:
        await self._kv.close()

    async def get(self, key: bytes, ts: Ts) -> bytes | None:
        """The value of ``key`` as of ``ts``; None if there was none."""
        locks = self._locks(ts)
        while True:

            def request(region: Region) -> kvrpcpb_pb2.GetRequest:
                return kvrpcpb_pb2.GetRequest(context=_context(locks), key=key, version=ts)

            _, answer = await self._kv.send("KvGet", key, request, _get_answer)
            if not answer.HasField("error"):
                return None if answer.not_found else bytes(answer.value)
            await locks.clear([locked_by(answer.error)])

    async def batch_get(self, keys: Iterable[bytes], ts: Ts) -> dict[bytes, bytes]:
        """The values of those keys that had one as of ``ts``."""
        locks = self._locks(ts)
        todo, found = sorted(set(keys)), dict[bytes, bytes]()

        def request(some: Sequence[bytes]) -> kvrpcpb_pb2.BatchGetRequest:
            return kvrpcpb_pb2.BatchGetRequest(context=_context(locks), keys=some, version=ts)

        while todo:
            asked, answer = await self._kv.send_some("KvBatchGet", todo[:KEYS_PER_GET], request, _batch_answer)
            errors = [pair.error for pair in answer.pairs if pair.HasField("error")]
            if answer.HasField("error"):
                errors.append(answer.error)
            if errors:
                await locks.clear([locked_by(error) for error in errors])
                continue
            found.update((pair.key, pair.value) for pair in answer.pairs)
            todo = todo[asked:]
        return found

    async def scan(self, start: bytes, end: bytes, ts: Ts) -> AsyncIterator[pa.RecordBatch]:
        """All keys of ``[start, end)`` and their values as of ``ts``, in key order; an empty ``end`` means to the last.

        Batches are of ``PAIR_SCHEMA`` and never empty.
        """
        locks = self._locks(ts)
        at = start
        while not end or at < end:

            def request(region: Region, at: bytes = at) -> kvrpcpb_pb2.ScanRequest:
                return kvrpcpb_pb2.ScanRequest(
                    context=_context(locks),
                    start_key=at,
                    end_key=self._end_in(region, end),
                    limit=ROWS_PER_SCAN,
                    version=ts,
                )

            region, answer = await self._kv.send("KvScan", at, request, read_scan)
            blocking = answer.locks()
            if blocking:
                await locks.clear(blocking)
                continue
            if answer.pairs.num_rows:
                yield answer.pairs
            if answer.pairs.num_rows == ROWS_PER_SCAN:
                at = answer.pairs.column("key")[-1].as_py() + b"\0"
            else:
                at = self._end_in(region, end)
                if not at:
                    return

    def _end_in(self, region: Region, end: bytes) -> bytes:
        """Where a scan of one region ends: at the region's end or at its own; empty: nowhere."""
        return earlier(end, self._kv.keyspace.bounds(region)[1])

    def _locks(self, ts: Ts) -> LockWaiter:
        return LockWaiter(self._kv, self._pd, ts, clock=self._clock)


def _context(locks: LockWaiter) -> kvrpcpb_pb2.Context:
    return kvrpcpb_pb2.Context(resolved_locks=sorted(locks.bypass))
