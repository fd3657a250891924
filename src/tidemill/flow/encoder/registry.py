"""Which encoder a changefeed uses."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK
from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder.canal_json import CanalJsonEncoder, CanalJsonOptions
from tidemill.flow.encoder.csv import CsvEncoder, CsvOptions
from tidemill.model.row import RowBatch


class MessageProtocol(enum.Enum):
    CANAL_JSON = "canal-json"
    CSV = "csv"


class CountingEncoder:
    """Messages of no bytes, for a sink that only counts."""

    def encode(self, rows: RowBatch) -> Encoded:
        return Encoded(pa.py_buffer(b""), np.zeros(len(rows), dtype=np.int64), rows.commit_ts)


Encoder = CanalJsonEncoder | CsvEncoder | CountingEncoder


@dataclass(frozen=True, slots=True)
class Messages:
    """The form in which a sink's messages go out. Small and picklable: it travels to executors."""

    protocol: MessageProtocol | None = None  # None: rows are counted, not encoded
    canal_json: CanalJsonOptions = field(default_factory=CanalJsonOptions)
    csv: CsvOptions = field(default_factory=CsvOptions)

    def encoder(self, built_ms: int) -> Encoder:
        """``built_ms`` is the build time that messages carry: one for all of a unit."""
        match self.protocol:
            case MessageProtocol.CANAL_JSON:
                return CanalJsonEncoder(self.canal_json, built_ms)
            case MessageProtocol.CSV:
                return CsvEncoder(self.csv)
            case None:
                return CountingEncoder()

    def encode(self, rows: Iterator[RowBatch]) -> Iterator[Encoded]:
        encoder = self.encoder(int(SYSTEM_CLOCK.now() * 1000))
        return (encoder.encode(batch) for batch in rows)
