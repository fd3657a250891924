"""Which protocols can be read back."""

from collections.abc import Callable, Mapping

from tidemill.flow.encoder.canal_json import CanalJson
from tidemill.flow.encoder.open_protocol import OpenProtocol
from tidemill.flow.reader.canal_json import CanalJsonReader
from tidemill.flow.reader.debezium import DebeziumReader
from tidemill.flow.reader.long_form import LongFormReader
from tidemill.flow.reader.open_protocol import OpenProtocolReader
from tidemill.flow.reader.port import Reader
from tidemill.flow.reader.simple import SimpleReader

READERS: Mapping[str, Callable[[], Reader]] = {
    OpenProtocol.name: OpenProtocolReader,
    CanalJson.name: CanalJsonReader,
    "simple": SimpleReader,
    "debezium": DebeziumReader,
    "long-form": LongFormReader,
}
"""By the protocol's name; each call gives a reader for one partition. Avro's, which needs a schema registry, is made by
``flow.reader.avro`` itself."""
