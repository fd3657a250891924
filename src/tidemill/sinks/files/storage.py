"""Where a sink's files lie: a local folder, or a bucket that speaks S3. One port for both.

    parse_storage(uri) ─► StorageOptions ─► open_files ─► DurableFiles (local) | ObjectFiles (S3)

Both let a file appear whole or not at all: locally by a rename, in a bucket because an object is not there before
its upload has ended. A bucket has no folders, so those steps do nothing there; all the rest is the same, and
so are the sinks above. Parameters carry TiCDC's names. Secrets never show in a message, a log line or a ``repr``.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow.fs as pafs

from tidemill.config.sink_uri import split_uri
from tidemill.config.values import boolean_of
from tidemill.errors import SinkUriError
from tidemill.sinks.files.durable import DurableFiles, open_root
from tidemill.sinks.files.objects import ObjectFiles

_REFUSED: Mapping[str, str] = {
    "acl": "objects get the bucket's default rights",
    "sse": "objects are encrypted as the bucket says",
    "sse-kms-key-id": "objects are encrypted as the bucket says",
    "storage-class": "objects get the bucket's default class",
    "provider": "an endpoint says enough",
    "use-accelerate-endpoint": "name the accelerated endpoint itself as 'endpoint'",
    "profile": "set AWS_PROFILE in the environment instead",
}
_KNOWN = (
    "endpoint",
    "region",
    "access-key",
    "secret-access-key",
    "session-token",
    "force-path-style",
    "role-arn",
    "external-id",
)


@dataclass(frozen=True)
class StorageOptions:
    """A checked place. Small and picklable: it travels to executors, with its secrets, which ``repr`` leaves out.

    Without an access key, S3 credentials are looked for where AWS's own tools look: environment, profile, instance.
    """

    root: str  # an absolute folder, or bucket/prefix
    is_s3: bool = False
    endpoint: str = ""  # scheme://host:port; empty: AWS
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    force_path_style: bool = True
    role_arn: str = ""
    external_id: str = field(default="", repr=False)

    @property
    def uri(self) -> str:
        """Of the root, for other programs; without secrets."""
        return f"s3://{self.root}" if self.is_s3 else f"file://{quote(self.root)}"

    @property
    def shown(self) -> str:
        return f"s3://{self.root}" if self.is_s3 else self.root

    def filesystem(self) -> pafs.FileSystem:
        if not self.is_s3:
            return pafs.LocalFileSystem()
        given: dict[str, Any] = {
            "access_key": self.access_key or None,
            "secret_key": self.secret_access_key or None,
            "session_token": self.session_token or None,
            "region": self.region or None,
            "role_arn": self.role_arn or None,
            "external_id": self.external_id or None,
            "force_virtual_addressing": not self.force_path_style,
        }
        if self.endpoint:
            scheme, _, host = self.endpoint.rpartition("://")
            given |= {"endpoint_override": host, "scheme": scheme or "https"}
        return pafs.S3FileSystem(**{name: value for name, value in given.items() if value is not None})


def is_storage_parameter(name: str) -> bool:
    """Whether a parameter of a URI is for the storage, be it to refuse it."""
    return name in _KNOWN or name in _REFUSED


def parse_storage(uri: str) -> StorageOptions:
    """The place that ``file:///folder`` or ``s3://bucket/prefix`` names; other sinks' parameters are passed over.

    Raises SinkUriError, which names what is wrong and never shows a value of a secret.
    """
    parts = split_uri(uri)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, count in Counter(name for name, _ in parse_qsl(parts.query, keep_blank_values=True)).items():
        if count > 1 and is_storage_parameter(name):
            raise SinkUriError(f"sink URI parameter {name!r} is given twice. Keep one of them.")
    if parts.scheme.lower().rpartition("+")[2] != "s3":
        return _local(parts.netloc, unquote(parts.path), given)
    for name in given:
        if name in _REFUSED:
            raise SinkUriError(f"sink URI parameter {name!r} is not supported: {_REFUSED[name]}. Take it out.")
    if "@" in parts.netloc:
        raise SinkUriError("an s3:// URI has no user and password. Use 'access-key' and 'secret-access-key'.")
    if not parts.netloc:
        raise SinkUriError("the sink URI names no bucket. Write s3://bucket/prefix.")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", parts.netloc):
        raise SinkUriError(
            f"{parts.netloc!r} is no name of a bucket. Write s3://bucket/prefix, and the host as 'endpoint'."
        )
    has_key, has_secret = (bool(given.get(name)) for name in ("access-key", "secret-access-key"))
    if has_key != has_secret:
        raise SinkUriError(
            "sink URI parameters 'access-key' and 'secret-access-key' go together. Give both or neither."
        )
    return StorageOptions(
        root="/".join(filter(None, [parts.netloc, unquote(parts.path).strip("/")])),
        is_s3=True,
        endpoint=_endpoint(given.get("endpoint", "")),
        region=given.get("region", "") or ("us-east-1" if given.get("endpoint") else ""),
        access_key=given.get("access-key", ""),
        secret_access_key=given.get("secret-access-key", ""),
        session_token=given.get("session-token", ""),
        force_path_style=_boolean("force-path-style", given.get("force-path-style", "true")),
        role_arn=given.get("role-arn", ""),
        external_id=given.get("external-id", ""),
    )


def _local(host: str, path: str, given: Mapping[str, str]) -> StorageOptions:
    for name in given:
        if is_storage_parameter(name):
            raise SinkUriError(f"sink URI parameter {name!r} is for s3:// only. Take it out.")
    if host not in ("", "localhost"):
        raise SinkUriError(
            f"the sink URI names {host!r} where a host would stand. Give an absolute folder: ///folder/…"
        )
    if not path.strip("/") or "\0" in path:
        raise SinkUriError("the sink URI names no folder. Give an absolute one: ///folder/…")
    return StorageOptions("/" + path.strip("/"))


def _endpoint(text: str) -> str:
    if not text:
        return ""
    scheme, sign, host = text.partition("://")
    if not sign:
        scheme, host = "https", text
    if scheme not in ("http", "https") or not host.strip("/") or not _is_address(f"{scheme}://{host}"):
        raise SinkUriError("sink URI parameter 'endpoint' must be a host, or http://host:port or https://host:port.")
    return f"{scheme}://{host.rstrip('/')}"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc  # no place for a secret
    except ValueError:  # brackets without an address, a port that is none
        return False


def _boolean(name: str, text: str) -> bool:
    try:
        return boolean_of(text)
    except ValueError as wanted:
        raise SinkUriError(f"sink URI parameter {name!r} must be {wanted}.") from None


def open_files(options: StorageOptions) -> "Files":
    """The files below ``options.root``. Opens nothing yet."""
    return ObjectFiles(options) if options.is_s3 else DurableFiles(options.root)


def open_place(options: StorageOptions, *, is_new: bool) -> "Files":
    """Like ``open_files``, and makes sure that we may write there. A local folder is created if ``is_new``."""
    files = open_files(options)
    if isinstance(files, ObjectFiles):
        files.check_access()
    else:
        open_root(options.root, is_new=is_new)
    return files


Files = DurableFiles | ObjectFiles
