"""Iceberg tables: one snapshot a batch, with (changefeed, resolved-ts) in it and in the table's properties.

    {root}/{schema}/{table}/data/….parquet      {root}/{schema}/{table}/metadata/…      {root}/catalog.db

Data files carry field ids, so a column keeps its values under a new name. The catalog is SQLite in the warehouse
unless another one is named. A table that is dropped upstream stays, as ``{table}__dropped_{ts}``.

A table's properties name the cluster and the changefeed that it belongs to, and carry a mark of the writer that has it
and one of the owner. Whoever gets the table marks it before it first reads its stamps, by an empty snapshot. Every
commit requires that the table's newest snapshot is the one that we know, and is not repeated before we have seen that
the mark is still ours: so a writer that was superseded cannot commit to a table that its successor has seen. If it
still commits to one that its successor has not seen yet, the successor finds its stamps there. The owner's commits, for
DDLs, go by its own mark: writers go on behind them.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from tidemill.errors import InvariantError, TidemillError
from tidemill.model.ddl import DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files.storage import Files, StorageOptions
from tidemill.sinks.lake import failures
from tidemill.sinks.lake.backend import Stamps
from tidemill.sinks.lake.columns import CLOCK, MOMENT, type_named
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import LakeTable, Naming

CHANGEFEED = "tidemill.changefeed"
CLUSTER = "tidemill.cluster"
GENERATION = "tidemill.generation"
TERM = "tidemill.term"
RESOLVED_TS = "tidemill.resolved-ts"
DDL = "tidemill.ddl"
PARTS = "tidemill.parts"
_LAKE_ID = "tidemill.table"

_TYPES: Mapping[pa.DataType, IcebergType] = {
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    CLOCK: TimestampType(),
    MOMENT: TimestamptzType(),
}


def open_catalog(options: LakeOptions) -> Catalog:
    """The catalog that the sink writes to, for readers too."""
    uri = options.catalog or f"sqlite:///{options.storage.root}/catalog.db"
    kind = "rest" if uri.startswith(("http://", "https://")) else "sql"
    with _explained("open the catalog of", options):
        return load_catalog(
            "tidemill", type=kind, uri=uri, warehouse=options.storage.uri, **_storage_properties(options.storage)
        )


def identifier(options: LakeOptions, table: LakeTable) -> tuple[str, ...]:
    return (*options.namespace, table.schema, table.lake_name)


class Iceberg:
    """The backend; see ``backend``."""

    naming = Naming(can_rename=True, can_widen=True)
    is_transactional = True

    def __init__(self, options: LakeOptions, files: Files, *, is_owner: bool) -> None:
        self._options, self._is_owner = options, is_owner
        self._catalog = open_catalog(options)
        self._tables: dict[str, tuple[tuple[str, ...], Table]] = {}
        self._marks: dict[str, str] = {}  # by table: what its property says while it is ours
        self._named: dict[str, tuple[str, ...]] = {}  # by table: the name that its document told last
        self._mark_name = TERM if is_owner else GENERATION
        self._check: Callable[[], None] = lambda: None

    def begin(self, generation: str, check: Callable[[], None]) -> None:
        self._check = check

    def forget(self, table: LakeTable | None) -> None:
        for known in (self._tables, self._marks):
            if table is None:
                known.clear()
            else:
                known.pop(table.id, None)

    def reload(self, table: LakeTable) -> None:
        self._tables.pop(table.id, None)
        self._named[table.id] = identifier(self._options, table)

    def put(self, table: LakeTable) -> None:
        with self._doing("change", table):
            found = self._find(table)
            if found is None:
                self._create(table)
            else:
                self._adjust(found, table)
                self._remember(table, found)

    def stamps(self, table: LakeTable) -> Stamps:
        with self._doing("read", table):
            found = self._find(table)
        if found is None:
            return Stamps()
        ts, _, seq = found.properties.get(DDL, "0.0").partition(".")
        parts = filter(None, found.properties.get(PARTS, "").split(","))
        return Stamps(int(found.properties.get(RESOLVED_TS, 0)), (int(ts), int(seq)), frozenset(map(int, parts)))

    def append(self, table: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        with self._doing("append to", table):
            found = self._find(table)
            if found is None:
                raise InvariantError(f"the lake has no table {table.full_name}, which it should have been given before")
            said = {RESOLVED_TS: str(stamps.resolved_ts), DDL: f"{stamps.ddl[0]}.{stamps.ddl[1]}"}
            if self._is_owner:
                properties = {DDL: said[DDL]}
            else:
                properties = {RESOLVED_TS: said[RESOLVED_TS], PARTS: ",".join(map(str, sorted(stamps.parts)))}

            def change(transaction: Transaction) -> None:
                with transaction.update_snapshot(snapshot_properties=self._summary(said)).merge_append() as update:
                    for file in _data_files(self._options.storage.uri, found, files):
                        update.append_data_file(file)
                transaction.set_properties(properties)

            wanted = {**properties, self._mark_name: self._marks[table.id]}
            self._commit(found, table, change, lambda: wanted.items() <= found.properties.items())
            _forget_old(found, self._options.keep_snapshots)
            self._remember(table, found)

    def _commit(
        self, found: Table, table: LakeTable, change: Callable[[Transaction], None], is_done: Callable[[], bool]
    ) -> None:
        """``change`` must add a snapshot, for which Iceberg requires that nobody else has added one meanwhile.
        ``is_done`` tells whether ``found`` has it already."""
        for _ in range(failures.MOST_TRIES):
            self._check_mark(found, table)
            try:
                with _without_retries(found).transaction() as transaction:
                    change(transaction)
                return
            except CommitFailedException:
                found.refresh()
                if is_done():
                    return  # it was carried out, and the answer lost
        raise failures.contended(table.full_name, self._options)

    def _mark(self, found: Table, table: LakeTable) -> None:
        """Put a new mark into the table: those who have put theirs before cannot commit to it any more."""
        if table.id in self._marks:
            self._check_mark(found, table)
            return
        said = {self._mark_name: secrets.token_hex(8)}  # and no resolved-ts: it is no batch
        for _ in range(failures.MOST_TRIES):
            if said.items() <= found.properties.items():
                break  # it was carried out, and the answer lost
            self._check()
            try:
                with _without_retries(found).transaction() as transaction:
                    with transaction.update_snapshot(snapshot_properties=self._summary(said)).fast_append():
                        pass
                    transaction.set_properties(said)
                break
            except CommitFailedException:
                found.refresh()
        else:
            raise failures.contended(table.full_name, self._options)
        self._marks[table.id] = said[self._mark_name]

    def _check_mark(self, found: Table, table: LakeTable) -> None:
        if found.properties.get(self._mark_name) != self._marks[table.id]:
            raise failures.superseded(self._options)

    def _summary(self, stamps: Mapping[str, str]) -> dict[str, str]:
        return {CHANGEFEED: self._options.changefeed, CLUSTER: self._options.cluster_id, **stamps}

    def data_folder(self, table: LakeTable, info: TableInfo, physical_id: int, to_ts: Ts) -> str:
        return f"{table.location}/data"

    def data_folders(self, table: LakeTable, info: TableInfo) -> list[str]:
        return [f"{table.location}/data"]

    def describe(self, event: DdlEvent) -> None:
        """The catalog tells."""

    def publish(self, checkpoint_ts: Ts) -> None:
        """Each table's snapshots tell."""

    def close(self) -> None:
        close: Callable[[], None] | None = getattr(self._catalog, "close", None)
        if close is not None:
            close()

    # Tables.

    def _find(self, table: LakeTable) -> Table | None:
        """By its own mark, under its name or one that it had: a crash may have come between rename and note."""
        wanted = identifier(self._options, table)
        known = self._tables.get(table.id)
        if known is not None:
            return known[1]
        for name in dict.fromkeys((wanted, self._named.get(table.id, wanted), *self._former_names(table))):
            try:
                found = self._catalog.load_table(name)
            except NoSuchTableError:
                continue
            is_ours = _is_ours(found, self._options)
            if name == wanted and not is_ours:
                said = found.properties
                raise failures.foreign(".".join(name), said.get(CHANGEFEED), said.get(CLUSTER), self._options)
            if is_ours and found.properties.get(_LAKE_ID) == table.id:
                self._mark(found, table)
                if name != wanted:
                    found = self._rename(name, wanted)
                self._tables[table.id] = wanted, found
                return found
        return None

    def _former_names(self, table: LakeTable) -> Iterator[tuple[str, ...]]:
        for version in reversed(table.versions):
            yield (*self._options.namespace, version.schema, version.table)
        last = table.versions[-1]
        namespace = (*self._options.namespace, last.schema)
        dropped = f"{last.table}__dropped_"
        if self._catalog.namespace_exists(namespace):
            yield from (name for name in self._catalog.list_tables(namespace) if name[-1].startswith(dropped))

    def _remember(self, table: LakeTable, found: Table) -> None:
        wanted = identifier(self._options, table)
        known = self._tables.get(table.id)
        if known is not None and known[0] != wanted:
            found = self._rename(known[0], wanted)
        self._tables[table.id] = wanted, found

    def _rename(self, name: tuple[str, ...], wanted: tuple[str, ...]) -> Table:
        self._check()  # the catalog takes no condition for it
        self._have_namespace(wanted[:-1])
        return self._catalog.rename_table(name, wanted)

    def _have_namespace(self, name: tuple[str, ...]) -> None:
        try:
            self._catalog.create_namespace_if_not_exists(name)
        except Exception:  # another writer may have made it at the same moment, which catalogs tell in many ways
            if not self._catalog.namespace_exists(name):
                raise

    def _create(self, table: LakeTable) -> None:
        self._check()
        wanted = identifier(self._options, table)
        for level in range(1, len(wanted)):
            self._have_namespace(wanted[:level])
        mark = secrets.token_hex(8)
        created = self._catalog.create_table(
            wanted,
            _schema(table),
            location=f"{self._options.storage.uri}/{table.location}",
            properties={
                _LAKE_ID: table.id,
                CLUSTER: self._options.cluster_id,
                CHANGEFEED: self._options.changefeed,
                self._mark_name: mark,
                "write.parquet.compression-codec": self._options.compression,
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "100",
            },
        )
        self._tables[table.id], self._marks[table.id] = (wanted, created), mark

    def _adjust(self, found: Table, table: LakeTable) -> None:
        """Give the table exactly the columns that it should have."""
        if _has_columns(found, table):
            return

        def change(transaction: Transaction) -> None:
            _stage_columns(transaction, table)
            # It brings the condition under which we may commit.
            with transaction.update_snapshot(snapshot_properties=self._summary({})).fast_append():
                pass

        self._commit(found, table, change, lambda: _has_columns(found, table))

    def _doing(self, what: str, table: LakeTable) -> Any:
        return _explained(f"{what} table {table.full_name} of", self._options)


