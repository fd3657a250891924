"""The schema as one node knows it: one version, its databases and tables, and how long it may be used.

    Meta ── all, then by diffs ──► SchemaCache ──► Catalog ──► CatalogTable: what is read, written, and kept clean

A node serves with a version only while its lease runs. It renews by loading what is newest; one that
cannot stops serving, so that whoever changes the schema need not wait for it any longer.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import orjson

from tidebox.sql.meta import KeyValues, Meta, hash_range
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.ddl import ActionType
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import SchemaState, parse_table
from tidemill.tidb.meta import split_hash_key

Document: TypeAlias = dict[str, Any]  # TiDB's JSON

LEASE_SECONDS: Final = 45.0
_WRITTEN = frozenset({SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG})
_STORED = _WRITTEN | {SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG}
_MOST_DIFFS = 100  # above that, reading all is quicker
_EMPTY: Mapping[str, "CatalogTable"] = MappingProxyType({})


class CatalogTable:
    """One version of one table. The document is TiDB's; it must not be changed."""

    def __init__(
        self,
        schema_id: int,
        schema: str,
        raw: bytes,
        table_id: int,
        name: str,
        state: SchemaState = SchemaState.PUBLIC,
    ) -> None:
        self.schema_id = schema_id
        self.schema = schema
        self.id = table_id
        self.name = name
        self.state = state  # kept apart, so that listing many tables takes no document apart
        self._raw = raw

    @cached_property
    def document(self) -> Document:
        document: Document = orjson.loads(self._raw)
        return document

    @cached_property
    def info(self) -> TableInfo:
        """What is read: public columns and indexes."""
        return self._parse(frozenset({SchemaState.PUBLIC}))

    @cached_property
    def written(self) -> TableInfo:
        """What a row and its index entries are written with: the public ones, and those in write-only and
        write-reorganization. Its public columns come first, in the order of ``info``."""
        return self._parse(_WRITTEN)

    @cached_property
    def stored(self) -> TableInfo:
        """All columns and indexes that a row may have in the store: those in delete-only too. Entries of its
        indexes go when a row goes or changes; they come only for the indexes of ``written``."""
        return self._parse(_STORED)

    @cached_property
    def states(self) -> Mapping[int, SchemaState]:
        """The state of each column, by id."""
        return {c["id"]: SchemaState(c["state"]) for c in self.document["cols"]}

    @cached_property
    def index_states(self) -> Mapping[int, SchemaState]:
        return {i["id"]: SchemaState(i["state"]) for i in self.document["index_info"] or ()}

    @cached_property
    def follows(self) -> Mapping[int, int]:
        """Columns whose value is the cast of another's: id → id of the other. While MODIFY COLUMN changes a type
        the new column follows the old one, and after the swap the old one the new."""
        columns = self.document["cols"]
        return {
            c["id"]: columns[c["change_state_info"]["relative_col_offset"]]["id"]
            for c in columns
            if c["change_state_info"] is not None
        }

    def _parse(self, states: frozenset[SchemaState]) -> TableInfo:
        version_ts = Ts(self.document["update_timestamp"])
        return parse_table(self.document, self.schema_id, self.schema, version_ts, self.id, states)


@dataclass(frozen=True, slots=True)
class CatalogDatabase:
    document: Document
    tables: Mapping[str, CatalogTable] = field(default_factory=lambda: _EMPTY)  # by name in lower case

    @property
    def id(self) -> int:
        return int(self.document["id"])

    @property
    def name(self) -> str:
        return str(self.document["db_name"]["O"])

    @property
    def is_usable(self) -> bool:
        return int(self.document["state"]) == SchemaState.PUBLIC


@dataclass(frozen=True, slots=True)
class Catalog:
    """The schema at one version. Databases that are being dropped are not found, and neither are tables."""

    version: int
    databases: Mapping[str, CatalogDatabase]  # by name in lower case

    def database(self, name: str) -> CatalogDatabase:
        found = self.databases.get(name.lower())
        if found is None or not found.is_usable:
            raise sql_error(Errno.BAD_DB_ERROR, name)
        return found

    def has_database(self, name: str) -> bool:
        found = self.databases.get(name.lower())
        return found is not None and found.is_usable

    def find(self, schema: str, name: str) -> CatalogTable | None:
        found = self.databases.get(schema.lower())
        if found is None or not found.is_usable:
            return None
        table = found.tables.get(name.lower())
        return table if table is not None and table.state == SchemaState.PUBLIC else None

    def table(self, schema: str, name: str) -> CatalogTable:
        found = self.find(schema, name)
        if found is None:
            raise sql_error(Errno.NO_SUCH_TABLE, schema, name)
        return found

    def tables(self, schema: str) -> Iterator[CatalogTable]:
        """The tables of a database, by name."""
        tables = self.database(schema).tables
        return (tables[name] for name in sorted(tables) if tables[name].state == SchemaState.PUBLIC)


# Loading


def load_catalog(kv: KeyValues) -> Catalog:
    """All of the schema, as the transaction sees it."""
    meta = Meta(kv)
    version = meta.schema_version
    databases: dict[str, CatalogDatabase] = {}
    for document in meta.databases():
        tables = {t.name.lower(): t for t in _tables(kv, document)}
        databases[document["db_name"]["L"]] = CatalogDatabase(document, tables)
    return Catalog(version, databases)


def _tables(kv: KeyValues, database: Document) -> Iterator[CatalogTable]:
    for key, value in kv.scan(*hash_range(b"DB:%d" % database["id"])):
        parts = split_hash_key(key)
        if parts is not None and parts[1].startswith(b"Table:"):
            yield _table(database, value)


