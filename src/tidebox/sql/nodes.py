"""Several SQL nodes over one store: each with its own copy of the schema, one owner of DDL for all.

SqlNodes ── Node, Node, …  ── SchemaCache each, renewed before its lease is over
        ├── SqlServer each    the MySQL port of the node
        └── Worker            takes the steps of DDL jobs, when every node has followed
"""

import threading
from collections.abc import Callable
from typing import Final

from tidebox.cluster import Cluster
from tidebox.sql.bootstrap import bootstrap
from tidebox.sql.catalog import LEASE_SECONDS, SchemaCache
from tidebox.sql.ddl.executor import DdlExecutor
from tidebox.sql.ddl.worker import Nodes, Worker
from tidebox.sql.keeper import keeper_of
from tidebox.sql.node import Node
from tidebox.sql.session import SqlSession
from tidebox.sql.transaction import Transaction
from tidebox.sql.variables import GlobalVariables
from tidebox.sql.wire.server import SqlServer
from tidemill.errors import TidemillError, UsageError
from tidemill.log import get_logger

MAX_NODES: Final = 64
_RENEWALS_A_LEASE: Final = 3
_OWNER_SECONDS: Final = 1.0  # between looks for jobs whose client is gone
_HIGHEST_PORT: Final = 65535

log = get_logger("sql")


def check_options(port: int, count: int, lease_seconds: float, api_version: int) -> None:
    """Whether nodes can be had like that; asked before anything is made for them."""
    last = port + count - 1
    if not 1 <= count <= MAX_NODES:
        raise UsageError(f"cannot start {count} SQL nodes: choose 1 to {MAX_NODES}")
    if not 0 <= port <= last <= _HIGHEST_PORT:
        raise UsageError(
            f"there are no ports {port} to {last} for SQL: choose --sql-port between 1 and "
            f"{_HIGHEST_PORT - count + 1}, or 0 for free ones"
        )
    if lease_seconds <= 0:
        raise UsageError(f"the lease of a SQL node must be positive, not {lease_seconds:g} seconds")
    if api_version != 1:
        raise UsageError(
            f"SQL does not go with API version {api_version}, where TiDB's keys carry a keyspace: "
            "leave --api-version at 1, or --sql-port away"
        )


class SqlNodes:
    """``count`` nodes on ``cluster``, which gets its system tables if it has none.

    ``start`` keeps their leases renewed and carries on jobs that nobody waits for; without it a test does so by
    hand. ``serve`` lets MySQL clients in. All of it ends with ``stop``, before the cluster does.
    """

    def __init__(self, cluster: Cluster, count: int = 1, *, lease_seconds: float = LEASE_SECONDS) -> None:
        def begin(*, txn_source: int = 0) -> Transaction:
            return Transaction(cluster, txn_source=txn_source)

        bootstrap(begin)
        self._cluster = cluster
        self._lease_seconds = lease_seconds
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._servers: list[SqlServer] = []
        self.registry = Nodes()
        self.worker = Worker(begin, self.registry)
        shared = GlobalVariables()
        self.nodes: list[Node] = []
        for _ in range(count):
            cache = SchemaCache(begin, cluster.clock.monotonic, lease_seconds)
            self.registry.add(cache)
            executor = DdlExecutor(self.worker, cache, lambda: int(cluster.tso.next()))
            self.nodes.append(Node(cluster, cache, executor, shared))

    @property
    def addresses(self) -> list[str]:
        """Where MySQL clients are served, one a node."""
        return [server.address for server in self._servers]

    def start(self) -> None:
        for name, work in (("sql-schema-leases", self._renew), ("sql-ddl-owner", self._carry_on)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def serve(self, port: int) -> list[str]:
        """Let clients in at ``port`` and those above it, one a node, or with 0 at free ones; their addresses."""
        for at, node in enumerate(self.nodes):
            server = SqlServer(_session_maker(node))
            self._servers.append(server)
            server.start(port + at if port else 0)
        return self.addresses

    def stop(self) -> None:
        """Let nobody in any more, end every session, and wait for all threads. Jobs of DDL that are not done stay
        queued. A second call does nothing."""
        self._stopped.set()
        self.worker.stop()
        for server in self._servers:
            server.stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        keeper_of(self._cluster).stop()

    def _renew(self) -> None:
        while not self._stopped.wait(self._lease_seconds / _RENEWALS_A_LEASE):
            for number, node in enumerate(self.nodes, 1):
                self._attempt(node.cache.reload, "schema not renewed, trying again", node=number)

    def _carry_on(self) -> None:
        """The jobs that a restart has left, first of all."""
        while True:
            self._attempt(self.worker.carry_on, "jobs not carried on, trying again")
            if self._stopped.wait(_OWNER_SECONDS):
                return

    def _attempt(self, work: Callable[[], object], failure: str, **about: object) -> None:
        """What the store refuses now, such as timestamps while PD is away, it may grant later."""
        try:
            work()
        except TidemillError as error:
            if not self._stopped.is_set():
                log.warning(failure, error=error, **about)


def _session_maker(node: Node) -> Callable[[], SqlSession]:
    return lambda: SqlSession(node)
