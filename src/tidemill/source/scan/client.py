"""The planning side of reads for callers that have no event loop: Spark's own Python processes.

A thread keeps one connection to PD, and renews the one hold that the caller wants kept.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import StartTsCollectedError, UpstreamError
from tidemill.log import get_logger
from tidemill.model.security import PLAIN, Security
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.scan.catalog import TableName, find_table
from tidemill.source.scan.changes import ChangePart, plan_changes
from tidemill.source.scan.handles import HandleBounds
from tidemill.source.scan.history import Stretch, TableHistory
from tidemill.source.scan.hold import ReadHold
from tidemill.source.scan.parts import EVERYTHING, ScanPart, plan_scan
from tidemill.upstream.pd import PdClient, parse_addresses
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader
from tidemill.upstream.tasks import settle

T = TypeVar("T")

log = get_logger("scan")


class ScanClient:
    """For one thread at a time. Connects when first asked; ``close`` when done."""

    def __init__(self, pd: str, security: Security = PLAIN) -> None:
        parse_addresses(pd, security)  # refused here, not at the first question
        self._address = pd
        self._security = security
        self._pd: PdClient | None = None
        self._kept: ReadHold | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scan-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> "ScanClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection, not of what is held: PD forgets that by itself."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def now(self) -> Ts:
        return self.ask(lambda pd: pd.get_ts())

    def find_table(self, name: TableName, ts: Ts) -> TableInfo:
        async def find(pd: PdClient) -> TableInfo:
            reader = SnapshotReader(pd, RegionCache(pd))
            try:
                return await find_table(reader, name, ts)
            finally:
                await reader.close()

        return self.ask(find)

    def plan_scan(
        self, table: TableInfo, ts: Ts, *, bounds: HandleBounds = EVERYTHING, zone: str = "UTC", hold: ReadHold
    ) -> list[ScanPart]:
        return self.ask(lambda pd: plan_scan(pd, table, ts, bounds=bounds, zone=zone, hold=hold))

    def stretches(self, history: TableHistory, from_ts: Ts, to_ts: Ts) -> list[Stretch]:
        return self.ask(lambda pd: history.stretches(pd, from_ts, to_ts))

    def plan_changes(
        self,
        stretches: Sequence[Stretch],
        *,
        bounds: HandleBounds = EVERYTHING,
        bounded: str = "",
        zone: str = "UTC",
        hold: ReadHold | None = None,
    ) -> list[ChangePart]:
        return self.ask(lambda pd: plan_changes(pd, stretches, bounds=bounds, bounded=bounded, zone=zone, hold=hold))

    def hold(self, hold: ReadHold) -> None:
        """Claim it now; ``StartTsCollectedError`` if that comes too late."""
        self.ask(hold.renew)

    def keep(self, hold: ReadHold) -> None:
        """Claim it now and go on renewing it, in place of the one kept before."""
        if hold != self._kept:
            self.hold(hold)
            self._kept = hold

    async def _keep(self, pd: PdClient) -> None:
        while True:
            kept = self._kept
            await SYSTEM_CLOCK.sleep(kept.ttl_seconds / 6 if kept is not None else 1.0)
            if self._kept is not None:
                try:
                    await self._kept.renew(pd)
                except UpstreamError as error:  # there is time to try again
                    log.warning("cannot renew a hold on the past; trying again", reason=str(error))
                except StartTsCollectedError as error:  # whoever reads next is refused for the same reason
                    log.error("a hold on the past was lost", hold=self._kept.id, reason=str(error))

    def ask(self, question: Callable[[PdClient], Awaitable[T]]) -> T:
        """What ``question`` finds out, on the client's own loop."""

        async def answer() -> T:
            if self._pd is None:
                pd = PdClient(self._address, security=self._security)
                await pd.connect()
                self._pd = pd
                self._keeping = asyncio.create_task(self._keep(pd))
            return await question(self._pd)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    async def _end(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._pd is not None:
            await self._pd.close()
        await settle()
