"""Who is told of which change: subscriptions by region, and the resolved-ts they may be promised.

    transactions ──► on_rows ───────┐
    splits, leaders ──► fail_region ┼─► each subscription of the region ──► its stream
    ticker ──► publish_resolved ────┘
    raw writes ──► on_raw ──────────► those that follow RawKV

A resolved-ts is the TSO's present, held down by the locks of the subscribed range: a transaction
takes its commit-ts after its locks are in place, so whatever may still commit at or below the
present has a lock here. What follows RawKV is told of raw writes alone, and its resolved-ts comes from
``raw``, which stamps them. Everything in this module runs under the cluster's mutex, but for the
scans: those read a snapshot taken at registration, at their own pace.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidebox import blocks, raw_blocks
from tidebox.engine import Family, Snapshot
from tidebox.feed import (
    INITIALIZED_ROW,
    MESSAGE_BYTES,
    FeedStream,
    Subscription,
    entries_event,
    row_field,
)
from tidebox.inflight import InFlight
from tidebox.mvcc import Lock, LockTable, LockType, Reader, physical_key, version_key
from tidebox.regions import Region, RegionMap
from tidemill._pb import cdcpb_pb2, errorpb_pb2
from tidemill.errors import CorruptDataError, TidemillError
from tidemill.log import get_logger
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import decode_bytes

_FIRST_GROUP = 8  # regions in the first resolved-ts message; each further one takes four times as many
_GROUP_GROWTH = 4

log = get_logger("store.subscriptions")


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row as it goes on the wire, and what decides who gets it."""

    key: bytes
    wire: bytes
    txn_source: int


