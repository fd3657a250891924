"""A capture's session: a lease of etcd that a thread of its own keeps alive.

Nothing else runs in that thread, so no sort, full queue or slow loop makes a healthy capture lose its session. It
counts as lost when etcd says so, and also when it could not be renewed for as long as it lasts, by this machine's
clock: whoever was stopped that long finds it lost at once, before it has asked anybody.
"""

import threading
from collections.abc import Callable

from tidemill.capture.etcd.client import EtcdClient
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import MetadataError, MetadataUnavailableError
from tidemill.log import get_logger

log = get_logger("session")

LEAST_TTL_SECONDS = 5
DEFAULT_TTL_SECONDS = 10
_RENEWALS_PER_TTL = 4
_REVOKE_SECONDS = 2.0


class Session:
    """Any thread. ``close`` it in any case."""

    def __init__(
        self,
        client: EtcdClient,
        ttl_seconds: int = DEFAULT_TTL_SECONDS,
        *,
        on_lost: Callable[[], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``on_lost`` is called once, in the session's thread. Blocks until etcd has granted the lease."""
        self._client, self._clock = client, clock
        self._on_lost = on_lost
        self.ttl_seconds = ttl_seconds if ttl_seconds >= LEAST_TTL_SECONDS else DEFAULT_TTL_SECONDS
        asked = clock.monotonic()
        self.lease = client.grant(self.ttl_seconds)
        self._ends = asked + self.ttl_seconds
        self._lost, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="session", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set() or self._clock.monotonic() >= self._ends

    def close(self) -> None:
        """End the lease: whatever is tied to it is gone when this returns, if etcd answers."""
        self._closing.set()
        self._thread.join()
        if not self.is_lost:
            try:
                self._client.revoke(self.lease, _REVOKE_SECONDS)
            except MetadataError as error:
                log.warning("the session is not ended, but will be by itself", reason=str(error))
        self._lost.set()

    def _keep(self) -> None:
        while not self._closing.wait(self.ttl_seconds / _RENEWALS_PER_TTL):
            if self.is_lost or not self._renew():
                if not self._closing.is_set():
                    self._lose()
                return

    def _renew(self) -> bool:
        """False: it has ended."""
        asked = self._clock.monotonic()
        try:
            seconds = self._client.keep_alive(self.lease, max(self._ends - asked, 0.1))
        except MetadataUnavailableError as error:
            log.warning("the session was not renewed", reason=str(error))
            return not self.is_lost
        except MetadataError as error:
            log.error("the session cannot be renewed", reason=str(error))
            return False
        if seconds > 0:
            self._ends = asked + seconds
        return seconds > 0

    def _lose(self) -> None:
        self._lost.set()
        log.error("the session is lost: this capture stops writing, and begins anew")
        if self._on_lost is not None:
            self._on_lost()
