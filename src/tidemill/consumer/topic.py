"""Which topics can be read back: the URI of one, as the sink that wrote it has it."""

from tidemill.errors import UsageError
from tidemill.flow.encoder import CanalJson, OpenProtocol
from tidemill.sinks.kafka import KafkaOptions, is_kafka_uri, parse_kafka_uri

_READ = (OpenProtocol.name, CanalJson.name)


def parse_topic(uri: str) -> KafkaOptions:
    """Raises UsageError for what is not a topic, or is one that cannot be read."""
    if not is_kafka_uri(uri):
        raise UsageError("the topic must be a URI such as kafka://broker:9092/topic?protocol=open-protocol.")
    kafka = parse_kafka_uri(uri)
    protocol = kafka.protocol
    if protocol.name not in _READ:
        raise UsageError(
            f"topics of protocol {protocol.name} cannot be read back yet. Known are {' and '.join(_READ)}."
        )
    if isinstance(protocol, CanalJson) and not protocol.enable_tidb_extension:
        raise UsageError(
            "messages of canal-json have no commit-ts and no resolved-ts without enable-tidb-extension=true, so nobody "
            "can tell what is complete. Write the topic with it, and say so here as well."
        )
    return kafka
