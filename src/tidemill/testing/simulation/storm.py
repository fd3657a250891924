"""What goes wrong, and what users ask for meanwhile: one thing after the other, by chance."""

from typing import Protocol

from tidemill.errors import SupersededError
from tidemill.model.schedule import CaptureId, TableId
from tidemill.testing.simulation.capture import Capture
from tidemill.testing.simulation.network import Network
from tidemill.testing.simulation.upstream import Upstream
from tidemill.testing.simulation.world import World

_FAULT_MS = 220
_MOST_TABLES = 14


class Cluster(Protocol):
    """What can go wrong. There are to be as many captures as are ``wanted``."""

    world: World
    upstream: Upstream
    network: Network
    wanted: int

    def up(self) -> list[Capture]: ...

    def join(self) -> None: ...


class Storm:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self.is_on = True
        self.counts: dict[str, int] = {}
        self._next_table = 100
        self._world.after(_FAULT_MS, self._go_wrong)

    def _go_wrong(self) -> None:
        if self.is_on:
            chance = self._world.chance
            kinds = (
                self._crash, self._hang, self._hang, self._cut, self._cut_from_store, self._stick, self._run_ddl,
                self._run_ddl, self._ask_for_a_move, self._ask_for_a_move, self._ask_for_evenness, self._drain,
                self._leave, self._arrive, self._end_processor,
            )  # fmt: skip
            kind = chance.choice(kinds)
            name = kind.__name__.removeprefix("_").replace("_", " ")
            self.counts[name] = self.counts.get(name, 0) + 1
            kind()
            self._world.after(chance.randint(1, 2 * _FAULT_MS), self._go_wrong)

    def _pick(self) -> Capture | None:
        up = self._cluster.up()
        return self._world.chance.choice(up) if up else None

    def _owned(self) -> Capture | None:
        return next(
            (capture for capture in self._cluster.up() if capture.owner is not None and capture.owner.is_open), None
        )

    def _crash(self) -> None:
        """Its workers may outlive it."""
        capture = self._pick()
        if capture is not None:
            self._world.note("{}: crashes", capture.id)
            capture.process.is_up = False
            self._world.after(self._world.chance.randint(50, 1_500), self._arrive)

    def _arrive(self) -> None:
        if len(self._cluster.up()) < self._cluster.wanted:
            self._cluster.join()

    def _leave(self) -> None:
        capture = self._pick()
        if capture is not None and len(self._cluster.up()) > 1:
            self._world.note("{}: leaves", capture.id)
            capture.end()
            self._world.after(self._world.chance.randint(50, 1_500), self._arrive)

    def _hang(self) -> None:
        """It is stopped and continued, perhaps when its session is long over."""
        capture = self._pick()
        if capture is not None and not capture.process.is_paused:
            ms = self._world.chance.choice((60, 300, 900, 1_500, 2_500))
            self._world.note("{}: hangs for {} ms", capture.id, ms)
            self._world.pause(capture.process)
            self._world.after(ms, lambda: self.go_on(capture))

    def go_on(self, capture: Capture) -> None:
        if capture.process.is_paused:
            self._world.note("{}: goes on", capture.id)
            self._world.resume(capture.process)

    def _cut(self) -> None:
        self._apart(self._cluster.network.cut, "the others")

    def _cut_from_store(self) -> None:
        self._apart(self._cluster.network.cut_from_store, "the store")

    def _apart(self, cut: set[CaptureId], what: str) -> None:
        capture = self._pick()
        if capture is not None:
            self._world.note("{}: is cut from {}", capture.id, what)
            cut.add(capture.id)
            self._world.after(self._world.chance.randint(50, 1_800), lambda: cut.discard(capture.id))

    def _end_processor(self) -> None:
        """It fails by itself, and the capture begins another one."""
        capture = self._pick()
        if capture is not None and capture.executor is not None:
            capture.executor.failure = capture.executor.failure or SupersededError("a fault of the simulation")

    def _stick(self) -> None:
        living = self._cluster.upstream.living
        if living:
            number = self._world.chance.choice(living)
            self._cluster.upstream.stuck[number] = self._cluster.upstream.resolved_ts(number)
            self._world.note("upstream: table {} is stuck", number)
            self._world.after(self._world.chance.randint(100, 1_200), lambda: self._loosen(number))

    def _loosen(self, number: int) -> None:
        self._cluster.upstream.stuck.pop(number, None)

    def _run_ddl(self) -> None:
        chance, living = self._world.chance, self._cluster.upstream.living
        kind = chance.choice(("create", "alter", "drop", "alter"))
        if kind == "create" and len(living) < _MOST_TABLES:
            self._next_table += chance.randint(-3, 20)
            while self._next_table in self._cluster.upstream.tables_by_id:
                self._next_table += 1
            self._cluster.upstream.ddl(kind, self._next_table)
        elif kind != "create" and living and (kind == "alter" or len(living) > 1):
            moving = [number for number in living if number not in self._cluster.upstream.stuck]
            self._cluster.upstream.ddl(kind, chance.choice(moving or living))

    # Requests of users, to whoever is the owner.

    def _ask_for_a_move(self) -> None:
        capture, target = self._owned(), self._pick()
        if capture is not None and capture.owner is not None and target is not None and self._cluster.upstream.living:
            number = self._world.chance.choice(self._cluster.upstream.living)
            self._world.note("user: move table {} to {}", number, target.id)
            capture.owner.coordinator.move_table(TableId(number), target.id)

    def _ask_for_evenness(self) -> None:
        capture = self._owned()
        if capture is not None and capture.owner is not None:
            capture.owner.coordinator.rebalance()

    def _drain(self) -> None:
        capture, target = self._owned(), self._pick()
        if capture is not None and capture.owner is not None and target is not None:
            self._world.note("user: drain {}", target.id)
            if self._world.chance.random() < 0.3:
                target.is_stopping = True
            capture.owner.coordinator.drain(target.id)
