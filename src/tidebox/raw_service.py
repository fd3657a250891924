"""The raw half of ``tikvpb.Tikv`` of one store.

A request is checked in TiKV's order: does it speak the server's API version, is its key of that API,
then the region as for every other request. Where a response has no field for an error, the error
comes as the one pair of the answer.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

from tidebox.cluster import Cluster
from tidebox.engine import Family
from tidebox.guard import RegionGuard, RegionRefused, refuse
from tidebox.raw import DELETED, V1_FAMILIES, ClockNotSyncedError, RawError, RawValue
from tidebox.raw_blocks import Checksum
from tidebox.regions import Region
from tidebox.rpc import Context
from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.errors import InvariantError, TidemillError

MAX_KEY_BYTES = 8192
MAX_WRITE_BYTES = 8 << 20  # as much as TiKV takes into one entry of its log

_RAW_MODE, _RAW_MODE_END = b"r", b"s"
_VERSION_NAMES = {kvrpcpb_pb2.V1: "V1", kvrpcpb_pb2.V1TTL: "V1ttl", kvrpcpb_pb2.V2: "V2"}


class RawService:
    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._raw = cluster.raw
        self._store_id = store_id
        self._guard = RegionGuard(cluster, store_id)

    # Reads

    def RawGet(self, request: kvrpcpb_pb2.RawGetRequest, context: Context) -> kvrpcpb_pb2.RawGetResponse:
        response = kvrpcpb_pb2.RawGetResponse()
        with _Reporting(response):
            family = self._check("raw_get", request, [request.key])
            self._guard.check(request.context, context, [self._raw.physical(request.key)])
            value = self._raw.get(family, request.key)
            if value is None:
                response.not_found = True
            else:
                response.value = value
        return response

    def RawBatchGet(self, request: kvrpcpb_pb2.RawBatchGetRequest, context: Context) -> kvrpcpb_pb2.RawBatchGetResponse:
        response = kvrpcpb_pb2.RawBatchGetResponse()
        with _Reporting(response, response.pairs):
            family = self._check("raw_batch_get", request, request.keys)
            self._guard.check(request.context, context, map(self._raw.physical, request.keys))
            for key in request.keys:
                value = self._raw.get(family, key)
                if value is not None:
                    response.pairs.add(key=key, value=value)
        return response

    def RawScan(self, request: kvrpcpb_pb2.RawScanRequest, context: Context) -> kvrpcpb_pb2.RawScanResponse:
        response = kvrpcpb_pb2.RawScanResponse()
        with _Reporting(response, response.kvs):
            family = self._check_ranges("raw_scan", request, [(request.start_key, request.end_key)])
            region = self._region_to_scan(request.context, context)
            self._scan(response, family, region, request, request.start_key, request.end_key, request.limit)
        return response

    def RawBatchScan(
        self, request: kvrpcpb_pb2.RawBatchScanRequest, context: Context
    ) -> kvrpcpb_pb2.RawBatchScanResponse:
        response = kvrpcpb_pb2.RawBatchScanResponse()
        with _Reporting(response, response.kvs):
            ranges = [(r.start_key, r.end_key) for r in request.ranges]
            family = self._check_ranges("raw_batch_scan", request, ranges)
            region = self._guard.check(request.context, context)
            for at, (start, end) in enumerate(ranges):
                if not end and at + 1 < len(ranges):
                    end = ranges[at + 1][0]  # an open range ends where the next begins
                self._scan(response, family, region, request, start, end, request.each_limit)
        return response

    def RawGetKeyTTL(
        self, request: kvrpcpb_pb2.RawGetKeyTTLRequest, context: Context
    ) -> kvrpcpb_pb2.RawGetKeyTTLResponse:
        response = kvrpcpb_pb2.RawGetKeyTTLResponse()
        with _Reporting(response):
            self._check("raw_get_key_ttl", request, [request.key])
            if not self._raw.is_v2:
                raise RawError("ttl is not enabled, but get the ttl of a key was asked for")
            self._guard.check(request.context, context, [self._raw.physical(request.key)])
            ttl = self._raw.ttl(request.key)
            if ttl is None:
                response.not_found = True
            else:
                response.ttl = ttl
        return response

    def RawChecksum(self, request: kvrpcpb_pb2.RawChecksumRequest, context: Context) -> kvrpcpb_pb2.RawChecksumResponse:
        response = kvrpcpb_pb2.RawChecksumResponse()
        with _Reporting(response):
            if request.algorithm != kvrpcpb_pb2.Crc64_Xor:
                raise RawError(f"unknown checksum algorithm {request.algorithm}")
            ranges = [(r.start_key, r.end_key) for r in request.ranges]
            family = self._check_ranges("raw_checksum", request, ranges)
            region = self._guard.check(request.context, context)
            total = Checksum()
            for start, end in ranges:
                total += self._raw.checksum(family, *self._clamp(region, start, end))
            response.checksum, response.total_kvs, response.total_bytes = total.value, total.pairs, total.bytes
        return response

    # Writes

    def RawPut(self, request: kvrpcpb_pb2.RawPutRequest, context: Context) -> kvrpcpb_pb2.RawPutResponse:
        response = kvrpcpb_pb2.RawPutResponse()
        with _Reporting(response):
            family = self._check("raw_put", request, [request.key])
            value = RawValue(request.value, self._expiry(request.ttl))
            self._write(family, request.context, context, {request.key: value})
        return response

    def RawBatchPut(self, request: kvrpcpb_pb2.RawBatchPutRequest, context: Context) -> kvrpcpb_pb2.RawBatchPutResponse:
        response = kvrpcpb_pb2.RawBatchPutResponse()
        with _Reporting(response):
            family = self._check("raw_batch_put", request, [pair.key for pair in request.pairs])
            ttls = request.ttls or [request.ttl]
            if len(ttls) not in (1, len(request.pairs)):
                raise RawError("The length of ttls does not equal to the length of pairs")
            expiries = [self._expiry(ttl) for ttl in ttls]
            if len(expiries) != len(request.pairs):
                expiries *= len(request.pairs)
            values = {p.key: RawValue(p.value, expiry) for p, expiry in zip(request.pairs, expiries, strict=True)}
            self._write(family, request.context, context, values)
        return response

    def RawDelete(self, request: kvrpcpb_pb2.RawDeleteRequest, context: Context) -> kvrpcpb_pb2.RawDeleteResponse:
        response = kvrpcpb_pb2.RawDeleteResponse()
        with _Reporting(response):
            family = self._check("raw_delete", request, [request.key])
            self._write(family, request.context, context, {request.key: DELETED})
        return response

    def RawBatchDelete(
        self, request: kvrpcpb_pb2.RawBatchDeleteRequest, context: Context
    ) -> kvrpcpb_pb2.RawBatchDeleteResponse:
        response = kvrpcpb_pb2.RawBatchDeleteResponse()
        with _Reporting(response):
            family = self._check("raw_batch_delete", request, request.keys)
            self._write(family, request.context, context, dict.fromkeys(request.keys, DELETED))
        return response

    def RawDeleteRange(
        self, request: kvrpcpb_pb2.RawDeleteRangeRequest, context: Context
    ) -> kvrpcpb_pb2.RawDeleteRangeResponse:
        response = kvrpcpb_pb2.RawDeleteRangeResponse()
        with _Reporting(response):
            family = self._check_ranges("raw_delete_range", request, [(request.start_key, request.end_key)])
            with self._cluster.mutex:
                start = self._raw.physical(request.start_key)
                region = self._guard.check(request.context, context, [start])
                end = self._raw.physical(request.end_key) if request.end_key else region.end
                if region.end and end > region.end:
                    _refuse_outside(end, region)
                if not end or start < end:
                    self._raw.delete_range(family, start, end)
        return response

    def RawCompareAndSwap(self, request: kvrpcpb_pb2.RawCASRequest, context: Context) -> kvrpcpb_pb2.RawCASResponse:
        response = kvrpcpb_pb2.RawCASResponse()
        with _Reporting(response):
            key = request.key
            family = self._check("raw_compare_and_swap", request, [key])
            change = DELETED if request.delete else RawValue(request.value, self._expiry(request.ttl))
            _check_sizes({key: change})
            wanted = None if request.previous_not_exist else request.previous_value
            with self._cluster.mutex, self._cluster.in_flight.latch([key]) as latch:
                region = self._check_write(request.context, context, [key])
                found = self._raw.get(family, key)
                if found == wanted:
                    recheck = lambda: self._check_write(request.context, context, [key])  # noqa: E731
                    self._raw.write(region, family, {key: change}, latch, recheck)
                    response.succeed = True
            response.previous_not_exist = found is None
            response.previous_value = found or b""
        return response

    # Checks

    def _write(
        self, family: Family, wanted: kvrpcpb_pb2.Context, context: Context, changes: dict[bytes, RawValue]
    ) -> None:
        size = _check_sizes(changes)
        keys = list(changes)
        with self._cluster.mutex, self._cluster.in_flight.latch(keys) as latch:
            region = self._check_write(wanted, context, keys)
            if size > MAX_WRITE_BYTES:
                too_large = errorpb_pb2.RaftEntryTooLarge(region_id=region.id, entry_size=size)
                refuse(
                    f"raft entry is too large, region {region.id}, entry size {size}", raft_entry_too_large=too_large
                )
            self._raw.write(region, family, changes, latch, lambda: self._check_write(wanted, context, keys))

    def _check_write(self, wanted: kvrpcpb_pb2.Context, context: Context, keys: Sequence[bytes]) -> Region:
        return self._guard.check(wanted, context, map(self._raw.physical, keys))

    def _check(self, command: str, request: Any, keys: Iterable[bytes]) -> Family:
        """The family to use, if the request speaks our API and its keys are of it."""
        self._check_version(command, request)
        if self._raw.is_v2:
            for key in keys:
                if key[:1] != _RAW_MODE:
                    raise RawError(
                        f"Key mode mismatched with the request mode, cmd: {command}, storage: V2, "
                        f"key: {key.hex().upper()}"
                    )
        return self._family(request)

    def _check_ranges(self, command: str, request: Any, ranges: Iterable[tuple[bytes, bytes]]) -> Family:
        self._check_version(command, request)
        if self._raw.is_v2:
            for bounds in ranges:
                if not all(key[:1] == _RAW_MODE or key == _RAW_MODE_END for key in bounds):
                    start, end = (key.hex().upper() for key in bounds)
                    raise RawError(
                        f"Key mode mismatched with the request mode, cmd: {command}, storage: V2, "
                        f'range: (Some("{start}"), Some("{end}"))'
                    )
        return self._family(request)

    def _check_version(self, command: str, request: Any) -> None:
        ours = kvrpcpb_pb2.V2 if self._raw.is_v2 else kvrpcpb_pb2.V1
        asked = request.context.api_version
        if asked != ours:
            raise RawError(
                f"Api version in request does not match with TiKV storage, cmd: {command}, "
                f"storage: {_VERSION_NAMES[ours]}, request: {_VERSION_NAMES.get(asked, f'V{asked}')}"
            )

    def _family(self, request: Any) -> Family:
        cf: str = getattr(request, "cf", "")
        if self._raw.is_v2:
            if cf:
                raise RawError(f"cf is deprecated in API V2, cf name: {cf}")
            return Family.RAW
        family = V1_FAMILIES.get(cf)
        if family is None:
            raise RawError(f"invalid cf name: {cf}")
        return family

    def _expiry(self, ttl_seconds: int) -> int:
        if ttl_seconds and not self._raw.is_v2:
            raise RawError("ttl is not enabled, but get put request with ttl")
        return self._raw.expiry(ttl_seconds)

    # Scans

    def _region_to_scan(self, wanted: kvrpcpb_pb2.Context, context: Context) -> Region:
        """The region whose keys to scan.

        The one official client of API V1 for Python takes a region error in a scan for no rows and goes
        on behind the region it believes in. We have the data, so it gets the rows of that region,
        whatever has become of it since.
        """
        try:
            return self._guard.check(wanted, context)
        except RegionRefused:
            with self._cluster.mutex:
                past = self._raw.region_as_of(wanted.region_id, wanted.region_epoch.version)
            if self._raw.is_v2 or past is None or wanted.peer.store_id != self._store_id:
                raise
            return past

    def _scan(self, to: Any, family: Family, region: Region, request: Any, start: bytes, end: bytes, n: int) -> None:
        """Add at most ``n`` pairs of the request's range, clamped to the region; backwards it begins at its end."""
        bounds = self._clamp(region, end, start) if request.reverse else self._clamp(region, start, end)
        if self._raw.is_v2 and not request.reverse:
            to.MergeFromString(self._raw.scan_wire(*bounds, n, key_only=request.key_only))
            return
        for key, value in islice(self._raw.scan(family, *bounds, backwards=request.reverse), n):
            to.kvs.add(key=key, value=b"" if request.key_only else value)

    def _clamp(self, region: Region, start: bytes, end: bytes) -> tuple[bytes, bytes]:
        """A range of keys as a physical range inside the region; an empty bound is the region's."""
        low = max(self._raw.physical(start), region.start) if start else region.start
        high = self._raw.physical(end) if end else region.end
        return low, region.end if region.end and (not high or high > region.end) else high


