"""An upstream whose change stream is kept, for DDLs to be compared with what comes out of it."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.puller import Puller
from tidemill.flow.schema import SchemaStore
from tidemill.flow.schema.loader import load_schema
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

PATIENCE_SECONDS = 120


class Stream:
    """Everything of tables that the change stream of the upstream tells, and up to where."""

    def __init__(self, pd_address: str, start_ts: Ts) -> None:
        self._changed = threading.Condition()
        self._batches: list[pa.RecordBatch] = []
        self._resolved_ts = Ts(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sweep-stream", daemon=True)
        self._thread.start()
        self._pd = PdClient(pd_address)
        self.wait(self._pd.connect())
        self._reader = SnapshotReader(self._pd, RegionCache(self._pd))
        self._puller = Puller(self._pd, self)
        self._running: asyncio.Task[None] = self.wait(self._start(start_ts))

    async def _start(self, start_ts: Ts) -> asyncio.Task[None]:
        self._puller.subscribe(1, Span(encode_bytes(b"t"), encode_bytes(b"u")), start_ts)
        return asyncio.create_task(self._puller.run())

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        with self._changed:
            self._batches.append(changes)

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        with self._changed:
            self._resolved_ts = resolved_ts
            self._changed.notify_all()

    def changes(self, above: int, to: int) -> list[dict[str, Any]]:
        """The changes with commit-ts of ``(above, to]`` in commit order, once all of them are there."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._resolved_ts >= to, PATIENCE_SECONDS)
            rows = [row for batch in self._batches for row in batch.to_pylist() if above < row["commit_ts"] <= to]
        unique = {(row["commit_ts"], row["key"]): row for row in rows}
        return [unique[at] for at in sorted(unique)]

    def forget(self) -> None:
        with self._changed:
            self._batches.clear()

    def load_schema(self, ts: Ts, base: "SchemaStore | None" = None, base_ts: Ts | None = None) -> SchemaStore:
        """As loaded by a changefeed that starts or resumes at ``ts``."""
        versions = base.versions(ts) if base is not None else {}
        return self.wait(load_schema(self._reader, ts, ts if base_ts is None else base_ts, versions))

    def wait(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        self.wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._reader.close()
        await self._pd.close()


@contextmanager
def upstream() -> Iterator[tuple[EmbeddedUpstream, Stream]]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as served:
        stream = Stream(served.pd_address, Ts(int(served.cluster.tso.next())))
        try:
            yield served, stream
        finally:
            stream.close()
