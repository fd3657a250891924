"""Both halves of a sink in one hand, as a changefeed with one writer has them. A new one stands for a new process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tests.sinks.moments import START
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import FileOwner, FileWriter, SinkConfig
from tidemill.sinks.files.storage import Files, StorageOptions
from tidemill.sinks.lake import LakeOptions
from tidemill.sinks.lake.sink import LakeOwner, LakeWriter
from tidemill.sinks.mysql import MysqlOptions, MysqlOwner, MysqlWriter
from tidemill.sinks.port import OwnerSink, SinkOptions, SinkWriter

Owner = TypeVar("Owner", bound=OwnerSink)
Writer = TypeVar("Writer", bound=SinkWriter)


class Halves(Generic[Owner, Writer]):
    """``state`` is what is saved; it follows what the owner says is to be."""

    def __init__(
        self, owner: Owner, writer: Writer, state: Mapping[str, Any] | None = None, written_ts: Ts | None = None
    ) -> None:
        self.owner, self.writer, self.state, self.written_ts = owner, writer, state, written_ts
        self.has_begun = False

    def begin(self) -> None:
        self.owner.begin()
        self.owner.fence()
        self.has_begun = True

    def recover(self, at: Checkpoints, tables: Collection[TableInfo] | None = None) -> None:
        if not self.has_begun:
            self.begin()
        self.writer.recover(at, tables, self.state, self.written_ts, self.owner.term)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> Any:
        if not self.has_begun:
            self.recover(START)
        return self.writer.target(table, physical_id, window)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> Any:
        if not self.has_begun:
            self.recover(START)
        self.state = self.owner.take(self.writer.commit(to_ts, receipts))
        return self.state

    def ddl(self, event: DdlEvent) -> Any:
        if not self.has_begun:
            self.recover(START)
        state = self.owner.ddl(event)
        self.state = self.state if state is None else state
        return state

    def sync(self, checkpoint_ts: Ts) -> Any:
        self.state = self.owner.sync(checkpoint_ts)
        return self.state

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        return self.owner.next_barrier(checkpoint_ts)

    def publish(self, checkpoint_ts: Ts) -> None:
        if not self.has_begun:
            self.recover(START)
        self.owner.publish(checkpoint_ts)

    def close(self) -> None:
        self.writer.close()
        self.owner.close()


FileHalves = Halves[FileOwner, FileWriter]
LakeHalves = Halves[LakeOwner, LakeWriter]
MysqlHalves = Halves[MysqlOwner, MysqlWriter]


def opened(options: SinkOptions, state: Mapping[str, Any] | None = None, **more: Any) -> Halves[Any, Any]:
    """``more``: as the owner's half takes it."""
    return Halves(options.open_owner(state, **more), options.open_writer("main", **_zone(more)), state)


def file_sink(
    config: SinkConfig,
    state: Mapping[str, Any] | None = None,
    *,
    files: Files | None = None,
    storage: StorageOptions | None = None,
    **more: Any,
) -> FileHalves:
    config = replace(config, storage=storage or config.storage)
    owner = FileOwner(config, state, files=files, **more)
    return Halves(owner, FileWriter(config, "main", files=files, **_zone(more)), state)


def lake_sink(
    options: LakeOptions, state: Mapping[str, Any] | None = None, *, files: Files | None = None, **more: Any
) -> LakeHalves:
    owner = LakeOwner(options, state, options.backend(), files=files, **more)
    return Halves(owner, LakeWriter(options, "main", options.backend(), files=files), state)


def mysql_sink(
    options: MysqlOptions,
    state: Mapping[str, Any] | None = None,
    *,
    written_ts: Ts | None = None,
    patience_seconds: float = 120.0,
    **more: Any,
) -> MysqlHalves:
    owner = MysqlOwner(options, state, patience_seconds=patience_seconds, **more)
    writer = MysqlWriter(options, "main", patience_seconds=patience_seconds, **_zone(more))
    return Halves(owner, writer, state, written_ts)


def _zone(more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if name == "zone"}
