"""The sink that keeps nothing: for measuring what comes before it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.flow.encoder import Encoded, Messages
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.port import NoSyncPoints


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


class BlackholeSink(NoSyncPoints):
    """Counts what went nowhere."""

    def __init__(self, state: Mapping[str, Any] | None = None, messages: Messages | None = None) -> None:
        self._messages = messages or Messages()
        self.rows: int = int((state or {}).get("rows", 0))
        self.bytes: int = int((state or {}).get("bytes", 0))

    def recover(self, at: Checkpoints) -> None:
        """Nothing was kept, so nothing is left over."""

    def target(self, table: TableInfo, physical_id: int, window: Window) -> BlackholeTarget:
        return BlackholeTarget(table.full_name, self._messages)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self.rows += sum(receipt.rows for receipt in receipts)
        self.bytes += sum(receipt.bytes for receipt in receipts)
        return {"rows": self.rows, "bytes": self.bytes}

    def publish(self, checkpoint_ts: Ts) -> None:
        """Nobody reads."""

    def ddl(self, event: DdlEvent) -> None:
        """Nothing has a schema here."""

    def close(self) -> None:
        """Nothing is open."""
