"""Sink URIs of Kafka, read once into options that cannot be wrong.

    kafka://broker1:9092,broker2:9092/topic?protocol=open-protocol&partition-num=6&replication-factor=3

Names, words and defaults are TiCDC's. A parameter that we do not know, or know and cannot honour, is refused.
"""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Any
from urllib.parse import parse_qsl, unquote

from tidemill.config.sink_uri import SHOWN, brokers_of, safe_uri, split_uri
from tidemill.config.values import boolean_of, number_from, seconds_from, sentence, word_of
from tidemill.errors import SinkUriError
from tidemill.flow.dispatcher import Dispatching, DispatchRules
from tidemill.flow.dispatcher.topics import is_topic
from tidemill.flow.encoder import FOR_QUEUES, QueueProtocol, RawAvro, RawJsonQueue, read_protocol
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.port import OwnerSink, Rescan, SinkWriter, Traits

SCHEMES = ("kafka", "kafka+ssl")
DEFAULT_PORT = 9092
DEFAULT_PARTITIONS = 3
_TELLING_SECONDS = 0.3  # a resolved-ts costs a message in each partition
_OAUTH = "oauthbearer"
_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", _OAUTH)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """A checked sink URI. Small and picklable: it travels to executors. It holds the password: never show it."""

    brokers: tuple[str, ...]
    topic: str
    protocol: QueueProtocol
    partition_num: int | None = None  # None: what a topic has; 3 where it is made
    replication_factor: int = 1
    auto_create_topic: bool = True
    max_message_bytes: int = 10 << 20
    compression: str = "none"
    client_id: str = ""
    is_tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure_skip_verify: bool = False
    sasl_user: str = ""
    sasl_password: str = field(default="", repr=False)
    sasl_mechanism: str = ""
    oauth_token_url: str = ""
    oauth_client_id: str = ""
    oauth_client_secret: str = field(default="", repr=False)
    oauth_scopes: str = ""
    dial_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 10.0
    write_timeout_seconds: float = 10.0
    output_raw_change_event: bool = False
    consistency: str = "transaction"
    on_too_large: str = "stop"
    worker_count: int = 16
    dispatching: Dispatching = field(default_factory=Dispatching)
    changefeed: str = "default"
    cluster_id: str = "default"
    safe_uri: str = field(default="", compare=False)  # for logs and messages: no secrets

    @property
    def place(self) -> str:
        """For messages: where this is."""
        return ", ".join(self.brokers)

    @property
    def rules(self) -> DispatchRules:
        return DispatchRules(self.dispatching, self.topic)

    @property
    def traits(self) -> Traits:
        return Traits(
            most_tasks=self.worker_count,
            splits_updates=not self.output_raw_change_event,
            sharing=KafkaSharing(self.rules, not self.output_raw_change_event),
            least_sharers=4,
            orders_ddls=True,
            is_together=self.consistency == "transaction",
            publish_interval_seconds=_TELLING_SECONDS,
            ends_never_earlier=isinstance(self.protocol, RawJsonQueue | RawAvro),
        )

    def dispatched(self, dispatching: Dispatching) -> "KafkaOptions":
        """With what a changefeed's file says of topics and partitions. Raises ConfigError where that cannot work."""
        found = replace(self, dispatching=dispatching)
        _ = found.rules
        return found

    def named(self, changefeed: str, cluster_id: int) -> "KafkaOptions":
        return replace(self, changefeed=changefeed, cluster_id=str(cluster_id))

    def answers(self, seconds: float) -> bool:
        from tidemill.sinks.kafka.topics import answers

        return answers(self, seconds)

    def open_owner(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> OwnerSink:
        from tidemill.sinks.kafka.sink import KafkaOwner

        return KafkaOwner(self._in_zone(zone), state, rescan=rescan)

    def open_writer(self, name: str, *, zone: tzinfo = UTC) -> SinkWriter:
        from tidemill.sinks.kafka.sink import KafkaWriter

        return KafkaWriter(self._in_zone(zone), name)

    def _in_zone(self, zone: tzinfo) -> "KafkaOptions":
        from tidemill.sinks.kafka.speaking import of_changefeed

        return replace(self, protocol=of_changefeed(self.protocol, str(zone)))


@dataclass(frozen=True, slots=True)
class KafkaSharing:
    """Ranges of a table's keys may be sent apart where partitions go by the only key that the table has."""

    rules: DispatchRules
    splits_updates: bool

    def allows(self, table: TableInfo) -> bool:
        return self.splits_updates and self.rules.destination(table).rule.allows(table)


def is_kafka_uri(uri: str) -> bool:
    """Whether ``parse_kafka_uri`` is the one to read it."""
    return uri.partition("://")[0].lower() in SCHEMES


def parse_kafka_uri(uri: str) -> KafkaOptions:
    """Raises SinkUriError, which names what is wrong and never shows a secret of the URI."""
    parts = split_uri(uri)
    brokers = tuple(brokers_of(parts.netloc, DEFAULT_PORT))
    if not brokers:
        raise SinkUriError(f"the sink URI {safe_uri(uri)} names no broker. Write kafka://host:9092/topic?protocol=….")
    topic = unquote(parts.path).strip("/")
    if not is_topic(topic):
        raise SinkUriError(
            f"the sink URI {safe_uri(uri)} names no topic. Write one behind the brokers, of letters, digits, '.', '_' "
            "and '-': kafka://host:9092/topic?protocol=…."
        )
    given = _given(parts.query)
    values = {PARAMETERS[name].field: _read(name, given.pop(name)) for name in list(given) if name in PARAMETERS}
    _refuse(given)
    name = values.pop("protocol", None)
    if name is None:
        choices = " or ".join(f"'protocol={each}'" for each in FOR_QUEUES)
        raise SinkUriError(f"the sink URI of Kafka needs a protocol. Add {choices} to its parameters.")
    protocol = read_protocol(FOR_QUEUES, name, given, PARAMETERS)
    assert protocol is not None
    values.pop("", None)  # accepted, and of no effect
    is_tls = _is_tls(parts.scheme.lower(), values)
    _check_sasl(values)
    return KafkaOptions(brokers, topic, protocol, is_tls=is_tls, **values, safe_uri=safe_uri(uri))


# Reading a value. Each reader raises ValueError with what it wants.


def _protocol(text: str) -> str:
    return word_of(*FOR_QUEUES)("open-protocol" if text.lower() == "default" else text)


def _acks(text: str) -> str:
    if text not in ("-1", "all"):
        raise ValueError(
            "-1: what fewer than all replicas in sync have confirmed may be lost, though the checkpoint is past it. "
            "Take the parameter out"
        )
    return text


_MECHANISM = word_of(*_MECHANISMS)


def _mechanism(text: str) -> str:
    if text.lower() == "gssapi":
        raise ValueError(
            f"{', '.join(_MECHANISMS)}. Kerberos is not supported: the client of Kafka that we use comes without it. "
            "Give us a user of SCRAM, or a certificate (ca, cert and key), of our own"
        )
    return _MECHANISM(text)


def _grant(text: str) -> str:
    if text != "client_credentials":
        raise ValueError("client_credentials")
    return text


def _secret(text: str) -> str:
    """In Base64, as TiCDC wants it."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        raise ValueError("the secret in Base64") from None


def _token_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s?#]+", text):
        raise ValueError("an address such as https://id.example.com/token, without parameters")
    return text


def _atomicity(text: str) -> str:
    if text != "none":
        raise ValueError("none: a message queue has no transactions of tables")
    return text


def _path(text: str) -> str:
    if not text:
        raise ValueError("the path of a file")
    return text


def _some(text: str) -> str:
    if not text:
        raise ValueError("some text")
    return text


@dataclass(frozen=True, slots=True)
class KafkaParameter:
    """``default`` and ``help`` are for people: the reference page is made of them. ``field``: of the options; empty:
    it can have one value only."""

    field: str
    read: Callable[[str], Any]
    default: str
    help: str


PARAMETERS: Mapping[str, KafkaParameter] = {
    "protocol": KafkaParameter("protocol", _protocol, "", "The form of messages; required."),
    "partition-num": KafkaParameter(
        "partition_num",
        number_from(1, most=1 << 20),
        "3 for new topics, else all",
        "How many partitions of a topic are used, and made.",
    ),
    "replication-factor": KafkaParameter(
        "replication_factor", number_from(1, most=1 << 10), "1", "Replicas of topics that are made."
    ),
    "auto-create-topic": KafkaParameter(
        "auto_create_topic", boolean_of, "true", "Make topics that are not there; otherwise they are an error."
    ),
    "max-message-bytes": KafkaParameter(
        "max_message_bytes",
        number_from(1, most=1 << 30),
        "10485760",
        "Bytes of a message, at most; less where the topic, or the broker, allows less.",
    ),
    "compression": KafkaParameter(
        "compression",
        word_of("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        "How batches of messages are compressed on their way and in the log: `none`, `gzip`, `snappy`, `lz4`, `zstd`.",
    ),
    "required-acks": KafkaParameter("", _acks, "-1", "Only `-1` is possible: all replicas in sync confirm a message."),
    "kafka-version": KafkaParameter("", _some, "", "Accepted; the broker is asked."),
    "kafka-client-id": KafkaParameter(
        "client_id", _some, "tidemill_CHANGEFEED", "The name under which brokers log and limit us."
    ),
    "enable-tls": KafkaParameter("is_tls", boolean_of, "false", "TLS; also on with `kafka+ssl://` or `ca`."),
    "ca": KafkaParameter("ca", _path, "", "File with the certificate of who signed the brokers'; turns TLS on."),
    "cert": KafkaParameter("cert", _path, "", "File with our own certificate; with `key`."),
    "key": KafkaParameter("key", _path, "", "File with the key of our own certificate."),
    "insecure-skip-verify": KafkaParameter(
        "insecure_skip_verify", boolean_of, "false", "TLS without a look at the brokers' certificates."
    ),
    "sasl-user": KafkaParameter("sasl_user", _some, "", "User of SASL."),
    "sasl-password": KafkaParameter("sasl_password", _some, "", "Password of SASL."),
    "sasl-mechanism": KafkaParameter(
        "sasl_mechanism",
        _mechanism,
        "plain",
        "`plain`, `scram-sha-256`, `scram-sha-512`, or `oauthbearer` with the `sasl-oauth-…` parameters.",
    ),
    "sasl-oauth-token-url": KafkaParameter(
        "oauth_token_url", _token_url, "", "Where `oauthbearer` gets its tokens (OIDC, client credentials)."
    ),
    "sasl-oauth-client-id": KafkaParameter("oauth_client_id", _some, "", "Our id there."),
    "sasl-oauth-client-secret": KafkaParameter("oauth_client_secret", _secret, "", "Our secret there, in Base64."),
    "sasl-oauth-scopes": KafkaParameter("oauth_scopes", _some, "", "Scopes to ask for, with spaces between them."),
    "sasl-oauth-grant-type": KafkaParameter("", _grant, "client_credentials", "Only `client_credentials` is possible."),
    "dial-timeout": KafkaParameter("dial_timeout_seconds", seconds_from(1.0), "10s", "How long connecting may take."),
    "read-timeout": KafkaParameter("read_timeout_seconds", seconds_from(1.0), "10s", "How long an answer may take."),
    "write-timeout": KafkaParameter(
        "write_timeout_seconds",
        seconds_from(1.0),
        "10s",
        "How long no message may be confirmed before a batch is taken back and begun again.",
    ),
    "output-raw-change-event": KafkaParameter(
        "output_raw_change_event",
        boolean_of,
        "false",
        "An update that changes a key stays one message. Otherwise it becomes a delete and an insert.",
    ),
    "worker-count": KafkaParameter(
        "worker_count", number_from(1, most=512), "16", "How many tables are written at the same time, at most."
    ),
    "consistency": KafkaParameter(
        "consistency",
        word_of("transaction", "row"),
        "transaction",
        "`transaction`: no row goes out before all tables are resolved up to it, on whatever capture they are. `row`: "
        "each capture's go out as soon as its own are.",
    ),
    "on-too-large": KafkaParameter(
        "on_too_large",
        word_of("stop", "quarantine"),
        "stop",
        "What to do with a row whose message is too large, whatever `large-message-handle-option` made of it: stop "
        "before it, or put it aside and continue.",
    ),
    "transaction-atomicity": KafkaParameter("", _atomicity, "none", "Only `none` is possible."),
}

_NO_KERBEROS = "there is no Kerberos; use SCRAM or a certificate"
REFUSED: Mapping[str, str] = {
    "max-retry": "messages are sent again until they are confirmed",
    "sasl-oauth-audience": "tokens are asked for by scope; let the authorization server add the audience",
    "sasl-gssapi-auth-type": _NO_KERBEROS,
    "sasl-gssapi-keytab-path": _NO_KERBEROS,
    "sasl-gssapi-kerberos-config-path": _NO_KERBEROS,
    "sasl-gssapi-service-name": _NO_KERBEROS,
    "sasl-gssapi-user": _NO_KERBEROS,
    "sasl-gssapi-password": _NO_KERBEROS,
    "sasl-gssapi-realm": _NO_KERBEROS,
    "sasl-gssapi-disable-pafxfast": _NO_KERBEROS,
    "encoder-concurrency": "rows are encoded by Spark's tasks: choose their number with --spark-master",
}


def _given(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise SinkUriError(f"sink URI parameter {name!r} is given twice. Keep one of them.")
        given[name] = text
    return given


def _refuse(given: Mapping[str, str]) -> None:
    for name in given:
        if name in REFUSED:
            raise SinkUriError(f"sink URI parameter {name!r} is not supported: {REFUSED[name]}. Take it out.")


def _read(name: str, text: str) -> Any:
    try:
        return PARAMETERS[name].read(text)
    except ValueError as wanted:
        shown = repr(text) if name in SHOWN else "this value"
        raise SinkUriError(f"sink URI parameter {name!r} is {shown}; it must be {sentence(wanted)}") from None


def _is_tls(scheme: str, values: dict[str, Any]) -> bool:
    asked = values.pop("is_tls", None)
    files = [name for name in ("ca", "cert", "key") if name in values]
    if ("cert" in values) != ("key" in values):
        raise SinkUriError("sink URI parameters 'cert' and 'key' belong together. Give both, or neither.")
    if asked is False and (files or scheme.endswith("+ssl")):
        other = f"parameter {files[0]!r}" if files else f"scheme {scheme!r}"
        raise SinkUriError(f"sink URI parameter 'enable-tls' is false, and its {other} asks for TLS. Keep one.")
    is_tls = bool(asked or files or scheme.endswith("+ssl"))
    if "insecure_skip_verify" in values and not is_tls:
        raise SinkUriError("sink URI parameter 'insecure-skip-verify' means nothing without TLS. Add enable-tls=true.")
    return is_tls


def _check_sasl(values: dict[str, Any]) -> None:
    if values.get("sasl_mechanism") == _OAUTH:
        _check_oauth(values)
        return
    stray = next((name for name in values if name.startswith("oauth_")), None)
    if stray is not None:
        raise SinkUriError(f"sink URI parameter 'sasl-{stray.replace('_', '-')}' needs sasl-mechanism=oauthbearer.")
    lacking = [name for name in ("sasl_user", "sasl_password") if name not in values]
    if len(lacking) == 1 or ("sasl_mechanism" in values and lacking):
        name = lacking[0].replace("_", "-")
        raise SinkUriError(f"sink URI parameter {name!r} is missing: user and password of SASL belong together.")
    if not lacking:
        values.setdefault("sasl_mechanism", "plain")


def _check_oauth(values: dict[str, Any]) -> None:
    for name in ("oauth_token_url", "oauth_client_id", "oauth_client_secret"):
        if name not in values:
            raise SinkUriError(f"sink URI parameter 'sasl-{name.replace('_', '-')}' is missing: oauthbearer needs it.")
    stray = next((name for name in ("sasl_user", "sasl_password") if name in values), None)
    if stray is not None:
        raise SinkUriError(f"sink URI parameter {stray.replace('_', '-')!r} is not for oauthbearer. Take it out.")
