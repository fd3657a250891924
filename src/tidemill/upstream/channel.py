"""How we dial PD and TiKV: one set of transport settings, with or without TLS."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from tidemill.errors import UsageError

MAX_MESSAGE_BYTES = 512 << 20  # a store sends about 6 MiB at once, but one large transaction's row may exceed any limit

OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # PD lives in etcd's server, which takes pings on a connection without calls for an attack and hangs up.
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is how long one attempt to connect may take. Attempts follow each other by the backoff.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    # A cluster is reached directly; a proxy for the web in the environment is none of its business.
    ("grpc.enable_http_proxy", 0),
    # Each of our channels knows for itself whether its peer answers.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Security:
    """Paths of PEM files. All empty: plain text. With ``ca_path`` alone only the server proves who it is."""

    ca_path: str = ""
    cert_path: str = ""
    key_path: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert_path) != bool(self.key_path):
            raise UsageError("a client certificate needs its key and a key its certificate: give both cert and key")
        if self.cert_path and not self.ca_path:
            raise UsageError("TLS to the upstream needs the certificate of its authority: give ca as well")

    @property
    def is_tls(self) -> bool:
        return bool(self.ca_path)


PLAIN = Security()


def open_channel(address: str, security: Security = PLAIN) -> grpc.aio.Channel:
    """A channel to ``host:port``. Nothing is dialled before the first call."""
    if not security.is_tls:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(security.ca_path),
        private_key=_read(security.key_path) if security.key_path else None,
        certificate_chain=_read(security.cert_path) if security.cert_path else None,
    )
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the TLS file {path}: {error.strerror}. Check the path and its rights."
        ) from error
