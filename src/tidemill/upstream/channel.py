"""How we dial PD and TiKV: one set of transport settings, with or without TLS."""

import os
from collections.abc import Sequence

import grpc

from tidemill.certificates import read_pem
from tidemill.model.security import PLAIN, Security
from tidemill.upstream.tls import context_of

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


def open_channel(address: str, security: Security = PLAIN) -> grpc.aio.Channel:
    """A channel to ``host:port``. Nothing is dialled before the first call."""
    _keep_poller()
    if not security.is_tls:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    context_of(security)  # says which file cannot be used, where gRPC would only not connect
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read_pem(security.ca_path),
        private_key=read_pem(security.key_path) if security.key_path else None,
        certificate_chain=read_pem(security.cert_path) if security.cert_path else None,
    )
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


_kept_in = 0  # the process whose poller is kept


def _keep_poller() -> None:
    """Let gRPC's poller live as long as the process. It would end with the last channel, under event loops of other
    threads that still listen to it, which then tell of a bad file descriptor on stderr. A fork has none yet."""
    global _kept_in
    if _kept_in != os.getpid():
        _kept_in = os.getpid()
        grpc.aio.init_grpc_aio()
