"""A story drawn from a seed: what goes wrong when, and the end, at which all must be well."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.control.scheduler import replica
from tidemill.errors import InvariantError
from tidemill.model.schedule import REST, CaptureId, Dispatch, Heartbeat, Message
from tidemill.model.ts import Ts
from tidemill.testing.simulation.capture import Capture
from tidemill.testing.simulation.downstream import Downstream
from tidemill.testing.simulation.network import Faults, Network
from tidemill.testing.simulation.store import Store
from tidemill.testing.simulation.storm import Storm
from tidemill.testing.simulation.upstream import Upstream
from tidemill.testing.simulation.world import Violation, World

STORM_MS = 3_000  # for which things go wrong
PATIENCE_MS = 30_000  # after which all must be well
_ROW_MS = 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one seed. ``violation``: what must not have happened; empty where all was well."""

    seed: int
    violation: str
    steps: int
    simulated_seconds: float
    rows: int
    late_rows: int  # that a writer wrote which was fenced
    lost_messages: int
    owners: int
    faults: dict[str, int] = field(default_factory=dict)
    trace: tuple[str, ...] = ()


class Simulation:
    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.world = World(seed, keeps_trace=keeps_trace)
        chance = self.world.chance
        self.upstream = Upstream(self.world, tables=chance.randint(2, 8))
        self.downstream = Downstream(self.world, self.upstream)
        self.downstream.can_write = self._writers
        self.store = Store(self.world, self.downstream, self.upstream.start_ts)
        self.network = Network(self.world, self._deliver)
        self.wanted = chance.randint(2, 4)
        self._births = 0
        self.captures: dict[CaptureId, Capture] = {}
        if chance.random() < 0.7:
            self.network.faults = Faults(chance.uniform(0.0, 0.2), chance.uniform(0.0, 0.2), chance.uniform(0.0, 0.15))
        for _ in range(self.wanted):
            self.join()
        self.world.after(_ROW_MS, self._write_rows)
        self._storm = Storm(self)

    # Those who are there.

    def join(self) -> None:
        self._births += 1
        name = CaptureId(f"c{self._births}")
        self.captures[name] = Capture(
            self.world, self.upstream, self.downstream, self.store, self.network, name, self.captures.get
        )
        self.world.note("{}: joins", name)

    def up(self) -> list[Capture]:
        return [capture for capture in self.captures.values() if capture.process.is_up]

    def _writers(self, number: int) -> Iterator[str]:
        for capture in self.captures.values():
            for executor in capture.executors:
                for lane in executor.lanes:
                    if not lane.is_awake or number not in lane.assignment:
                        continue
                    if not lane.is_closed or lane.progress.in_flight is not None:
                        yield lane.name

    def _deliver(self, message: Message) -> None:
        capture = self.captures.get(message.receiver)
        if capture is None:
            return
        if isinstance(message.body, Heartbeat | Dispatch):
            self.world.after(0, lambda: capture.hear(message), capture.process)
        else:
            self.world.after(0, lambda: _to_owner(capture, message), capture.process)

    # What happens.

    def _write_rows(self) -> None:
        chance = self.world.chance
        for _ in range(chance.randint(0, 3)):
            living = self.upstream.living
            if living:
                self.upstream.write(chance.choice(living))
        if self._storm.is_on:
            self.world.after(chance.randint(1, 2 * _ROW_MS), self._write_rows)

    # How it runs, and ends.

    def _calm(self) -> None:
        """Nothing goes wrong any more."""
        self._storm.is_on = False
        self.network.faults = Faults()
        self.network.cut.clear()
        self.network.cut_from_store.clear()
        self.upstream.stuck.clear()
        for capture in self.up():
            self._storm.go_on(capture)
            if capture.is_stopping:
                capture.end()  # as it said
        while len(self.up()) < self.wanted:
            self.join()
        self.world.note("all goes well from here on")

    def run(self, most_steps: int | None = None) -> Outcome:
        violation = ""
        try:
            self._run(most_steps)
        except (Violation, InvariantError, AssertionError) as error:
            violation = f"{type(error).__name__}: {error}"
            self.world.note("{}", violation)
        world = self.world
        return Outcome(
            self.seed, violation, world.steps, world.now_ms / 1000, self.downstream.rows, self.downstream.late,
            self.network.lost, self.store.revision, dict(sorted(self._storm.counts.items())), tuple(world.trace or ()),
        )  # fmt: skip

    def _run(self, most_steps: int | None) -> None:
        end_ts: Ts | None = None
        while most_steps is None or self.world.steps < most_steps:
            if not self.world.step():
                raise Violation("nothing happens any more")
            if end_ts is None and self.world.now_ms >= STORM_MS:
                self._calm()
                end_ts = self.world.ts()
            if end_ts is not None and len(self.up()) < self.wanted:
                self.join()  # one that had hung has found that its session is over
            if end_ts is not None and self.world.steps % 16 == 0:
                if self._is_well(end_ts):
                    return
                if self.world.now_ms > STORM_MS + PATIENCE_MS:
                    raise Violation(f"it did not recover: {self._what_is_missing(end_ts)}")

    def _is_well(self, end_ts: Ts) -> bool:
        capture = next((each for each in self.up() if each.id == self.store.owner), None)
        if capture is None or capture.owner is None or self.store.saved.checkpoint_ts < end_ts:
            return False
        coordinator = capture.owner.coordinator
        return (
            coordinator.is_rebuilt and not coordinator.replicas.unsettled and coordinator.replicas.is_replicating(REST)
        )

    def _what_is_missing(self, end_ts: Ts) -> str:
        capture = next((each for each in self.up() if each.id == self.store.owner), None)
        if capture is None or capture.owner is None:
            return "nobody is owner"
        owner = capture.owner
        unsettled = {
            int(table): owner.coordinator.replicas.get(table) for table in owner.coordinator.replicas.unsettled
        }
        replica.check(each for each in unsettled.values() if each is not None)
        return (
            f"checkpoint {self.store.saved.checkpoint_ts} of {end_ts}, unsettled {unsettled}, at {owner.owned.at}, "
            f"adrift {owner.owned.in_transit}, first DDL {owner.owned.barriers.first}"
        )


def _to_owner(capture: Capture, message: Message) -> None:
    if capture.owner is not None:
        capture.owner.receive(message)


def simulate(seed: int, *, steps: int | None = None, keeps_trace: bool = False) -> Outcome:
    """``steps``: end after so many, without the good end that a whole run must come to."""
    return Simulation(seed, keeps_trace=keeps_trace).run(steps)
