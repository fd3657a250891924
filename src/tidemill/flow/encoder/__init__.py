"""Rows in, messages out: bytes in the form that the downstream reads.

    RowBatch ──► encoder of a protocol ──► Encoded (all messages in one buffer)

Each protocol is a module: ``avro``, ``canal_json``, ``csv``, ``debezium``, ``long_form``,
``open_protocol``, ``raw_json``, ``simple``; ``port`` says
what one is, ``registry`` which there are, and ``large`` what becomes of messages that are too large for a queue. A
protocol's encoder is made on the executor; it keeps what is fixed per table and writes the rest in one compiled loop
(``columnar.assembler``, ``columnar.avro_binary``), straight from Arrow's buffers.
"""

from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder.avro import Avro
from tidemill.flow.encoder.canal_json import CanalJson, CanalJsonEncoder
from tidemill.flow.encoder.canal_json_queue import CanalJsonQueue
from tidemill.flow.encoder.csv import BinaryEncoding, Csv, CsvEncoder
from tidemill.flow.encoder.debezium import Debezium
from tidemill.flow.encoder.long_form import LongForm
from tidemill.flow.encoder.open_protocol import OpenProtocol
from tidemill.flow.encoder.port import Encoder, FileProtocol, Message, Option, QueueProtocol
from tidemill.flow.encoder.raw_json import RawJson
from tidemill.flow.encoder.raw_queue import RawAvro, RawJsonQueue
from tidemill.flow.encoder.registry import (
    FOR_FILES,
    FOR_QUEUES,
    CountingEncoder,
    Messages,
    protocol_keys,
    read_protocol,
)
from tidemill.flow.encoder.simple import Simple

__all__ = [
    "FOR_FILES",
    "FOR_QUEUES",
    "Avro",
    "BinaryEncoding",
    "CanalJson",
    "CanalJsonEncoder",
    "CanalJsonQueue",
    "CountingEncoder",
    "Csv",
    "CsvEncoder",
    "Debezium",
    "Encoded",
    "Encoder",
    "FileProtocol",
    "LongForm",
    "Message",
    "Messages",
    "OpenProtocol",
    "Option",
    "QueueProtocol",
    "RawAvro",
    "RawJson",
    "RawJsonQueue",
    "Simple",
    "protocol_keys",
    "read_protocol",
]
