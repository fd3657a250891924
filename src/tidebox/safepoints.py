"""What garbage collection may discard, as PD keeps it.

    barriers        "keep everything at or above my ts", one per service, each with a time to live
    txn safepoint   reads at or above it are safe; no live barrier lies below it
    GC safepoint    versions that only reads below it need may go; never above the txn safepoint

Clients speak of it in two forms, and both see the same state. In the older one a service safepoint
is a barrier, ``gc_worker`` is the service that wants to move on, and the answer is the minimum
over all; a request below that minimum is not stored, and only the answer tells. In the newer one
barriers and safepoints are moved by calls of their own, which refuse with an error.

What was once answered stands: neither safepoint ever falls.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tidebox.engine import Engine, Family
from tidemill.clock import Clock
from tidemill.errors import UpstreamError

GC_WORKER = b"gc_worker"
NATIVE_BR = b"native_br"  # the backup tool's service safepoint holds for all keyspaces
NEVER = (1 << 63) - 1

_LONGEST_TTL_SECONDS = NEVER // 1_000_000_000  # PD counts in nanoseconds; what does not fit lasts for ever
_SERVICE = b"safepoint/"
_GLOBAL = b"global_barrier/"
_GC = b"gc_safepoint"
_TXN = b"txn_safepoint"


class SafepointRefusedError(UpstreamError):
    """A request that would break a promise; the text is PD's own, because clients look for its code in it."""

    code = "safepoint-refused"