class Subscriptions:
    def __init__(self, regions: RegionMap, locks: LockTable, in_flight: InFlight) -> None:
        self._regions = regions
        self._locks = locks
        self._in_flight = in_flight
        self._by_region: dict[int, dict[tuple[int, int], Subscription]] = defaultdict(dict)
        self._held: set[int] = set()

    # Registration

    def find(self, stream: FeedStream, request_id: int, region_id: int) -> Subscription | None:
        return self._by_region.get(region_id, {}).get((id(stream), request_id))

    def is_observed(self, region_id: int) -> bool:
        return bool(self._by_region.get(region_id))

    def register(self, subscription: Subscription, snapshot: Snapshot) -> None:
        """Start pushing live changes from this moment on, and scan what the snapshot of this moment holds."""
        key = (id(subscription.stream), subscription.request_id)
        self._by_region[subscription.region_id][key] = subscription
        if subscription.is_raw:
            region = self._regions.get(subscription.region_id)
            assert region is not None
            subscription.stream.schedule(lambda: _scan_raw(subscription, snapshot, region))
            return
        start, end = subscription.start, subscription.end
        locks = [(key, lock) for key, lock in self._locks.within(start, end) if lock.writes_data]
        subscription.stream.schedule(lambda: _scan(subscription, snapshot, locks))

    def deregister(self, stream: FeedStream, request_id: int, region_id: int) -> None:
        """Remove one subscription, or with region 0 all of the request id; each is acknowledged by an error event."""
        regions = [region_id] if region_id else list(self._by_region)
        for region in regions:
            subscription = self.find(stream, request_id, region)
            if subscription is not None:
                not_found = errorpb_pb2.RegionNotFound(region_id=region)
                self._close(subscription, cdcpb_pb2.Error(region_not_found=not_found))

    def forget(self, stream: FeedStream) -> None:
        """A stream has ended: drop everything it had."""
        for subscriptions in self._by_region.values():
            for key in [key for key in subscriptions if key[0] == id(stream)]:
                subscriptions.pop(key).is_closed = True

    # What happens to regions

    def on_rows(self, region_id: int, rows: Sequence[LiveRow]) -> None:
        """Tell every subscription of the region; rows are of one write and go out as one event."""
        if not rows or not self.is_observed(region_id):
            return
        lowest, highest = min(r.key for r in rows), max(r.key for r in rows)
        for subscription in list(self._by_region[region_id].values()):
            # Of many subscriptions most have nothing to do with these rows.
            is_elsewhere = highest < subscription.start or (subscription.end and subscription.end <= lowest)
            if subscription.is_raw or is_elsewhere:
                continue
            wanted = [r.wire for r in rows if subscription.wants(r.key) and subscription.wants_source(r.txn_source)]
            if wanted:
                self._push(subscription, wanted)

    def on_raw(self, region_id: int, index: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Raw writes of one request, as keys and encoded rows; ``index`` is the request's place in the log."""
        for subscription in list(self._by_region.get(region_id, {}).values()):
            if not subscription.is_raw:
                continue
            wanted = [wire for key, wire in rows if subscription.wants(key)]
            if wanted:
                self._push(subscription, wanted, index)

    def _push(self, subscription: Subscription, rows: Sequence[bytes], index: int = 0) -> None:
        region_id, request_id = subscription.region_id, subscription.request_id
        if subscription.stream.is_congested:
            congested = cdcpb_pb2.Congested(region_id=region_id)
            self._close(subscription, cdcpb_pb2.Error(congested=congested))
            log.warning("slow client dropped from a region", region=region_id, request=request_id)
            return
        subscription.stream.push(subscription, entries_event(region_id, request_id, *rows, index=index))

    def fail_region(self, region_id: int, error: cdcpb_pb2.Error) -> None:
        """The region is no longer what its subscribers registered for."""
        for subscription in list(self._by_region.get(region_id, {}).values()):
            self._close(subscription, error)

    def forget_region(self, region_id: int) -> None:
        """There is no such region any more; its subscriptions have been failed."""
        self._held.discard(region_id)
        self._by_region.pop(region_id, None)

    # Resolved-ts

    def hold(self, region_id: int) -> None:
        self._held.add(region_id)

    def release(self, region_id: int) -> None:
        self._held.discard(region_id)

    def is_held(self, region_id: int) -> bool:
        return region_id in self._held

    def promised_on(self, region_id: int, key: bytes) -> int:
        """No change of this key may be committed at or below it any more: what those were promised who want it."""
        subscriptions = self._by_region.get(region_id, {}).values()
        return max((s.resolved_ts for s in subscriptions if not s.is_raw and s.wants(key)), default=0)

    def publish_resolved(self, present: int, promise_raw: Callable[[Subscription], int]) -> None:
        """Send every initialized subscription how far its range is resolved; ``present`` is the TSO's.

        ``promise_raw`` says how far it is for one that follows RawKV, and keeps to that afterwards.
        """
        by_stream: dict[FeedStream, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for region_id, subscriptions in self._by_region.items():
            if region_id in self._held:
                continue
            for subscription in subscriptions.values():
                if not subscription.is_initialized:
                    continue
                if subscription.is_raw:
                    subscription.resolved_ts = max(subscription.resolved_ts, promise_raw(subscription))
                    raw_entry = (subscription.resolved_ts, region_id)
                    by_stream[subscription.stream][subscription.request_id].append(raw_entry)
                    continue
                resolved = max(subscription.resolved_ts, min(present, self._pending(subscription)))
                subscription.resolved_ts = resolved
                by_stream[subscription.stream][subscription.request_id].append((resolved, region_id))
        for stream, by_request in by_stream.items():
            _send_resolved(stream, by_request)

    def _pending(self, subscription: Subscription) -> int:
        """Just below what may still commit in the range: locks, and such as are on their way.

        Their own start-ts would do, since they commit above it; but then a client that judges a lock by
        it takes the range to be past the lock.
        """
        locks = self._locks.within(subscription.start, subscription.end) if len(self._locks) else []
        held = [lock.start_ts for _, lock in locks if lock.writes_data]
        held += [lock.start_ts for k, lock in self._in_flight.locks() if lock.writes_data and subscription.wants(k)]
        return min(held, default=MAX_TS) - 1

    def _close(self, subscription: Subscription, error: cdcpb_pb2.Error) -> None:
        key = (id(subscription.stream), subscription.request_id)
        self._by_region[subscription.region_id].pop(key, None)
        subscription.stream.push_error(subscription, error)


def wanted_bounds(region: Region, start_key: bytes, end_key: bytes) -> tuple[bytes, bytes]:
    """The part of a region that a request names, in plain keys.

    Bounds are memcomparable; if either cannot be decoded both are ignored, as TiKV does.
    """
    low, high = region.raw_bounds
    try:
        start = decode_bytes(start_key)[0] if start_key else b""
        end = decode_bytes(end_key)[0] if end_key else b""
    except CorruptDataError:
        log.warning("bounds of a registration are not memcomparable; the whole region is observed", region=region.id)
        return low, high
    if end and high:
        return max(low, start), min(high, end)
    return max(low, start), end or high


# The incremental scan


def _scan(subscription: Subscription, snapshot: Snapshot, locks: Sequence[tuple[bytes, Lock]]) -> None:
    """Send what the snapshot holds above the checkpoint, then INITIALIZED."""
    stream, region, request = subscription.stream, subscription.region_id, subscription.request_id
    try:
        start = subscription.start
        for key, lock in locks:  # cuts the range, so that a lock goes before the versions of its key
            if not _scan_committed(subscription, snapshot, start, key):
                return
            row = prewrite_row(Reader(snapshot), snapshot.get, key, lock)
            event = entries_event(region, request, row.wire)
            if subscription.wants_source(row.txn_source) and not stream.push_scan(subscription, event):
                return
            start = key
        if not _scan_committed(subscription, snapshot, start, subscription.end):
            return
        stream.push_initialized(subscription, entries_event(region, request, INITIALIZED_ROW))
    except TidemillError as error:
        # The client would wait forever for the end of this scan.
        log.error("incremental scan failed", region=region, error=error)
        stream.close(failure=f"incremental scan of region {region} failed: {error}")


def _scan_raw(subscription: Subscription, snapshot: Snapshot, region: Region) -> None:
    """Send the newest version of every raw key of the region, as far as above the checkpoint, then INITIALIZED.

    Of the whole region, as TiKV does it: clients know to drop what they have not asked for.
    """
    stream, request = subscription.stream, subscription.request_id
    try:
        bounds = (region.start, region.end, subscription.checkpoint_ts)
        for rows in raw_blocks.changes(snapshot, *bounds, on_read=partial(stream.pace, subscription)):
            for run in rows.cut(MESSAGE_BYTES):
                if not stream.push_scan(subscription, entries_event(region.id, request, run)):
                    return
        stream.push_initialized(subscription, entries_event(region.id, request, INITIALIZED_ROW))
    except TidemillError as error:
        log.error("incremental scan failed", region=region.id, error=error)
        stream.close(failure=f"incremental scan of region {region.id} failed: {error}")


def _scan_committed(subscription: Subscription, snapshot: Snapshot, start: bytes, end: bytes) -> bool:
    if end and start >= end:
        return True
    physical = (physical_key(start) if start else b"", physical_key(end) if end else b"")
    pace = partial(subscription.stream.pace, subscription)
    scan = partial(blocks.changes, drop_looped=subscription.drop_looped, on_read=pace)
    for rows in scan(snapshot, *physical, subscription.checkpoint_ts):
        for run in rows.cut(MESSAGE_BYTES):
            event = entries_event(subscription.region_id, subscription.request_id, run)
            if not subscription.stream.push_scan(subscription, event):
                return False
    return True


# Rows of one lock or commit record


def prewrite_row(
    reader: Reader, get: Callable[[Family, bytes], bytes | None], key: bytes, lock: Lock, value: bytes | None = None
) -> LiveRow:
    """The PREWRITE row of a lock: its full value, and the value that it is about to replace."""
    is_put = lock.type is LockType.PUT
    if value is None and is_put:
        value = lock.short_value
        if value is None:
            value = get(Family.DEFAULT, version_key(key, lock.start_ts))
        if value is None:
            raise CorruptDataError(f"the lock on key {key.hex()} at {lock.start_ts} has no value")
    old = reader.get(key, max(lock.start_ts, lock.for_update_ts))
    row = cdcpb_pb2.Event.Row(
        start_ts=lock.start_ts,
        type=cdcpb_pb2.Event.PREWRITE,
        op_type=cdcpb_pb2.Event.Row.PUT if is_put else cdcpb_pb2.Event.Row.DELETE,
        key=key,
        value=value or b"",
        old_value=old.value if old else b"",
        txn_source=lock.txn_source,
    )
    return LiveRow(key, row_field(row), lock.txn_source)


def commit_row(key: bytes, lock: Lock, commit_ts: int) -> LiveRow:
    """The COMMIT row of a lock. A long value is not repeated: the client has it from the PREWRITE."""
    row = cdcpb_pb2.Event.Row(
        start_ts=lock.start_ts,
        commit_ts=commit_ts,
        type=cdcpb_pb2.Event.COMMIT,
        op_type=cdcpb_pb2.Event.Row.PUT if lock.type is LockType.PUT else cdcpb_pb2.Event.Row.DELETE,
        key=key,
        value=lock.short_value or b"",
        txn_source=lock.txn_source,
    )
    return LiveRow(key, row_field(row), lock.txn_source)


def committed_row(reader: Reader, key: bytes, lock: Lock, value: bytes, commit_ts: int) -> LiveRow:
    """The COMMITTED row of a write without a lock before it: ``lock`` is what it would have been."""
    is_put = lock.type is LockType.PUT
    old = reader.get(key, commit_ts - 1)
    row = cdcpb_pb2.Event.Row(
        start_ts=lock.start_ts,
        commit_ts=commit_ts,
        type=cdcpb_pb2.Event.COMMITTED,
        op_type=cdcpb_pb2.Event.Row.PUT if is_put else cdcpb_pb2.Event.Row.DELETE,
        key=key,
        value=value if is_put else b"",
        old_value=old.value if old else b"",
        txn_source=lock.txn_source,
    )
    return LiveRow(key, row_field(row), lock.txn_source)


def rollback_row(key: bytes, start_ts: int) -> LiveRow:
    row = cdcpb_pb2.Event.Row(start_ts=start_ts, type=cdcpb_pb2.Event.ROLLBACK, key=key)
    return LiveRow(key, row_field(row), 0)


# Resolved-ts messages


def _send_resolved(stream: FeedStream, by_request: dict[int, list[tuple[int, int]]]) -> None:
    features = stream.features
    if features is None or stream.is_congested:  # who does not even read changes needs no promises
        return
    if features.batched_resolved_ts:
        if features.multiplexed:
            for request_id, regions in by_request.items():
                _send_batches(stream, request_id, regions)
        else:
            _send_batches(stream, 0, [entry for regions in by_request.values() for entry in regions])
    elif not features.multiplexed:  # a multiplexed stream of so old a client gets none at all, as from TiKV
        events = [
            cdcpb_pb2.Event(region_id=region, request_id=request_id, resolved_ts=ts)
            for request_id, regions in by_request.items()
            for ts, region in regions
        ]
        stream.push_message(cdcpb_pb2.ChangeDataEvent(events=events).SerializeToString(), mergeable=True)


def _send_batches(stream: FeedStream, request_id: int, regions: list[tuple[int, int]]) -> None:
    """Slow regions go in small groups, so that they hold back few others: a group's ts is its lowest."""
    regions.sort()
    at, size = 0, _FIRST_GROUP
    while at < len(regions):
        group = regions[at : at + size]
        resolved = cdcpb_pb2.ResolvedTs(regions=[r for _, r in group], ts=group[0][0], request_id=request_id)
        message = cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved)
        stream.push_message(message.SerializeToString(), mergeable=False)
        at += len(group)
        size *= _GROUP_GROWTH
