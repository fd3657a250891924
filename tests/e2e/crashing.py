"""A changefeed that dies at a chosen step. From then on nothing that it does reaches the disk, as after a power cut."""

from pathlib import Path
from typing import Any

from tidemill.capture.changefeed import Changefeed, RunOptions
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.errors import TidemillError
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt, open_sink
from tidemill.sinks.files import FileTarget
from tidemill.sinks.files.sink import FileSink

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


class DyingSink:
    """A FileSink with the fate in between."""

    def __init__(self, sink: FileSink, fate: Fate) -> None:
        self._sink = sink
        self._fate = fate

    def recover(self, at: Checkpoints) -> None:
        self._sink.recover(at)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> FileTarget:
        self._fate.meet("before its files are named")
        return self._sink.target(table, physical_id, window)

    def commit(self, to_ts: Ts, receipts: list[Receipt]) -> dict[str, Any]:
        self._fate.meet("before the sink commits")
        return self._sink.commit(to_ts, receipts)

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        return self._sink.next_barrier(checkpoint_ts)

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        return self._sink.sync(checkpoint_ts)

    def close(self) -> None:
        self._sink.close()

    def publish(self, checkpoint_ts: Ts) -> None:
        if not self._fate.is_dead:
            self._sink.publish(checkpoint_ts)
        self._fate.meet("after readers were told")

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        self._fate.meet("before a DDL's schema file")
        state = self._sink.ddl(event)
        self._fate.meet("after a DDL's schema file")
        return state


def doomed(options: RunOptions, fate: Fate) -> Changefeed:
    return Changefeed(
        options,
        data_dir=DyingDataDir(options.data_dir, fate),
        open_sink=lambda *words, **more: DyingSink(open_sink(*words, **more), fate),  # type: ignore[arg-type,return-value]
    )
