"""TLS as the embedded cluster serves it: clients have to prove who they are, as in a cluster that TiUP sets up."""

import ssl

import grpc

from tidemill.certificates import load_files, read_pem
from tidemill.errors import UsageError
from tidemill.model.security import Security


def check_server(security: Security) -> None:
    """Raises UsageError unless it is all a server needs, or nothing."""
    if security.is_tls and not security.cert_path:
        raise UsageError("TLS needs a certificate of the server and its key: give --cert and --key beside --ca")
    if security.is_tls:
        server_context(security)


def server_context(security: Security) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_files(context, security)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def server_credentials(security: Security) -> grpc.ServerCredentials:
    pair = (read_pem(security.key_path), read_pem(security.cert_path))
    return grpc.ssl_server_credentials([pair], read_pem(security.ca_path), require_client_auth=True)
