"""TiDB's metadata, read and written through a transaction, in TiDB's keys and JSON.

    ids, schema version, diffs, databases, tables, auto ids     keys that begin with ``m``
    jobs that run, and their history                            rows of mysql.tidb_ddl_job, tidb_ddl_history

Documents are dicts as TiDB's JSON has them, key by key and in its order, so that what was read and
written again is what was there, with keys of other versions of TiDB too.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Final, Protocol, TypeAlias

import orjson

from tidebox.sql.codec import TableCodec, Time, rowid_handle
from tidebox.sql.ddl.defaults import Settings
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_table
from tidebox.sql.parse.statements import CreateTable
from tidebox.sql.parse.tables import parse_create_table
from tidemill.errors import SchemaError
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import parse_table
from tidemill.tidb.keys import encode_bytes, record_range
from tidemill.tidb.meta import database_key, hash_key, split_hash_key, table_key

Document: TypeAlias = dict[str, Any]  # TiDB's JSON

SYSTEM_SCHEMA: Final = "mysql"
SYSTEM_SCHEMA_ID: Final = 1
JOB_TABLE: Final = "tidb_ddl_job"
HISTORY_TABLE: Final = "tidb_ddl_history"
# TiDB's own sessions: not strict, and only integers are clustered without being asked to.
SYSTEM_SETTINGS: Final = Settings(is_strict=False, clusters_all=False)
# Tables with fixed ids that count down from the highest, in the order of their ids.
SYSTEM_TABLES: Final = {
    0xFFFFFFFFFFFE: "CREATE TABLE tidb_ddl_job (job_id bigint not null, reorg int, schema_ids text(65535), "
    "table_ids text(65535), job_meta longblob, type int, processing int, primary key (job_id))",
    0xFFFFFFFFFFFD: "CREATE TABLE tidb_ddl_reorg (job_id bigint not null, ele_id bigint, ele_type blob, "
    "start_key blob, end_key blob, physical_id bigint, reorg_meta longblob, unique key (job_id, ele_id, ele_type(20)))",
    0xFFFFFFFFFFFC: "CREATE TABLE tidb_ddl_history (job_id bigint not null, job_meta longblob, db_name char(64), "
    "table_name char(64), schema_ids text(65535), table_ids text(65535), create_time datetime, primary key (job_id))",
    0xFFFFFFFFFFFB: "CREATE TABLE tidb_mdl_info (job_id bigint not null primary key, version bigint not null, "
    "table_ids text(65535), owner_id varchar(64) not null default '')",
}
_JOB_TABLE_ID: Final = 0xFFFFFFFFFFFE
_HISTORY_TABLE_ID: Final = 0xFFFFFFFFFFFC
_STRING = b"\0" * 7 + b"s"
_HASH = b"\0" * 7 + b"h"


class KeyValues(Protocol):
    """What is asked of a transaction here."""

    start_ts: Ts

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, bytes]]: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...


class Counter(Enum):
    """The counters of a table."""

    ROW = b"TID"  # _tidb_rowid, and AUTO_INCREMENT unless that has its own
    AUTO_INCREMENT = b"IID"  # with AUTO_ID_CACHE 1


def dump(document: Document) -> bytes:
    """JSON as Go writes it: what means something to HTML is escaped."""
    raw = orjson.dumps(document)
    for plain, escaped in ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026")):
        if plain in raw:
            raw = raw.replace(plain, escaped)
    return raw.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def string_key(name: bytes) -> bytes:
    return b"m" + encode_bytes(name) + _STRING


def hash_range(name: bytes) -> tuple[bytes, bytes]:
    """``[start, end)`` of all fields of a hash."""
    prefix = b"m" + encode_bytes(name) + _HASH
    return prefix, prefix[:-1] + bytes((prefix[-1] + 1,))


class Meta:
    """The metadata as one transaction sees them. Nothing is kept: each call reads or writes keys."""

    def __init__(self, kv: KeyValues) -> None:
        self._kv = kv

    # Numbers

    def is_bootstrapped(self) -> bool:
        return self._kv.get(database_key(SYSTEM_SCHEMA_ID)) is not None

    def number(self, name: bytes) -> int:
        """A counter that is a string of digits; 0 if there is none."""
        return _digits(self._kv.get(string_key(name)), name)

    def set_number(self, name: bytes, value: int) -> None:
        self._kv.put(string_key(name), b"%d" % value)

    def next_ids(self, count: int) -> list[int]:
        """New ids for databases, tables and jobs, which share one sequence."""
        last = self.number(b"NextGlobalID")
        self.set_number(b"NextGlobalID", last + count)
        return list(range(last + 1, last + count + 1))

    @property
    def schema_version(self) -> int:
        return self.number(b"SchemaVersionKey")

    def bump_version(self, diff: Document) -> int:
        """The next schema version; ``diff`` says what it changes, and gets its number."""
        version = self.schema_version + 1
        self.set_number(b"SchemaVersionKey", version)
        self._kv.put(string_key(b"Diff:%d" % version), dump({"version": version, **diff}))
        return version

    def diff(self, version: int) -> Document | None:
        raw = self._kv.get(string_key(b"Diff:%d" % version))
        return None if raw is None else _load(raw, f"schema diff {version}")

    # Databases and tables

    def databases(self) -> list[Document]:
        pairs = self._kv.scan(*hash_range(b"DBs"))
        return [_load(value, "a database") for _, value in pairs]

    def database(self, schema_id: int) -> Document | None:
        raw = self._kv.get(database_key(schema_id))
        return None if raw is None else _load(raw, f"database {schema_id}")

    def put_database(self, database: Document) -> None:
        self._kv.put(database_key(database["id"]), dump(database))

    def drop_database(self, schema_id: int) -> None:
        """The database and all that is in its hash: tables and counters."""
        for key, _ in list(self._kv.scan(*hash_range(b"DB:%d" % schema_id))):
            self._kv.delete(key)
        self._kv.delete(database_key(schema_id))

    def tables(self, schema_id: int) -> Iterator[Document]:
        for key, value in self._kv.scan(*hash_range(b"DB:%d" % schema_id)):
            parts = split_hash_key(key)
            # The counters of a table share the hash with it.
            if parts is not None and parts[1].startswith(b"Table:"):
                yield _load(value, f"a table of database {schema_id}")

    def table(self, schema_id: int, table_id: int) -> Document | None:
        raw = self._kv.get(table_key(schema_id, table_id))
        return None if raw is None else _load(raw, f"table {table_id}")

    def put_table(self, schema_id: int, table: Document) -> None:
        self._kv.put(table_key(schema_id, table["id"]), dump(table))

    def drop_table(self, schema_id: int, table_id: int, *, keeps_counters: bool = False) -> None:
        self._kv.delete(table_key(schema_id, table_id))
        if not keeps_counters:
            for counter in Counter:
                if self._kv.get(_counter_key(schema_id, table_id, counter)) is not None:
                    self._kv.delete(_counter_key(schema_id, table_id, counter))

    def counter(self, schema_id: int, table_id: int, counter: Counter = Counter.ROW) -> int:
        """The highest number handed out; 0 if none was."""
        key = _counter_key(schema_id, table_id, counter)
        return _digits(self._kv.get(key), counter.value + b":%d" % table_id)

    def set_counter(self, schema_id: int, table_id: int, value: int, counter: Counter = Counter.ROW) -> None:
        self._kv.put(_counter_key(schema_id, table_id, counter), b"%d" % value)

    # Jobs

    def jobs(self, first: int = 0) -> list[Document]:
        """The jobs that are queued or run, in order of their ids, from ``first`` on."""
        table = job_table()
        start, end = _row_key(table, first), record_range(_JOB_TABLE_ID)[1]
        rows = (table.decode(key, value) for key, value in self._kv.scan(start, end))
        return [_load(row[4], f"DDL job {row[0]!r}") for row in rows]

    def job(self, job_id: int) -> Document | None:
        table = job_table()
        key = _row_key(table, job_id)
        value = self._kv.get(key)
        return None if value is None else _load(table.decode(key, value)[4], f"DDL job {job_id}")

    def put_job(self, job: Document, *, is_reorg: bool, schema_ids: Iterable[int], table_ids: Iterable[int]) -> None:
        row = [
            job["id"],
            int(is_reorg),
            _joined(schema_ids),
            _joined(table_ids),
            dump(job),
            job["type"],
            0,
        ]
        self._kv.put(*job_table().record(rowid_handle(job["id"]), row))

    def delete_job(self, job_id: int) -> None:
        self._kv.delete(_row_key(job_table(), job_id))

    def put_history(self, job: Document, now: datetime, schema_ids: Iterable[int], table_ids: Iterable[int]) -> None:
        """Where a job stays once it is over: a row, and a field of the older hash."""
        raw = dump(job)
        created = Time(now.year, now.month, now.day, now.hour, now.minute, now.second)
        names = job["schema_name"], job["table_name"]
        row = [job["id"], raw, *names, _joined(schema_ids), _joined(table_ids), created]
        self._kv.put(*history_table().record(rowid_handle(job["id"]), row))
        self._kv.put(hash_key(b"DDLJobHistory", job["id"].to_bytes(8, "big")), raw)

    def past_job(self, job_id: int) -> Document | None:
        raw = self._kv.get(hash_key(b"DDLJobHistory", job_id.to_bytes(8, "big")))
        return None if raw is None else _load(raw, f"DDL job {job_id}")

    def past_jobs(self) -> list[Document]:
        """The jobs that are over, in order of their ids."""
        return [_load(value, "a DDL job") for _, value in self._kv.scan(*hash_range(b"DDLJobHistory"))]


# Tables of the system


@cache
def system_tables() -> dict[int, Document]:
    """The documents of the tables with fixed ids, by id."""
    tables: dict[int, Document] = {}
    for table_id, sql in SYSTEM_TABLES.items():
        tables[table_id] = system_table(sql, table_id)
    return tables


def system_table(sql: str, table_id: int) -> Document:
    statement = parse_create_table(sql)
    assert isinstance(statement, CreateTable)
    return {**build_table(statement, DEFAULT_CHARSET, SYSTEM_SETTINGS), "id": table_id}


def table_of(document: Document) -> TableInfo:
    """A system table as rows are written to it."""
    return parse_table(document, SYSTEM_SCHEMA_ID, SYSTEM_SCHEMA, Ts(0), document["id"])


@cache
def job_table() -> TableCodec:
    return TableCodec(table_of(system_tables()[_JOB_TABLE_ID]))


@cache
def history_table() -> TableCodec:
    return TableCodec(table_of(system_tables()[_HISTORY_TABLE_ID]))


def _row_key(table: TableCodec, job_id: int) -> bytes:
    return record_range(table.table.id)[0] + rowid_handle(job_id)


def _joined(ids: Iterable[int]) -> str:
    """Each once, sorted as text, which is TiDB's order."""
    return ",".join(sorted({str(i) for i in ids}))


def _counter_key(schema_id: int, table_id: int, counter: Counter) -> bytes:
    return hash_key(b"DB:%d" % schema_id, counter.value + b":%d" % table_id)


def _digits(raw: bytes | None, name: bytes) -> int:
    if raw is None:
        return 0
    try:
        return int(raw)
    except ValueError as error:
        raise SchemaError(f"the counter {name.decode()} of the metadata holds {raw!r}, which is no number") from error


def _load(raw: Any, what: str) -> Document:
    try:
        document = orjson.loads(raw)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise SchemaError(f"cannot read {what} of the metadata: {error}") from error
    if not isinstance(document, dict):
        raise SchemaError(f"cannot read {what} of the metadata: {type(document).__name__} where an object was expected")
    return document
