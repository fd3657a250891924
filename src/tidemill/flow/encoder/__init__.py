"""Rows in, messages out: bytes in the form that the downstream reads.

    RowBatch ──► CanalJsonEncoder | CsvEncoder ──► Encoded (all messages in one buffer)

An encoder is made on the executor from options that travel there (``Messages``); it keeps what
is fixed per table and writes the rest in one compiled loop (``columnar.assembler``), straight from Arrow's buffers.
"""

from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder.canal_json import CanalJsonEncoder, CanalJsonOptions
from tidemill.flow.encoder.csv import BinaryEncoding, CsvEncoder, CsvOptions
from tidemill.flow.encoder.registry import CountingEncoder, Encoder, MessageProtocol, Messages

__all__ = [
    "BinaryEncoding",
    "CanalJsonEncoder",
    "CanalJsonOptions",
    "CountingEncoder",
    "CsvEncoder",
    "CsvOptions",
    "Encoded",
    "Encoder",
    "MessageProtocol",
    "Messages",
]
