"""A Confluent schema registry for tests, over real HTTP on loopback: its API as far as producers and readers of Avro
use it, with failures on request.

    with StandInRegistry() as registry:
        registry.uri                                   # http://127.0.0.1:41234
        registry.fail_next(503, times=2)               # the next two requests
        registry.refused.add("shop_item-value")        # 409, incompatible
        registry.schemas["shop_item-value"]            # numbers of what is registered there
"""

import base64
import json
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

_TYPE = "application/vnd.schemaregistry.v1+json"
_HANGS_UP = 0  # a status: the connection ends without an answer


class _RefusalError(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class StandInRegistry:
    """``credentials``: user and password that requests have to carry. ``tls``: a server's context."""

    credentials: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    schemas: dict[str, list[int]] = field(default_factory=dict)  # numbers by subject, one per version
    texts: dict[int, str] = field(default_factory=dict)  # schemas by number
    refused: set[str] = field(default_factory=set)  # subjects that take no new schema
    requests: list[tuple[str, str]] = field(default_factory=list)  # method and path of each

    def __post_init__(self) -> None:
        self._failures: list[int] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def uri(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._server.server_port}"

    def fail_next(self, status: int = _HANGS_UP, times: int = 1) -> None:
        """Answer the next requests with ``status``; 0: hang up on them."""
        with self._lock:
            self._failures += [status] * times

    def answer(self, method: str, path: str, authorization: str | None, body: bytes) -> tuple[int, Any]:
        with self._lock:
            self.requests.append((method, path))
            if self._failures:
                status = self._failures.pop(0)
                return status, {"error_code": 50001, "message": "failed on request"}
            try:
                self._check(authorization)
                return 200, self._route(method, path, body)
            except _RefusalError as refusal:
                return refusal.status, {"error_code": refusal.code, "message": str(refusal)}

    def _check(self, authorization: str | None) -> None:
        if self.credentials is not None:
            wanted = "Basic " + base64.b64encode(":".join(self.credentials).encode()).decode()
            if authorization != wanted:
                raise _RefusalError(401, 40101, "Unauthorized")

    def _route(self, method: str, path: str, body: bytes) -> Any:
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", r"/", dict),
            ("GET", r"/subjects", lambda: sorted(self.schemas)),
            ("POST", r"/subjects/([^/]+)/versions", lambda subject: self._register(unquote(subject), body)),
            ("GET", r"/subjects/([^/]+)/versions", lambda subject: self._versions(unquote(subject))),
            ("GET", r"/schemas/ids/(\d+)", lambda number: {"schema": self._text(int(number))}),
        ]
        for verb, pattern, act in routes:
            found = re.fullmatch(pattern, path)
            if verb == method and found:
                return act(*found.groups())
        raise _RefusalError(404, 404, "HTTP 404 Not Found")

    def _register(self, subject: str, body: bytes) -> dict[str, int]:
        try:
            text = json.loads(body)["schema"]
            json.loads(text)
        except (ValueError, KeyError, TypeError):
            raise _RefusalError(422, 42201, "Invalid schema") from None
        known = self.schemas.get(subject, [])
        same = next((number for number, other in self.texts.items() if other == text), None)
        if same in known:
            return {"id": same}
        if subject in self.refused:
            raise _RefusalError(409, 409, f"Schema being registered is incompatible with an earlier one of {subject}")
        number = same if same is not None else len(self.texts) + 1
        self.texts[number] = text
        self.schemas.setdefault(subject, []).append(number)
        return {"id": number}

    def _versions(self, subject: str) -> list[int]:
        if subject not in self.schemas:
            raise _RefusalError(404, 40401, f"Subject '{subject}' not found.")
        return list(range(1, len(self.schemas[subject]) + 1))

    def _text(self, number: int) -> str:
        if number not in self.texts:
            raise _RefusalError(404, 40403, f"Schema {number} not found")
        return self.texts[number]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, document = registry.answer(self.command, self.path, self.headers.get("Authorization"), body)
                if status == _HANGS_UP:
                    self.close_connection = True
                    return
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Not to standard error."""

        return Handler
