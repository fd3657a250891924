"""``tikvpb.Tikv`` of one store: transactional reads at a ts, and splitting regions on request.

Every request names the region it believes in; it is checked in TiKV's order before the data is
looked at, and answered with a region error where the client is behind.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from tidebox import blocks
from tidebox.cluster import Cluster
from tidebox.guard import RegionGuard, RegionRefused
from tidebox.key_errors import key_error
from tidebox.limits import RequestLimits
from tidebox.mvcc import Reader, physical_key
from tidebox.reads import View
from tidebox.regions import Region
from tidebox.rpc import Context
from tidebox.txn.errors import TransactionError
from tidebox.txn.read import Isolation, ReadAt
from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.errors import TidemillError, UsageError

_ISOLATION = {
    kvrpcpb_pb2.SI: Isolation.SNAPSHOT,
    kvrpcpb_pb2.RC: Isolation.READ_COMMITTED,
    kvrpcpb_pb2.RCCheckTS: Isolation.READ_COMMITTED_CHECKED,
}


class KvService:
    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._guard = RegionGuard(cluster, store_id)
        self._limits = RequestLimits(cluster)

    def KvGet(self, request: kvrpcpb_pb2.GetRequest, context: Context) -> kvrpcpb_pb2.GetResponse:
        try:
            view = self._view(request.context, context, [request.key], request.version)
            found = view.get(request.key)
        except RegionRefused as refused:
            return kvrpcpb_pb2.GetResponse(region_error=refused.error)
        except TidemillError as error:
            return kvrpcpb_pb2.GetResponse(error=key_error(error))
        if found is None:
            return kvrpcpb_pb2.GetResponse(not_found=True)
        commit_ts = found.commit_ts if request.need_commit_ts else 0
        return kvrpcpb_pb2.GetResponse(value=found.value, commit_ts=commit_ts)

    def KvBatchGet(self, request: kvrpcpb_pb2.BatchGetRequest, context: Context) -> kvrpcpb_pb2.BatchGetResponse:
        response = kvrpcpb_pb2.BatchGetResponse()
        try:
            view = self._view(request.context, context, request.keys, request.version)
            for key in request.keys:
                try:
                    found = view.get(key)
                except TransactionError as error:
                    response.pairs.add(error=key_error(error), key=key)
                    continue
                if found is not None:
                    commit_ts = found.commit_ts if request.need_commit_ts else 0
                    response.pairs.add(key=key, value=found.value, commit_ts=commit_ts)
        except RegionRefused as refused:
            return kvrpcpb_pb2.BatchGetResponse(region_error=refused.error)
        except TidemillError as error:
            # Old clients look for it in the first pair.
            wire = key_error(error)
            return kvrpcpb_pb2.BatchGetResponse(error=wire, pairs=[kvrpcpb_pb2.KvPair(error=wire)])
        return response

    def KvScan(self, request: kvrpcpb_pb2.ScanRequest, context: Context) -> bytes:
        """Answers in wire bytes: rows go from the engine to the message in bulk."""
        low, high = (request.end_key, request.start_key) if request.reverse else (request.start_key, request.end_key)

        def bounds() -> tuple[bytes, bytes]:
            return clamped(low, high, self._guard.check(request.context, context))

        try:
            self._limits.check_range(request.context, low, high, request.version)
            at = _read_at(request.context, request.version)
            start, end, view = self._cluster.reads.of_range(bounds, at)
            if (end and start >= end) or request.limit == 0:
                return b""
            if request.reverse or at.isolation is Isolation.READ_COMMITTED_CHECKED:
                pairs = _walk(view, start, end, backwards=request.reverse)
                response = kvrpcpb_pb2.ScanResponse(pairs=islice(pairs, request.limit))
            else:
                rows = b"".join(_rows(view, start, end, request.limit))
                if not request.key_only:
                    return rows
                response = kvrpcpb_pb2.ScanResponse.FromString(rows)
        except RegionRefused as refused:
            return kvrpcpb_pb2.ScanResponse(region_error=refused.error).SerializeToString()
        except TidemillError as error:
            wire = key_error(error)
            return kvrpcpb_pb2.ScanResponse(error=wire, pairs=[kvrpcpb_pb2.KvPair(error=wire)]).SerializeToString()
        if request.key_only:
            for pair in response.pairs:
                pair.ClearField("value")
        return response.SerializeToString()

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

    def _view(self, wanted: kvrpcpb_pb2.Context, context: Context, keys: Iterable[bytes], version: int) -> View:
        keys = list(keys)
        self._limits.check_keys(wanted, keys, version)
        physical = [physical_key(key) for key in keys]
        return self._cluster.reads.of_keys(
            keys, _read_at(wanted, version), lambda: self._guard.check(wanted, context, physical)
        )


def _read_at(context: kvrpcpb_pb2.Context, version: int) -> ReadAt:
    return ReadAt(
        version,
        frozenset(context.resolved_locks),
        frozenset(context.committed_locks),
        _ISOLATION.get(context.isolation_level, Isolation.SNAPSHOT),
        context.replica_read,
    )


def clamped(start: bytes, end: bytes, region: Region) -> tuple[bytes, bytes]:
    """The part of ``[start, end)`` inside the region, in plain keys; an empty end means no end."""
    low, high = region.raw_bounds
    return max(low, start), min(high, end) if high and end else end or high


def _rows(view: View, start: bytes, end: bytes, limit: int) -> Iterator[bytes]:
    """Pairs as wire bytes, in bulk between the keys whose lock stops the reader or is read itself."""
    for key in (*sorted(view.special), None):
        upper = end if key is None else key
        if limit > 0 and (not upper or start < upper):
            physical = (physical_key(start) if start else b"", physical_key(upper) if upper else b"")
            for part in blocks.visible(view.snapshot, *physical, view.at.version, limit):
                limit -= len(part)
                yield part.data.tobytes()
        if limit <= 0 or key is None:
            return
        pair = _pair(view, key)
        if pair is not None:
            limit -= 1
            yield kvrpcpb_pb2.ScanResponse(pairs=[pair]).SerializeToString()
        start = key + b"\0"


def _walk(view: View, start: bytes, end: bytes, *, backwards: bool) -> Iterator[kvrpcpb_pb2.KvPair]:
    """Key by key: for scans that go backwards."""
    for key in _keys(Reader(view.snapshot), start, end, view.special, backwards=backwards):
        pair = _pair(view, key)
        if pair is not None:
            yield pair


def _pair(view: View, key: bytes) -> kvrpcpb_pb2.KvPair | None:
    try:
        found = view.get(key)
    except TransactionError as error:
        return kvrpcpb_pb2.KvPair(error=key_error(error), key=key)
    return kvrpcpb_pb2.KvPair(key=key, value=found.value) if found is not None else None


def _keys(reader: Reader, start: bytes, end: bytes, also: Iterable[bytes], *, backwards: bool) -> Iterator[bytes]:
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
