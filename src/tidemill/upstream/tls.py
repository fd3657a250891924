"""Why TLS to PD or a store cannot be. gRPC calls everything "unavailable", be it a cable or an expired certificate.

When a call finds no connection, a handshake by Python's own ``ssl`` looks for the reason. A server that refuses our
certificate says so after the handshake, or just hangs up (as gRPC's own servers do); then our certificate is looked at.
One that does not speak TLS answers in plain text, hangs up during the handshake, or waits for more of it.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from enum import Enum, auto

from tidemill.certificates import load_files, no_password
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.address import read_address
from tidemill.model.security import Security

_CONNECT_SECONDS = 3.0
_LISTEN_SECONDS = 1.0  # for what a server has to say after the handshake
_HANG_UPS = 3  # in a row, before they are taken for an answer and not for a server that happens to stop
_PAUSE_SECONDS = 0.2

# OpenSSL's numbers of what can be wrong with a certificate.
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
_WRONG_PURPOSE = 26  # a client's certificate is no server's, which is as it should be
_NO_TLS = "does not speak TLS. Turn TLS on there, or leave the certificates out"
_NO_ANSWER = (
    "takes the connection but does not answer the TLS handshake, as servers do that do not speak TLS. Turn TLS on "
    "there, or leave the certificates out"
)
_GIVE_BOTH = "give --cert and --key (the options cert and key in Spark)"


async def examine(address: str, security: Security) -> str | None:
    """What is wrong with TLS to ``host:port``, to follow its name; empty: nothing; None: nobody answers."""
    found: str | _HungUp | None = None
    for _ in range(_HANG_UPS):
        found = await asyncio.to_thread(_shake_hands, address, security)
        if not isinstance(found, _HungUp):
            return found
        await SYSTEM_CLOCK.sleep(_PAUSE_SECONDS)
    return _NO_TLS if found is _HungUp.DURING_HANDSHAKE else _why_hung_up(security)


async def examine_all(addresses: Sequence[str], security: Security) -> dict[str, str | None]:
    found = await asyncio.gather(*(examine(address, security) for address in addresses))
    return dict(zip(addresses, found, strict=True))


def context_of(security: Security) -> ssl.SSLContext:
    """Of a client. ``UsageError`` names a file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_files(context, security)
    return context


class _HungUp(Enum):
    """When the server ended the connection."""

    DURING_HANDSHAKE = auto()
    AFTER_HANDSHAKE = auto()


def _shake_hands(address: str, security: Security) -> str | _HungUp | None:
    host, port = read_address(address)
    context = context_of(security) if security.is_tls else _trusting()
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), _CONNECT_SECONDS) as connection:
            return _talk(connection, context, host, security)
    except OSError:
        return None


def _talk(connection: socket.socket, context: ssl.SSLContext, host: str, security: Security) -> str | _HungUp | None:
    try:
        with context.wrap_socket(connection, server_hostname=host) as tls:
            if not security.is_tls:
                return "speaks TLS"
            tls.settimeout(_LISTEN_SECONDS)
            try:
                return "" if tls.recv(1) else _HungUp.AFTER_HANDSHAKE
            except TimeoutError:
                return ""  # it waits for us to begin
            except (ConnectionError, ssl.SSLEOFError):
                return _HungUp.AFTER_HANDSHAKE
    except ssl.SSLCertVerificationError as error:
        return _distrust(error, host, security)
    except (ConnectionError, ssl.SSLEOFError):
        return _HungUp.DURING_HANDSHAKE if security.is_tls else None
    except TimeoutError:  # it took the connection, and then waited for more than a handshake brings
        return _NO_ANSWER if security.is_tls else None
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return _refusal(error.reason, security) if security.is_tls else "speaks TLS"
        return _NO_TLS if security.is_tls else ""


def _trusting() -> ssl.SSLContext:
    """For finding out whether somebody speaks TLS at all; nothing is said over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _distrust(error: ssl.SSLCertVerificationError, host: str, security: Security) -> str:
    if error.verify_code == _EXPIRED:
        return "has a certificate that has expired. Renew it on the server"
    if error.verify_code == _NOT_YET_VALID:
        return "has a certificate that is not valid yet. Check the clocks"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return f"has a certificate that is not for {host}. Use a name or address that it is for"
    return (
        f"has a certificate that the authority in {security.ca_path} has not signed ({error.verify_message}). "
        "Give the cluster's own authority with --ca"
    )


def _refusal(reason: str, security: Security) -> str:
    said = reason.lower().replace("_", " ")
    if not security.cert_path:
        return f"wants a client certificate ({said}): {_GIVE_BOTH}"
    return f"does not accept our certificate {security.cert_path} ({_own_trouble(security) or said})"


def _why_hung_up(security: Security) -> str:
    if not security.cert_path:
        return f"hangs up after the TLS handshake, as servers do that want a client certificate: {_GIVE_BOTH}"
    reason = _own_trouble(security) or "it hangs up after the TLS handshake; check who signed it"
    return f"does not accept our certificate {security.cert_path} ({reason})"


def _own_trouble(security: Security) -> str:
    """What is wrong with our own certificate, by the authority that we were given; empty: nothing."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(security.cert_path, security.key_path, password=no_password)
    client.load_verify_locations(security.ca_path)
    client.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return "" if error.verify_code == _WRONG_PURPOSE else error.verify_message
        except ssl.SSLError:
            return ""
    return ""
