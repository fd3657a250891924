"""Keeping the upstream from collecting what a changefeed still has to read.

PD knows two ways to ask for it. Newer ones take a barrier and refuse one that comes too late; older
ones take a service safepoint and tell in their answer whether they took it. Both are one record in a
PD that knows both, under the same name, so it does not matter which of them is used when.
"""

from collections.abc import Callable

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import IncompatibleUpstreamError, StartTsCollectedError, UpstreamError
from tidemill.log import get_logger
from tidemill.model.ts import Ts, show
from tidemill.upstream.pd import PdClient

_LONGEST_PERIOD_SECONDS = 60.0
_RENEWALS_PER_TTL = 6

log = get_logger("gc")


class GcHold:
    """One service's claim on the past. Renew it well within ``ttl_seconds``: PD forgets it then.

    ``purpose`` and ``advice`` are for the message of a claim that comes too late.
    """

    def __init__(
        self,
        pd: PdClient,
        service_id: str,
        ttl_seconds: int,
        *,
        purpose: str = "start at",
        advice: str = "Choose a --start-ts above it and a new --data-dir, or copy the tables first and start from the "
        "copy's ts.",
    ) -> None:
        self._pd = pd
        self._service_id = service_id
        self.ttl_seconds = ttl_seconds
        self._purpose = purpose
        self._advice = advice
        self._takes_barriers: bool | None = None  # None: PD has not been asked yet
        self._is_held = False

    async def hold(self, checkpoint_ts: Ts) -> None:
        """Keep everything that is needed to go on from ``checkpoint_ts``, and let go of what was before it.

        ``StartTsCollectedError`` if the upstream has collected some of it already.
        """
        wanted = Ts(checkpoint_ts - 1)
        safepoint = await self._ask(wanted)
        if safepoint > wanted:
            raise StartTsCollectedError(
                f"cannot {self._purpose} {show(checkpoint_ts)}: the upstream has garbage-collected up to "
                f"{show(safepoint)}. {self._advice}"
            )
        self._is_held = True

    async def keep(self, needed: Callable[[], Ts]) -> None:
        """Renew it, at what ``needed`` says then, until cancelled. A PD that is away is asked again.

        ``StartTsCollectedError`` if the upstream has collected what was held: the hold had been lost.
        """
        while True:
            await SYSTEM_CLOCK.sleep(min(_LONGEST_PERIOD_SECONDS, self.ttl_seconds / _RENEWALS_PER_TTL))
            try:
                await self.hold(needed())
            except UpstreamError as error:
                log.warning("cannot renew the hold on GC; trying again", service=self._service_id, reason=str(error))

    async def release(self) -> None:
        """Let go, if anything is held."""
        if not self._is_held:
            return
        if self._takes_barriers:
            await self._pd.delete_gc_barrier(self._service_id)
        else:
            await self._pd.update_service_gc_safe_point(self._service_id, 0, Ts(0))
        self._is_held = False

    async def _ask(self, wanted: Ts) -> Ts:
        """From where on the upstream keeps everything; above ``wanted`` if that was refused."""
        if self._takes_barriers is not False:
            try:
                return await self._ask_for_barrier(wanted)
            except IncompatibleUpstreamError:  # whatever else is wrong, the older call meets it as well
                log.info("PD knows no GC barriers; a service safepoint is used", service=self._service_id)
                self._takes_barriers = False
        return await self._pd.update_service_gc_safe_point(self._service_id, self.ttl_seconds, wanted)

    async def _ask_for_barrier(self, wanted: Ts) -> Ts:
        if self._takes_barriers is None:
            await self._pd.get_gc_state()
            self._takes_barriers = True
        if await self._pd.set_gc_barrier(self._service_id, self.ttl_seconds, wanted):
            return wanted
        return (await self._pd.get_gc_state()).txn_safepoint


async def let_go(pd: PdClient, name: str) -> None:
    """The upstream keeps nothing under this name any more."""
    try:
        await pd.get_gc_state()
        await pd.delete_gc_barrier(name)
    except IncompatibleUpstreamError:
        await pd.update_service_gc_safe_point(name, 0, Ts(0))
