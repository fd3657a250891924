"""Settings of librdkafka for a sink's options, and what its errors mean to a changefeed."""

import re
from typing import Any, Final

from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.sinks.kafka.uri import KafkaOptions

_FORBIDDEN = re.compile(r'[?:,"]')
_MECHANISMS = {"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"}
_SILENT: Final = 0  # its own lines go to stderr; what matters comes by callbacks

# Names of librdkafka's codes for what does not pass by waiting.
_RIGHTS = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_LOGIN = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"})
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})


def settings(options: KafkaOptions) -> dict[str, Any]:
    """For any client."""
    is_sasl = bool(options.sasl_mechanism)
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(options.brokers),
        "client.id": _FORBIDDEN.sub("_", options.client_id or f"tidemill_{options.changefeed}"),
        "security.protocol": ("SASL_" if is_sasl else "") + ("SSL" if options.is_tls else "PLAINTEXT"),
        "socket.connection.setup.timeout.ms": _ms(options.dial_timeout_seconds),
        "socket.timeout.ms": _ms(max(options.read_timeout_seconds, 1.0)),
        "reconnect.backoff.max.ms": 1000,
        "allow.auto.create.topics": False,
        "log_level": _SILENT,
    }
    if options.sasl_mechanism == "oauthbearer":
        found |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": options.oauth_token_url,
            "sasl.oauthbearer.client.id": options.oauth_client_id,
            "sasl.oauthbearer.client.secret": options.oauth_client_secret,
        }
        found |= {"sasl.oauthbearer.scope": options.oauth_scopes} if options.oauth_scopes else {}
    elif is_sasl:
        found |= {
            "sasl.mechanism": _MECHANISMS[options.sasl_mechanism],
            "sasl.username": options.sasl_user,
            "sasl.password": options.sasl_password,
        }
    files = {"ssl.ca.location": options.ca, "ssl.certificate.location": options.cert, "ssl.key.location": options.key}
    found |= {name: path for name, path in files.items() if path}
    if options.insecure_skip_verify:
        found["enable.ssl.certificate.verification"] = False
    return found


def producer_settings(options: KafkaOptions, most_bytes: int) -> dict[str, Any]:
    """``most_bytes``: of a batch of messages, as the topic allows.

    Nothing times out in the queue: a message that did would leave a gap in the order. What can fail for good stops the
    producer as a whole, so what was sent is a prefix of what was to be. The queue itself is bounded by its user, since
    a message that finds it full while a smaller one behind it does not would be such a gap as well.
    """
    return settings(options) | {
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "acks": "all",
        "message.timeout.ms": 0,
        "request.timeout.ms": _ms(options.write_timeout_seconds),
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 2_147_483_647,
        "message.max.bytes": 1_000_000_000,  # sizes are compared with the topic's limit before
        "batch.size": max(1, min(1_000_000, most_bytes)),
        "compression.type": options.compression,
        "linger.ms": 5,
        "delivery.report.only.error": True,
    }


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def sink_error(options: KafkaOptions, doing: str, error: Any) -> SinkError:
    """``error`` is a KafkaError, or None where nobody answered. Translated once, here."""
    name = error.name() if error is not None else "_TIMED_OUT"
    said = error.str() if error is not None else "no answer in time"
    where = f"cannot {doing} ({options.place})"
    if name in _LOGIN and options.oauth_token_url:
        return SinkError(
            f"{where}: the login failed: {said}. Check sasl-oauth-token-url, client-id, client-secret and scopes, and "
            "that the broker trusts the server of tokens."
        )
    if name in _LOGIN:
        return SinkError(
            f"{where}: the broker refuses our login: {said}. Check sasl-user, sasl-password and sasl-mechanism."
        )
    if name in ("_INVALID_ARG", "_CONFLICT"):  # while a client is set up: nothing has been sent
        return SinkError(f"{where}: {said}. Check the parameters of the sink URI, and the files ca, cert and key.")
    if name == "_SSL":
        return SinkError(f"{where}: TLS failed: {said}. Check ca, cert and key, and that the port speaks TLS.")
    if name in _RIGHTS:
        return SinkError(
            f"{where}: the broker says {said!r}. Grant the user Describe, Write, Create and DescribeConfigs on the "
            "topics, and IdempotentWrite on the cluster where brokers are older than 3.0."
        )
    if name in _TOO_LARGE:
        return SinkError(
            f"{where}: a batch of messages is larger than the broker takes ({said}). Raise max.message.bytes of the "
            "topic, or lower max-message-bytes in the sink URI."
        )
    if name in ("INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "POLICY_VIOLATION", "TOPIC_EXCEPTION"):
        return SinkError(f"{where}: {said}. Change replication-factor or partition-num, or make the topic by hand.")
    if error is not None and error.fatal() and name not in ("_FENCED", "OUT_OF_ORDER_SEQUENCE_NUMBER"):
        return _of_fatal(where, said)
    return SinkUnavailableError(f"{where}: {said}. Check that the brokers are up and reachable.")


def _of_fatal(where: str, said: str) -> SinkError:
    """A producer that cannot go on tells the reason in words only."""
    if "authorization failed" in said.lower():
        return SinkError(f"{where}: {said}. Grant the user Write on the topic.")
    if "message size too large" in said.lower():
        return SinkError(
            f"{where}: a message is larger than the broker takes. Raise max.message.bytes of the topic, or lower "
            "max-message-bytes in the sink URI."
        )
    return SinkUnavailableError(f"{where}: {said}. It is tried again with a new producer.")