def _table(database: Document, raw: bytes) -> CatalogTable:
    document = orjson.loads(raw)
    state = SchemaState(document["state"])
    return CatalogTable(database["id"], database["db_name"]["O"], raw, document["id"], document["name"]["O"], state)


def advance_catalog(catalog: Catalog, kv: KeyValues) -> tuple[Catalog, dict[int, int]] | None:
    """``catalog`` brought to the transaction's version by its diffs, and which tables each changed: id → version.
    None if that cannot be done: too many, or some are gone."""
    meta = Meta(kv)
    version = meta.schema_version
    if not 0 <= version - catalog.version <= _MOST_DIFFS:
        return None
    databases = dict(catalog.databases)
    changed: dict[int, int] = {}
    for number in range(catalog.version + 1, version + 1):
        diff = meta.diff(number)
        if diff is None:
            return None
        for part in (diff, *(diff.get("affected_options") or ())):
            _apply(databases, kv, meta, {**part, "type": diff["type"]})
            for table_id in (part["table_id"], part.get("old_table_id") or 0):
                changed[table_id] = number
    changed.pop(0, None)
    return Catalog(version, databases), changed


def _apply(databases: dict[str, CatalogDatabase], kv: KeyValues, meta: Meta, diff: Document) -> None:
    """Read again what a diff names: its database, or its tables, by their ids."""
    schema_id, table_id = diff["schema_id"], diff["table_id"]
    if diff["type"] in (ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA, ActionType.MODIFY_SCHEMA_CHARSET):
        _reload_database(databases, meta, schema_id)
        return
    going = {table_id, diff.get("old_table_id") or 0}
    for owner_id in dict.fromkeys((diff.get("old_schema_id") or schema_id, schema_id)):
        name = next((n for n, d in databases.items() if d.id == owner_id), None)
        if name is None:
            continue
        database = databases[name]
        tables = {n: t for n, t in database.tables.items() if t.id not in going}
        found = meta.table(owner_id, table_id) if owner_id == schema_id else None
        if found is not None:
            state = SchemaState(found["state"])
            table = CatalogTable(owner_id, database.name, orjson.dumps(found), table_id, found["name"]["O"], state)
            tables[found["name"]["L"]] = table
        databases[name] = replace(database, tables=tables)


def _reload_database(databases: dict[str, CatalogDatabase], meta: Meta, schema_id: int) -> None:
    before = next((n for n, d in databases.items() if d.id == schema_id), None)
    tables = databases.pop(before).tables if before is not None else _EMPTY
    document = meta.database(schema_id)
    if document is not None:
        databases[document["db_name"]["L"]] = CatalogDatabase(document, tables)


# A node's copy


class Reading(KeyValues, Protocol):
    """A transaction that only reads."""

    def rollback(self) -> None: ...


class SchemaCache:
    """The schema that one node serves with. Safe to use from several threads.

    ``reload`` takes what is newest and renews the lease; ``hold`` keeps it from doing so, as a node does
    that has lost the store, until ``release``.
    """

    def __init__(
        self, begin: Callable[[], Reading], now: Callable[[], float], lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._begin = begin
        self._now = now
        self._lease_seconds = lease_seconds
        # Whoever commits holds the store when it asks ``check``, so nobody may wait for the store under this lock.
        self._lock = threading.RLock()
        self._loading = threading.Lock()  # one at a time reads the schema
        self._held = False
        self._changed: dict[int, int] = {}  # table id → the last version that changed it
        self._catalog, self._floor = self._load_all()
        self._expires = now() + lease_seconds

    @property
    def version(self) -> int:
        return self._catalog.version

    @property
    def is_serving(self) -> bool:
        return self._now() < self._expires

    @property
    def is_held(self) -> bool:
        return self._held

    def current(self) -> Catalog:
        """The schema to run a statement with. 8027 once the lease is over."""
        with self._lock:
            self._check_lease()
            return self._catalog

    def check(self, version: int, table_ids: Iterable[int]) -> None:
        """Whether a transaction that began with ``version`` may commit writes to these tables: none has changed
        since, as far as this node knows, and it still serves. 8028, 8027."""
        with self._lock:
            self._check_lease()
            if version < self._floor or any(self._changed.get(i, 0) > version for i in table_ids):
                raise sql_error(Errno.INFO_SCHEMA_CHANGED)

    def reload(self) -> int:
        """Load what is newest, and renew the lease; the version then. A held node does neither."""
        with self._loading:
            if self._held:
                return self.version
            transaction = self._begin()
            try:
                advanced = advance_catalog(self._catalog, transaction)
            finally:
                transaction.rollback()
            fresh = self._load_all() if advanced is None else None
            with self._lock:
                if advanced is not None:
                    self._catalog, changed = advanced
                    self._changed.update(changed)
                elif fresh is not None:
                    self._catalog, self._floor = fresh
                    self._changed.clear()
                self._expires = self._now() + self._lease_seconds
                return self.version

    def hold(self) -> None:
        with self._loading:
            self._held = True

    def release(self) -> None:
        with self._loading:
            self._held = False

    def _check_lease(self) -> None:
        if not self.is_serving:
            raise sql_error(Errno.INFO_SCHEMA_EXPIRED)

    def _load_all(self) -> tuple[Catalog, int]:
        transaction = self._begin()
        try:
            catalog = load_catalog(transaction)
        finally:
            transaction.rollback()
        return catalog, catalog.version
