"""What is said of brokers that do not answer."""

from confluent_kafka import KafkaError

from tidemill.errors import SinkUnavailableError
from tidemill.sinks.kafka.connection import sink_error
from tidemill.sinks.kafka.uri import parse_kafka_uri


def test_brokers_that_do_not_answer_promise_no_second_try() -> None:
    """A new changefeed ends then; one that has run waits, and its progress line says so."""
    options = parse_kafka_uri("kafka://127.0.0.1:9/shop?protocol=open-protocol")
    error = sink_error(options, "reach Kafka", KafkaError(KafkaError._TRANSPORT))
    assert isinstance(error, SinkUnavailableError)
    assert str(error).startswith("cannot reach Kafka (127.0.0.1:9): ")
    assert str(error).endswith(". Check that the brokers are up and reachable.")
