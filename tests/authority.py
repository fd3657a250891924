"""A certificate authority for tests, which issues what is asked for, be it expired."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidemill.model.security import Security

_DAY = timedelta(days=1)


class Authority:
    """Its files lie in ``folder``, which is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority {folder.name}")
        now = datetime.now(UTC)
        certificate = self._signed(self._name, self._key, now - _DAY, now + _DAY, is_authority=True)
        self.ca_path = str(self._write("ca.pem", certificate))

    def issue(self, name: str, *, is_expired: bool = False, host: str = "127.0.0.1") -> tuple[str, str]:
        """The files of a certificate for ``host`` and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-_DAY if is_expired else _DAY)
        certificate = self._write(f"{name}.pem", self._signed(_name(name), key, end - 3 * _DAY, end, host=host))
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self.folder / f"{name}.key").write_bytes(text)
        return str(certificate), str(self.folder / f"{name}.key")

    def security(self, name: str = "client", *, is_expired: bool = False) -> Security:
        """Whoever has this trusts us, and is one that we know."""
        return Security(self.ca_path, *self.issue(name, is_expired=is_expired))

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        start: datetime,
        end: datetime,
        *,
        host: str = "",
        is_authority: bool = False,
    ) -> x509.Certificate:
        built = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if host:
            names = [x509.IPAddress(ip_address(host))]
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return built.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
