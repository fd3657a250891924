"""One SQL node: the schema it serves with, the ids it gives out, and the sessions of its clients.

SqlServer ── make_session ──► Node ──► SqlSession
                               ├── SchemaCache    the schema, under a lease
                               ├── AutoIds        numbers for AUTO_INCREMENT
                               └── Ddl            who changes the schema
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, Protocol

from tidebox.cluster import Cluster
from tidebox.sql.autoid import AutoIds
from tidebox.sql.catalog import Catalog, SchemaCache, load_catalog
from tidebox.sql.meta import Meta
from tidebox.sql.transaction import Transaction
from tidebox.sql.variables import GlobalVariables
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.session import Result

_MOST_PAST_CATALOGS: Final = 16


@dataclass(frozen=True, slots=True)
class DdlRequest:
    """A statement that changes the schema, and what of its session it depends on."""

    text: str
    database: str  # empty: none is chosen
    sql_mode: str
    time_zone: tzinfo
    is_strict: bool
    is_interrupted: Callable[[], bool]


class Ddl(Protocol):
    def execute(self, request: DdlRequest) -> Result:
        """Change the schema; returns when it is done and this node knows of it."""
        ...


class Node:
    def __init__(
        self, cluster: Cluster, cache: SchemaCache, ddl: Ddl | None = None, shared: GlobalVariables | None = None
    ) -> None:
        """``shared``: the global variables, the same for all nodes of a cluster."""
        self.cluster = cluster
        self.cache = cache
        self.shared = shared if shared is not None else GlobalVariables()
        self.auto_ids = AutoIds(lambda: Transaction(cluster))
        self._ddl = ddl
        self._mutex = threading.Lock()
        self._past: OrderedDict[int, Catalog] = OrderedDict()  # by schema version

    def execute_ddl(self, request: DdlRequest) -> Result:
        if self._ddl is None:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "DDL on this node")
        return self._ddl.execute(request)

    def catalog_at(self, ts: int) -> Catalog:
        """The schema as it was at ``ts``."""
        transaction = Transaction(self.cluster, start_ts=ts)
        version = Meta(transaction).schema_version
        with self._mutex:
            found = self._past.get(version)
            if found is not None:
                self._past.move_to_end(version)
                return found
        found = load_catalog(transaction)
        with self._mutex:
            self._past[version] = found
            while len(self._past) > _MOST_PAST_CATALOGS:
                self._past.popitem(last=False)
        return found

    def check(self, catalog: Catalog, table_ids: Sequence[int]) -> None:
        """Whether what was written with ``catalog`` may be committed now."""
        self.cache.check(catalog.version, table_ids)