def _check_sizes(changes: dict[bytes, RawValue]) -> int:
    """Bytes of all changes; keys must not be too long."""
    size = 0
    for key, change in changes.items():
        if len(key) > MAX_KEY_BYTES:
            raise RawError(f"max key size exceeded, size: {len(key)}, limit: {MAX_KEY_BYTES}")
        size += len(key) + len(change.value)
    return size


def _refuse_outside(key: bytes, region: Region) -> None:
    outside = errorpb_pb2.KeyNotInRegion(key=key, region_id=region.id, start_key=region.start, end_key=region.end)
    refuse("key not in region", key_not_in_region=outside)


class _Reporting:
    """Puts what goes wrong inside into the response, in the field it has for that."""

    def __init__(self, response: Any, pairs: Any = None) -> None:
        self._response = response
        self._pairs = pairs

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return True
        if isinstance(error, RegionRefused):
            self._response.region_error.CopyFrom(error.error)
        elif isinstance(error, ClockNotSyncedError):
            not_synced = errorpb_pb2.MaxTimestampNotSynced()
            self._response.region_error.CopyFrom(
                errorpb_pb2.Error(message=str(error), max_timestamp_not_synced=not_synced)
            )
        elif isinstance(error, InvariantError) or not isinstance(error, TidemillError):
            return False
        elif self._pairs is not None:
            del self._pairs[:]
            self._pairs.add(error=kvrpcpb_pb2.KeyError(abort=str(error)))
        else:
            self._response.error = str(error)
        return True
