"""What garbage collection may discard, as PD keeps it: a safepoint per service, each with a time to live.

A service asks to keep everything at or above its ts. The answer is the minimum over all live
services; a request below that minimum is not stored, and only the answer tells. ``gc_worker``
is always there, starting at 0, and never expires.
"""

from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.errors import UsageError
from tidemill.store.engine import Engine, Family

GC_WORKER = b"gc_worker"
NEVER = (1 << 63) - 1

_SERVICE = b"safepoint/"
_GC = b"gc_safepoint"


@dataclass(frozen=True, slots=True)
class ServiceSafepoint:
    service: bytes
    ts: int
    expires_at: int  # Unix seconds; NEVER for ever

    def encode(self) -> bytes:
        return self.ts.to_bytes(8, "big") + self.expires_at.to_bytes(8, "big")


class Safepoints:
    """The caller serialises access."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._services = {GC_WORKER: ServiceSafepoint(GC_WORKER, 0, NEVER)}
        for key, value in engine.items(Family.META, _SERVICE, _SERVICE[:-1] + b"0"):
            service = key[len(_SERVICE) :]
            ts, expires_at = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")
            self._services[service] = ServiceSafepoint(service, ts, expires_at)
        self.gc_safepoint = int.from_bytes(engine.get(Family.META, _GC) or b"", "big")

    def minimum(self) -> ServiceSafepoint:
        """The lowest of the live ones; what has expired is forgotten."""
        now = int(self._clock.now())
        for expired in [s for s in self._services.values() if s.expires_at < now]:
            self._remove(expired.service)
        return min(self._services.values(), key=lambda s: (s.ts, s.service))

    def update(self, service: bytes, ts: int, ttl_seconds: int) -> tuple[ServiceSafepoint, int]:
        """Store, move or (TTL ≤ 0) remove a service's safepoint; return the minimum and its seconds left."""
        if service == GC_WORKER and ttl_seconds != NEVER:
            raise UsageError("TTL of gc_worker's service safe point must be infinity")
        if ttl_seconds <= 0:
            self._remove(service)
        lowest = self.minimum()
        now = int(self._clock.now())
        if ttl_seconds > 0 and ts >= lowest.ts:
            self._store(ServiceSafepoint(service, ts, min(NEVER, now + ttl_seconds)))
            lowest = self.minimum()
        return lowest, NEVER if lowest.expires_at == NEVER else lowest.expires_at - now

    def advance_gc(self, ts: int) -> int:
        """Move the GC safepoint forward, never back; return where it stands."""
        if ts > self.gc_safepoint:
            self.gc_safepoint = ts
            self._engine.put(Family.META, _GC, ts.to_bytes(8, "big"))
        return self.gc_safepoint

    def _store(self, safepoint: ServiceSafepoint) -> None:
        self._services[safepoint.service] = safepoint
        self._engine.put(Family.META, _SERVICE + safepoint.service, safepoint.encode())

    def _remove(self, service: bytes) -> None:
        if self._services.pop(service, None) is not None:
            batch = self._engine.batch()
            batch.delete(Family.META, _SERVICE + service)
            self._engine.write(batch)
