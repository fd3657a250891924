"""One client's change stream, from this side: what waits to be sent, and how much may wait.

    live changes ──► push ─────────┐
    incremental scan ──► push_scan ┼─► queue (bounded in bytes) ──► take ──► gRPC
    resolved-ts ──► push ──────────┘

A slow client fills the queue. A scan then waits for room; live changes cannot wait, because they
are pushed while the cluster writes, so beyond their quota the subscription is given up with the
error ``congested`` and the client asks again.

Waking the sender costs the writer more than all else that a stream does to it. So after each message
the sender rests for a moment and then takes all live changes that have come; scans, errors and
resolved-ts do not wait for that.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidebox.mvcc import encode_varint
from tidemill._pb import cdcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock

MESSAGE_BYTES = 1 << 20  # rows per message; a longer row is sent alone
SCAN_QUEUE_BYTES = 8 << 20
LIVE_QUEUE_BYTES = 128 << 20
REST_SECONDS = 0.01
# TiKV's limit of what a scan fetches. It has a second one, of 128 MiB/s from disk; what we scan is mostly in
# the machine's memory.
SCAN_BYTES_PER_SECOND = 512 << 20
_BURST_SECONDS = 0.1


class Throttle:
    """How fast incremental scans may read what is stored, all together."""

    def __init__(self, clock: Clock, bytes_per_second: float = SCAN_BYTES_PER_SECOND) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = 0.0

    def delay(self, size: int) -> float:
        """Take ``size`` bytes; return for how many seconds to wait before they go."""
        with self._lock:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + size / self.bytes_per_second
            return max(self._free_at - now, 0.0)


@dataclass(frozen=True, slots=True)
class Features:
    """What a client understands, from its version and from what it announced."""

    batched_resolved_ts: bool
    checks_cluster_id: bool
    multiplexed: bool

    @staticmethod
    def of(ticdc_version: str, multiplexed: bool) -> "Features":
        version = _parse_semver(ticdc_version)
        # Multiplexing is newer than batches. A build without a version says nothing; TiKV would let it starve.
        is_unnamed = multiplexed and not ticdc_version
        return Features(version >= (4, 0, 8) or is_unnamed, version >= (5, 3, 0), multiplexed)


@dataclass(eq=False, slots=True)
class Subscription:
    """One region registered by one request id of one stream. Changed only under the stream's lock."""

    stream: "FeedStream"
    request_id: int
    region_id: int
    start: bytes  # plain keys; the part of the region that is wanted
    end: bytes  # empty: no end
    checkpoint_ts: int
    drop_looped: bool
    is_raw: bool = False  # follows RawKV, and nothing else
    is_initialized: bool = False
    is_closed: bool = False
    resolved_ts: int = 0

    def wants(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)

    def wants_source(self, txn_source: int) -> bool:
        return not (txn_source >> 8 or (self.drop_looped and txn_source & 0xFF))


@dataclass(slots=True)
class _Chunk:
    data: bytes
    mergeable: bool