@dataclass(frozen=True, slots=True)
class Barrier:
    """Nothing at or above ``ts`` may become unreadable while this lives. A service safepoint is one, too."""

    service: bytes  # also called the barrier's id
    ts: int
    expires_at: int  # Unix seconds, the last at which it lives; NEVER for ever
    is_global: bool = False

    def seconds_left(self, now: int) -> int:
        return NEVER if self.expires_at == NEVER else max(self.expires_at - now, 0)

    def encode(self) -> bytes:
        return self.ts.to_bytes(8, "big") + self.expires_at.to_bytes(8, "big")

    def __str__(self) -> str:
        """As PD describes what holds a safepoint back."""
        kind = "GlobalGCBarrier" if self.is_global else "GCBarrier"
        until = "<nil>"
        if self.expires_at != NEVER:
            until = datetime.fromtimestamp(self.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
        name = self.service.decode(errors="replace")
        return f'{kind} {{ BarrierID: "{name}", BarrierTS: {self.ts}, ExpirationTime: "{until}" }}'


@dataclass(frozen=True, slots=True)
class GcState:
    """``gc_safepoint`` ≤ ``txn_safepoint`` ≤ every barrier."""

    txn_safepoint: int
    gc_safepoint: int
    barriers: tuple[Barrier, ...]
    global_barriers: tuple[Barrier, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Every live service safepoint, ``gc_worker`` among them, and the GC safepoint."""

    services: tuple[Barrier, ...]
    minimum: int
    gc_safepoint: int


@dataclass(frozen=True, slots=True)
class TxnAdvance:
    old: int
    new: int
    blocker: Barrier | None  # what lies below the target, if anything


class Safepoints:
    """The caller serialises access. Whatever has expired is forgotten at the next call."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._worker = Barrier(GC_WORKER, 0, NEVER)
        self._barriers: dict[tuple[bool, bytes], Barrier] = {}
        for is_global, prefix in ((False, _SERVICE), (True, _GLOBAL)):
            for key, value in engine.items(Family.META, prefix, prefix[:-1] + b"0"):
                ts, expires_at = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")
                barrier = Barrier(key[len(prefix) :], ts, expires_at, is_global)
                if (is_global, barrier.service) == (False, GC_WORKER):
                    self._worker = barrier
                else:
                    self._barriers[is_global, barrier.service] = barrier
        self._txn = int.from_bytes(engine.get(Family.META, _TXN) or b"", "big")
        self._announced = int.from_bytes(engine.get(Family.META, _GC) or b"", "big")

    @property
    def now(self) -> int:
        """The time that barriers live by, in Unix seconds."""
        return int(self._clock.now())

    @property
    def gc_safepoint(self) -> int:
        """How far whoever collects has announced to go. Barriers may hold the collecting back below it."""
        return self._announced

    # The older form

    def minimum(self) -> Barrier:
        """The lowest of the live service safepoints, ``gc_worker`` included."""
        return min((self._worker, *self._live()), key=lambda b: (b.ts, b.service))

    def update(self, service: bytes, ts: int, ttl_seconds: int) -> Barrier:
        """Store, move or (TTL ≤ 0) remove a service's safepoint; return the minimum.

        A ts below the minimum is not stored: whoever asks must compare.
        """
        if not service:
            raise _invalid("barrierID", "")
        if service == GC_WORKER:
            if ttl_seconds != NEVER:
                raise SafepointRefusedError("TTL of gc_worker's service safe point must be infinity")
            if ts >= self.minimum().ts:
                self._store(replace(self._worker, ts=ts))
        else:
            is_global = service == NATIVE_BR
            if ttl_seconds <= 0:
                self._remove(is_global, service)
            elif ts >= self.minimum().ts:
                self._store(Barrier(service, ts, self._expiry(ttl_seconds), is_global))
        lowest = self.minimum()
        self._move_txn(lowest.ts)
        return lowest

    def announce_gc(self, ts: int) -> int:
        """Whoever collects says that it goes up to ``ts``; return how far it has said so, which never falls."""
        if ts > self._announced:
            self._announced = ts
            self._engine.put(Family.META, _GC, ts.to_bytes(8, "big"))
        self.collectable()
        return self._announced

    # The newer form

    def state(self) -> GcState:
        live = sorted(self._live(), key=_order)
        return GcState(
            self._txn,
            min(self._announced, self._txn),
            tuple(b for b in live if not b.is_global),
            tuple(b for b in live if b.is_global),
        )

    def set_barrier(self, service: bytes, ts: int, ttl_seconds: int, *, is_global: bool = False) -> Barrier:
        """Hold the txn safepoint at or below ``ts``; a barrier of the same name is replaced and lives anew."""
        if ttl_seconds <= 0:
            raise _invalid("ttl", f"{ttl_seconds}s")
        _check_name(service, is_global)
        if ts < self._txn:
            if is_global:
                raise SafepointRefusedError(
                    "[PD:gc:ErrGlobalGCBarrierTSBehindTxnSafePoint]trying to set a global GC barrier on ts "
                    f"{ts} which is already behind the txn safe point {self._txn} of keyspace <null_keyspace>"
                )
            raise SafepointRefusedError(
                "[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]trying to set a GC barrier on ts "
                f"{ts} which is already behind the txn safe point {self._txn}"
            )
        barrier = Barrier(service, ts, self._expiry(ttl_seconds), is_global)
        self._store(barrier)
        return barrier

    def delete_barrier(self, service: bytes, *, is_global: bool = False) -> Barrier | None:
        """Remove a barrier; return it, or None if there is none."""
        _check_name(service, is_global)
        self._live()
        return self._remove(is_global, service)

    def advance_txn(self, target: int) -> TxnAdvance:
        """Move the txn safepoint to ``target``, or as far as the barriers let it."""
        old = self._txn
        if target < old:
            raise SafepointRefusedError(
                "[PD:gc:ErrDecreasingTxnSafePoint]trying to update txn safe point to a smaller value, "
                f"current value: {old}, given: {target}"
            )
        blocker = _lowest(self._live())
        if blocker is not None and blocker.ts >= target:
            blocker = None
        self._move_txn(target if blocker is None else blocker.ts)
        return TxnAdvance(old, self._txn, blocker)

    def advance_gc(self, target: int) -> tuple[int, int]:
        """Move the GC safepoint to a target that is neither behind it nor above the txn safepoint."""
        old = min(self._announced, self._txn)
        if target < old:
            raise SafepointRefusedError(
                "[PD:gc:ErrDecreasingGCSafePoint]trying to update GC safe point to a smaller value, "
                f"current value: {old}, given: {target}"
            )
        if target > self._txn:
            raise SafepointRefusedError(
                "[PD:gc:ErrGCSafePointExceedsTxnSafePoint]trying to update GC safe point to a too large value that "
                f"exceeds the txn safe point, current value: {old}, given: {target}, "
                f"current txn safe point: {self._txn}"
            )
        self.announce_gc(target)
        return old, target

    # For those who collect, and for those who look

    def collectable(self) -> int:
        """Up to where versions may be collected now: what was announced, held back by every live barrier."""
        lowest = _lowest(self._live())
        # When a barrier goes, what was announced while it stood may be collected without being announced again.
        self._move_txn(self._announced if lowest is None else min(self._announced, lowest.ts))
        return min(self._announced, self._txn)

    def lowest_barrier(self) -> Barrier | None:
        """The lowest of what services ask to keep."""
        return _lowest(self._live())

    def listing(self) -> Listing:
        services = sorted((self._worker, *self._live()), key=_order)
        return Listing(tuple(services), self.minimum().ts, self._announced)

    def _live(self) -> list[Barrier]:
        now = self.now
        for gone in [b for b in self._barriers.values() if b.expires_at < now]:
            self._remove(gone.is_global, gone.service)
        return list(self._barriers.values())

    def _move_txn(self, ts: int) -> None:
        if ts <= self._txn:
            return
        self._txn = ts
        batch = self._engine.batch()
        batch.put(Family.META, _TXN, ts.to_bytes(8, "big"))
        if self._worker.ts < ts:
            self._worker = replace(self._worker, ts=ts)
            batch.put(Family.META, _key(self._worker), self._worker.encode())
        self._engine.write(batch)

    def _expiry(self, ttl_seconds: int) -> int:
        return NEVER if ttl_seconds > _LONGEST_TTL_SECONDS else self.now + ttl_seconds

    def _store(self, barrier: Barrier) -> None:
        self._engine.put(Family.META, _key(barrier), barrier.encode())
        if (barrier.is_global, barrier.service) == (False, GC_WORKER):
            self._worker = barrier
        else:
            self._barriers[barrier.is_global, barrier.service] = barrier

    def _remove(self, is_global: bool, service: bytes) -> Barrier | None:
        barrier = self._barriers.pop((is_global, service), None)
        if barrier is not None:
            batch = self._engine.batch()
            batch.delete(Family.META, _key(barrier))
            self._engine.write(batch)
        return barrier


def _key(barrier: Barrier) -> bytes:
    return (_GLOBAL if barrier.is_global else _SERVICE) + barrier.service


def _order(barrier: Barrier) -> tuple[bytes, bool]:
    return barrier.service, barrier.is_global


def _lowest(barriers: Iterable[Barrier]) -> Barrier | None:
    return min(barriers, key=lambda b: (b.ts, b.service), default=None)


def _check_name(service: bytes, is_global: bool) -> None:
    if service == GC_WORKER and not is_global:
        raise SafepointRefusedError(
            "[PD:gc:ErrReservedGCBarrierID]trying to set a GC barrier with a barrier ID that is reserved: gc_worker"
        )
    if not service:
        raise _invalid("barrierID", "")


def _invalid(argument: str, value: str) -> SafepointRefusedError:
    return SafepointRefusedError(f"[PD:common:ErrInvalidArgument]invalid argument for {argument}: {value}")
