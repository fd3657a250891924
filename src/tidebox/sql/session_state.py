"""What a session knows: its variables, its transaction, and in which schema and at which ts it reads."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidebox.sql import show
from tidebox.sql.catalog import Catalog, CatalogTable
from tidebox.sql.codec.datum import Time
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import Kind, Settings, Type
from tidebox.sql.compute.scope import Context, Scope
from tidebox.sql.node import Node
from tidebox.sql.syntax.tree import (
    Ending,
    Expression,
    TableName,
)
from tidebox.sql.transaction import Transaction
from tidebox.sql.variables import VERSION, SessionVariables
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.session import Client
from tidemill.model.ts import compose


@dataclass
class Open:
    """A transaction that the client has begun, and the schema it runs with."""

    transaction: Transaction
    catalog: Catalog
    table_ids: set[int]
    marks: dict[str, int]
    is_read_only: bool = False


class SessionState:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.cluster = node.cluster
        self.client = Client(0, "root", 45)
        self.variables = SessionVariables(node.shared)
        self.database = ""
        self.opened: Open | None = None
        self.interrupted = threading.Event()
        self.warnings: list[tuple[str, int, str]] = []
        self.last_insert_id = 0
        self.found_rows = 0
        self.row_count = 0
        self.next_read_only = False

    def new_transaction(self, mode: str = "", ts: int | None = None) -> Open:
        mode = mode or str(self.variables.get("tidb_txn_mode"))
        catalog = self.node.catalog_at(ts) if ts is not None else self.catalog()
        transaction = Transaction(
            self.cluster,
            pessimistic=mode == "pessimistic" and ts is None,
            start_ts=ts,
            lock_wait_seconds=float(self.variables.get("innodb_lock_wait_timeout")),
            is_interrupted=self.interrupted.is_set,
        )
        return Open(transaction, catalog, set(), {}, is_read_only=ts is not None)

    def end(self, how: Ending) -> None:
        """Commit or roll back what is open, if anything is."""
        opened, self.opened = self.opened, None
        if opened is None:
            return
        if how is Ending.COMMIT:
            self.commit(opened)
        else:
            opened.transaction.rollback()

    def commit(self, opened: Open) -> None:
        table_ids = list(opened.table_ids)
        opened.transaction.commit(lambda: self.node.check(opened.catalog, table_ids) if table_ids else None)

    def no_writes(self) -> SqlError:
        return sql_error(Errno.UNKNOWN_ERROR, "can not execute write statement when 'tidb_snapshot' is set")

    def reading(self) -> Open:
        """The transaction to read in: at tidb_snapshot, the one that is open, or a new one."""
        ts = self.snapshot_ts()
        if ts is not None:
            return self.new_transaction(ts=ts)
        if self.opened is None and not self.variables.is_on("autocommit"):
            self.opened = self.new_transaction()
        return self.opened if self.opened is not None else self.new_transaction("optimistic")

    def reading_at(self, as_of: Expression, context: Context) -> Open:
        return self.new_transaction(ts=self.as_of_ts(as_of, context))

    def as_of_ts(self, tree: Expression, context: Context) -> int:
        if self.opened is not None:
            raise sql_error(Errno.AS_OF, "as of timestamp can't be set in transaction.")
        computed = Compiler(Scope(()), context).compile(tree)
        value = computed.compute(())
        if value is None:
            raise sql_error(Errno.AS_OF, "as of timestamp cannot be NULL")
        if computed.type.kind is Kind.INT and value > 1 << 50:
            return self._checked_ts(int(value))
        moment = convert.moment(value, computed.type, context.settings)
        if moment is None:
            raise sql_error(Errno.AS_OF, f"invalid as of timestamp {value}")
        return self._checked_ts(self._ts_of(moment))

    def snapshot_ts(self) -> int | None:
        text = str(self.variables.get("tidb_snapshot"))
        if not text:
            return None
        if text.isdigit() and len(text) > 14:
            return self._checked_ts(int(text))
        parsed = temporal.parse_moment(text)
        if parsed is None:
            raise sql_error(Errno.WRONG_VALUE_FOR_VAR, "tidb_snapshot", text)
        return self._checked_ts(self._ts_of(parsed[0]))

    def _ts_of(self, moment: Time) -> int:
        utc = datetime(*temporal.to_utc(moment, self.time_zone()), tzinfo=UTC)
        return compose(int(utc.timestamp() * 1000))

    def _checked_ts(self, ts: int) -> int:
        if ts > self.cluster.tso.advance():
            raise sql_error(Errno.UNKNOWN_ERROR, "cannot set read timestamp to a future time")
        safepoint = self.cluster.safepoints.gc_safepoint
        if ts < safepoint:
            raise sql_error(Errno.SNAPSHOT_TOO_OLD, safepoint)
        return ts

    def catalog(self) -> Catalog:
        return self.node.cache.current()

    def schema_name(self, name: str) -> str:
        if name.lower() == show.INFORMATION_SCHEMA:
            return show.INFORMATION_SCHEMA.upper()
        return self.current_catalog().database(name).name

    def current_catalog(self) -> Catalog:
        ts = self.snapshot_ts()
        if ts is not None:
            return self.node.catalog_at(ts)
        return self.opened.catalog if self.opened is not None else self.catalog()

    def schema_of(self, name: TableName) -> str:
        schema = name.schema or self.database
        if not schema:
            raise sql_error(Errno.NO_DB_ERROR)
        return schema

    def table(self, catalog: Catalog, name: TableName) -> CatalogTable:
        schema = self.schema_of(name)
        if schema.lower() == show.INFORMATION_SCHEMA:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "changing INFORMATION_SCHEMA")
        return catalog.table(schema, name.name)

    def context(self, parameters: Sequence[tuple[Any, Type]]) -> Context:
        return Context(
            self.settings(),
            self.now(),
            self.database,
            f"{self.client.user}@127.0.0.1",
            self.client.connection_id,
            VERSION,
            self.last_insert_id,
            self.found_rows,
            self.row_count,
            parameters,
            self.variables,
            set_last_insert_id=self._set_last_insert_id,
            is_interrupted=self.interrupted.is_set,
            current_ts=lambda: int(self.opened.transaction.start_ts) if self.opened is not None else 0,
        )

    def _set_last_insert_id(self, value: int) -> None:
        self.last_insert_id = value

    def settings(self) -> Settings:
        mode = str(self.variables.get("sql_mode"))
        return Settings(
            self.time_zone(),
            is_strict="STRICT_TRANS_TABLES" in mode or "STRICT_ALL_TABLES" in mode,
            no_zero_date="NO_ZERO_DATE" in mode,
            no_zero_in_date="NO_ZERO_IN_DATE" in mode,
            error_for_division="ERROR_FOR_DIVISION_BY_ZERO" in mode,
        )

    def is_strict(self) -> bool:
        return self.settings().is_strict

    def now(self) -> Time:
        fixed = str(self.variables.get("timestamp"))
        seconds = float(fixed) if fixed not in ("", "0") else self.cluster.clock.now()
        return temporal.of_datetime(datetime.fromtimestamp(seconds, UTC))

    def time_zone(self) -> tzinfo:
        return time_zone(str(self.variables.get("time_zone")))

    def keep_warnings(self, context: Context) -> int:
        self.warnings = list(context.settings.warnings)
        return len(self.warnings)


def time_zone(name: str) -> tzinfo:
    """``SYSTEM``, an offset or a name; 1298 if there is none such."""
    if name.upper() in ("SYSTEM", "UTC"):
        return UTC
    found = temporal.fixed_zone(name)
    if found is not None:
        return UTC if not found.utcoffset(None) else found
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise sql_error(Errno.UNKNOWN_TIME_ZONE, name) from error
