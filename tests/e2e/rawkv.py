"""A RawKV in use: who writes it, and who watches what arrives at the other one, version by version."""

import asyncio
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

import pyarrow as pa

from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import UpstreamError
from tidemill.flow.puller import Puller
from tidemill.model.change import Op
from tidemill.model.keys import KeyRange
from tidemill.model.ts import Ts
from tidemill.source.keyrange import KeySource
from tidemill.upstream.keyspace import raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import Checksum, RawClient
from tidemill.upstream.regions import RegionCache

T = TypeVar("T")
HOT = [b"hot/%d" % n for n in range(5)]
COLD = 400
LONG_TTL, SHORT_TTL = 5000, 1


class Loop:
    """An event loop in a thread of its own, until it is left."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        async def begun() -> asyncio.Task[None]:
            return asyncio.create_task(work)

        return self.call(begun())

    def end(self, task: "asyncio.Task[None]") -> None:
        async def ended() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self.call(ended())


class Writer:
    """Writes keys of one cluster; each value begins with a number that ascends for its key. ``close`` it."""

    def __init__(self, loop: Loop, cluster: EmbeddedUpstream, seed: int) -> None:
        self._loop, self._rng = loop, random.Random(seed)
        self._pd = PdClient(cluster.pd_address)
        loop.call(self._pd.connect())
        self.client = RawClient(RegionCache(self._pd), keyspace=raw_v2())
        self.number = 0

    def close(self) -> None:
        self._loop.call(self.client.close())
        self._loop.call(self._pd.close())

    def steps(self, count: int) -> None:
        self._loop.call(self._steps(count))

    def checksum(self) -> Checksum:
        return self._loop.call(self.client.checksum(b""))

    def pairs(self, start: bytes, end: bytes) -> dict[bytes, bytes]:
        async def scanned() -> dict[bytes, bytes]:
            return {key: value async for some in self.client.scan(start, end) for key, value in some}

        return self._loop.call(scanned())

    def ttl(self, key: bytes) -> int | None:
        return self._loop.call(self.client.ttl(key))

    async def _steps(self, count: int) -> None:
        """Each of them one kind of write, of hot keys and others."""
        for _ in range(count):
            self.number += 1
            value = b"%012d/" % self.number
            cold = [b"cold/%04d" % n for n in self._rng.sample(range(COLD), 20)]
            match self._rng.randrange(5):
                case 0:
                    await self.client.batch_delete(cold)
                case 1:
                    await self.client.delete(self._rng.choice(HOT))
                case 2:
                    ttl = self._rng.choice([SHORT_TTL, LONG_TTL])
                    await self.client.batch_put(dict.fromkeys([*cold, HOT[0]], value), ttl_seconds=ttl)
                case _:
                    filled = value + self._rng.randbytes(self._rng.randrange(60))
                    await self.client.batch_put(dict.fromkeys([*cold, *HOT], filled))


class Watcher:
    """What a cluster's keys go through, by its own change stream: a ``ChangeReceiver``. Each version is seen in the
    order in which the cluster took it, or, where the stream had been lost, only the newest of several."""

    def __init__(self, loop: Loop, cluster: EmbeddedUpstream) -> None:
        self._loop = loop
        self._pd = PdClient(cluster.pd_address)
        self._versions: dict[bytes, dict[Ts, int]] = {}  # by key: ts there, and the number of what was put
        loop.call(self._pd.connect())
        source = KeySource(raw_v2(), KeyRange(safe_interval_seconds=0.0))
        self._task = loop.begin(self._run(source, cluster.tso()))

    async def _run(self, source: KeySource, since_ts: Ts) -> None:
        puller = Puller(self._pd, self, mode=source.mode)
        puller.subscribe(1, source.span, since_ts)
        await puller.run()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        columns = [changes.column(name).to_pylist() for name in ("key", "commit_ts", "op", "value")]
        for key, ts, op, value in zip(*columns, strict=True):
            if op == Op.PUT:
                self._versions.setdefault(key, {})[ts] = int(value.partition(b"/")[0])

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        """Rows are what counts here."""

    def close(self) -> None:
        self._loop.end(self._task)
        with suppress(UpstreamError):
            self._loop.call(self._pd.close())

    @property
    def seen(self) -> int:
        return sum(map(len, self._versions.values()))

    def moved_back(self) -> list[bytes]:
        """Keys that at some time held an older value than before."""
        found = []
        for key, versions in self._versions.items():
            numbers = [number for _, number in sorted(versions.items())]
            if numbers != sorted(numbers):
                found.append(key)
        return found
