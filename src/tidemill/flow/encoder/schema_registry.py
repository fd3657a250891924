"""A Confluent schema registry, asked over HTTP for the number of a schema, and for the schema of a number.

    POST /subjects/{subject}/versions {"schema": "…"}  ──►  {"id": 42}
    GET  /schemas/ids/42                               ──►  {"schema": "…"}

The same schema under the same subject has the same number always, so a process asks once for each and keeps the answer.
What the registry refuses (4xx) is an error at once. What may pass is tried again for half a minute; after that whoever
runs the sink tries again. Messages name the registry without its password. Runs on executors; ``check`` on the owner.
"""

import base64
import http.client
import json
import random
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from tidemill.certificates import load_files
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import SinkError, SinkUnavailableError, SinkUriError
from tidemill.model.security import Security
from tidemill.retry import Policy

_POLICY = Policy(first_pause_seconds=0.1, longest_pause_seconds=10.0, deadline_seconds=30.0)
_TIMEOUT_SECONDS = 10.0
_MOST_KNOWN = 1 << 16
_LARGEST_ANSWER = 1 << 20
_NO_SUCH_SCHEMA = 40403
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def registry_uri(text: str) -> str:
    """``text``, if it is the address of a registry; raises ValueError with what is wanted."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise ValueError("an address such as http://user:password@host:8081, without parameters")
    return text


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where the registry is and how to speak to it. It opens its connections when it is asked."""

    uri: str = field(repr=False)
    security: Security = field(default_factory=Security)
    policy: Policy = _POLICY
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)
    pause: Callable[[float], Any] = field(default_factory=lambda: threading.Event().wait, repr=False, compare=False)

    @property
    def name(self) -> str:
        """For people: without user and password."""
        parts = self._parts
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path.rstrip('/')}"

    def check(self) -> None:
        """Raises SinkError where nobody answers, or somebody who is no schema registry."""
        answer = self._ask("GET", "", None, "reach")
        if answer != {}:
            raise SinkError(
                f"{self.name} answers, but not as a schema registry does. Check the address in schema-registry."
            )

    def number_of(self, subject: str, schema: str) -> int:
        """The number of ``schema`` under ``subject``; where it is new, it is registered."""
        key = (self.uri, subject, sha256(schema.encode()).digest())
        with _LOCK:
            known = _KNOWN.get(key)
            if known is not None:
                _KNOWN.move_to_end(key)
                return known
        number = self._register(subject, schema)
        with _LOCK:
            _KNOWN[key] = number
            while len(_KNOWN) > _MOST_KNOWN:
                _KNOWN.popitem(last=False)
        return number

    def schema(self, number: int) -> str:
        """The schema of this number, as JSON; asked for each time. Raises LookupError if there is none."""
        answer = self._ask("GET", f"/schemas/ids/{number}", None, f"look up schema {number} in")
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise SinkError(
                f"{self.name} answers, but not as a schema registry does. Check the address in schema-registry."
            )
        return str(answer["schema"])

    def _register(self, subject: str, schema: str) -> int:
        body = json.dumps({"schema": schema}).encode()
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._ask("POST", path, body, f"register the schema of {subject!r} at")
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int) or not 0 < number < 1 << 31:
            raise SinkError(
                f"schema registry {self.name} answers without the number of the schema of {subject!r}. "
                "Check the address in schema-registry."
            )
        return number

    def _ask(self, method: str, path: str, body: bytes | None, doing: str) -> Any:
        begin, failures = self.clock.monotonic(), 0
        while True:
            try:
                return self._ask_once(method, path, body, doing)
            except SinkUnavailableError:
                failures += 1
                pause = self.policy.pause_seconds(failures, random)
                if self.policy.gives_up(failures, self.clock.monotonic() - begin + pause):
                    raise
                self.pause(pause)

    def _ask_once(self, method: str, path: str, body: bytes | None, doing: str) -> Any:
        connection = self._connection()
        try:
            connection.request(method, self._parts.path.rstrip("/") + (path or "/"), body, self._headers())
            response = connection.getresponse()
            status, data = response.status, response.read(_LARGEST_ANSWER)
        except ssl.SSLCertVerificationError as error:
            raise SinkError(
                f"cannot {doing} schema registry {self.name}: its certificate is not trusted "
                f"({error.verify_message}). Give the certificate of its authority in schema-registry-ca."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise SinkUnavailableError(
                f"cannot {doing} schema registry {self.name}: {_reason(error)}. Start it, or correct schema-registry."
            ) from None
        finally:
            connection.close()
        return self._read(status, data, doing)

    def _read(self, status: int, data: bytes, doing: str) -> Any:
        if status >= 500:
            raise SinkUnavailableError(
                f"cannot {doing} schema registry {self.name}: it answers {status} ({_said(data)}). "
                "See what its own log says."
            )
        if status == 404 and _code(data) == _NO_SUCH_SCHEMA:
            raise LookupError(f"schema registry {self.name} has no such schema")
        if status != 200:
            raise SinkError(
                f"cannot {doing} schema registry {self.name}: it refuses with {status} ({_said(data)}). "
                f"{_advice(status)}"
            )
        try:
            return json.loads(data)
        except ValueError:
            raise SinkError(
                f"{self.name} answers, but not as a schema registry does. Check the address in schema-registry."
            ) from None

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.uri)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
        context = ssl.create_default_context()
        if self.security.is_tls:
            load_files(context, self.security)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=context)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT, "Content-Type": _CONTENT_TYPE}
        parts = self._parts
        if parts.username is not None:
            both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(both.encode()).decode()
        return headers


_KNOWN: OrderedDict[tuple[str, str, bytes], int] = OrderedDict()  # numbers, of this process
_LOCK = threading.Lock()


def forget() -> None:
    """All numbers that this process knows: for tests, whose registries come and go."""
    with _LOCK:
        _KNOWN.clear()


def require_registry(uri: str) -> None:
    if not uri:
        raise SinkUriError(
            "protocol avro needs a schema registry. Add schema-registry=http://host:8081 to the sink URI."
        )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _said(data: bytes) -> str:
    """The registry's own words, cut short."""
    try:
        message = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        return "without saying why"
    return str(message)[:300]


def _code(data: bytes) -> int | None:
    try:
        code = json.loads(data)["error_code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None


def _advice(status: int) -> str:
    if status in (401, 403):
        return "Check user and password in schema-registry."
    if status == 409:
        return "Relax the subject's compatibility (NONE fits any DDL), or let the changefeed leave the table out."
    if status == 404:
        return "Check the address in schema-registry."
    return "See what its own log says."
