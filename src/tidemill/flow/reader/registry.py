"""Which protocols can be read back."""

from collections.abc import Callable, Mapping

from tidemill.flow.encoder.avro import Avro
from tidemill.flow.encoder.canal_json import CanalJson
from tidemill.flow.encoder.open_protocol import OpenProtocol
from tidemill.flow.encoder.port import MessageProtocol
from tidemill.flow.reader.avro import AvroReader
from tidemill.flow.reader.canal_json import CanalJsonReader
from tidemill.flow.reader.compression import Compression
from tidemill.flow.reader.debezium import DebeziumReader
from tidemill.flow.reader.long_form import LongFormReader
from tidemill.flow.reader.open_protocol import OpenProtocolReader
from tidemill.flow.reader.port import Reader
from tidemill.flow.reader.simple import SimpleReader


def reader_for(protocol: MessageProtocol) -> Reader:
    """A reader for one partition of a topic that is written like this. Avro's asks the schema registry as it reads."""
    if isinstance(protocol, Avro):
        return AvroReader(protocol.registry)
    given = getattr(protocol, "large_message_handle_compression", Compression.NONE)
    return reader_of(protocol.name, Compression(str(given.value)))


def reader_of(protocol: str, compression: Compression = Compression.NONE) -> Reader:
    """A reader for one partition. Raises KeyError for a protocol that has none here, and ValueError for one whose
    messages are never compressed."""
    if compression is Compression.NONE:
        return READERS[protocol]()
    if protocol not in _COMPRESSED:
        raise ValueError(f"messages of {protocol} are never compressed: leave large-message-handle-compression out")
    return _COMPRESSED[protocol](compression)


_COMPRESSED: Mapping[str, Callable[[Compression], Reader]] = {
    OpenProtocol.name: OpenProtocolReader,
    CanalJson.name: CanalJsonReader,
    "simple": SimpleReader,
    "debezium": DebeziumReader,
}
READERS: Mapping[str, Callable[[], Reader]] = {
    OpenProtocol.name: OpenProtocolReader,
    CanalJson.name: CanalJsonReader,
    "simple": SimpleReader,
    "debezium": DebeziumReader,
    "long-form": LongFormReader,
}
"""By the protocol's name; each call gives a reader for one partition. Avro's needs a registry: see ``reader_for``."""
