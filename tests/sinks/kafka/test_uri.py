"""Sink URIs of Kafka: what they mean, what is refused, and that no secret is ever shown."""

import pickle
from typing import Any

import pytest

from tidemill.config.changefeed import parse_config, sink_parameters
from tidemill.config.sink_uri import differences, place_of, safe_uri
from tidemill.errors import ConfigError, SinkUriError
from tidemill.flow.dispatcher import Dispatching
from tidemill.flow.encoder import CanalJsonQueue, OpenProtocol
from tidemill.model.changefeed import Dispatch
from tidemill.sinks import read_sink_uri
from tidemill.sinks.kafka import KafkaOptions
from tidemill.sinks.kafka.connection import producer_settings, settings

OPEN = "protocol=open-protocol"
OAUTH = (
    "sasl-mechanism=OAuthBearer&sasl-oauth-token-url=https%3A%2F%2Fid%2Ftoken&sasl-oauth-client-id=me"
    "&sasl-oauth-client-secret=aHVzaA%3D%3D&sasl-oauth-scopes=a%20b"
)


def read(uri: str, **more: Any) -> KafkaOptions:
    options = read_sink_uri(uri, **more)
    assert isinstance(options, KafkaOptions)
    return options


def test_brokers_topic_and_protocol() -> None:
    options = read("kafka://one:9093,two,[::1]:7/orders?protocol=default")
    assert options.brokers == ("one:9093", "two:9092", "[::1]:7")
    assert (options.topic, options.protocol) == ("orders", OpenProtocol())
    assert options.traits.splits_updates
    assert options.traits.orders_ddls
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("parameters", "field", "value"),
    [
        ("partition-num=6", "partition_num", 6),
        ("replication-factor=3", "replication_factor", 3),
        ("auto-create-topic=false", "auto_create_topic", False),
        ("max-message-bytes=1000", "max_message_bytes", 1000),
        ("compression=ZSTD", "compression", "zstd"),
        ("required-acks=-1", "compression", "none"),
        ("kafka-version=2.4.0", "compression", "none"),
        ("kafka-client-id=me", "client_id", "me"),
        ("enable-tls=true", "is_tls", True),
        ("ca=/ca.pem", "is_tls", True),
        ("sasl-user=u&sasl-password=p", "sasl_mechanism", "plain"),
        ("sasl-user=u&sasl-password=p&sasl-mechanism=SCRAM-SHA-256", "sasl_mechanism", "scram-sha-256"),
        ("write-timeout=3s", "write_timeout_seconds", 3.0),
        ("output-raw-change-event=true", "output_raw_change_event", True),
    ],
)
def test_parameters(parameters: str, field: str, value: object) -> None:
    assert getattr(read(f"kafka://b/t?{OPEN}&{parameters}"), field) == value


def test_the_scheme_asks_for_tls() -> None:
    options = read(f"kafka+ssl://b/t?{OPEN}&sasl-user=u&sasl-password=p&insecure-skip-verify=true")
    found = settings(options)
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_SSL", "PLAIN")
    assert found["enable.ssl.certificate.verification"] is False


def test_tokens_are_asked_for_where_the_uri_says() -> None:
    options = read(f"kafka+ssl://b/t?{OPEN}&{OAUTH}")
    found = settings(options)
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    asked = {name.removeprefix("sasl.oauthbearer."): found[name] for name in found if "oauthbearer" in name}
    assert asked == {
        "method": "oidc", "token.endpoint.url": "https://id/token", "client.id": "me", "client.secret": "hush",
        "scope": "a b",
    }  # fmt: skip
    assert "hush" not in repr(options)
    assert "aHVzaA" not in options.safe_uri


