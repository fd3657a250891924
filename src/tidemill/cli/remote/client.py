"""A capture's API, asked over HTTP. What it refuses, and its absence, are errors of ours, in words for people."""

import json
import re
import ssl
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from tidemill.certificates import load_files
from tidemill.errors import OperationError, UpstreamUnavailableError, UsageError
from tidemill.model.security import PLAIN, Security

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 150.0  # a changefeed that is removed is waited for
_SERVER = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_CODE = re.compile(r"^\[CDC:\w+\]")
# What a user has to write otherwise; whatever else is refused may be right at another time.
_MISUSED = frozenset(
    {"CDC:ErrAPIInvalidParam", "CDC:ErrSinkURIInvalid", "CDC:ErrFilterRuleInvalid", "CDC:ErrTargetTsBeforeStartTs"}
)
_TLS_TROUBLE = "Check --ca, --cert and --key, and that the address is the one in its certificate."


class RefusedError(OperationError):
    """The server's own words; ``server_code`` is TiCDC's."""

    code = "refused"

    def __init__(self, message: str, server_code: str) -> None:
        self.server_code = server_code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Access:
    server: str
    security: Security = PLAIN
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


class Api:
    """Raises UpstreamUnavailableError where nobody answers, UsageError and RefusedError for what is refused."""

    def __init__(self, access: Access) -> None:
        self.server = _base(access)
        verify: ssl.SSLContext | bool = False  # plain text: no authority is loaded
        if self.server.startswith("https"):
            verify = _context(access.security)
        auth = httpx.BasicAuth(access.user, access.password) if access.user else None
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        self._client = httpx.Client(
            base_url=self.server, verify=verify, auth=auth, headers=headers, timeout=timeout, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **query: str) -> Any:
        return self._ask("GET", path, query, None)

    def post(self, path: str, body: Any = None, **query: str) -> Any:
        return self._ask("POST", path, query, {} if body is None else body)

    def put(self, path: str, body: Any, **query: str) -> Any:
        return self._ask("PUT", path, query, body)

    def delete(self, path: str, **query: str) -> Any:
        return self._ask("DELETE", path, query, None)

    def _ask(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        try:
            answer = self._client.request(method, path, params=query, json=body)
        except httpx.TimeoutException as error:
            raise UpstreamUnavailableError(
                f"{self.server} does not answer in time. Check that the capture runs and can be reached."
            ) from error
        except httpx.TransportError as error:
            raise _explained(self.server, error) from error
        if answer.is_success:
            return self._read(answer)
        raise self._refusal(answer)

    def _read(self, answer: httpx.Response) -> Any:
        try:
            return answer.json() if answer.content else {}
        except ValueError as error:
            raise self._stranger() from error

    def _refusal(self, answer: httpx.Response) -> Exception:
        try:
            document = answer.json()
            message, code = str(document["error_msg"]), str(document["error_code"])
        except (ValueError, KeyError, TypeError):
            return self._stranger()
        said = _CODE.sub("", message)
        if answer.status_code == 401:
            return RefusedError(
                f"{self.server} does not let us in: {said} Give --user and --password, or --token.", code
            )
        return UsageError(said) if code in _MISUSED else RefusedError(said, code)

    def _stranger(self) -> Exception:
        return UpstreamUnavailableError(
            f"what answers at {self.server} is no capture. Give the address of one with --server."
        )


def _base(access: Access) -> str:
    text = access.server.rstrip("/")
    if "://" not in text:
        text = f"{'https' if access.security.is_tls else 'http'}://{text}"
    if not _SERVER.fullmatch(text):
        raise UsageError("--server must be http://HOST:PORT or https://HOST:PORT, of any capture of the cluster.")
    if text.startswith("http:") and access.security.is_tls:
        raise UsageError("--server is http://, but certificates are given: write https://, or leave them out.")
    return text


def _context(security: Security) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if security.is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_files(context, security)
    return context


def _explained(server: str, error: httpx.TransportError) -> UpstreamUnavailableError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UpstreamUnavailableError(
                f"cannot trust {server}: {cause.verify_message or 'its certificate is refused'}. {_TLS_TROUBLE}"
            )
        if isinstance(cause, ssl.SSLError):
            return UpstreamUnavailableError(f"no TLS with {server}: {cause.reason or 'refused'}. {_TLS_TROUBLE}")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        return UpstreamUnavailableError(
            f"no capture answers at {server}. Start one with tidemill server, or give another's address with --server."
        )
    return UpstreamUnavailableError(
        f"{server} hung up. It may want https:// with --ca, --cert and --key, or is just stopping."
    )


def dumped(document: Any) -> str:
    """For machines, indented as TiCDC's client does."""
    return json.dumps(document, indent=2, ensure_ascii=False)
