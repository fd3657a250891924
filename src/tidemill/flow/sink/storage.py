"""Where a sink's files lie: a local folder, or a bucket that speaks S3. One surface for both.

    parse_storage(uri) ─► StorageOptions ─► open_files ─► DurableFiles (local) | ObjectFiles (S3)

Both let a file appear whole or not at all: locally by a rename, in a bucket because an object is not there before
its upload has ended. A bucket has no folders, so those steps do nothing there; all the rest is the same, and
so are the sinks above. Parameters carry TiCDC's names. Secrets never show in a message, a log line or a ``repr``.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from tidemill.errors import SinkError, SinkUriError
from tidemill.flow.sink.durable import DurableFiles, open_root

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
    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme.lower().rpartition("+")[2] != "s3":
        return _local(parts.netloc, unquote(parts.path), given)
    for name in given:
        if name in _REFUSED:
            raise SinkUriError(f"sink URI parameter {name!r} is not supported: {_REFUSED[name]}. Take it out.")
    if "@" in parts.netloc:
        raise SinkUriError("an s3:// URI has no user and password. Use 'access-key' and 'secret-access-key'.")
    if not parts.netloc:
        raise SinkUriError("the sink URI names no bucket. Write s3://bucket/prefix.")
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
    if scheme not in ("http", "https") or not host.strip("/"):
        raise SinkUriError("sink URI parameter 'endpoint' must be a host, or http://host:port or https://host:port.")
    return f"{scheme}://{host.rstrip('/')}"


def _boolean(name: str, text: str) -> bool:
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise SinkUriError(f"sink URI parameter {name!r} must be true or false.")


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


class ObjectFiles:
    """Objects below a prefix of a bucket, with the surface of DurableFiles. An upload is durable when it ends."""

    def __init__(self, options: StorageOptions) -> None:
        self._options = options
        self.root = options.shown  # for messages

    def __reduce__(self) -> tuple[type["ObjectFiles"], tuple[StorageOptions]]:
        return type(self), (self._options,)

    def write(self, path: str, chunks: Iterable[Any], before_rename: Callable[[], None] | None = None) -> int:
        """Upload bytes as one object; it appears when the upload ends. ``before_rename`` may raise to prevent that."""
        content = pa.BufferOutputStream()
        for chunk in chunks:  # what goes wrong in making them is not ours to explain
            content.write(chunk)
        whole = content.getvalue()
        if before_rename is not None:
            before_rename()
        try:
            with self._filesystem.open_output_stream(self._path(path)) as stream:
                stream.write(whole)
        except (OSError, pa.ArrowException) as error:
            raise self._translate("write", path, error) from error
        return int(whole.size)

    def make_folder(self, path: str) -> None:
        """A bucket has no folders."""

    def sync_folder(self, path: str) -> None:
        """An object is durable, name and all, once it is there."""

    def remove(self, path: str) -> None:
        try:
            self._filesystem.delete_file(self._path(path))
        except FileNotFoundError:
            return
        except (OSError, pa.ArrowException) as error:
            raise self._translate("remove", path, error) from error

    def read(self, path: str) -> bytes | None:
        """The content; None if there is no such object."""
        try:
            with self._filesystem.open_input_stream(self._path(path)) as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise self._translate("read", path, error) from error

    def names(self, path: str) -> list[str]:
        """What lies directly below ``path``; nothing if nothing does."""
        return [info.base_name for info in self._list(path, is_deep=False)]

    def walk(self) -> Iterator[tuple[str, list[str]]]:
        """(folder, its files) of everything below the root."""
        found: dict[str, list[str]] = {}
        start = len(self._path("")) + 1
        for info in self._list("", is_deep=True):
            if info.is_file:
                folder, _, name = info.path[start:].rpartition("/")
                found.setdefault(folder or ".", []).append(name)
        yield from sorted(found.items())

    def check_access(self) -> None:
        """Raises SinkError unless objects can be written and removed again below the root."""
        self.write(".probe.tmp", [b"probe"])
        self.remove(".probe.tmp")

    @cached_property
    def _filesystem(self) -> pafs.FileSystem:
        try:
            return self._options.filesystem()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._translate("open", "", error) from error

    def _list(self, path: str, *, is_deep: bool) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self._path(path), allow_not_found=True, recursive=is_deep)
        try:
            return list(self._filesystem.get_file_info(selector))
        except (OSError, pa.ArrowException) as error:
            raise self._translate("list", path, error) from error

    def _path(self, path: str) -> str:
        return "/".join([self._options.root, *(part for part in path.split("/") if part not in ("", "."))])

    def _translate(self, what: str, path: str, error: Exception) -> SinkError:
        return SinkError(
            f"cannot {what} s3://{self._path(path)}: {_reason(error)}, then start again; "
            "the changefeed goes on from its checkpoint and nothing is lost."
        )


_REASONS = (
    ("ACCESS_DENIED", "access is denied. Give this user the rights to read, write, list and delete there"),
    ("INVALID_ACCESS_KEY_ID", "the access key is not known. Check 'access-key', or the environment's credentials"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret does not fit the access key. Check 'secret-access-key'"),
    ("NO_SUCH_BUCKET", "there is no such bucket. Create it, or correct its name"),
    ("NETWORK_CONNECTION", "nobody answers. Check 'endpoint' and the network"),
    ("EXPIRED_TOKEN", "the session has expired. Give a new 'session-token'"),
)


def _reason(error: Exception) -> str:
    """What the store says, in our words: its own text may quote a request."""
    text = str(error)
    for word, meaning in _REASONS:
        if word in text or word.replace("_", "").lower() in text.lower():
            return meaning
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return "there is no such bucket. Create it, or correct its name"
    code = text.partition("AWS Error ")[2].split(" ")[0]
    return f"the store refused{f' with {code}' if code else ''}. See what it says of it"


Files = DurableFiles | ObjectFiles
