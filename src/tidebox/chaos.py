"""A cluster that never rests: regions split, merge and move, stores go and come back, streams break.

    seed ──► decisions (pure) ──► Chaos applies each at its moment ──► EmbeddedUpstream

The decisions depend on the seed alone; where they fall depends on what the cluster holds then. A
client that retries as it should always gets through, and always knows what became of its writes:
stores go one at a time and not for long, their leaders move first, and they go on saying so until
nobody asks any more. A leader that dies under its clients leaves them in doubt whether a commit
has happened, and good clients say that aloud; it is a fault of its own (``kill-store``).
"""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tidebox.boundaries import boundary_within
from tidemill.errors import TidemillError
from tidemill.log import get_logger

if TYPE_CHECKING:  # which starts it
    from tidebox.upstream import EmbeddedUpstream

MAX_REGIONS = 24

_PAUSE_SECONDS = (0.1, 0.5)
_OUTAGE_SECONDS = (0.2, 1.5)
_QUIET_SECONDS = 1.0  # without a request, until a store goes that leads nothing any more
_PATIENCE_SECONDS = 10.0  # then it stays
_KEYS_LOOKED_AT = 2000

log = get_logger("store.chaos")


class Kind(Enum):
    SPLIT = "split"
    MERGE = "merge"
    MOVE = "transfer-leader"
    STOP = "stop-store"
    KILL = "kill-store"
    DROP = "drop-streams"


_WEIGHTS = {Kind.SPLIT: 4, Kind.MERGE: 3, Kind.MOVE: 4, Kind.STOP: 1, Kind.KILL: 1, Kind.DROP: 1}


@dataclass(frozen=True, slots=True)
class Decision:
    """``where`` and ``what`` choose among what is there, as fractions of the way through it."""

    pause_seconds: float  # before it
    kind: Kind
    where: float
    what: float
    outage_seconds: float


def decisions(seed: int) -> Iterator[Decision]:
    """Without an end; the same for the same seed."""
    chance = random.Random(seed)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    while True:
        yield Decision(
            chance.uniform(*_PAUSE_SECONDS),
            chance.choices(kinds, weights)[0],
            chance.random(),
            chance.random(),
            chance.uniform(*_OUTAGE_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A store that leads nothing any more and is about to go."""

    store_id: int
    decision: Decision
    since: float


class Chaos:
    """Runs from ``start`` to ``stop``, in a thread of its own."""

    def __init__(self, upstream: "EmbeddedUpstream", seed: int) -> None:
        self._upstream = upstream
        self._seed = seed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
        self._clock = upstream.cluster.clock
        self._leaving: _Leaving | None = None
        self._taken_down: set[int] = set()

    def start(self) -> None:
        log.info("chaos started", seed=self._seed)
        self._thread.start()

    def stop(self) -> None:
        """No more of it, and every store that it took down is up again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for store_id in self._taken_down:
            self._upstream.start_store(store_id)

    def apply(self, decision: Decision) -> str | None:
        """Do it to the cluster as it is now; return what was done, None if there was nothing to do it to."""
        match self._possible(decision.kind):
            case Kind.SPLIT:
                return self._split(decision)
            case Kind.MERGE:
                return self._merge(decision)
            case Kind.MOVE:
                return self._move(decision)
            case Kind.STOP | Kind.KILL:
                return self._leave(decision)
            case Kind.DROP:
                return f"dropped {self._upstream.drop_streams()} streams"

    def _run(self) -> None:
        for decision in decisions(self._seed):
            if self._stopping.wait(decision.pause_seconds):
                return
            for step in (self.go, lambda decision=decision: self.apply(decision)):
                try:
                    done = step()
                except TidemillError as error:  # somebody else changed the same thing meanwhile
                    done = f"nothing: {error}"
                if done is not None:
                    log.info("chaos", done=done)

    def _possible(self, kind: Kind) -> Kind:
        """Regions stay between one and the most."""
        count = len(self._upstream.regions())
        if kind is Kind.SPLIT and count >= MAX_REGIONS:
            return Kind.MERGE
        return Kind.SPLIT if kind is Kind.MERGE and count == 1 else kind

    def _split(self, decision: Decision) -> str | None:
        regions = self._upstream.regions()
        region = regions[int(decision.where * len(regions))]
        engine = self._upstream.cluster.engine
        boundary = boundary_within(engine, region, decision.what, _KEYS_LOOKED_AT)
        if boundary is None:
            return None
        left, _ = self._upstream.cluster.split(region.id, [boundary])
        return f"region {region.id} lost {left.id} at {boundary.hex()}"

    def _merge(self, decision: Decision) -> str:
        regions = self._upstream.regions()
        at = int(decision.where * (len(regions) - 1))
        pair = regions[at].id, regions[at + 1].id
        source, target = pair if decision.what < 0.5 else pair[::-1]
        self._upstream.merge(source, target)
        return f"region {source} went into {target}"

    def _move(self, decision: Decision) -> str | None:
        regions = self._upstream.regions()
        region = regions[int(decision.where * len(regions))]
        gone = self._leaving.store_id if self._leaving is not None else None
        may_lead = {s.id for s in self._upstream.cluster.stores.values() if s.is_up and s.id != gone}
        others = [store for store in region.stores if store != region.leader_store and store in may_lead]
        if not others:
            return None
        heir = others[int(decision.what * len(others))]
        self._upstream.transfer_leader(region.id, heir)
        return f"region {region.id} is led by store {heir}"

    def _leave(self, decision: Decision) -> str | None:
        """An outage begins: a store leads nothing any more. It still answers, so that clients find out."""
        stores = self._upstream.cluster.stores
        if len(stores) == 1 or self._leaving is not None or not all(store.is_up for store in stores.values()):
            return None
        store_id = sorted(stores)[int(decision.where * len(stores))]
        self._leaving = _Leaving(store_id, decision, self._clock.monotonic())
        self._upstream.cluster.move_leaders_from(store_id)
        return f"store {store_id} leads nothing any more"

    def go(self) -> str | None:
        """The store that is about to go does so, if nobody has asked it for a while."""
        leaving = self._leaving
        if leaving is None:
            return None
        now = self._clock.monotonic()
        store_id, seconds = leaving.store_id, leaving.decision.outage_seconds
        if now - max(leaving.since, self._upstream.cluster.stores[store_id].asked_at) < _QUIET_SECONDS:
            if now - leaving.since > _PATIENCE_SECONDS:
                self._leaving = None
                return f"store {store_id} stays, since it is still asked"
            return None
        self._leaving = None
        self._taken_down.add(store_id)
        if leaving.decision.kind is Kind.KILL:
            self._upstream.kill_store(store_id)
        else:
            self._upstream.stop_store(store_id)
        self._upstream.start_store_later(store_id, seconds)
        return f"store {store_id} is gone for {seconds:.1f} s ({leaving.decision.kind.value})"
