"""What is left of TiCDC's API of version 1, at ``/api/v1``, and the paths without a version.

Those that name a changefeed mean one of the namespace ``default``; lists are of all.
"""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from tidemill.api import actions, wire
from tidemill.api.bodies import DrainBody, LogBody, MoveTableBody, V1ChangefeedBody
from tidemill.api.checking import capture_id_of, key_of
from tidemill.api.forwarding import Forwarder, owner_route
from tidemill.api.operations import Operations
from tidemill.api.shapes import Empty, Remaining, ServerStatusBody
from tidemill.api.v2 import ERRORS, log_level_of, ok
from tidemill.errors import UsageError
from tidemill.model.cluster import DEFAULT_NAMESPACE, ChangefeedInfo
from tidemill.model.schedule import ChangefeedKey, TableId

_ACCEPTED = 202
_FORM = {"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}}}


def routers(operations: Operations, forwarder: Forwarder) -> tuple[APIRouter, APIRouter]:
    """What the owner answers, and what any capture does."""
    owners = APIRouter(route_class=owner_route(forwarder), responses=ERRORS, tags=["v1"])
    anyones = APIRouter(responses=ERRORS, tags=["v1"])
    _changefeeds(owners, operations)
    _tables_and_captures(owners, operations)
    _forms(owners, operations)
    _server(anyones, operations)
    return owners, anyones


def _key(changefeed_id: str) -> ChangefeedKey:
    return key_of(DEFAULT_NAMESPACE, changefeed_id)


def _detail(info: ChangefeedInfo) -> dict[str, Any]:
    document = wire.detail(info)
    return {
        **wire.common(info),
        "sink_uri": document["sink_uri"],
        "create_time": document["create_time"],
        "start_ts": info.start_ts,
        "resolved_ts": info.resolved_ts,
        "target_ts": info.target_ts,
        "sort_engine": "unified",
        "error_history": None,
        "creator_version": info.creator_version,
        "task_status": document.get("task_status", []),
    }


def _changefeeds(router: APIRouter, operations: Operations) -> None:
    feeds = operations.changefeeds

    @router.get("/api/v1/changefeeds", response_model=list[dict[str, Any]])
    async def v1_list_changefeeds(state: str = "") -> JSONResponse:
        return ok([wire.common(info) for info in actions.of_state(await feeds.all(), state)])

    @router.get("/api/v1/changefeeds/{changefeed_id}", response_model=dict[str, Any])
    async def v1_get_changefeed(changefeed_id: str) -> JSONResponse:
        return ok(_detail(await feeds.get(_key(changefeed_id))))

    @router.post("/api/v1/changefeeds", status_code=_ACCEPTED, response_model=Empty)
    async def v1_create_changefeed(body: V1ChangefeedBody) -> JSONResponse:
        await actions.create(operations, DEFAULT_NAMESPACE, body)
        return ok(status=_ACCEPTED)

    @router.put("/api/v1/changefeeds/{changefeed_id}", status_code=_ACCEPTED, response_model=Empty)
    async def v1_update_changefeed(changefeed_id: str, body: V1ChangefeedBody) -> JSONResponse:
        await actions.update(operations, _key(changefeed_id), body)
        return ok(status=_ACCEPTED)

    @router.delete("/api/v1/changefeeds/{changefeed_id}", status_code=_ACCEPTED, response_model=Empty)
    async def v1_remove_changefeed(changefeed_id: str) -> JSONResponse:
        await feeds.remove(_key(changefeed_id))
        return ok(status=_ACCEPTED)

    @router.post("/api/v1/changefeeds/{changefeed_id}/pause", status_code=_ACCEPTED, response_model=Empty)
    async def v1_pause_changefeed(changefeed_id: str) -> JSONResponse:
        await feeds.pause(_key(changefeed_id))
        return ok(status=_ACCEPTED)

    @router.post("/api/v1/changefeeds/{changefeed_id}/resume", status_code=_ACCEPTED, response_model=Empty)
    async def v1_resume_changefeed(changefeed_id: str) -> JSONResponse:
        await feeds.resume(_key(changefeed_id))
        return ok(status=_ACCEPTED)

    @router.post(
        "/api/v1/changefeeds/{changefeed_id}/tables/rebalance_table", status_code=_ACCEPTED, response_model=Empty
    )
    async def v1_rebalance(changefeed_id: str) -> JSONResponse:
        await feeds.rebalance(_key(changefeed_id))
        return ok(status=_ACCEPTED)

    @router.post("/api/v1/changefeeds/{changefeed_id}/tables/move_table", status_code=_ACCEPTED, response_model=Empty)
    async def v1_move_table(changefeed_id: str, body: MoveTableBody) -> JSONResponse:
        await feeds.move_table(_key(changefeed_id), TableId(body.table_id), capture_id_of(body.capture_id))
        return ok(status=_ACCEPTED)


def _tables_and_captures(router: APIRouter, operations: Operations) -> None:
    @router.get("/api/v1/processors", response_model=list[dict[str, Any]])
    async def v1_list_processors() -> JSONResponse:
        return ok([wire.processor(each) for each in await operations.cluster.processors()])

    @router.get("/api/v1/processors/{changefeed_id}/{capture_id}", response_model=dict[str, Any])
    async def v1_get_processor(changefeed_id: str, capture_id: str) -> JSONResponse:
        info = await operations.changefeeds.get(_key(changefeed_id))
        tables = await operations.changefeeds.tables(info.key, capture_id_of(capture_id))
        return ok({
            "checkpoint_ts": info.checkpoint_ts,
            "resolved_ts": info.resolved_ts,
            **wire.tables_of(tables),
            "error": wire.running_error(info.error),
        })  # fmt: skip

    @router.get("/api/v1/captures", response_model=list[dict[str, Any]])
    async def v1_list_captures() -> JSONResponse:
        return ok([wire.capture(each) for each in await operations.cluster.captures()])

    @router.put("/api/v1/captures/drain", status_code=_ACCEPTED, response_model=Remaining)
    async def v1_drain(body: DrainBody) -> JSONResponse:
        return ok({"current_table_count": await operations.cluster.drain(capture_id_of(body.capture_id))}, _ACCEPTED)

    @router.post("/api/v1/owner/resign", status_code=_ACCEPTED, response_model=Empty)
    async def v1_resign() -> JSONResponse:
        await operations.cluster.resign()
        return ok(status=_ACCEPTED)

    @router.get("/api/v1/health", response_model=None)
    async def v1_health() -> PlainTextResponse:
        await operations.cluster.check_health()
        return PlainTextResponse("")


def _forms(router: APIRouter, operations: Operations) -> None:
    """``admin-job``: 1 pauses, 2 resumes, 3 removes."""
    feeds = operations.changefeeds

    @router.post("/capture/owner/resign", response_model=dict[str, Any])
    async def form_resign() -> JSONResponse:
        await operations.cluster.resign()
        return _done()

    @router.post("/capture/owner/admin", response_model=dict[str, Any], openapi_extra=_FORM)
    async def form_admin(request: Request) -> JSONResponse:
        form = await _form_of(request)
        key = _key(form.get("cf-id", ""))
        match form.get("admin-job"):
            case "1":
                await feeds.pause(key)
            case "2":
                await feeds.resume(key)
            case "3":
                await feeds.remove(key)
            case other:
                raise UsageError(
                    f"admin-job {(other or '')[:20]!r} is unknown. Use 1 to pause, 2 to resume, 3 to remove."
                )
        return _done()

    @router.post("/capture/owner/rebalance_trigger", response_model=dict[str, Any], openapi_extra=_FORM)
    async def form_rebalance(request: Request) -> JSONResponse:
        await feeds.rebalance(_key((await _form_of(request)).get("cf-id", "")))
        return _done()

    @router.post("/capture/owner/move_table", response_model=dict[str, Any], openapi_extra=_FORM)
    async def form_move_table(request: Request) -> JSONResponse:
        form = await _form_of(request)
        table = form.get("table-id", "")
        if not (table.isascii() and table.isdecimal() and len(table) < 19):
            raise UsageError(f"table-id {table[:20]!r} is not the id of a table.")
        target = capture_id_of(form.get("target-cp-id", ""))
        await feeds.move_table(_key(form.get("cf-id", "")), TableId(int(table)), target)
        return _done()

    @router.post("/capture/owner/changefeed/query", response_model=dict[str, Any], openapi_extra=_FORM)
    async def form_query(request: Request) -> JSONResponse:
        info = await feeds.get(_key((await _form_of(request)).get("cf-id", "")))
        common = wire.common(info)
        return ok({
            "state": common["state"],
            "tso": info.checkpoint_ts,
            "checkpoint": common["checkpoint_time"],
            "error": common["error"],
        })  # fmt: skip


def _done() -> JSONResponse:
    return ok({"status": True, "message": ""})


async def _form_of(request: Request) -> Mapping[str, str]:
    body = await request.body()
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20, strict_parsing=bool(body))
    except ValueError:
        raise UsageError("the body is not a form: send fields as cf-id=NAME&admin-job=1.") from None
    return {name: values[-1] for name, values in fields.items()}


