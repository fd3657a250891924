"""The files that prove who is who over TLS, read and checked: for clients of a cluster and for the one in the box."""

import ssl

from tidemill.errors import UsageError
from tidemill.model.security import Security


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
