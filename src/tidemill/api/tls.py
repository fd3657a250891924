"""TLS of a capture's API: its certificate, whom it lets in, and both read again when their files have changed.

A server's context cannot be replaced while it serves. So each connection is handed to the newest one as soon as its
handshake begins; contexts that are in use stay as they are.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.certificates import load_files, stamps_of
from tidemill.errors import UsageError
from tidemill.log import get_logger
from tidemill.model.security import Security

log = get_logger("api")


@dataclass(frozen=True, slots=True)
class ApiTls:
    """``wants_certificates``: of clients (mTLS). ``allowed_cn``: whose certificates; empty: any of our authority."""

    security: Security
    wants_certificates: bool = False
    allowed_cn: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.security.cert_path:
            raise UsageError(
                "TLS of the API needs a certificate with its key and its authority: give ca, cert and key."
            )
        if self.allowed_cn and not self.wants_certificates:
            raise UsageError("allowed CNs are of clients' certificates, which nobody asks for: turn mTLS on.")

    def allows(self, peer_certificate: object) -> bool:
        """Of a client that has shown this certificate, as ``ssl`` describes it."""
        if not self.allowed_cn:
            return True
        subject = peer_certificate.get("subject", ()) if isinstance(peer_certificate, dict) else ()
        names = {value for part in subject for name, value in part if name == "commonName"}
        return bool(names & set(self.allowed_cn))


def server_context(tls: ApiTls) -> ssl.SSLContext:
    """Raises UsageError for files that cannot be used."""
    newest = _Newest(lambda: _server_context(tls), tls.security)
    context = _server_context(tls)

    def hand_over(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = newest.context()

    context.sni_callback = hand_over
    return context


def client_context(security: Security) -> Callable[[], ssl.SSLContext]:
    """What a capture shows to others, and trusts; read again when its files have changed."""

    def fresh() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_files(context, security)
        return context

    return _Newest(fresh, security).context


class _Newest:
    """A context of files as they are now; of files that cannot be used, as they last could."""

    def __init__(self, make: Callable[[], ssl.SSLContext], security: Security) -> None:
        self._make, self._security = make, security
        self._seen = stamps_of(security)
        self._context = make()

    def context(self) -> ssl.SSLContext:
        stamps = stamps_of(self._security)
        if stamps != self._seen:
            try:
                self._context = self._make()
                log.info("certificates were read again")
            except UsageError as error:
                log.error("certificates cannot be used; the former ones hold", reason=str(error))
            self._seen = stamps
        return self._context


def _server_context(tls: ApiTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_files(context, tls.security)
    if tls.wants_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
