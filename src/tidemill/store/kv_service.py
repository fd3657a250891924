"""``tikvpb.Tikv`` of one store: reads at a ts, and splitting regions on request.

Every request names the region it believes in; it is checked in TiKV's order before the data is
looked at, and answered with a region error where the client is behind.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.errors import UsageError
from tidemill.store import blocks
from tidemill.store.cluster import Cluster
from tidemill.store.guard import RegionGuard, RegionRefused
from tidemill.store.mvcc import Lock, LockType, Reader, physical_key
from tidemill.store.regions import Region
from tidemill.store.rpc import Context
from tidemill.store.transactions import KeyLockedError, blocking_lock

_LOCK_OPS = {
    LockType.PUT: kvrpcpb_pb2.Put,
    LockType.DELETE: kvrpcpb_pb2.Del,
    LockType.LOCK: kvrpcpb_pb2.Lock,
    LockType.PESSIMISTIC: kvrpcpb_pb2.PessimisticLock,
}


class KvService:
    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._guard = RegionGuard(cluster, store_id)

    def KvGet(self, request: kvrpcpb_pb2.GetRequest, context: Context) -> kvrpcpb_pb2.GetResponse:
        try:
            self._guard.check(request.context, context, [physical_key(request.key)])
            found = self._cluster.get(request.key, request.version, bypass=_bypassed(request.context))
        except RegionRefused as refused:
            return kvrpcpb_pb2.GetResponse(region_error=refused.error)
        except KeyLockedError as locked:
            return kvrpcpb_pb2.GetResponse(error=_locked(locked.key, locked.lock))
        if found is None:
            return kvrpcpb_pb2.GetResponse(not_found=True)
        commit_ts = found.commit_ts if request.need_commit_ts else 0
        return kvrpcpb_pb2.GetResponse(value=found.value, commit_ts=commit_ts)

    def KvBatchGet(self, request: kvrpcpb_pb2.BatchGetRequest, context: Context) -> kvrpcpb_pb2.BatchGetResponse:
        try:
            self._guard.check(request.context, context, map(physical_key, request.keys))
        except RegionRefused as refused:
            return kvrpcpb_pb2.BatchGetResponse(region_error=refused.error)
        response = kvrpcpb_pb2.BatchGetResponse()
        for key in request.keys:
            try:
                found = self._cluster.get(key, request.version, bypass=_bypassed(request.context))
            except KeyLockedError as locked:
                response.pairs.add(error=_locked(key, locked.lock), key=key)
                continue
            if found is not None:
                commit_ts = found.commit_ts if request.need_commit_ts else 0
                response.pairs.add(key=key, value=found.value, commit_ts=commit_ts)
        return response

    def KvScan(self, request: kvrpcpb_pb2.ScanRequest, context: Context) -> bytes:
        """Answers in wire bytes: rows go from the engine to the message in bulk."""
        try:
            region = self._guard.check(request.context, context)
            start, end = _scan_range(request, region)
        except RegionRefused as refused:
            return kvrpcpb_pb2.ScanResponse(region_error=refused.error).SerializeToString()
        if (end and start >= end) or request.limit == 0:
            return b""
        snapshot, locks = self._cluster.snapshot(start, end)
        bypass = _bypassed(request.context)
        blocking = {k: lock for k, lock in locks if blocking_lock(lock, k, request.version, bypass)}
        if request.reverse or blocking or request.key_only:
            pairs = _walk(Reader(snapshot), request, start, end, blocking)
            return kvrpcpb_pb2.ScanResponse(pairs=islice(pairs, request.limit)).SerializeToString()
        bounds = (physical_key(start) if start else b"", physical_key(end) if end else b"")
        rows = blocks.visible(snapshot, *bounds, request.version, request.limit)
        return b"".join(part.data.tobytes() for part in rows)

    def SplitRegion(self, request: kvrpcpb_pb2.SplitRegionRequest, context: Context) -> kvrpcpb_pb2.SplitRegionResponse:
        keys = sorted(set(request.split_keys or [request.split_key]))
        try:
            with self._cluster.mutex:
                physical = [physical_key(key) for key in keys]
                region = self._guard.check(request.context, context, physical)
                results = self._cluster.split(region.id, physical)
        except RegionRefused as refused:
            return kvrpcpb_pb2.SplitRegionResponse(region_error=refused.error)
        except UsageError as error:
            return kvrpcpb_pb2.SplitRegionResponse(region_error=errorpb_pb2.Error(message=str(error)))
        regions = [region.to_wire() for region in results]
        return kvrpcpb_pb2.SplitRegionResponse(left=regions[0], right=regions[-1], regions=regions)


def _bypassed(context: kvrpcpb_pb2.Context) -> Sequence[int]:
    return () if context.isolation_level == kvrpcpb_pb2.SI and not context.resolved_locks else _Bypass(context)


class _Bypass(Sequence[int]):
    """Start-ts whose locks a read ignores: those the client has resolved, or all at read-committed."""

    def __init__(self, context: kvrpcpb_pb2.Context) -> None:
        self._all = context.isolation_level == kvrpcpb_pb2.RC
        self._resolved = frozenset(context.resolved_locks)

    def __contains__(self, start_ts: object) -> bool:
        return self._all or start_ts in self._resolved

    def __len__(self) -> int:
        return len(self._resolved)

    def __getitem__(self, index: Any) -> Any:
        return sorted(self._resolved)[index]


def _scan_range(request: kvrpcpb_pb2.ScanRequest, region: Region) -> tuple[bytes, bytes]:
    """What to read, in plain keys and ascending, clamped to the region."""
    low, high = region.raw_bounds
    start, end = (request.end_key, request.start_key) if request.reverse else (request.start_key, request.end_key)
    return max(low, start), min(high, end) if high and end else end or high


def _walk(
    reader: Reader, request: kvrpcpb_pb2.ScanRequest, start: bytes, end: bytes, blocking: dict[bytes, Lock]
) -> Iterable[kvrpcpb_pb2.KvPair]:
    """Key by key: for scans that go backwards, meet locks, or want keys only."""
    for key in _keys(reader, start, end, blocking, backwards=request.reverse):
        if key in blocking:
            yield kvrpcpb_pb2.KvPair(error=_locked(key, blocking[key]), key=key)
            continue
        found = reader.get(key, request.version)
        if found is not None:
            yield kvrpcpb_pb2.KvPair(key=key, value=b"" if request.key_only else found.value)


def _keys(reader: Reader, start: bytes, end: bytes, also: Iterable[bytes], *, backwards: bool) -> Iterable[bytes]:
    """Every key of ``[start, end)`` that has a version or is in ``also``, once, in order."""
    extra = sorted(also, reverse=not backwards)
    step = reader.previous_key if backwards else reader.next_key
    at = step(end if backwards else start)
    while True:
        inside = at is not None and start <= at and (not end or at < end)
        ahead = extra and (not inside or (at is not None and (extra[-1] > at if backwards else extra[-1] < at)))
        if ahead:
            yield extra.pop()
            continue
        if not inside or at is None:
            return
        if extra and extra[-1] == at:
            extra.pop()
        yield at
        at = step(at if backwards else at + b"\0")


def _locked(key: bytes, lock: Lock) -> kvrpcpb_pb2.KeyError:
    info = kvrpcpb_pb2.LockInfo(
        primary_lock=lock.primary,
        lock_version=lock.start_ts,
        key=key,
        lock_ttl=lock.ttl_ms,
        txn_size=lock.txn_size,
        lock_type=_LOCK_OPS[lock.type],
        lock_for_update_ts=lock.for_update_ts,
        min_commit_ts=lock.min_commit_ts,
    )
    return kvrpcpb_pb2.KeyError(locked=info)
