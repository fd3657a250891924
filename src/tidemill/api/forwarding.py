"""What only the owner can answer is passed on to it by whichever capture was asked.

    client ──► capture ── the same request, who passed it on, how often ──► owner

A request that was passed on too often is refused: captures then do not agree on who the owner is.
"""

import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import quote

import httpx
from fastapi import Request, Response
from fastapi.routing import APIRoute

from tidemill.api.operations import Operations
from tidemill.errors import ForwardError, OwnerNotFoundError
from tidemill.log import get_logger

log = get_logger("api")

BY_HEADER = "TiCDC-ForwardFromCapture"
TIMES_HEADER = "TiCDC-ForwardTimes"
_MOST_TIMES = 2
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 120.0  # a changefeed that is removed is waited for
# Of a connection, not of what is sent over it.
_HOP_HEADERS: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "host", "content-length", "content-encoding", "date", "server",
    }
)  # fmt: skip


class Forwarder:
    """``tls``: what this capture shows to others, and trusts of them, where the API is served over TLS."""

    def __init__(self, operations: Operations, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._operations = operations
        self._tls = tls

    async def forward(self, request: Request) -> Response | None:
        """The owner's answer; None where we are the owner ourselves. Raises NotReadyError, OwnerNotFoundError and
        ForwardError."""
        await self._operations.server.check_ready()
        status = await self._operations.server.status()
        if status.is_owner:
            return None
        owner = await self._operations.server.owner()
        if owner is None:
            raise OwnerNotFoundError("no capture is the owner at the moment. Ask again in some seconds.")
        if owner.id == status.id:
            return None
        times = _times(request)
        if times > _MOST_TIMES:
            raise ForwardError(
                f"the request was passed on {times} times without reaching the owner: captures do not agree on who "
                "that is. Ask again in some seconds."
            )
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        headers |= {BY_HEADER: status.id, TIMES_HEADER: str(times + 1)}
        scheme = "https" if self._tls else "http"
        url = httpx.URL(f"{scheme}://{owner.address}").copy_with(raw_path=_target(request))
        verify: ssl.SSLContext | bool = self._tls() if self._tls else False  # no TLS at all: spare it the authorities
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        try:
            async with httpx.AsyncClient(verify=verify, timeout=timeout, trust_env=False) as client:
                answer = await client.request(request.method, url, headers=headers, content=await request.body())
        except httpx.HTTPError as error:
            log.warning("cannot pass a request on to the owner", owner=owner.address, reason=type(error).__name__)
            raise ForwardError(
                f"the owner, capture {owner.id} at {owner.address}, did not answer. Ask again in some seconds; "
                "another owner is elected where it has died."
            ) from error
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_HEADERS}
        return Response(answer.content, answer.status_code, kept)


def owner_route(forwarder: Forwarder) -> type[APIRoute]:
    """The class of routes that the owner answers."""

    class OwnerRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def handle(request: Request) -> Response:
                forwarded = await forwarder.forward(request)
                return forwarded if forwarded is not None else await answer(request)

            return handle

    return OwnerRoute


def _target(request: Request) -> bytes:
    """Path and query as they came."""
    path: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    query: bytes = request.scope["query_string"]
    return path.partition(b"?")[0] + (b"?" + query if query else b"")


def _times(request: Request) -> int:
    text = request.headers.get(TIMES_HEADER, "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else _MOST_TIMES + 1
