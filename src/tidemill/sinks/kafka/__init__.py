"""Rows as messages in the topics of Kafka, in TiCDC's protocols.

    uri          sink URIs, read into KafkaOptions
    connection   settings of librdkafka; what its errors mean
    topics       topics made and looked at: partitions, the largest message
    producer     messages sent in order and confirmed; one producer per worker process, kept between batches
    target       what an executor does: dispatch, encode, send
    speaking     what protocols want beside: schemas sent along, a place for large messages
    audience     which topics hear of a resolved-ts: those of tables that are there
    generations  late tasks and owners, told apart as far as a process can tell
    sink         both halves

Kafka keeps everything and takes nothing back, so what is late can only add exact copies; ``docs/design/flow.md`` says
why the first appearances of changes stay in order all the same. Nothing here imports ``confluent_kafka`` before a sink
is opened.
"""

from tidemill.sinks.kafka.uri import KafkaOptions, is_kafka_uri, parse_kafka_uri

__all__ = ["KafkaOptions", "is_kafka_uri", "parse_kafka_uri"]
