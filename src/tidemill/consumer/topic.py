"""Which topics can be read back: the URI of one, as the sink that wrote it has it."""

from tidemill.errors import UsageError
from tidemill.flow.encoder import CanalJson, Debezium, OpenProtocol
from tidemill.flow.encoder.simple import Simple
from tidemill.sinks.kafka import KafkaOptions, is_kafka_uri, parse_kafka_uri

_READ = (OpenProtocol.name, CanalJson.name, Simple.name, Debezium.name)


def parse_topic(uri: str) -> KafkaOptions:
    """Raises UsageError for what is not a topic, or is one that cannot be read."""
    if not is_kafka_uri(uri):
        raise UsageError("the topic must be a URI such as kafka://broker:9092/topic?protocol=open-protocol.")
    kafka = parse_kafka_uri(uri)
    protocol = kafka.protocol
    if protocol.name not in _READ:
        raise UsageError(
            f"topics of protocol {protocol.name} cannot be read back: they do not tell of DDLs, and not what is "
            f"complete. Write the topic in {', '.join(_READ[:-1])} or {_READ[-1]}."
        )
    if isinstance(protocol, CanalJson | Debezium) and not protocol.enable_tidb_extension:
        raise UsageError(
            f"messages of {protocol.name} have no commit-ts or no resolved-ts without enable-tidb-extension=true, so "
            "nobody can tell what is complete. Write the topic with it, and say so here as well."
        )
    if isinstance(protocol, Debezium) and protocol.disable_schema:
        raise UsageError(
            "messages of debezium do not tell the types of columns with debezium-disable-schema=true. Write the topic "
            "without it."
        )
    return kafka
