"""What a task writes to the target TiKV, and until when.

    rows, in commit order ─► the last one of each key ─► puts with what is left of their time, deletes ─► requests

For one key the order of versions counts, and between keys there is none. So of each step's rows only the last version
of a key is written, all keys at the same time, and a step ends before the next one begins. Runs on executors.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import SinkUnavailableError, UpstreamError
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, RowOp, flat
from tidemill.model.ts import Ts, physical_ms
from tidemill.sinks.tikv.cluster import translated
from tidemill.sinks.tikv.uri import TikvOptions
from tidemill.upstream.keyspace import raw_v2
from tidemill.upstream.pace import Pace
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.tasks import raise_first, settle

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Latest:
    """The last version of each key: puts, with their expiry in Unix seconds (0: never), and deletes."""

    puts: pa.RecordBatch
    deletes: list[bytes]

    def writes(self, now_seconds: int) -> "Writes":
        """What to ask for at this moment. What has expired on the way becomes a delete: an older version may be there,
        and nobody else would remove it."""
        keys, values = self.puts.column("key").to_pylist(), self.puts.column("value").to_pylist()
        expiries = self.puts.column("expire_seconds").to_pylist()
        puts: dict[bytes, bytes] = {}
        ttls: dict[bytes, int] = {}
        deletes = list(self.deletes)
        for key, value, expiry in zip(keys, values, expiries, strict=True):
            if expiry and expiry <= now_seconds:
                deletes.append(key)
                continue
            puts[key] = value
            if expiry:
                ttls[key] = expiry - now_seconds
        return Writes(puts, ttls, deletes)


@dataclass(frozen=True, slots=True)
class Writes:
    puts: dict[bytes, bytes]
    ttls: dict[bytes, int]  # seconds; of those puts that end
    deletes: list[bytes]


def latest(rows: RowBatch) -> Latest:
    """Of rows in commit order."""
    puts = np.flatnonzero(rows.op != RowOp.DELETE)
    deletes = np.flatnonzero(rows.op == RowOp.DELETE)
    places = np.concatenate((puts, deletes))
    keys = pa.chunked_array([rows.new.column("key"), rows.old.column("key")], pa.binary())
    grouped = pa.table({"key": keys, "place": places}).group_by("key").aggregate([("place", "max")])
    last = np.zeros(len(rows), np.bool_)
    last[grouped.column("place_max").to_numpy()] = True
    return Latest(rows.new.filter(_mask(last, puts)), rows.old.column("key").filter(_mask(last, deletes)).to_pylist())


def _mask(last: npt.NDArray[np.bool_], places: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(last[places])


@dataclass(frozen=True, slots=True)
class TikvTarget:
    """The target's keys, up to a deadline by the target's clock."""

    options: TikvOptions
    deadline_ts: Ts
    keyspace_id: int = 0

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Raises SinkUnavailableError where it is not done in time: the batch is begun again."""
        try:
            return asyncio.run(self._write(rows))
        except UpstreamError as error:
            raise translated(error) from error

    def share(self, number: int) -> "TikvTarget":
        return self

    async def _write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        options, changes, size = self.options, 0, 0
        pd = PdClient(options.pd, security=options.security)
        client = RawClient(
            RegionCache(pd),
            keyspace=raw_v2(self.keyspace_id),
            max_calls=options.concurrency,
            keys_per_call=options.batch_size,
            bytes_per_call=options.batch_bytes,
            longest_pause_seconds=options.max_backoff_seconds,
            pace=Pace(options.rate_limit) if options.rate_limit else None,
        )
        try:
            await pd.connect(_CONNECT_SECONDS)
            for batch in flat(rows):
                await self._write_step(pd, client, latest(batch))
                changes += len(batch)
                size += batch.new.nbytes + batch.old.nbytes
        finally:
            await client.close()
            await pd.close()
            await settle()
        return Receipt("", 0, 0, changes, size)

    async def _write_step(self, pd: PdClient, client: RawClient, found: Latest) -> None:
        """Done when it returns, or ended at the deadline: no request is sent from then on."""
        now_ms = physical_ms(await pd.get_ts())
        left_ms = physical_ms(self.deadline_ts) - now_ms
        writes = found.writes(now_ms // 1000)
        try:
            async with asyncio.timeout(max(left_ms, 0) / 1000):
                if left_ms <= 0:
                    raise TimeoutError
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(client.batch_put(writes.puts, ttl_seconds=writes.ttls))
                    tasks.create_task(client.batch_delete(writes.deletes))
        except TimeoutError as error:
            raise SinkUnavailableError(
                f"a unit was not written within its deadline of {self.options.deadline_seconds:g} s: the target TiKV "
                "is slow or away, or 'rate-limit' is low. It comes again. If it does so for ever, raise 'deadline', "
                "'concurrency' or 'rate-limit' in the URI."
            ) from error
        except BaseExceptionGroup as group:
            raise_first(group)
