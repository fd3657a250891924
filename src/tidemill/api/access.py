"""Who may ask a capture for what, before anything else looks at a request.

    connection ──► BoundedBodies ──► SameSite ──► Authentication ──► the application

Users and tokens are in a private file, a line each: ``NAME:PASSWORD`` for HTTP's basic authentication, or a ``TOKEN``
alone for a bearer's. The file is read again when it has changed. Without a file nobody is asked for anything.
Credentials are compared in a time that tells nothing of them.
"""

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.api.faults import body_of
from tidemill.errors import UnauthorizedError, UsageError
from tidemill.log import get_logger
from tidemill.private import is_open_to_others

log = get_logger("api")

MOST_BODY_BYTES = 1 << 20
_LEAST_SECRET = 8
_OPEN_PATHS = frozenset({"/api/v1/health", "/api/v2/health"})  # they tell nothing else
_WANTED = "credentials are wanted: give a user and password, or a token, that the captures' users file has."


@dataclass(frozen=True, slots=True)
class Users:
    """Digests of what may be given: ``NAME:PASSWORD`` and tokens. Equal lengths, so comparing tells nothing."""

    basic: tuple[bytes, ...] = ()
    tokens: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Users":
        """Raises UsageError, which shows nothing of what is in there."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            is_open = is_open_to_others(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(f"cannot read the users file {path}: {reason}. Check the path and its rights.") from None
        if is_open:
            raise UsageError(f"the users file {path} is open to other users of this machine. Say: chmod 600 {path}")
        basic, tokens = list[bytes](), list[bytes]()
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, colon, secret = text.partition(":")
            if len(secret if colon else name) < _LEAST_SECRET or (colon and not name):
                raise UsageError(
                    f"the users file {path}, line {number}: it must be NAME:PASSWORD or a TOKEN, with at least "
                    f"{_LEAST_SECRET} characters in what is secret."
                )
            (basic if colon else tokens).append(_digest(text.encode()))
        if not basic and not tokens:
            raise UsageError(f"the users file {path} has nobody in it. Add a line NAME:PASSWORD, or a TOKEN.")
        return cls(tuple(basic), tuple(tokens))

    def admit(self, authorization: str) -> bool:
        """Whether somebody may have sent this header."""
        kind, _, given = authorization.partition(" ")
        match kind.lower():
            case "basic":
                try:
                    return _is_one_of(base64.b64decode(given.strip(), validate=True), self.basic)
                except (binascii.Error, ValueError):
                    return False
            case "bearer":
                return _is_one_of(given.strip().encode(), self.tokens)
            case _:
                return False


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


def _is_one_of(secret: bytes, known: Sequence[bytes]) -> bool:
    """Looks at all of them whatever it finds."""
    given, found = _digest(secret), False
    for each in known:
        found |= hmac.compare_digest(given, each)
    return found


class UsersFile:
    """Read again when it has changed; while it cannot be read, what it last said holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._users = Users.read(path)

    def users(self) -> Users:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._users = Users.read(self._path)
                log.info("the users file was read again", path=str(self._path))
            except UsageError as error:
                log.error("the users file cannot be used; its last content holds", reason=str(error))
        return self._users

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class Authentication:
    def __init__(self, app: ASGIApp, users: UsersFile | None) -> None:
        self._app, self._users = app, users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._users is not None and scope["path"] not in _OPEN_PATHS:
            given = _header(scope, b"authorization")
            if not self._users.users().admit(given):
                code = "CDC:ErrCredentialNotFound" if not given else UnauthorizedError.cdc_code
                headers = [(b"www-authenticate", b'Basic realm="tidemill", charset="UTF-8"')]
                await _refuse(send, 401, f"[{code}]{_WANTED}", code, headers)
                return
        await self._app(scope, receive, send)


class SameSite:
    """A browser that shows a page of another site must not ask a capture that listens on the loopback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            origin = _header(scope, b"origin")
            if origin and _authority(origin) != _header(scope, b"host").lower():
                code = UnauthorizedError.cdc_code
                await _refuse(send, 403, f"[{code}]a page of another site may not ask a capture.", code)
                return
        await self._app(scope, receive, send)


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class BoundedBodies:
    """No request is larger than ``most_bytes``, whether it says so or not."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BODY_BYTES) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = _header(scope, b"content-length")
        if said.isdecimal() and int(said[:20]) > self._most_bytes:
            await self._refuse(send)
            return
        body = b""
        while True:  # read whole here: what follows never sees a part of it
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > self._most_bytes:
                await self._refuse(send)
                return
            if not message.get("more_body", False):
                break
        is_given = False

        async def again() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    async def _refuse(self, send: Send) -> None:
        code = "CDC:ErrAPIInvalidParam"
        await _refuse(send, 413, f"[{code}]a request has {self._most_bytes} bytes at most.", code)


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _refuse(
    send: Send, status: int, message: str, code: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    content = json.dumps(body_of(message, code)).encode()
    given = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": content})
