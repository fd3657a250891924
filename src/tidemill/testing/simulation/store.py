"""The metadata store: sessions with leases, the election of the owner, and the state of the changefeed."""

from dataclasses import dataclass

from tidemill.errors import SupersededError
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import CaptureId
from tidemill.model.ts import Ts
from tidemill.testing.simulation.downstream import Downstream
from tidemill.testing.simulation.world import Violation, World

LEASE_MS = 800
GRACE_MS = 200


@dataclass(frozen=True, slots=True)
class Saved:
    at: Checkpoints
    ddl_ts: Ts
    checkpoint_ts: Ts


class Store:
    def __init__(self, world: World, downstream: Downstream, start_ts: Ts) -> None:
        self._world, self._downstream = world, downstream
        self._leases: dict[CaptureId, int] = {}  # until when each session lives, in the order in which they began
        self._gone: dict[CaptureId, int] = {}  # since when the others do not
        self.owner: CaptureId | None = None
        self.revision = 0
        self.saved = Saved(Checkpoints(start_ts), start_ts, start_ts)
        self._lowest: dict[int, Ts] = {}

    def keep(self, capture: CaptureId) -> bool:
        """Keep a session alive, or begin it; False where it has expired."""
        self._expire()
        if capture in self._gone:
            return False
        self._leases[capture] = self._world.now_ms + LEASE_MS
        return True

    def _expire(self) -> None:
        for capture in [each for each, until in self._leases.items() if until < self._world.now_ms]:
            del self._leases[capture]
            self._gone[capture] = self._world.now_ms
            self._world.note("store: the session of {} has expired", capture)
        if self.owner is not None and self.owner not in self._leases:
            self.owner = None

    def leave(self, capture: CaptureId) -> None:
        if self._leases.pop(capture, None) is not None:
            self._gone[capture] = self._world.now_ms
        self._expire()

    def campaign(self, capture: CaptureId) -> int | None:
        """Become the owner where there is none; its revision."""
        self._expire()
        if self.owner is not None or capture not in self._leases:
            return None
        self.owner, self.revision = capture, self.revision + 1
        self._world.note("store: {} is owner with revision {}", capture, self.revision)
        return self.revision

    def alive(self) -> frozenset[CaptureId]:
        """Sessions, and those that have gone only just now."""
        self._expire()
        lingering = (each for each, since in self._gone.items() if self._world.now_ms - since < GRACE_MS)
        return frozenset((*self._leases, *lingering))

    def save(self, owner: CaptureId, revision: int, state: Saved) -> None:
        """Refused to anybody who is not the owner any more."""
        self._expire()
        if (self.owner, self.revision) != (owner, revision):
            raise SupersededError(f"{owner} is not the owner any more")
        if state.checkpoint_ts < self.saved.checkpoint_ts:
            raise Violation(f"the checkpoint moved back from {self.saved.checkpoint_ts} to {state.checkpoint_ts}")
        if state.checkpoint_ts > min(state.at.lowest_ts, self._world.past_ts):
            raise Violation(f"the checkpoint {state.checkpoint_ts} has passed a table, or what is resolved: {state.at}")
        for number in self._lowest.keys() | state.at.own.keys():
            at_ts = state.at.of(number)
            if self._downstream.has_ended(number):
                continue  # wherever it is said to be
            if at_ts < self._lowest.get(number, Ts(0)):
                raise Violation(f"table {number} moved back from {self._lowest[number]} to {at_ts}")
            self._lowest[number] = at_ts
        self._downstream.check_saved(state.at)
        self.saved = state
