"""As much of HTTP/1.1 as PD's few paths need: reading requests from bytes, writing answers. Pure.

Bodies come with a Content-Length. Everything has a bound, and what is not understood is refused
with the status that says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_HEAD_BYTES = 32 << 10
MAX_BODY_BYTES = 8 << 20

_END = b"\r\n\r\n"
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class BadRequest(Exception):
    """The connection cannot go on: the bytes are no request that is served."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str  # percent signs decoded, without the query
    query: Mapping[str, str] = field(default_factory=dict)  # a byte is a character (latin-1); the last of a name counts
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes = b""
    content_type: str = "application/json"

    def encode(self, *, keep_alive: bool, head_only: bool = False) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
        ]
        if not keep_alive:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode("ascii") + _END
        return head if head_only else head + self.body


@dataclass(frozen=True, slots=True)
class _Head:
    request: HttpRequest
    body_bytes: int
    keep_alive: bool
    expects_continue: bool


class RequestReader:
    """Bytes of one connection in, whole requests out."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: _Head | None = None
        self._continued = False
        self.keep_alive = True  # of the request given out last
        self.is_busy = False  # the caller's: a request is being answered

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> HttpRequest | None:
        """The next request if all of it is there; ``BadRequest`` if it never will be."""
        if self._head is None:
            end = self._data.find(_END)
            if (end < 0 and len(self._data) > MAX_HEAD_BYTES) or end > MAX_HEAD_BYTES:
                raise BadRequest(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"headers above {MAX_HEAD_BYTES} bytes are not read"
                )
            if end < 0:
                return None
            self._head = _parse_head(bytes(self._data[:end]))
            self._continued = False
            del self._data[: end + len(_END)]
        head = self._head
        if len(self._data) < head.body_bytes:
            return None
        body = bytes(self._data[: head.body_bytes])
        del self._data[: head.body_bytes]
        self._head = None
        self.keep_alive = head.keep_alive
        return HttpRequest(head.request.method, head.request.path, head.request.query, body)

    def wants_continue(self) -> bool:
        """Whether the client waits to be told to send the body; true once per request."""
        if self._head is None or not self._head.expects_continue or self._continued:
            return False
        self._continued = True
        return True


def _parse_head(data: bytes) -> _Head:
    lines = data.lstrip(b"\r\n").split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or not parts[0] or not set(parts[0]) <= _TOKEN:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the first line is not 'METHOD target HTTP/1.1'")
    version = parts[2]
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 and, for gRPC, HTTP/2 are served here")
    headers = _parse_headers(lines[1:])
    if version == b"HTTP/1.1" and "host" not in headers:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the Host header is missing")
    if "transfer-encoding" in headers:
        raise BadRequest(HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length")
    tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    keep_alive = "keep-alive" in tokens if version == b"HTTP/1.0" else "close" not in tokens
    expects = version == b"HTTP/1.1" and headers.get("expect", "").lower() == "100-continue"
    return _Head(_parse_target(parts[0], parts[1]), _body_bytes(headers), keep_alive, expects)


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or not set(name) <= _TOKEN:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header line is not 'Name: value'")
        key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if key in headers and key in ("content-length", "host") and headers[key] != text:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"there are two different {key} headers")
        headers[key] = text
    return headers


def _parse_target(method: bytes, target: bytes) -> HttpRequest:
    if not target.isascii():
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the target must be percent-encoded")
    try:
        parts = urlsplit(target.decode("ascii"))
        path = unquote(parts.path, errors="strict")
        query = dict(parse_qsl(parts.query, keep_blank_values=True, encoding="latin-1"))
    except ValueError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"the target cannot be read: {error}") from error
    if not path.startswith("/"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the target has no path")
    return HttpRequest(method.decode("ascii"), path, query)


def _body_bytes(headers: dict[str, str]) -> int:
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"Content-Length {text[:20]!r} is not a number")
    if len(text) > 18 or int(text) > MAX_BODY_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"bodies above {MAX_BODY_BYTES} bytes are not read")
    return int(text)
