"""What can be done to a running upstream, by name: cut, merge, move, stop, kill, delay, hold.

    command line ──► HTTP, PD's port ──► Faults.run(name, arguments) ──► EmbeddedUpstream

Every fault takes named arguments as JSON has them and returns a document. What does not fit is a
``UsageError`` that says what would. ``regions``, ``stores`` and ``sql-nodes`` only look.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from tidebox.boundaries import boundary_within
from tidebox.http1 import HttpRequest, HttpResponse
from tidebox.regions import Region, raw_bound
from tidebox.sql.node import Node
from tidemill.errors import TidemillError, UsageError
from tidemill.model.ts import to_datetime

if TYPE_CHECKING:  # which serves these faults itself
    from tidebox.upstream import EmbeddedUpstream

Document = dict[str, Any]
Parse = Callable[[object], Any]

PREFIX = "/tidemill/v1/faults"

_MAX_SECONDS = 86_400.0
_ONLY_LOOKS = ("regions", "stores", "sql-nodes")


@dataclass(frozen=True, slots=True)
class Fault:
    """``parameters``: how each argument is read; those of ``required`` must be there."""

    action: Callable[..., Document]
    parameters: Mapping[str, Parse]
    required: tuple[str, ...] = ()


class Faults:
    def __init__(self, upstream: "EmbeddedUpstream") -> None:
        self._upstream = upstream

    def run(self, name: str, arguments: Mapping[str, object]) -> Document:
        """Do it; return what came of it once it is done."""
        fault = FAULTS.get(name)
        if fault is None:
            near = get_close_matches(name, FAULTS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(FAULTS)}."
            raise UsageError(f"there is no fault named {name!r}. {hint}")
        unknown = sorted(set(arguments) - set(fault.parameters))
        if unknown:
            known = ", ".join(fault.parameters) or "none"
            raise UsageError(f"{name} takes no argument {unknown[0]!r}; it takes {known}")
        missing = [n for n in fault.required if arguments.get(n) is None]
        if missing:
            raise UsageError(f"{name} needs {' and '.join(missing)}")
        given = {n: fault.parameters[n](value) for n, value in arguments.items() if value is not None}
        return fault.action(self._upstream, **given)

    def answer(self, request: HttpRequest) -> HttpResponse:
        """``POST PREFIX/NAME`` with the arguments as a JSON object; ``GET`` for the names, and for what only looks."""
        name = request.path.removeprefix(PREFIX).strip("/")
        if request.method == "GET" and not name:
            return _json(HTTPStatus.OK, {"faults": list(FAULTS)})
        if request.method != "POST" and not (request.method == "GET" and name in _ONLY_LOOKS):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, UsageError(f"ask for a fault with POST {PREFIX}/NAME"))
        try:
            return _json(HTTPStatus.OK, self.run(name, _arguments(request.body)))
        except UsageError as error:
            return _refusal(HTTPStatus.BAD_REQUEST if name in FAULTS else HTTPStatus.NOT_FOUND, error)
        except TidemillError as error:
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, error)


# HTTP


def _arguments(body: bytes) -> dict[str, object]:
    try:
        arguments = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the arguments are not readable as JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise UsageError('the arguments must be a JSON object, such as {"region": 4}')
    return arguments


def _json(status: HTTPStatus, document: Document) -> HttpResponse:
    return HttpResponse(status, orjson.dumps(document))


def _refusal(status: HTTPStatus, error: TidemillError) -> HttpResponse:
    return _json(status, {"error": {"code": error.code, "message": str(error)}})


# Arguments


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{value!r} is not the id of a region or store: give a number such as 4")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_SECONDS:
        raise UsageError(f"{value!r} is not a number of seconds from 0 to {_MAX_SECONDS:.0f}")
    return float(value)


def _text_key(value: object) -> bytes:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{value!r} is not a key: give its text, or its bytes in hex as hex_key")
    return value.encode()


def _hex_key(value: object) -> bytes:
    try:
        key = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        key = b""
    if not key:
        raise UsageError(f"{value!r} is not a key in hex: write two digits a byte, such as 7480")
    return key


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{value!r} is neither true nor false")
    return value


def _one_key(key: bytes | None, hex_key: bytes | None) -> bytes | None:
    if key is not None and hex_key is not None:
        raise UsageError("key and hex_key are two ways to say one thing: give one of them")
    return key if key is not None else hex_key


# Regions


def _split(
    upstream: "EmbeddedUpstream",
    key: bytes | None = None,
    hex_key: bytes | None = None,
    region: int | None = None,
) -> Document:
    at = _one_key(key, hex_key)
    if at is None and region is None:
        raise UsageError("split needs a key, or a region that is then cut in its middle")
    if at is None:
        found = _region(upstream, region or 0)
        physical = boundary_within(upstream.cluster.engine, found)
        if physical is None:
            raise UsageError(f"cannot find a key inside region {found.id} to cut it at: give one")
        at = raw_bound(physical)
    elif region is not None and upstream.region_of(at).id != region:
        raise UsageError(f"key {at.hex()} lies in region {upstream.region_of(at).id}, not in {region}")
    return {"regions": [_shown(upstream, part) for part in upstream.split(at)]}


def _merge(upstream: "EmbeddedUpstream", region: int, into: int | None = None) -> Document:
    if into is None:
        regions = upstream.regions()
        at = [r.id for r in regions].index(_region(upstream, region).id)
        if len(regions) == 1:
            raise UsageError(f"region {region} is the only one: there is nothing to merge it into")
        into = regions[at + 1 if at + 1 < len(regions) else at - 1].id
    return {"regions": [_shown(upstream, upstream.merge(region, into))]}


def _transfer_leader(upstream: "EmbeddedUpstream", region: int, store: int) -> Document:
    upstream.transfer_leader(region, store)
    return {"regions": [_shown(upstream, _region(upstream, region))]}


def _hold_resolved(upstream: "EmbeddedUpstream", region: int) -> Document:
    upstream.hold_resolved(_region(upstream, region).id)
    return {"regions": [_shown(upstream, _region(upstream, region))]}


def _release_resolved(upstream: "EmbeddedUpstream", region: int) -> Document:
    upstream.release_resolved(region)
    return {"regions": [_shown(upstream, _region(upstream, region))]}


def _regions(upstream: "EmbeddedUpstream") -> Document:
    return {"regions": [_shown(upstream, region) for region in upstream.regions()]}


# Stores and PD


def _stop_store(upstream: "EmbeddedUpstream", store: int, seconds: float | None = None) -> Document:
    upstream.stop_store(store)
    return _gone(upstream, store, seconds)


def _kill_store(upstream: "EmbeddedUpstream", store: int, seconds: float | None = None) -> Document:
    upstream.kill_store(store)
    return _gone(upstream, store, seconds)


def _gone(upstream: "EmbeddedUpstream", store: int, seconds: float | None) -> Document:
    if seconds is not None:
        upstream.start_store_later(store, seconds)
    return _stores(upstream)


def _start_store(upstream: "EmbeddedUpstream", store: int, new_address: bool = False) -> Document:
    upstream.start_store(store, elsewhere=new_address)
    return _stores(upstream)


def _stores(upstream: "EmbeddedUpstream") -> Document:
    with upstream.cluster.mutex:
        led = [region.leader_store for region in upstream.cluster.regions]
        return {
            "stores": [
                {"id": s.id, "address": s.address, "is_up": s.is_up, "leaders": led.count(s.id)}
                for s in upstream.cluster.stores.values()
            ]
        }


def _pd_away(upstream: "EmbeddedUpstream", seconds: float | None = None) -> Document:
    upstream.pd_away(seconds)
    return {"pd": {"address": upstream.pd_address, "is_away": True}}


def _pd_back(upstream: "EmbeddedUpstream") -> Document:
    upstream.pd_back()
    return {"pd": {"address": upstream.pd_address, "is_away": False}}


# Streams and writes


def _drop_streams(upstream: "EmbeddedUpstream", store: int | None = None) -> Document:
    if store is not None:
        upstream.cluster.store(store)
    return {"streams": upstream.drop_streams(store_id=store)}


def _delay_apply(upstream: "EmbeddedUpstream", seconds: float) -> Document:
    upstream.delay_apply(seconds)
    return {"delay_seconds": seconds}


def _orphan_lock(
    upstream: "EmbeddedUpstream", key: bytes | None = None, hex_key: bytes | None = None, ttl_seconds: float = 3.0
) -> Document:
    locked = _one_key(key, hex_key)
    if locked is None:
        raise UsageError("orphan-lock needs a key")
    start_ts = upstream.orphan_lock(locked, int(ttl_seconds * 1000))
    return {"key": locked.hex(), "start_ts": start_ts, "started": to_datetime(start_ts).isoformat()}


# SQL nodes


def _sql_nodes(upstream: "EmbeddedUpstream") -> Document:
    nodes = zip(upstream.sql.nodes, upstream.sql.addresses, strict=True)
    return {
        "sql_nodes": [
            {
                "id": number,
                "address": address,
                "schema_version": node.cache.version,
                "is_serving": node.cache.is_serving,
                "is_held": node.cache.is_held,
            }
            for number, (node, address) in enumerate(nodes, 1)
        ]
    }


def _hold_schema(upstream: "EmbeddedUpstream", node: int) -> Document:
    _node(upstream, node).cache.hold()
    return _sql_nodes(upstream)


def _release_schema(upstream: "EmbeddedUpstream", node: int) -> Document:
    cache = _node(upstream, node).cache
    cache.release()
    cache.reload()
    return _sql_nodes(upstream)


def _node(upstream: "EmbeddedUpstream", number: int) -> Node:
    nodes = upstream.sql.nodes
    if not 1 <= number <= len(nodes):
        raise UsageError(f"there is no SQL node {number}: this upstream has {len(nodes)}, counted from 1")
    return nodes[number - 1]


def _region(upstream: "EmbeddedUpstream", region_id: int) -> Region:
    return upstream.cluster.region(region_id)


def _shown(upstream: "EmbeddedUpstream", region: Region) -> Document:
    leader = upstream.cluster.leader_of(region)
    start, end = region.raw_bounds
    return {
        "id": region.id,
        "start": start.hex(),
        "end": end.hex(),
        "version": region.version,
        "conf_ver": region.conf_ver,
        "leader": leader.store_id if leader is not None else None,
        "stores": list(region.stores),
        "is_held": upstream.cluster.subscriptions.is_held(region.id),
    }


_KEY: dict[str, Parse] = {"key": _text_key, "hex_key": _hex_key}
_REGION: dict[str, Parse] = {"region": _number}
_STORE: dict[str, Parse] = {"store": _number}
_SECONDS: dict[str, Parse] = {"seconds": _seconds}

FAULTS: Mapping[str, Fault] = {
    "regions": Fault(_regions, {}),
    "stores": Fault(_stores, {}),
    "split": Fault(_split, _KEY | _REGION),
    "merge": Fault(_merge, _REGION | {"into": _number}, ("region",)),
    "transfer-leader": Fault(_transfer_leader, _REGION | _STORE, ("region", "store")),
    "stop-store": Fault(_stop_store, _STORE | _SECONDS, ("store",)),
    "kill-store": Fault(_kill_store, _STORE | _SECONDS, ("store",)),
    "start-store": Fault(_start_store, _STORE | {"new_address": _flag}, ("store",)),
    "pd-away": Fault(_pd_away, _SECONDS),
    "pd-back": Fault(_pd_back, {}),
    "drop-streams": Fault(_drop_streams, _STORE),
    "delay-apply": Fault(_delay_apply, _SECONDS, ("seconds",)),
    "orphan-lock": Fault(_orphan_lock, _KEY | {"ttl_seconds": _seconds}),
    "hold-resolved": Fault(_hold_resolved, _REGION, ("region",)),
    "release-resolved": Fault(_release_resolved, _REGION, ("region",)),
    "sql-nodes": Fault(_sql_nodes, {}),
    "hold-schema": Fault(_hold_schema, {"node": _number}, ("node",)),
    "release-schema": Fault(_release_schema, {"node": _number}, ("node",)),
}
