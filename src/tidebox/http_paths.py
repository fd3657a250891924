"""What PD answers over HTTP: the few paths that clients of the cluster ask, and those registered beside them."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson

from tidebox.cluster import VERSION, Cluster, StoreState
from tidebox.http1 import HttpRequest, HttpResponse
from tidebox.pd_service import MEMBER_ID, MEMBER_NAME
from tidebox.regions import Region

API = "/pd/api/v1"

_DEFAULT_REGIONS = 16
_MAX_REGIONS = 10_240
_MAX_LABEL_RULES = 10_000

Answer = Callable[[HttpRequest], HttpResponse]


class HttpPaths:
    """Routes by method and path. ``address`` is PD's, set once it is known."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._label_rules: dict[str, Any] = {}
        self.url = ""
        self.routes: dict[tuple[str, str], Answer] = {
            ("GET", f"{API}/version"): lambda _: _json({"version": f"v{VERSION}"}),
            ("GET", f"{API}/health"): self._health,
            ("GET", f"{API}/members"): self._members,
            ("GET", f"{API}/stores"): self._stores,
            ("GET", f"{API}/gc/safepoint"): self._safepoints,
            ("GET", f"{API}/min-resolved-ts"): self._min_resolved_ts,
            ("GET", f"{API}/regions/key"): self._regions,
            ("GET", f"{API}/config/region-label/rules"): lambda _: _json(list(self._label_rules.values())),
            ("PATCH", f"{API}/config/region-label/rules"): self._patch_label_rules,
        }

    def add(self, method: str, prefix: str, answer: Answer) -> None:
        """Serve ``prefix`` and all paths below it."""
        self.routes[method, prefix.rstrip("/")] = answer

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Of the routes that fit the path the longest answers; 404 where there is none."""
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path.rstrip("/")
        allowed = set()
        while path:
            answer = self.routes.get((method, path))
            if answer is not None:
                return answer(request)
            allowed |= {m for m, p in self.routes if p == path}
            path = path.rpartition("/")[0]
        if allowed:
            return _refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} takes {', '.join(sorted(allowed))}")
        return _refuse(HTTPStatus.NOT_FOUND, f"there is nothing at {request.path[:200]}")

    # Who is there

    def _health(self, request: HttpRequest) -> HttpResponse:
        return _json([{"name": MEMBER_NAME, "member_id": MEMBER_ID, "client_urls": [self.url], "health": True}])

    def _members(self, request: HttpRequest) -> HttpResponse:
        member = {
            "name": MEMBER_NAME,
            "member_id": MEMBER_ID,
            "peer_urls": [self.url],
            "client_urls": [self.url],
            "binary_version": f"v{VERSION}",
        }
        header = {"cluster_id": self._cluster.cluster_id}
        return _json({"header": header, "members": [member], "leader": member, "etcd_leader": member})

    def _stores(self, request: HttpRequest) -> HttpResponse:
        with self._cluster.mutex:
            leaders = [region.leader_store for region in self._cluster.regions]
            stores = [_store(store, leaders.count(store.id)) for store in self._cluster.stores.values()]
        return _json({"count": len(stores), "stores": stores})

    # Timestamps

    def _safepoints(self, request: HttpRequest) -> HttpResponse:
        with self._cluster.mutex:
            listing = self._cluster.safepoints.listing()
        services = [
            {"service_id": s.service.decode(errors="replace"), "expired_at": s.expires_at, "safe_point": s.ts}
            for s in listing.services
        ]
        return _json(
            {
                "service_gc_safe_points": services,
                "min_service_gc_safe_point": listing.minimum,
                "gc_safe_point": listing.gc_safepoint,
            }
        )

    def _min_resolved_ts(self, request: HttpRequest) -> HttpResponse:
        """How far all stores are resolved; ``scope`` names stores by id, or ``cluster`` for all of them."""
        resolved = self._resolved_ts()
        scope = request.query.get("scope", "")
        known = {str(store_id) for store_id in self._cluster.stores}
        wanted = known if scope == "cluster" else known & set(scope.split(","))
        return _json(
            {
                "min_resolved_ts": resolved,
                "persist_interval": "1s",
                "is_real_time": True,
                "stores_min_resolved_ts": dict.fromkeys(sorted(wanted), resolved),
            }
        )

    def _resolved_ts(self) -> int:
        """Nothing commits at or below it any more: the present, held down by every lock that will write."""
        cluster = self._cluster
        with cluster.mutex:
            present = cluster.tso.advance()
            cluster.in_flight.observe(present)
            locks = [*cluster.locks.within(b"", b""), *cluster.in_flight.locks()]
            return min([present, *(lock.start_ts for _, lock in locks if lock.writes_data)])

    # Regions

    def _regions(self, request: HttpRequest) -> HttpResponse:
        """Those that touch ``[key, end_key)``: raw bytes, or with ``format=hex`` in hex."""
        is_hex = request.query.get("format") == "hex"
        try:
            bounds = [request.query.get(name, "") for name in ("key", "end_key")]
            start, end = (bytes.fromhex(b) if is_hex else b.encode("latin-1") for b in bounds)
            limit = int(request.query.get("limit", _DEFAULT_REGIONS))
        except ValueError as error:
            return _refuse(HTTPStatus.BAD_REQUEST, f"key, end_key or limit cannot be read: {error}")
        limit = min(limit, _MAX_REGIONS) if limit > 0 else _MAX_REGIONS
        with self._cluster.mutex:
            regions = [_region(r) for r in self._cluster.regions.within(start, end, limit)]
        return _json({"count": len(regions), "regions": regions})

    def _patch_label_rules(self, request: HttpRequest) -> HttpResponse:
        """Rules are kept and can be read again; there is no scheduling that would follow them."""
        try:
            patch = orjson.loads(request.body)
            rules = {rule["id"]: rule for rule in patch.get("sets") or []}
            deleted = [rule["id"] for rule in patch.get("deletes") or []]
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            return _refuse(HTTPStatus.BAD_REQUEST, f"the body is no patch of label rules: {error!r}")
        kept = {**{i: r for i, r in self._label_rules.items() if i not in deleted}, **rules}
        if len(kept) > _MAX_LABEL_RULES:
            return _refuse(HTTPStatus.BAD_REQUEST, f"more than {_MAX_LABEL_RULES} label rules are not kept")
        self._label_rules = kept
        return _json("Update region label rules successfully.")


def _store(store: StoreState, leader_count: int) -> dict[str, Any]:
    described = {
        "id": store.id,
        "address": store.address,
        "version": VERSION,
        "peer_address": store.address,
        "node_state": 1,
        "state_name": "Up" if store.is_up else "Disconnected",
    }
    return {"store": described, "status": {"leader_count": leader_count}}


def _region(region: Region) -> dict[str, Any]:
    return {
        "id": region.id,
        "start_key": region.start.hex().upper(),
        "end_key": region.end.hex().upper(),
        "epoch": {"conf_ver": region.conf_ver, "version": region.version},
        "peers": [{"id": peer.id, "store_id": peer.store_id, "role_name": "Voter"} for peer in region.peers],
        "leader": {"id": region.leader.id, "store_id": region.leader.store_id, "role_name": "Voter"},
        "written_keys": 0,
        "approximate_keys": 0,
    }


def _json(document: Any) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, orjson.dumps(document))


def _refuse(status: HTTPStatus, reason: str) -> HttpResponse:
    return HttpResponse(status, orjson.dumps({"error": reason}))
