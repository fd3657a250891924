"""Several SQL nodes over one store: each with its own copy of the schema, one owner of DDL for all.

SqlNodes ── Node, Node, …  ── SchemaCache each, renewed before its lease is over
        └── Worker            takes the steps of DDL jobs, when every node has followed
"""

import threading
from typing import Final

from tidemill.store.cluster import Cluster
from tidemill.store.sql.bootstrap import bootstrap
from tidemill.store.sql.catalog import LEASE_SECONDS, SchemaCache
from tidemill.store.sql.ddl.executor import DdlExecutor
from tidemill.store.sql.ddl.worker import Nodes, Worker
from tidemill.store.sql.node import Node
from tidemill.store.sql.transaction import Transaction
from tidemill.store.sql.variables import GlobalVariables

_RENEWALS_A_LEASE: Final = 3


class SqlNodes:
    """``count`` nodes on ``cluster``, which gets its system tables if it has none. ``start`` keeps their leases
    renewed; without it a test does so by hand."""

    def __init__(self, cluster: Cluster, count: int = 1, *, lease_seconds: float = LEASE_SECONDS) -> None:
        def begin(*, txn_source: int = 0) -> Transaction:
            return Transaction(cluster, txn_source=txn_source)

        bootstrap(begin)
        self._lease_seconds = lease_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.registry = Nodes()
        self.worker = Worker(begin, self.registry)
        shared = GlobalVariables()
        self.nodes: list[Node] = []
        for _ in range(count):
            cache = SchemaCache(begin, cluster.clock.monotonic, lease_seconds)
            self.registry.add(cache)
            executor = DdlExecutor(self.worker, cache, lambda: int(cluster.tso.next()))
            self.nodes.append(Node(cluster, cache, executor, shared))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._renew, name="sql-schema-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _renew(self) -> None:
        while not self._stopped.wait(self._lease_seconds / _RENEWALS_A_LEASE):
            for node in self.nodes:
                node.cache.reload()
