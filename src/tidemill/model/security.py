"""Which files prove who is who over TLS. Only their paths travel: they are read where a connection is opened."""

from dataclasses import dataclass

from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Security:
    """Paths of PEM files. All empty: plain text. With ``ca_path`` alone only the server proves who it is."""

    ca_path: str = ""
    cert_path: str = ""
    key_path: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert_path) != bool(self.key_path):
            raise UsageError("a client certificate needs its key and a key its certificate: give both cert and key.")
        if self.cert_path and not self.ca_path:
            raise UsageError("TLS to the upstream needs the certificate of its authority: give ca as well.")

    @property
    def is_tls(self) -> bool:
        return bool(self.ca_path)


PLAIN = Security()
