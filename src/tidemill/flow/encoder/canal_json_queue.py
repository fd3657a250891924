"""canal-json in a queue: messages that may be compressed, and may be too large.

Messages have no keys. DDLs go to the first partition, resolved-ts, which only the TiDB extension has, to all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import Program, run
from tidemill.errors import SinkUriError
from tidemill.flow.encoder.canal_json import CanalJson, prepare, row_program
from tidemill.flow.encoder.large import LARGE_OPTIONS, LAYOUT_ALONE, Handling, LargeMessages, Parts, fitted
from tidemill.flow.encoder.port import Message, Option, Partitions, Store
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts


@dataclass(frozen=True)
class CanalJsonQueue(CanalJson, LargeMessages):
    options: ClassVar[Mapping[str, Option]] = {**CanalJson.options, **LARGE_OPTIONS}

    def __post_init__(self) -> None:
        LargeMessages.__post_init__(self)
        if self.large_message_handle_option is not Handling.NONE and not self.enable_tidb_extension:
            raise SinkUriError(
                f"large-message-handle-option is {self.large_message_handle_option}, which canal-json can say in its "
                "TiDB extension only. Set enable-tidb-extension=true."
            )

    def encoder(self, built_ms: int, store: Store | None = None) -> "CanalJsonQueueEncoder":  # type: ignore[override]  # a queue has no terminators
        return CanalJsonQueueEncoder(self, built_ms, store)

    def ddl(self, event: DdlEvent, built_ms: int) -> Message:
        return self._compressed(CanalJson.ddl(self, event, built_ms))

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        message = CanalJson.resolved(self, ts, built_ms)
        return message and self._compressed(message)

    def _compressed(self, message: Message) -> Message:
        return replace(message, value=message.value and self.compressed(message.value))


class CanalJsonQueueEncoder:
    """One message per change, in order. ``built_ms`` is the build time that every message carries."""

    def __init__(self, protocol: CanalJsonQueue, built_ms: int, store: Store | None) -> None:
        self._protocol = protocol
        self._built_ms = built_ms
        self._store = store
        self._table: TableInfo | None = None
        self._program: Program | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if self._program is None or self._table is not rows.table:
            self._program, self._table = row_program(rows.table, self._protocol, b""), rows.table
        parts = self._run(self._program, rows)
        (fitting,) = fitted(self._protocol, rows, parts, LAYOUT_ALONE, self._shorter, self._store)
        return fitting if partitions is None else replace(fitting, partitions=partitions)

    def _shorter(self, rows: RowBatch) -> Parts:
        mark = "claimCheckLocation" if self._protocol.has_claim_checks else "onlyHandleKey"
        return self._run(row_program(rows.table, self._protocol, b"", mark), rows)

    def _run(self, program: Program, rows: RowBatch) -> Parts:
        return (self._protocol.all_compressed(run(program, rows, prepare, self._built_ms)),)
