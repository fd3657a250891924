"""What a capture's server can do for its faces: the port that the HTTP API asks (``api.operations``).

server        the capture that was asked answers
changefeeds   \\ the owner answers: what is asked of the metadata is a transaction (``changes``), what is asked of
cluster       / the scheduler goes to the coordinator of the changefeed
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tidemill.capture.cluster.capture import Capture
from tidemill.capture.cluster.changefeed_operations import ChangefeedOperations
from tidemill.capture.cluster.feeds import Feeds
from tidemill.capture.cluster.server import Serving
from tidemill.capture.etcd.client import Entry
from tidemill.config.changefeed import read_config
from tidemill.errors import (
    CaptureNotFoundError,
    NotReadyError,
    OwnerNotFoundError,
    SchedulerRefusedError,
    UnhealthyError,
)
from tidemill.flow.filter import TableFilter
from tidemill.flow.schema.loader import load_schema
from tidemill.model.cluster import (
    CaptureInfo,
    MetadataEntry,
    ProcessorInfo,
    ServerStatus,
    TableEligibility,
    TableName,
    UpstreamAccess,
    VerifyTables,
)
from tidemill.model.schedule import CaptureId, Liveness, TableId
from tidemill.model.security import PLAIN
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.upstream.gc import let_go
from tidemill.upstream.keyspace import TXN_V1
from tidemill.upstream.kv import KvClient
from tidemill.upstream.locks import LockResolver
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


class ServerOperations:
    def __init__(self, asked: "Asked") -> None:
        self._asked = asked

    async def status(self) -> ServerStatus:
        capture = self._asked.capture
        liveness = Liveness.STOPPING if capture.is_stopping else Liveness.ALIVE
        return ServerStatus(
            capture.info.version, "", capture.id, capture.options.cluster, os.getpid(), capture.is_owner, liveness
        )

    async def owner(self) -> CaptureInfo | None:
        snapshot = self._asked.capture.snapshot
        return snapshot.captures.get(snapshot.owner.capture) if snapshot.owner is not None else None

    async def check_ready(self) -> None:
        _ = self._asked.capture

    async def set_log_level(self, level: str) -> None:
        logging.getLogger("tidemill").setLevel(level.upper())

    async def config(self) -> Mapping[str, Any]:
        options = self._asked.serving.options
        return {
            "addr": options.address,
            "peer-addr": options.peer_address,
            "cluster-id": options.cluster,
            "capture-session-ttl": options.session_ttl_seconds,
            "data-dir": str(options.data_dir),
            "pd": options.pd,
            "etcd": options.etcd,
            "tz": options.zone,
            "gc-ttl": options.gc_ttl_seconds,
        }

    async def debug_state(self) -> Mapping[str, Any]:
        return self._asked.capture.debug_state()

    async def tso(self, upstream: UpstreamAccess) -> Ts:
        async with self._asked.pd(upstream) as pd:
            return await pd.get_ts()

    async def verify_tables(self, request: VerifyTables) -> TableEligibility:
        from tidemill.flow.encoder import protocol_keys

        config = read_config(request.config, "replica_config", protocol_keys())
        if config.keys is not None:
            return TableEligibility((), ())
        wanted, eligible, ineligible = TableFilter(config), list[TableName](), list[TableName]()
        async with self._asked.pd(request.upstream) as pd:
            ts = request.start_ts or await pd.get_ts()
            reader = SnapshotReader(pd, RegionCache(pd))
            try:
                store = await load_schema(reader, ts, ts, {})
            finally:
                await reader.close()
        for table in store.tables():
            if wanted.captures(table):
                eligible.append(_name_of(table))
            elif wanted.leaves_out(table):
                ineligible.append(_name_of(table))
        return TableEligibility(tuple(eligible), tuple(ineligible))


def _name_of(table: TableInfo) -> TableName:
    return TableName(table.schema, table.name, TableId(table.id))


class ClusterOperations:
    def __init__(self, asked: "Asked") -> None:
        self._asked = asked

    async def check_health(self) -> None:
        feeds = self._asked.feeds
        if feeds.failure is not None:
            raise UnhealthyError(f"the owner cannot look after its changefeeds: {feeds.failure}. See its log.")

    async def captures(self) -> tuple[CaptureInfo, ...]:
        _ = self._asked.feeds
        found = self._asked.capture.snapshot.captures
        return tuple(found[name] for name in sorted(found))

    async def drain(self, capture_id: CaptureId) -> int:
        feeds, capture = self._asked.feeds, self._asked.capture
        if capture_id not in capture.snapshot.captures:
            raise CaptureNotFoundError(f"no capture has the id {capture_id!r}. Ask for the list of captures.")
        if capture_id == capture.id:
            raise SchedulerRefusedError(
                f"cannot drain {capture_id!r}: it is the owner. Let it resign first (tidemill capture resign)."
            )
        if len(capture.snapshot.captures) < 2:
            raise SchedulerRefusedError(f"cannot drain {capture_id!r}: there is no other capture. Start one first.")
        for feed in feeds.owned.values():
            drained = feed.coordinator.requests.drained
            if drained not in (None, capture_id):
                raise SchedulerRefusedError(f"cannot drain {capture_id!r}: {drained!r} is being drained. Wait for it.")
        return sum(feed.coordinator.drain(capture_id) for feed in feeds.owned.values())

    async def resign(self) -> None:
        _ = self._asked.feeds
        await self._asked.capture.resign()

    async def processors(self, namespace: str | None = None) -> tuple[ProcessorInfo, ...]:
        found = []
        for key, feed in sorted(self._asked.feeds.owned.items()):
            if namespace in (None, key.namespace):
                found += [ProcessorInfo(key, name) for name, _ in sorted(feed.coordinator.captures)]
        return tuple(found)

    async def metadata(self) -> tuple[MetadataEntry, ...]:
        _ = self._asked.feeds
        serving = self._asked.serving
        found: list[Entry] = []
        for prefix in (serving.keys.base, serving.keys.ours):
            found += await self._asked.beside(serving.client.prefix, f"{prefix}/")
        entries = (MetadataEntry(each.key, each.value.decode(errors="replace")) for each in found)
        return tuple(sorted(entries, key=lambda entry: entry.key))

    async def resolve_lock(self, region_id: int, ts: Ts, upstream: UpstreamAccess) -> None:
        _ = self._asked.feeds
        async with self._asked.pd(upstream) as pd:
            region = await pd.get_region_by_id(region_id)
            if region is None:
                raise SchedulerRefusedError(f"the upstream has no region {region_id}. Ask it for its regions.")
            kv = KvClient(RegionCache(pd))
            start, end = TXN_V1.bounds(region)
            try:
                await LockResolver(kv, pd).resolve(start, end, ts)
            finally:
                await kv.close()

    async def delete_gc_safepoint(self, upstream: UpstreamAccess) -> None:
        _ = self._asked.feeds
        serving = self._asked.serving
        names = await self._asked.beside(serving.client.prefix, f"{serving.keys.ours}/")
        async with self._asked.pd(upstream) as pd:
            for entry in names:
                if "/changefeed/name/" in entry.key:
                    await let_go(pd, entry.value.decode())


class Asked:
    """Of one server, whichever capture it is at the moment."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    @property
    def capture(self) -> Capture:
        """Raises NotReadyError."""
        if self.serving.capture is None:
            raise NotReadyError("the capture is only starting. Ask again in some seconds.")
        return self.serving.capture

    @property
    def feeds(self) -> Feeds:
        """Of the owner. Raises OwnerNotFoundError."""
        feeds = self.capture.feeds
        if feeds is None:
            raise OwnerNotFoundError(f"capture {self.capture.id} is not the owner. Ask the one that is.")
        return feeds

    async def beside(self, call: Any, *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    @asynccontextmanager
    async def pd(self, upstream: UpstreamAccess | None = None) -> AsyncIterator[PdClient]:
        options = self.serving.options
        addresses = ",".join(upstream.pd) if upstream is not None else ""
        security = upstream.security if upstream is not None and upstream.security != PLAIN else options.security
        async with PdClient(addresses or options.pd, security=security) as pd:
            yield pd


class CaptureOperations:
    """The ``Operations`` of a server."""

    def __init__(self, serving: Serving) -> None:
        asked = Asked(serving)
        self.server = ServerOperations(asked)
        self.changefeeds = ChangefeedOperations(asked)
        self.cluster = ClusterOperations(asked)