@contextmanager
def _explained(what: str, options: LakeOptions) -> Iterator[None]:
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:  # what catalogs, their databases and object stores raise has no common root
        raise failures.translate(f"{what} the Iceberg warehouse {options.storage.shown}", error) from error


def _forget_old(found: Table, kept: int) -> None:
    """Every commit copies the list of snapshots, so it must not grow for ever. Changes stay: only the table's own
    time travel ends there, that to a ts does not."""
    taken = sorted(found.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    if len(taken) > 2 * kept:
        old = [snapshot.snapshot_id for snapshot in taken[:-kept]]
        with suppress(CommitFailedException):  # then after another batch
            found.maintenance.expire_snapshots().by_ids(old).commit()


def _is_ours(found: Table, options: LakeOptions) -> bool:
    said = found.properties
    return (said.get(CLUSTER), said.get(CHANGEFEED)) == (options.cluster_id, options.changefeed)


def _data_files(root: str, table: Table, files: Sequence[DataFile]) -> Iterator[IcebergFile]:
    schema = table.schema()
    plan = compute_statistics_plan(schema, table.properties)
    mapping = parquet_path_to_id_mapping(schema)
    for file in files:
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.metadata, stats_columns=plan, parquet_column_mapping=mapping
        )
        yield IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{root}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=statistics.partition(table.spec(), schema),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _stage_columns(transaction: Transaction, table: LakeTable) -> None:
    fields = {field.field_id: field for field in transaction.table_metadata.schema().fields}
    wanted = {column.id: (column, _iceberg_type(column.type)) for column in table.columns}
    renamed = [c for c, _ in wanted.values() if c.id in fields and fields[c.id].name != c.name]
    widened = [(c, kind) for c, kind in wanted.values() if c.id in fields and fields[c.id].field_type != kind]
    added = [(c, kind) for c, kind in wanted.values() if c.id not in fields]
    if renamed or widened:
        with transaction.update_schema() as update:
            for column, kind in widened:
                update.update_column(fields[column.id].name, field_type=kind)
            for column in renamed:
                update.rename_column(fields[column.id].name, column.name)
    for column, kind in added:
        with transaction.update_schema() as update:
            update.add_column(column.name, kind)
        if transaction.table_metadata.schema().find_field(column.name).field_id != column.id:
            raise InvariantError(
                f"column {column.name!r} of {table.full_name} has got another field id than {column.id}"
            )