@dataclass(eq=False)
class FeedStream:
    """The outgoing side of one EventFeed call. ``take`` is called by its one sender, the rest by anyone."""

    store_id: int
    multiplexed: bool
    throttle: Throttle
    clock: Clock = SYSTEM_CLOCK
    features: Features | None = None  # fixed by the first request
    failure: str | None = None
    pending_scans: int = 0
    _queue: deque[_Chunk] = field(default_factory=deque)
    _queued_bytes: int = 0
    _is_closed: bool = False
    _is_urgent: bool = False  # something is queued that does not wait for the sender's rest
    _is_idle: bool = False  # the sender waits for anything at all
    _rest_until: float = 0.0
    _scans: deque[Callable[[], None]] = field(default_factory=deque)
    _scanner: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.lock = threading.Condition()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def is_congested(self) -> bool:
        return self._queued_bytes > LIVE_QUEUE_BYTES

    def push(self, subscription: Subscription, data: bytes) -> None:
        """Queue events of a subscription; nothing if it has been closed."""
        with self.lock:
            if not subscription.is_closed:
                self._append(data, mergeable=True, urgent=False)

    def push_scan(self, subscription: Subscription, data: bytes) -> bool:
        """Like ``push``, but wait for room first. False: the subscription is closed, stop scanning."""
        with self.lock:
            self.lock.wait_for(
                lambda: self._queued_bytes < SCAN_QUEUE_BYTES or subscription.is_closed or self._is_closed
            )
            if subscription.is_closed or self._is_closed:
                return False
            self._append(data, mergeable=True)
            return True

    def pace(self, subscription: Subscription, size: int) -> None:
        """A scan has read ``size`` bytes: wait as long as they must take, or until nobody wants them."""
        delay = self.throttle.delay(size)
        if delay:
            with self.lock:
                self.lock.wait_for(lambda: subscription.is_closed or self._is_closed, delay)

    def push_initialized(self, subscription: Subscription, data: bytes) -> None:
        """End a scan: resolved-ts may follow from here on."""
        with self.lock:
            if not subscription.is_closed:
                self._append(data, mergeable=True)
                subscription.is_initialized = True

    def push_error(self, subscription: Subscription, error: cdcpb_pb2.Error) -> None:
        """The last word to a subscription."""
        with self.lock:
            if not subscription.is_closed:
                subscription.is_closed = True
                self._append(error_event(subscription.region_id, subscription.request_id, error), mergeable=True)
                self.lock.notify_all()

    def push_message(self, data: bytes, *, mergeable: bool) -> None:
        """Queue what belongs to no subscription: a refusal (mergeable) or a resolved-ts (not)."""
        with self.lock:
            self._append(data, mergeable=mergeable)

    def take(self) -> bytes | None:
        """The next message; waits for one. None: the stream is over."""
        with self.lock:
            self._wait_for_more()
            if not self._queue or self.failure is not None:
                return None
            parts = [self._queue.popleft()]
            size = len(parts[0].data)
            # Serialised messages put together are one message with all their events.
            while (
                parts[-1].mergeable
                and self._queue
                and self._queue[0].mergeable
                and size + len(self._queue[0].data) <= MESSAGE_BYTES  # what is long already is not copied again
            ):
                parts.append(self._queue.popleft())
                size += len(parts[-1].data)
            self._queued_bytes -= size
            self._is_urgent = self._is_urgent and bool(self._queue)
            self._rest_until = self.clock.monotonic() + REST_SECONDS
            self.lock.notify_all()
        return parts[0].data if len(parts) == 1 else b"".join(part.data for part in parts)

    def _wait_for_more(self) -> None:
        while not (self._is_closed or self._is_urgent):
            rest = self._rest_until - self.clock.monotonic()
            if not self._queue:
                self._is_idle = True
                self.lock.wait()
                self._is_idle = False
            elif rest > 0 and self._queued_bytes < MESSAGE_BYTES:
                self.lock.wait(rest)
            else:
                return

    def close(self, failure: str | None = None) -> None:
        """End the stream: at once with ``failure``, otherwise after what is queued."""
        with self.lock:
            if not self._is_closed:
                self._is_closed = True
                self.failure = failure
                self._scans.clear()
            self.lock.notify_all()

    def schedule(self, scan: Callable[[], None]) -> None:
        """Run a scan after those already waiting, in the stream's own thread: no stream waits for another."""
        with self.lock:
            if self._is_closed:
                return
            self._scans.append(scan)
            self.pending_scans += 1
            if self._scanner is None:
                self._scanner = threading.Thread(target=self._run_scans, name="incremental-scan", daemon=True)
                self._scanner.start()
            self.lock.notify_all()

    def join(self) -> None:
        """Wait until the scanning thread is gone; the stream must be closed."""
        if self._scanner is not None:
            self._scanner.join()

    def _run_scans(self) -> None:
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self._scans or self._is_closed)
                if self._is_closed:
                    return
                scan = self._scans.popleft()
            scan()
            del scan  # it holds a snapshot of the engine
            with self.lock:
                self.pending_scans -= 1

    def _append(self, data: bytes, *, mergeable: bool, urgent: bool = True) -> None:
        if not self._is_closed:
            self._queue.append(_Chunk(data, mergeable))
            self._queued_bytes += len(data)
            self._is_urgent = self._is_urgent or urgent
            if urgent or self._is_idle:
                self.lock.notify_all()


# Wire bytes. A ChangeDataEvent is framed by hand around rows that are already encoded.


def row_field(row: cdcpb_pb2.Event.Row) -> bytes:
    """A row as an element of ``Entries``."""
    data = row.SerializeToString()
    return b"\x0a" + encode_varint(len(data)) + data


INITIALIZED_ROW = row_field(cdcpb_pb2.Event.Row(type=cdcpb_pb2.Event.INITIALIZED))


def entries_event(region_id: int, request_id: int, *rows: bytes | memoryview, index: int = 0) -> bytes:
    """A ChangeDataEvent with one Event that holds the given encoded rows."""
    size = sum(map(len, rows))
    place = b"\x10" + encode_varint(index) if index else b""
    head = b"\x08" + encode_varint(region_id) + place + b"\x1a" + encode_varint(size)
    tail = b"\x38" + encode_varint(request_id) if request_id else b""
    return b"".join((b"\x0a", encode_varint(len(head) + size + len(tail)), head, *rows, tail))


def error_event(region_id: int, request_id: int, error: cdcpb_pb2.Error) -> bytes:
    event = cdcpb_pb2.Event(region_id=region_id, request_id=request_id, error=error)
    return cdcpb_pb2.ChangeDataEvent(events=[event]).SerializeToString()


def _parse_semver(text: str) -> tuple[int, int, int]:
    """Major, minor, patch; zeros for what is no bare semantic version (a leading ``v`` included)."""
    core = text.split("-", 1)[0].split("+", 1)[0].split(".")
    if len(core) != 3 or not all(part.isascii() and part.isdigit() for part in core):
        return (0, 0, 0)
    return int(core[0]), int(core[1]), int(core[2])
