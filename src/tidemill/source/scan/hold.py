"""A claim on the past for as long as something is read, shared by driver and executors.

The driver takes it when a read is planned, under an id that travels with the parts; every executor renews it
while it reads. Nobody lets go of it: nobody knows who is the last. PD forgets it ``ttl_seconds`` after the last
renewal. An upstream that has collected what is to be read is found out by the claim, before a row is given.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UpstreamError
from tidemill.log import get_logger
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts
from tidemill.upstream.gc import GcHold
from tidemill.upstream.pd import PdClient

READ_TTL_SECONDS = 900
CONNECT_SECONDS = 60.0  # an executor's patience with a PD that is away
_ADVICE = (
    "Choose a later ts, or let the upstream keep more (tidb_gc_life_time). What is collected cannot be read any more."
)

log = get_logger("scan")


@dataclass(frozen=True, slots=True)
class ReadHold:
    """``id`` is a service of PD's; the claim is for reads at and above ``ts``."""

    id: str
    ts: Ts
    ttl_seconds: int = READ_TTL_SECONDS

    @classmethod
    def new(cls, ts: Ts, ttl_seconds: int = READ_TTL_SECONDS) -> "ReadHold":
        return cls(f"tidemill-read-{secrets.token_hex(8)}", ts, ttl_seconds)

    async def renew(self, pd: PdClient) -> None:
        """``StartTsCollectedError`` if the upstream has collected some of it already."""
        await GcHold(pd, self.id, self.ttl_seconds, purpose="read at", advice=_ADVICE).hold(self.ts)


@asynccontextmanager
async def reading(address: str, hold: ReadHold | None, security: Security = PLAIN) -> AsyncIterator[PdClient]:
    """A client of PD for an executor's read, which waits for a PD that is away. The claim is renewed while the body
    runs, and the body is cancelled when it is lost. None: somebody else holds it."""
    pd = PdClient(address, security=security)
    await pd.connect(CONNECT_SECONDS)
    try:
        if hold is None:
            yield pd
            return
        await hold.renew(pd)
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(_renew(pd, hold))
            yield pd
            renewing.cancel()
    finally:
        await pd.close()


async def _renew(pd: PdClient, hold: ReadHold) -> None:
    while True:
        await SYSTEM_CLOCK.sleep(hold.ttl_seconds / 6)
        try:
            await hold.renew(pd)
        except UpstreamError as error:  # PD is away: there is time to try again
            log.warning("cannot renew a hold on the past; trying again", hold=hold.id, reason=str(error))