def _has_columns(found: Table, table: LakeTable) -> bool:
    wanted = {column.id: (column.name, _iceberg_type(column.type)) for column in table.columns}
    return {field.field_id: (field.name, field.field_type) for field in found.schema().fields} == wanted


def _without_retries(found: Table) -> Table:
    """pyiceberg would repeat a commit that others have come before, whoever they are. Its own setting for that is a
    property of the table, which holds for other writers as well; so it is set in our copy of the metadata only."""
    properties = {**found.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    found.metadata = found.metadata.model_copy(update={"properties": properties})
    return found


def _schema(table: LakeTable) -> Schema:
    return Schema(*(NestedField(c.id, c.name, _iceberg_type(c.type), required=False) for c in table.columns))


def _iceberg_type(name: str) -> IcebergType:
    kind = type_named(name)
    return DecimalType(kind.precision, kind.scale) if pa.types.is_decimal(kind) else _TYPES[kind]


def _storage_properties(storage: StorageOptions) -> dict[str, str]:
    if not storage.is_s3:
        return {}
    given = {
        "s3.endpoint": storage.endpoint,
        "s3.region": storage.region,
        "s3.access-key-id": storage.access_key,
        "s3.secret-access-key": storage.secret_access_key,
        "s3.session-token": storage.session_token,
        "s3.role-arn": storage.role_arn,
        "s3.force-virtual-addressing": "" if storage.force_path_style else "true",
    }
    return {name: value for name, value in given.items() if value}
