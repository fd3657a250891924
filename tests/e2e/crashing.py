"""A changefeed that dies at a chosen step. From then on nothing that it does reaches the disk, as after a power cut."""

from pathlib import Path
from typing import Any

from tests.sinks.around import Around, around
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.options import RunOptions
from tidemill.errors import TidemillError
from tidemill.flow.pipeline import Target
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Window
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt

STEPS = (
    "before its files are named",  # released by the sorter, nothing written yet
    "before the sink commits",  # files written
    "before the state is saved",
    "after the state is saved",  # readers not told yet
    "after readers were told",
    "before a DDL's schema file",
    "after a DDL's schema file",
)


class CrashError(TidemillError):
    """The process is dead."""


class Fate:
    """Dies at the ``countdown``-th time that ``step`` is taken."""

    def __init__(self, step: str, countdown: int) -> None:
        self.step = step
        self.countdown = countdown
        self.is_dead = False

    def meet(self, step: str) -> None:
        if step == self.step and not self.is_dead:
            self.countdown -= 1
            self.is_dead = self.countdown == 0
        if self.is_dead:
            raise CrashError(f"died {self.step}")


class DyingDataDir(DataDir):
    def __init__(self, path: Path, fate: Fate) -> None:
        super().__init__(path)
        self._fate = fate

    def save(self, state: ChangefeedState) -> None:
        is_batch = state.sink_state is not None
        if is_batch:
            self._fate.meet("before the state is saved")
        if not self._fate.is_dead:
            super().save(state)
        if is_batch:
            self._fate.meet("after the state is saved")


class DyingOwner(Around):
    """The owner's half, with the fate in between."""

    def __init__(self, half: Any, fate: Fate) -> None:
        super().__init__(half)
        self._fate = fate

    def publish(self, checkpoint_ts: Ts) -> None:
        if not self._fate.is_dead:
            self.half.publish(checkpoint_ts)
        self._fate.meet("after readers were told")

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        self._fate.meet("before a DDL's schema file")
        state: dict[str, Any] | None = self.half.ddl(event)
        self._fate.meet("after a DDL's schema file")
        return state


class DyingWriter(Around):
    """The writer's half, likewise."""

    def __init__(self, half: Any, fate: Fate) -> None:
        super().__init__(half)
        self._fate = fate

    def target(self, table: TableInfo, physical_id: int, window: Window) -> Target:
        self._fate.meet("before its files are named")
        target: Target = self.half.target(table, physical_id, window)
        return target

    def commit(self, to_ts: Ts, receipts: list[Receipt]) -> dict[str, Any]:
        self._fate.meet("before the sink commits")
        said: dict[str, Any] = self.half.commit(to_ts, receipts)
        return said


def doomed(options: RunOptions, fate: Fate) -> Changefeed:
    dying = around(lambda owner: DyingOwner(owner, fate), lambda writer: DyingWriter(writer, fate))
    return Changefeed(options, data_dir=DyingDataDir(options.data_dir, fate), sink=dying)