def _server(router: APIRouter, operations: Operations) -> None:
    server = operations.server

    @router.get("/api/v1/status", response_model=ServerStatusBody)
    @router.get("/status", response_model=ServerStatusBody)
    async def plain_status() -> JSONResponse:
        return ok(wire.status(await server.status()))

    @router.post("/api/v1/log", response_model=Empty)
    async def v1_log(body: LogBody) -> JSONResponse:
        await server.set_log_level(log_level_of(body.log_level))
        return ok()

    @router.post("/admin/log", response_model=Empty)
    async def admin_log(level: Annotated[str, Body()]) -> JSONResponse:
        await server.set_log_level(log_level_of(level))
        return ok()

    @router.get("/config", response_model=dict[str, Any])
    async def server_config() -> JSONResponse:
        return ok(wire.masked_config(dict(await server.config())))

    @router.get("/debug", response_model=dict[str, Any])
    async def debug_state() -> JSONResponse:
        return ok(wire.masked_config(dict(await server.debug_state())))

    @router.get("/debug/info", response_model=None)
    async def debug_info() -> PlainTextResponse:
        return PlainTextResponse(_as_text(wire.masked_config(dict(await server.debug_state()))))


def _as_text(value: Any, indent: str = "") -> str:
    """Of nested tables and lists, a line for each value."""
    match value:
        case dict():
            lines = (f"{indent}{name}:{_inline(each, indent)}" for name, each in value.items())
        case list() | tuple():
            lines = (f"{indent}-{_inline(each, indent)}" for each in value)
        case _:
            return f"{indent}{value}\n"
    return "".join(lines)


def _inline(value: Any, indent: str) -> str:
    if isinstance(value, dict | list | tuple) and value:
        return "\n" + _as_text(value, indent + "  ")
    return f" {value}\n" if not isinstance(value, dict | list | tuple) else " none\n"
