"""The sink that keeps nothing: for measuring what comes before it."""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.flow.encoder import Encoded, Messages
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.port import AnyTable, NoSyncPoints


@dataclass(frozen=True, slots=True)
class BlackholeTarget:
    """Nowhere. Its receipts count what went there."""

    table: str
    messages: Messages = field(default_factory=Messages)  # rows are encoded for nobody, if the URI asks for it

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors."""
        return drop_messages(self, self.messages.encode(flat(rows)))

    def share(self, number: int) -> "BlackholeTarget":
        return self


def drop_messages(target: BlackholeTarget, encoded: Iterator[Encoded]) -> Receipt:
    """Runs on executors: read all messages and forget them."""
    rows = size = 0
    for batch in encoded:
        rows += len(batch)
        size += batch.payload.size
    return Receipt("", 0, 0, rows, size)


class BlackholeOwner(AnyTable, NoSyncPoints):
    """Counts what went nowhere."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        said = state or {}
        self.rows, self.bytes = int(said.get("rows", 0)), int(said.get("bytes", 0))
        self._last: dict[str, str] = dict(said.get("last", {}))  # by writer: the batch that was counted last

    @property
    def term(self) -> str:
        return ""

    def begin(self) -> None:
        """Nobody else can do anything here."""

    def fence(self, writers: Collection[str] | None = None) -> None:
        """Nothing lands anyway."""

    def ddl(self, event: DdlEvent) -> None:
        """Nothing has a schema here."""

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        writer, batch = str(commit["writer"]), str(commit["batch"])
        if self._last.get(writer) != batch:
            self.rows, self.bytes = self.rows + int(commit["rows"]), self.bytes + int(commit["bytes"])
            self._last[writer] = batch
        return {"rows": self.rows, "bytes": self.bytes, "last": dict(self._last)}

    def publish(self, checkpoint_ts: Ts) -> None:
        """Nobody reads."""

    def close(self) -> None:
        """Nothing is open."""


class BlackholeWriter:
    def __init__(self, name: str = "", messages: Messages | None = None) -> None:
        self._name = name
        self._messages = messages or Messages()

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """Nothing was kept, so nothing is left over."""

    def target(self, table: TableInfo, physical_id: int, window: Window) -> BlackholeTarget:
        return BlackholeTarget(table.full_name, self._messages)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        rows, size = sum(receipt.rows for receipt in receipts), sum(receipt.bytes for receipt in receipts)
        return {"writer": self._name, "batch": secrets.token_hex(4), "rows": rows, "bytes": size}

    def close(self) -> None:
        """Nothing is open."""