def test_what_is_sent_is_a_prefix_whatever_fails() -> None:
    found = producer_settings(read(f"kafka://b/t?{OPEN}"), 500)
    assert found["enable.idempotence"]
    assert found["enable.gapless.guarantee"]
    assert (found["acks"], found["message.timeout.ms"], found["batch.size"]) == ("all", 0, 500)
    assert found["queue.buffering.max.messages"] == 0  # unbounded: one that is too many would leave a gap


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("kafka://b/t", "needs a protocol. Add 'protocol=open-protocol'"),
        (f"kafka:///t?{OPEN}", "names no broker"),
        (f"kafka://b/?{OPEN}", "names no topic"),
        (f"kafka://b/a%2Fb?{OPEN}", "names no topic"),
        (f"kafka://b:70000/t?{OPEN}", "port 70000"),
        (f"kafka://u:pw@b/t?{OPEN}", "no user or password before its brokers"),
        ("kafka://b/t?protocol=csv", "'protocol' is 'csv'; it must be open-protocol"),
        (f"kafka://b/t?{OPEN}&partition-num=0", "'partition-num' is '0'; it must be a whole number, 1 or more"),
        (f"kafka://b/t?{OPEN}&required-acks=1", "must be -1: what fewer than all"),
        (f"kafka://b/t?{OPEN}&compression=best", "must be none, gzip"),
        (f"kafka://b/t?{OPEN}&partition-nums=3", "Did you mean 'partition-num'"),
        (f"kafka://b/t?{OPEN}&partition-num=3&partition-num=4", "given twice"),
        (f"kafka://b/t?{OPEN}&max-retry=3", "'max-retry' is not supported: messages are sent again"),
        (f"kafka://b/t?{OPEN}&content-compatible=true", "belongs to protocol canal-json"),
        (f"kafka://b/t?{OPEN}&cert=/c", "'cert' and 'key' belong together"),
        (f"kafka://b/t?{OPEN}&enable-tls=false&ca=/c", "'enable-tls' is false"),
        (f"kafka+ssl://b/t?{OPEN}&enable-tls=false", "'enable-tls' is false"),
        (f"kafka://b/t?{OPEN}&insecure-skip-verify=true", "nothing without TLS"),
        (f"kafka://b/t?{OPEN}&sasl-user=u", "'sasl-password' is missing"),
        (f"kafka://b/t?{OPEN}&sasl-mechanism=plain", "'sasl-user' is missing"),
        (f"kafka://b/t?{OPEN}&sasl-mechanism=GSSAPI&sasl-user=u&sasl-password=p", "Kerberos is not supported: .*SCRAM"),
        (f"kafka://b/t?{OPEN}&sasl-gssapi-user=u", "there is no Kerberos; use SCRAM or a certificate"),
        (f"kafka://b/t?{OPEN}&sasl-mechanism=oauthbearer", "'sasl-oauth-token-url' is missing: oauthbearer needs it"),
        (f"kafka://b/t?{OPEN}&sasl-oauth-client-id=x", "'sasl-oauth-client-id' needs sasl-mechanism=oauthbearer"),
        (f"kafka://b/t?{OPEN}&{OAUTH}&sasl-user=pw", "'sasl-user' is not for oauthbearer"),
        (f"kafka://b/t?{OPEN}&{OAUTH}&sasl-oauth-audience=pw", "'sasl-oauth-audience' is not supported"),
        (f"kafka://b/t?{OPEN}&{OAUTH}&sasl-oauth-grant-type=password", "must be client_credentials"),
        (f"kafka://b/t?{OPEN}&sasl-oauth-client-secret=pw!", "must be the secret in Base64"),
        (f"kafka://b/t?{OPEN}&sasl-oauth-token-url=pw", "must be an address such as https://id.example.com/token"),
        (f"kafka://b/t?{OPEN}&transaction-atomicity=table", "must be none"),
    ],
)
def test_what_cannot_be_is_refused(uri: str, said: str) -> None:
    with pytest.raises(SinkUriError, match=said) as raised:
        read_sink_uri(uri)
    assert "pw" not in str(raised.value)


def test_a_password_is_shown_nowhere() -> None:
    options = read(f"kafka://b:1,c:2/t?{OPEN}&sasl-user=mill&sasl-password=hush")
    assert options.safe_uri == f"kafka://b:1,c:2/t?{OPEN}&sasl-user=xxxxx&sasl-password=xxxxx"
    assert "hush" not in repr(options)
    for uri in ("kafka://u:hush@b/t", "kafka://b/t?x=hush", "kafka://b/t/hush@x", "kafka://b:hush/t"):
        assert "hush" not in safe_uri(uri)


def test_brokers_may_change_and_the_topic_may_not() -> None:
    place = place_of(f"kafka://a:1,b:2/t?{OPEN}&sasl-password=hush")
    assert place == f"kafka://a:1,b:2/t?{OPEN}"
    assert differences(place, place_of(f"kafka+ssl://c/t?{OPEN}")) == ""
    assert differences(place, place_of(f"kafka://a:1/u?{OPEN}")) == "topic: /t, now /u"
    assert "protocol" in differences(place, place_of("kafka://a:1/t?protocol=canal-json"))


FILE = """
[sink]
protocol = "canal-json"
dispatchers = [
  { matcher = ["shop.*"], topic = "cdc_{schema}", partition = "index-value" },
  { matcher = ["crm.*"], dispatcher = "columns", columns = ["a"] },
]
[sink.kafka-config]
partition-num = 6
sasl-user = "mill"
sasl-password = "a&b"
enable-tls = true
output-raw-change-event = true
"""


def test_a_file_says_the_same() -> None:
    config = parse_config(FILE)
    uri = "kafka://b/t?enable-tidb-extension=true"
    options = read(uri, from_file=sink_parameters(config, "kafka"), dispatching=Dispatching.of(config))
    assert options.protocol == CanalJsonQueue(enable_tidb_extension=True)
    assert (options.partition_num, options.sasl_password, options.is_tls) == (6, "a&b", True)
    assert options.output_raw_change_event
    assert options.rules.topic("shop", "item") == "cdc_shop"
    assert options.rules.topic("crm", "item") == "t"
    assert options.rules.topic("shop", "") == "t"


def test_the_uri_wins_over_the_file() -> None:
    config = parse_config("[sink.kafka-config]\npartition-num = 6\n")
    assert read(f"kafka://b/t?{OPEN}&partition-num=2", from_file=sink_parameters(config, "kafka")).partition_num == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (Dispatch(("a.*",), topic="no spaces"), r"sink.dispatchers\[0\].topic: 'no spaces' is no topic"),
        (Dispatch(("a.*",), topic="{table}_{schema}"), "is no topic"),
        (Dispatch(("a.*",), topic="{Schema}"), "is no topic"),
        (Dispatch(("a.*",), "hash"), r"sink.dispatchers\[0\].partition is 'hash'"),
    ],
)
def test_dispatchers_that_make_no_sense_are_refused(entry: Dispatch, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sink_uri(f"kafka://b/t?{OPEN}", dispatching=Dispatching((entry,)))
