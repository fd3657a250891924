"""One subscription's span: who follows which of its keys, and how far each key has come.

    region found ──► claim ── Registration · Stale · Wait
    region lost  ──► release ── what had to wait for it

Plain bookkeeping: it asks nobody and waits for nothing. Between a loss and the next claim a range is
in the caller's hands, to be looked up; so at any moment every key of the span is followed, waits
here for an older registration to end, or is being looked up.
"""

from tidemill.flow.puller.frontier import Frontier
from tidemill.flow.puller.rangelock import Granted, RangeLock, Stale, Wait
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.upstream.feed.registration import Registration
from tidemill.upstream.topology import Region


class Coverage:
    """Of one request on the wire. Regions split and merge; the frontier never moves back."""

    def __init__(self, request_id: int, span: Span, start_ts: Ts) -> None:
        self.request_id = request_id
        self.frontier = Frontier(span, start_ts)
        self._lock = RangeLock()
        self._registrations: dict[bytes, Registration] = {}  # by the start of their part
        self._initialized: set[Registration] = set()
        self._blocked: list[Span] = []

    def __len__(self) -> int:
        """The number of registrations."""
        return len(self._registrations)

    @property
    def blocked(self) -> tuple[Span, ...]:
        """What waits for an older registration to end."""
        return tuple(self._blocked)

    @property
    def registrations(self) -> tuple[Registration, ...]:
        return tuple(self._registrations.values())

    @property
    def initialized(self) -> int:
        """The number of registrations whose incremental scan has ended."""
        return len(self._initialized)

    def initialize(self, registration: Registration) -> None:
        """Its incremental scan has ended; from now on its resolved-ts moves."""
        self._initialized.add(registration)

    def claim(self, region: Region) -> Registration | Stale | Wait:
        """Follow all of the region that lies in the span, also where only a part of it was lost.

        A store takes one registration per region, and a region that was merged must wait until none
        of its parts is followed any more. It starts at the lowest ts that any of its keys has reached.
        A region that waits is given back by ``release``; the rest of a stale one is to be looked up.
        """
        part = region.span.intersect(self.frontier.span)
        if part is None:
            return Stale(())
        match self._lock.lock(part, region.id, region.version):
            case Granted():
                registration = Registration(self.request_id, region, part, self.frontier.lowest(part))
                self._registrations[part.start] = registration
                return registration
            case Wait() as wait:
                self._blocked.append(part)
                return wait
            case Stale() as stale:
                return stale

    def release(self, registration: Registration) -> list[Span]:
        """A registration has ended, and its part is the caller's; so is what is returned: it waited for it."""
        self._lock.unlock(registration.part, registration.region.id)
        del self._registrations[registration.part.start]
        self._initialized.discard(registration)
        waiting, self._blocked = self._blocked, []
        return waiting

    def holder(self, key: bytes) -> Registration | None:
        """Who follows a key of the span."""
        part = self._lock.held(key)
        return self._registrations[part.start] if part is not None else None

    def behind(self, ts: int) -> list[tuple[Registration, Ts]]:
        """The initialized registrations that have not reached ``ts``, and the lowest that their keys have reached."""
        lowest: dict[Registration, Ts] = {}
        for span, reached in self.frontier.behind(ts):
            holder = self.holder(span.start)
            if holder is not None and holder in self._initialized:
                lowest[holder] = min(reached, lowest.get(holder, reached))
        return list(lowest.items())
