"""What lies between captures: messages that are lost, late, doubled and out of order, and lines that are cut.

*Messages* are those of agents and coordinators, which care for themselves. *Posts* are those of lanes and their owner:
they come in order, and wait while a line is cut.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.model.schedule import CaptureId, Message
from tidemill.testing.simulation.world import Process, World


@dataclass(slots=True)
class Faults:
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    latest_ms: int = 1_500


class Network:
    def __init__(self, world: World, deliver: Callable[[Message], None]) -> None:
        self._world, self._deliver = world, deliver
        self.faults = Faults()
        self.cut: set[CaptureId] = set()  # from all other captures
        self.cut_from_store: set[CaptureId] = set()
        self._posts: dict[tuple[CaptureId, CaptureId], deque[tuple[Process | None, Callable[[], None]]]] = {}
        self.lost = 0

    def reaches_store(self, capture: CaptureId) -> bool:
        return capture not in self.cut_from_store

    def _is_cut(self, one: CaptureId, other: CaptureId) -> bool:
        return one != other and (one in self.cut or other in self.cut)

    def send(self, message: Message) -> None:
        chance = self._world.chance
        for _ in range(2 if chance.random() < self.faults.doubled else 1):
            if chance.random() < self.faults.lost:
                self.lost += 1
                continue
            most = self.faults.latest_ms if chance.random() < self.faults.late else 15
            self._world.after(chance.randint(1, most), lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        if self._is_cut(message.sender, message.receiver):
            self.lost += 1
        else:
            self._deliver(message)

    def post(
        self, sender: CaptureId, receiver: CaptureId, process: Process | None, deliver: Callable[[], None]
    ) -> None:
        line = self._posts.setdefault((sender, receiver), deque())
        line.append((process, deliver))
        if len(line) == 1:
            self._world.after(self._world.chance.randint(1, 12), lambda: self._pump(sender, receiver))

    def _pump(self, sender: CaptureId, receiver: CaptureId) -> None:
        line = self._posts[sender, receiver]
        if self._is_cut(sender, receiver):
            self._world.after(40, lambda: self._pump(sender, receiver))
            return
        for process, deliver in list(line):
            if process is not None:
                self._world.after(0, deliver, process)
        line.clear()
