"""The application: every path of the API, its errors, and who is let in."""

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tidemill.api import faults, v1, v2
from tidemill.api.access import Authentication, BoundedBodies, SameSite, UsersFile
from tidemill.api.bodies import ChangefeedBody, PdConfig, ResumeBody
from tidemill.api.forwarding import Forwarder
from tidemill.api.operations import Operations
from tidemill.api.scraping import Metrics
from tidemill.errors import TidemillError, UsageError, suggestion

_FIELDS = {*ChangefeedBody.model_fields, *PdConfig.model_fields, *ResumeBody.model_fields}
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    operations: Operations,
    *,
    forwarder: Forwarder | None = None,
    users: UsersFile | None = None,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> FastAPI:
    """``metrics`` gives what ``/metrics`` answers, in Prometheus' text format; None: what the port can tell."""
    app = FastAPI(
        title="Tidemill",
        summary="The Open API of a capture, as TiCDC has it",
        version=version("tidemill"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            TidemillError: _on_error,
            RequestValidationError: _on_invalid,
            HTTPException: _on_http,
            Exception: _on_unexpected,
        },
    )
    forwards = forwarder or Forwarder(operations)
    for router in (*v2.routers(operations, forwards), *v1.routers(operations, forwards)):
        app.include_router(router)
    read = metrics or Metrics(operations).read
    app.add_api_route("/metrics", _metrics(read), response_model=None, summary="Metrics for Prometheus")
    app.add_middleware(Authentication, users=users)
    app.add_middleware(SameSite)
    app.add_middleware(BoundedBodies)
    return app


def _metrics(read: Callable[[], Awaitable[bytes]]) -> Callable[[], Awaitable[Response]]:
    async def metrics() -> Response:
        return Response(await read(), media_type=_METRICS_TYPE)

    return metrics


async def _on_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, TidemillError):
        return await _on_unexpected(request, error)
    status = faults.status_of(error)
    if status == 500 and not error.retryable:
        faults.log.error("a request failed", path=request.url.path, code=error.code, reason=str(error))
    return JSONResponse(faults.document_of(error), status)


async def _on_invalid(request: Request, error: Exception) -> Response:
    found = error.errors()[0] if isinstance(error, RequestValidationError) and error.errors() else {}
    return JSONResponse(faults.document_of(UsageError(_what_is_invalid(found))), 400)


def _what_is_invalid(found: dict[str, Any]) -> str:
    place = [str(part) for part in found.get("loc", ())]
    where = ".".join(place[1:]) or "the body"
    match found.get("type"):
        case "extra_forbidden":
            return f"{where!r} is unknown.{suggestion(place[-1], _FIELDS)}"
        case "missing":
            return f"{where!r} is missing."
        case "json_invalid":
            return "the body is not JSON."
        case _:
            return f"{where!r} cannot be used: {str(found.get('msg', '')).lower()}."


async def _on_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {404: "there is no such path", 405: "this path is not for that method"}.get(status, "the request is refused")
    code = UsageError.cdc_code
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(faults.body_of(f"[{code}]{text}: {request.method} {request.url.path}", code), status, headers)


async def _on_unexpected(_: Request, error: Exception) -> Response:
    return JSONResponse(faults.unexpected(error), 500)
