"""Which encoder a changefeed uses."""

import enum
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.flow.encoder.canal_json import CanalJsonEncoder, CanalJsonOptions
from tidemill.flow.encoder.csv import CsvEncoder, CsvOptions
from tidemill.flow.encoder.encoded import Encoded
from tidemill.model.row import RowBatch


class MessageProtocol(enum.Enum):
    CANAL_JSON = "canal-json"
    CSV = "csv"


class EncoderConfig(Protocol):
    """What of a sink's config the choice depends on."""

    @property
    def protocol(self) -> MessageProtocol | None: ...
    @property
    def canal_json(self) -> CanalJsonOptions: ...
    @property
    def csv(self) -> CsvOptions: ...


class CountingEncoder:
    """Messages of no bytes, for a sink that only counts."""

    def encode(self, rows: RowBatch) -> Encoded:
        return Encoded(pa.py_buffer(b""), np.zeros(len(rows), dtype=np.int64), rows.commit_ts)


Encoder = CanalJsonEncoder | CsvEncoder | CountingEncoder


def make_encoder(config: EncoderConfig, built_ms: int) -> Encoder:
    """``built_ms`` is the build time that messages carry: one for a whole batch, so that a replay repeats it."""
    match config.protocol:
        case MessageProtocol.CANAL_JSON:
            return CanalJsonEncoder(config.canal_json, built_ms)
        case MessageProtocol.CSV:
            return CsvEncoder(config.csv)
        case None:
            return CountingEncoder()
