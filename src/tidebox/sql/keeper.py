"""Locks of open pessimistic transactions, renewed while they last."""

import threading
from typing import Final
from weakref import WeakKeyDictionary

from tidebox.cluster import Cluster
from tidebox.txn.errors import TransactionError
from tidemill.model.ts import physical_ms

TTL_MS: Final = 20_000  # of a lock; an open transaction renews its primary's


class Keeper:
    """Renews the locks of open pessimistic transactions, until they end or the upstream stops."""

    _INTERVAL_SECONDS = 5.0

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._held: dict[tuple[bytes, int], None] = {}
        self._thread: threading.Thread | None = None

    def hold(self, primary: bytes, start_ts: int) -> None:
        with self._changed:
            self._held[primary, start_ts] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sql-keeper", daemon=True)
                self._thread.start()

    def forget(self, primary: bytes, start_ts: int) -> None:
        with self._changed:
            self._held.pop((primary, start_ts), None)
            if not self._held:
                self._changed.notify_all()

    def stop(self) -> None:
        """Renew nothing that is open now any more: it ends by its time to live."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        """Ends when there is nothing to hold any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._held, self._INTERVAL_SECONDS)
                held = list(self._held)
                if not held:
                    self._thread = None
                    return
            for primary, start_ts in held:
                self._prolong(primary, start_ts)

    def _prolong(self, primary: bytes, start_ts: int) -> None:
        with self._cluster.mutex:
            if (primary, start_ts) not in self._held:
                return
            age_ms = max(physical_ms(self._cluster.tso.last) - physical_ms(start_ts), 0)
            try:
                self._cluster.transactions.prolong(primary, start_ts, age_ms + TTL_MS)
            except TransactionError:
                self.forget(primary, start_ts)


_KEEPERS: WeakKeyDictionary[Cluster, Keeper] = WeakKeyDictionary()
_KEEPERS_MUTEX = threading.Lock()


def keeper_of(cluster: Cluster) -> Keeper:
    """The one keeper of a cluster; it ends with it."""
    with _KEEPERS_MUTEX:
        keeper = _KEEPERS.get(cluster)
        if keeper is None:
            keeper = _KEEPERS[cluster] = Keeper(cluster)
            cluster.at_stop.append(keeper.stop)
        return keeper
