"""TiCDC's Open API, version 2, at ``/api/v2``; of ours are ``move_table`` and ``rebalance``."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi.responses import JSONResponse

from tidemill.api import actions, wire
from tidemill.api.bodies import (
    ChangefeedBody,
    LogBody,
    MoveTableBody,
    ResolveLockBody,
    ResumeBody,
    UpstreamBody,
    VerifyTableBody,
)
from tidemill.api.checking import capture_id_of, checked_name, key_of
from tidemill.api.forwarding import Forwarder, owner_route
from tidemill.api.operations import Operations
from tidemill.api.shapes import (
    CaptureList,
    ChangefeedDetail,
    ChangefeedList,
    ChangefeedProgress,
    Empty,
    ErrorBody,
    MetadataList,
    ProcessorList,
    Remaining,
    ServerStatusBody,
    SyncedBody,
    TableIds,
    TsoBody,
    VerifiedTables,
)
from tidemill.config.replica import synced_intervals
from tidemill.errors import UpstreamError, UsageError
from tidemill.model.cluster import DEFAULT_NAMESPACE, UpstreamAccess
from tidemill.model.schedule import TableId
from tidemill.model.ts import Ts

Namespace = Annotated[str, Query(description="Of the changefeed.")]
_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"} | dict.fromkeys(
    ("dpanic", "panic", "fatal"), "error"
)
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "What was asked for cannot be."},
    401: {"model": ErrorBody, "description": "No or wrong credentials."},
    403: {"model": ErrorBody, "description": "A page of another site asks."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    503: {"model": ErrorBody, "description": "Not now; ask again."},
}


def routers(operations: Operations, forwarder: Forwarder) -> tuple[APIRouter, APIRouter]:
    """What the owner answers, and what any capture does."""
    owners = APIRouter(prefix="/api/v2", route_class=owner_route(forwarder), responses=ERRORS, tags=["v2"])
    anyones = APIRouter(prefix="/api/v2", responses=ERRORS, tags=["v2"])
    _changefeeds(owners, operations)
    _tables(owners, operations)
    _cluster(owners, operations)
    _server(anyones, operations)
    return owners, anyones


def ok(document: Any = None, status: int = 200) -> JSONResponse:
    return JSONResponse({} if document is None else document, status)


def log_level_of(text: str) -> str:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise UsageError(f"log_level {text[:40]!r} is unknown. Use debug, info, warn or error.")
    return level


def _changefeeds(router: APIRouter, operations: Operations) -> None:
    feeds = operations.changefeeds

    @router.get("/changefeeds", response_model=ChangefeedList, summary="List changefeeds")
    async def list_changefeeds(state: str = "", namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        found = await feeds.all(checked_name(namespace, "namespace"))
        return ok(wire.listed(wire.common(info) for info in actions.of_state(found, state)))

    @router.post("/changefeeds", response_model=ChangefeedDetail, summary="Create a changefeed")
    async def create_changefeed(body: ChangefeedBody, namespace: Annotated[str | None, Query()] = None) -> JSONResponse:
        return ok(wire.detail(await actions.create(operations, namespace or body.namespace or DEFAULT_NAMESPACE, body)))

    @router.get("/changefeeds/{changefeed_id}", response_model=ChangefeedDetail, summary="Query a changefeed")
    async def get_changefeed(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        return ok(wire.detail(await feeds.get(key_of(namespace, changefeed_id))))

    @router.get("/changefeeds/{changefeed_id}/meta_info", response_model=ChangefeedDetail, summary="The same")
    async def get_meta_info(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        return ok(wire.detail(await feeds.get(key_of(namespace, changefeed_id))))

    @router.put("/changefeeds/{changefeed_id}", response_model=ChangefeedDetail, summary="Update a paused changefeed")
    async def update_changefeed(
        changefeed_id: str, body: ChangefeedBody, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> JSONResponse:
        return ok(wire.detail(await actions.update(operations, key_of(namespace, changefeed_id), body)))

    @router.delete("/changefeeds/{changefeed_id}", response_model=Empty, summary="Remove a changefeed")
    async def remove_changefeed(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        key = key_of(namespace, changefeed_id)
        if any(info.key == key for info in await feeds.all(key.namespace)):  # to remove what is not there is no error
            await feeds.remove(key)
        return ok()

    @router.post("/changefeeds/{changefeed_id}/pause", response_model=Empty, summary="Pause a changefeed")
    async def pause_changefeed(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        await feeds.pause(key_of(namespace, changefeed_id))
        return ok()

    @router.post("/changefeeds/{changefeed_id}/resume", response_model=Empty, summary="Resume a changefeed")
    async def resume_changefeed(
        changefeed_id: str, body: ResumeBody, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> JSONResponse:
        overwrite_ts = Ts(body.overwrite_checkpoint_ts) if body.overwrite_checkpoint_ts else None
        await feeds.resume(key_of(namespace, changefeed_id), overwrite_ts)
        return ok()

    @router.get("/changefeeds/{changefeed_id}/status", response_model=ChangefeedProgress, summary="How far it is")
    async def changefeed_status(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        return ok(wire.progress(await feeds.get(key_of(namespace, changefeed_id))))

    @router.get("/changefeeds/{changefeed_id}/synced", response_model=SyncedBody, summary="Whether all was written")
    async def changefeed_synced(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        info = await feeds.get(key_of(namespace, changefeed_id))
        try:
            now_ts: Ts | None = await operations.server.tso(UpstreamAccess())
        except UpstreamError:
            now_ts = None
        return ok(wire.synced(info, now_ts, *synced_intervals(info.config)))


def _tables(router: APIRouter, operations: Operations) -> None:
    feeds = operations.changefeeds

    @router.post(
        "/changefeeds/{changefeed_id}/move_table", status_code=202, response_model=Empty, summary="Move a table"
    )
    async def move_table(
        changefeed_id: str, body: MoveTableBody, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> JSONResponse:
        key = key_of(namespace, changefeed_id)
        await feeds.move_table(key, TableId(body.table_id), capture_id_of(body.capture_id))
        return ok(status=202)

    @router.post(
        "/changefeeds/{changefeed_id}/rebalance",
        status_code=202,
        response_model=Empty,
        summary="Spread its tables anew",
    )
    async def rebalance(changefeed_id: str, namespace: Namespace = DEFAULT_NAMESPACE) -> JSONResponse:
        await feeds.rebalance(key_of(namespace, changefeed_id))
        return ok(status=202)

    @router.get("/processors", response_model=ProcessorList, summary="List processors")
    async def list_processors(namespace: Annotated[str | None, Query()] = None) -> JSONResponse:
        wanted = None if namespace is None else checked_name(namespace, "namespace")
        return ok(wire.listed(wire.processor(each) for each in await operations.cluster.processors(wanted)))

    @router.get("/processors/{changefeed_id}/{capture_id}", response_model=TableIds, summary="The tables of one")
    async def get_processor(
        changefeed_id: str, capture_id: str, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> JSONResponse:
        key, capture = key_of(namespace, changefeed_id), capture_id_of(capture_id)
        info = await feeds.get(key)
        if not info.state.is_running:
            raise UsageError(f"changefeed {key.id!r} is {info.state}: it has no processors. Resume it first.")
        return ok(wire.tables_of(await feeds.tables(key, capture)))


def _cluster(router: APIRouter, operations: Operations) -> None:
    cluster = operations.cluster

    @router.get(
        "/health",
        response_model=Empty,
        summary="Whether the cluster is at work",
        responses={500: {"model": ErrorBody, "description": "It is not: CDC:ErrClusterIsUnhealthy."}},
    )
    async def health() -> JSONResponse:
        await cluster.check_health()
        return ok()

    @router.get("/captures", response_model=CaptureList, summary="List captures")
    async def list_captures() -> JSONResponse:
        return ok(wire.listed(wire.capture(each) for each in await cluster.captures()))

    @router.post("/captures/{capture_id}/drain", status_code=202, response_model=Remaining, summary="Empty a capture")
    async def drain_capture(capture_id: str) -> JSONResponse:
        return ok({"current_table_count": await cluster.drain(capture_id_of(capture_id))}, 202)

    @router.post("/owner/resign", response_model=Empty, summary="Let another capture be owner")
    async def resign() -> JSONResponse:
        await cluster.resign()
        return ok()

    @router.get("/unsafe/metadata", response_model=MetadataList, summary="All that is stored, secrets masked")
    async def metadata() -> JSONResponse:
        return ok([wire.metadata(entry) for entry in await cluster.metadata()])

    @router.post("/unsafe/resolve_lock", response_model=Empty, summary="Resolve a region's locks below a ts")
    async def resolve_lock(body: ResolveLockBody) -> JSONResponse:
        if not body.region_id or not body.ts:
            raise UsageError("resolve_lock needs region_id and ts, neither of them 0.")
        await cluster.resolve_lock(body.region_id, Ts(body.ts), body.access)
        return ok()

    @router.delete("/unsafe/service_gc_safepoint", response_model=Empty, summary="Let the upstream collect everything")
    async def delete_safepoint(body: Annotated[UpstreamBody | None, Body()] = None) -> JSONResponse:
        await cluster.delete_gc_safepoint((body or UpstreamBody()).access)
        return ok()


def _server(router: APIRouter, operations: Operations) -> None:
    server = operations.server

    @router.get("/status", response_model=ServerStatusBody, summary="The capture that was asked")
    async def status() -> JSONResponse:
        return ok(wire.status(await server.status()))

    @router.post("/log", response_model=Empty, summary="Set its log level")
    async def set_log_level(body: LogBody) -> JSONResponse:
        await server.set_log_level(log_level_of(body.log_level))
        return ok()

    @router.post("/verify_table", response_model=VerifiedTables, summary="Which tables have a key")
    async def verify_table(body: VerifyTableBody) -> JSONResponse:
        return ok(wire.eligibility(await server.verify_tables(await actions.verify_tables(body))))

    @router.post("/tso", response_model=TsoBody, summary="A timestamp of the upstream")
    async def tso(body: Annotated[UpstreamBody | None, Body()] = None) -> JSONResponse:
        return ok(wire.tso(await server.tso((body or UpstreamBody()).access)))
