"""The target's PD, for callers that block: its clock, which cluster it is, and whether it serves RawKV of API V2.

The target's own clock measures the deadlines of units, so the clocks of hosts need not agree.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tidemill.errors import SinkError, SinkUnavailableError, UpstreamError, UsageError
from tidemill.model.ts import Ts, compose, physical_ms
from tidemill.sinks.tikv.uri import TikvOptions
from tidemill.upstream.keyspace import Keyspace, raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.tasks import settle

T = TypeVar("T")

_PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.2


class TargetCluster:
    """From any thread; ``close`` ends what is under way. Connects when it is first asked."""

    def __init__(self, options: TikvOptions, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._options = options
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pd: PdClient | None = None
        self._is_closed = threading.Event()

    def ts(self) -> Ts:
        return self._run(self._ts())

    def cluster_id(self) -> int:
        return self._run(self._cluster_id())

    def find_keyspace(self) -> Keyspace:
        """Where keys go; it serves RawKV of API V2. Raises UsageError where there is none of this name."""
        return self._run(self._find_keyspace())

    def wait_until(self, ts: Ts) -> None:
        """Until the target's clock has reached ``ts``. Raises SinkError where it is closed before."""
        while (left_ms := physical_ms(ts) - physical_ms(self.ts())) >= 0:
            if self._is_closed.wait(min(_LOOK_SECONDS, (left_ms + 1) / 1000)):
                raise SinkError("closed while the deadlines of earlier units were waited out.")

    def close(self) -> None:
        self._is_closed.set()
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._leave(), loop).result(_PATIENCE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._is_closed.is_set():
                work.close()
                raise SinkError("the sink is closed.")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tikv-sink", daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._patience_seconds + 5)
        except UpstreamError as error:
            raise translated(error) from error
        except (TimeoutError, asyncio.CancelledError) as error:
            future.cancel()
            raise SinkUnavailableError(f"the target's PD at {self._options.pd} gives no answer.") from error

    # On the loop.

    async def _connected(self) -> PdClient:
        if self._pd is None:
            pd = PdClient(self._options.pd, security=self._options.security, deadline_seconds=self._patience_seconds)
            try:
                await pd.connect(self._patience_seconds)
            except BaseException:
                await pd.close()
                raise
            self._pd = pd
        return self._pd

    async def _ts(self) -> Ts:
        return await (await self._connected()).get_ts()

    async def _cluster_id(self) -> int:
        return (await self._connected()).cluster_id

    async def _find_keyspace(self) -> Keyspace:
        pd, name = await self._connected(), self._options.keyspace
        number = await pd.find_keyspace(name) if name not in ("", "DEFAULT") else 0
        if number is None:
            raise UsageError(
                f"the target at {pd.addresses} has no keyspace {name!r}. Correct 'keyspace' in the sink URI, or leave "
                "it out for DEFAULT."
            )
        keyspace = raw_v2(number)
        client = RawClient(RegionCache(pd), keyspace=keyspace)
        try:
            await client.get(b"")
        finally:
            await client.close()
        return keyspace

    async def _leave(self) -> None:
        if self._pd is not None:
            await self._pd.close()
        await settle()


def translated(error: UpstreamError) -> SinkError:
    """What the target's PD and TiKV say, as a sink says it."""
    kind = SinkUnavailableError if error.retryable else SinkError
    return kind(f"the target TiKV: {error}")


def later(ts: Ts, seconds: float) -> Ts:
    return compose(physical_ms(ts) + round(seconds * 1000))
