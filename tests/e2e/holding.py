"""Tasks of a changefeed that stop at a chosen place, by SIGSTOP, until somebody kills or continues them."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.flow.decoder import TableDecoder
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch


class Round:
    """One batch that is lost. Its files tell which task is where: ``late.held``, ``late.ended``, ``victim.held``."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder / str(number)

    def begin(self) -> None:
        """From here on the next task of each of the two tables stops."""
        self.folder.mkdir(parents=True)

    def claim(self, role: str) -> bool:
        """Whether it is this task that is to stop: the first one only, its successors go on."""
        try:
            os.close(os.open(self.folder / f"{role}.claimed", os.O_CREAT | os.O_EXCL))
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def note(self, name: str, text: str) -> None:
        (self.folder / f"{name}.new").write_text(text)
        os.rename(self.folder / f"{name}.new", self.folder / name)

    def read(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None

    def stop_here(self, role: str) -> None:
        os.setsid()  # the kernel continues stopped processes of a group whose leader's parent dies, as the daemon will
        self.note(f"{role}.held", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


def settings_of(pipeline: Pipeline) -> tuple[Any, ...]:
    """For one of a derived class that does the same, and something beside."""
    return tuple(getattr(pipeline, field.name) for field in fields(Pipeline))


@dataclass(frozen=True)
class HoldingPipeline(Pipeline):
    """Stops the task of table ``victim`` before it does anything, and that of ``late`` at the last moment: before it
    gives its first file a name, or else when its last row has been read."""

    folder: str = ""
    by_rename: bool = True

    def process(self, unit: Unit) -> Receipt:
        rounds = sorted((int(p.name) for p in Path(self.folder).iterdir()), reverse=True)
        round = Round(Path(self.folder), rounds[0]) if rounds else None
        assert isinstance(unit.decoder, TableDecoder)
        role = unit.decoder.table.name
        if round is None or not round.claim(role):
            return super().process(unit)
        if role == "victim":
            round.stop_here(role)
            return super().process(unit)
        outcome = "done"
        try:
            return self._late(unit, round)
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            round.note("late.ended", outcome)

    def _late(self, unit: Unit, round: Round) -> Receipt:
        if not self.by_rename:
            object.__setattr__(self, "_round", round)
            return super().process(unit)
        replace = os.replace

        def hold_and_replace(source: Any, target: Any) -> None:
            os.replace = replace
            round.stop_here("late")
            replace(source, target)

        os.replace = hold_and_replace  # type: ignore[assignment]
        return super().process(unit)

    def _rows(self, unit: Unit, seen: Any) -> Iterator[RowBatch | LargeRows]:
        yield from super()._rows(unit, seen)
        round = self.__dict__.pop("_round", None)
        if round is not None:
            round.stop_here("late")


class HeldChangefeed(Changefeed):
    def __init__(self, options: RunOptions, folder: Path, *, by_rename: bool) -> None:
        super().__init__(options)
        self._engines._traits = replace(self._traits, does_small=False)  # a task is a process, which can be stopped
        self._pipeline: Pipeline = HoldingPipeline(*settings_of(self._pipeline), str(folder), by_rename)
