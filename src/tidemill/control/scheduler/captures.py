"""The captures of a changefeed as its owner sees them: who is there, who has answered, who is to be fenced. Pure.

    Uninitialized ── first response ──► Initialized ── it says so ──► Stopping
          └──────────────┴── gone, or a processor anew ──► Fencing ── fenced ──► forgotten, or Uninitialized

A capture that is gone is only presumed dead. What it had is nobody's once it is fenced, and not before.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from tidemill.model.schedule import CaptureId, HeartbeatResponse, Liveness, Message


class CaptureState(Enum):
    """The first three numbers are TiCDC's."""

    UNINITIALIZED = 1
    INITIALIZED = 2
    STOPPING = 3
    FENCING = 4


@dataclass(slots=True)
class Capture:
    state: CaptureState = CaptureState.UNINITIALIZED
    epoch: str = ""  # of its processor; empty: it has not answered
    heard: int = 0  # the number of its newest message
    seen: int = 0  # that of its newest response that was taken in with all that it builds on
    told: int = 0  # the number of our newest message to it
    is_alive: bool = True
    former: frozenset[str] = frozenset()  # epochs of processors that were fenced

    @property
    def is_ready(self) -> bool:
        return self.state in (CaptureState.INITIALIZED, CaptureState.STOPPING)


@dataclass(frozen=True, slots=True)
class Fence:
    """End, in the sink and for good, all that the processor of this epoch on this capture still does, and all that it
    begins. Then say so: ``Coordinator.fenced``. It is asked once."""

    capture: CaptureId
    epoch: str


class Captures:
    def __init__(self) -> None:
        self._by_id: dict[CaptureId, Capture] = {}
        self._fences: list[Fence] = []  # to be asked for

    def __iter__(self) -> Iterator[tuple[CaptureId, Capture]]:
        return iter(self._by_id.items())

    def __getitem__(self, capture: CaptureId) -> Capture:
        return self._by_id[capture]

    def get(self, capture: CaptureId) -> Capture | None:
        return self._by_id.get(capture)

    @property
    def are_initialized(self) -> bool:
        """Every capture has answered, there is one at least, and none is being fenced that may yet come again."""
        there = [each for each in self._by_id.values() if each.is_alive]
        return bool(there) and all(each.is_ready for each in there)

    @property
    def are_fenced(self) -> bool:
        return all(each.state is not CaptureState.FENCING for each in self._by_id.values())

    @property
    def working(self) -> list[CaptureId]:
        """Those that may be given tables."""
        return sorted(name for name, each in self._by_id.items() if each.state is CaptureState.INITIALIZED)

    @property
    def stopping(self) -> list[CaptureId]:
        return sorted(name for name, each in self._by_id.items() if each.state is CaptureState.STOPPING)

    def become(self, alive: Collection[CaptureId]) -> None:
        """These are there now, and no others."""
        for name in sorted(alive):
            self._by_id.setdefault(name, Capture()).is_alive = True
        for name in [name for name, each in self._by_id.items() if each.is_alive and name not in alive]:
            self._by_id[name].is_alive = False
            if not self._by_id[name].epoch:
                del self._by_id[name]  # it has not begun anything
            elif self._by_id[name].state is not CaptureState.FENCING:
                self._fence(name)

    def hears(self, message: Message) -> bool:
        """Whether a message from a capture is to be taken in: it is neither late nor repeated, nor of a processor that
        is gone. One of a processor that is new has the one before fenced."""
        capture, header = self._by_id.get(message.sender), message.header
        if capture is None or capture.state is CaptureState.FENCING:
            return False
        if header.processor_epoch < max(capture.epoch, *capture.former, "") or header.processor_epoch in capture.former:
            return False  # of an earlier processor: epochs on one capture ascend
        if capture.epoch and header.processor_epoch != capture.epoch:
            self._fence(message.sender)
            return False
        if header.number <= capture.heard:
            return False
        capture.heard = header.number
        body = message.body
        if isinstance(body, HeartbeatResponse):
            if body.since > capture.seen:
                return False  # it builds on what was never said here
            capture.epoch, capture.seen = header.processor_epoch, header.number
            is_stopping = body.liveness is Liveness.STOPPING or capture.state is CaptureState.STOPPING
            capture.state = CaptureState.STOPPING if is_stopping else CaptureState.INITIALIZED
            return True
        return bool(capture.epoch)  # before its first whole answer it has nothing from us

    def _fence(self, name: CaptureId) -> None:
        self._by_id[name].state = CaptureState.FENCING
        self._fences.append(Fence(name, self._by_id[name].epoch))

    def fences(self) -> tuple[Fence, ...]:
        """To be asked for now."""
        asked, self._fences = tuple(self._fences), []
        return asked

    def fenced(self, fence: Fence) -> bool:
        """Whether that was waited for. Where the capture is still there, it begins again with a new processor."""
        capture = self._by_id.get(fence.capture)
        if capture is None or capture.state is not CaptureState.FENCING or capture.epoch != fence.epoch:
            return False
        if capture.is_alive:
            self._by_id[fence.capture] = Capture(told=capture.told, former=capture.former | {capture.epoch})
        else:
            del self._by_id[fence.capture]
        return True
