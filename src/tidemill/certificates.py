"""What proves who is who over TLS: files, read and checked, for clients of a cluster and for the one in the box; and a
certificate of a process's own, for those whom it hands it to."""

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidemill.errors import UsageError
from tidemill.model.security import Security


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """PEM texts. Whoever is given the certificate knows by it the process that has the key, and nobody else."""

    certificate: bytes
    key: bytes = field(repr=False)


def self_signed(name: str) -> SelfSigned:
    """A new one, for a server that its clients know as ``name``. It is trusted by itself, so it need never expire."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return SelfSigned(certificate.public_bytes(pem), secret)


def load_files(context: ssl.SSLContext, security: Security) -> None:
    """Give the context its authority, and the certificate with its key if there is one. Raises UsageError."""
    for path in filter(None, (security.ca_path, security.cert_path, security.key_path)):
        read_pem(path)
    try:
        context.load_verify_locations(security.ca_path)
    except ssl.SSLError as error:
        raise UsageError(
            f"the TLS file {security.ca_path} holds no certificate of an authority in PEM form ({error.reason})."
        ) from error
    if not security.cert_path:
        return
    try:
        context.load_cert_chain(security.cert_path, security.key_path, password=no_password)
    except (ssl.SSLError, _EncryptedError) as error:
        raise UsageError(_pair_trouble(security, error)) from error


def read_pem(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            f"cannot read the TLS file {path}: {error.strerror}. Check the path and its rights."
        ) from error


Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(security: Security) -> Stamps:
    """Another value once one of the files is another."""
    return tuple(_stamp(path) for path in (security.ca_path, security.cert_path, security.key_path) if path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class _EncryptedError(Exception):
    pass


def no_password() -> str:
    """For contexts that would ask the terminal for a passphrase."""
    raise _EncryptedError("the key is encrypted")


def _pair_trouble(security: Security, error: Exception) -> str:
    pair = f"the TLS files {security.cert_path} and {security.key_path}"
    if isinstance(error, _EncryptedError):
        return f"the TLS key {security.key_path} is encrypted, which is not supported. Give one without a passphrase."
    if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
        return f"{pair} do not belong together: the key is of another certificate."
    return f"{pair} are not a certificate and its key in PEM form ({getattr(error, 'reason', error)})."
