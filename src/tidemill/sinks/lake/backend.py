"""What kinds of lake do differently."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.model.ddl import DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files.storage import Files
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.tables import LakeTable, Naming


@dataclass(frozen=True, slots=True)
class Stamps:
    """How far a lake table's own transactions say it is. ``parts`` are the physical ids whose rows came with
    ``resolved_ts``: those of an initial copy come one after the other, all at the same ts."""

    resolved_ts: int = 0
    ddl: tuple[int, int] = (0, 0)
    parts: frozenset[int] = frozenset()


class Backend(Protocol):
    """Each call may come again after a crash, and then does what is left to do. The owner and each writer has one."""

    naming: Naming
    is_transactional: bool  # a file counts once a transaction of its table names it; otherwise as soon as it is there

    def begin(self, generation: str, check: Callable[[], None]) -> None:
        """``check`` raises SupersededError if this generation has ended itself."""

    def forget(self, table: LakeTable | None) -> None:
        """Others may have had it since, or what became of the last call for it is not known: look again, and let nobody
        else change it from its next use here on. None: all tables."""

    def reload(self, table: LakeTable) -> None:
        """It is ours as before, and others have changed it: look again."""

    def put(self, table: LakeTable) -> None:
        """Make the lake's table what ``table`` says: there, under its name, with its columns."""

    def stamps(self, table: LakeTable) -> Stamps: ...

    def append(self, table: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        """Make files part of the table, and ``stamps`` with them, in one transaction: those of a batch from a writer,
        that of a DDL from the owner."""

    def data_folder(self, table: LakeTable, info: TableInfo, physical_id: int, to_ts: Ts) -> str: ...

    def data_folders(self, table: LakeTable, info: TableInfo) -> Sequence[str]:
        """Below which batches may have left something since the table was ``info``."""

    def describe(self, event: DdlEvent) -> None:
        """Note a DDL beside the data, where the layout has a place for it."""

    def publish(self, checkpoint_ts: Ts) -> None: ...

    def close(self) -> None: ...


class OpenBackend(Protocol):
    def __call__(self, files: Files, *, is_owner: bool) -> Backend: ...
