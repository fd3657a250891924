"""Delta tables: one commit a batch, with the changefeed as application id and the resolved-ts as its version.

    {root}/{schema}/{table}/data/….parquet      {root}/{schema}/{table}/_delta_log/…

Delta without column mapping, which every reader understands, has no way to rename, drop or retype a column. So those
get a new column beside the old one, and ``_tidemill/tables.json`` says which holds what. The folder keeps the
name under which the table was first seen.

A table's configuration names the cluster and the changefeed that it belongs to. Who writes to it is one more
application id, whose version each writer raises before it first reads the table's stamps, and which every commit of a
writer's sets; the owner has another one, for DDLs. Delta refuses a commit if another one has set the same application
id since the version that we know: so a writer that was superseded cannot commit to a table that its successor has seen.
If it still commits to one that its successor has not seen yet, the successor finds its stamps there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidemill.errors import InvariantError, TidemillError
from tidemill.model.ddl import DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms
from tidemill.sinks.files.storage import Files, StorageOptions
from tidemill.sinks.lake import failures
from tidemill.sinks.lake.backend import Stamps
from tidemill.sinks.lake.columns import type_named
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import LakeTable, Naming

CHANGEFEED = "tidemill.changefeed"
CLUSTER = "tidemill.cluster"
RESOLVED_TS = "tidemill.resolved-ts"
_LAKE_ID = "tidemill.table"
_MOST_STATISTICS = 32  # columns of a file for which bounds are noted, as other writers do
_LONGEST_TEXT = 32  # characters of a bound, likewise
_ABOVE_ALL_TEXTS = "\U0010ffff" * 4  # that anybody writes


def open_table(options: LakeOptions, table: LakeTable, version: int | None = None) -> DeltaTable:
    """For readers."""
    return DeltaTable(_place(options, table), version=version, storage_options=storage_options(options.storage))


class Delta:
    """The backend; see ``backend``."""

    naming = Naming(can_rename=False, can_widen=False, forbidden=" ,;{}()\n\t=")
    is_transactional = True

    def __init__(self, options: LakeOptions, files: Files, *, is_owner: bool) -> None:
        self._options, self._is_owner = options, is_owner
        self._tables: dict[str, DeltaTable] = {}
        self._marks: dict[str, int] = {}  # by table: the version of ``_mark_id`` that is ours
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

    def put(self, table: LakeTable) -> None:
        with self._doing("change", table):
            found = self._find(table)
            if found is None:
                self._create(table)
                return
            names = {field.name for field in found.schema().fields}
            missing = [field for field in _schema(table).fields if field.name not in names]
            if missing:
                self._commit(table, lambda current, how: current.alter.add_columns(missing, commit_properties=how))

    def stamps(self, table: LakeTable) -> Stamps:
        with self._doing("read", table):
            found = self._find(table)
            if found is None:
                return Stamps()
            ddl_ts = found.transaction_version(self._ddl_id) or 0
            seq = (found.transaction_version(f"{self._ddl_id}/seq") or 0) if ddl_ts else 0
            resolved_ts = found.transaction_version(self._options.changefeed) or 0
            parts = [i for i in table.physical_ids if found.transaction_version(self._part_id(i)) == resolved_ts]
            return Stamps(resolved_ts, (ddl_ts, seq), frozenset(parts))

    def append(self, table: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        with self._doing("append to", table):
            found = self._find(table)
            if found is None:
                raise InvariantError(f"the lake has no table {table.full_name}, which it should have been given before")
            if self._is_owner:
                said = {self._ddl_id: stamps.ddl[0], f"{self._ddl_id}/seq": stamps.ddl[1]}
            else:
                parts = {self._part_id(id): stamps.resolved_ts for id in stamps.parts}
                said = {self._options.changefeed: stamps.resolved_ts, **parts}
            actions: list[AddAction | RemoveAction] = [_add_action(table, file, stamps) for file in files]
            self._commit(
                table,
                lambda current, how: current.create_write_transaction(
                    actions, "append", current.schema(), commit_properties=how
                ),
                said,
                {RESOLVED_TS: str(stamps.resolved_ts), "tidemill.ddl": f"{stamps.ddl[0]}.{stamps.ddl[1]}"},
            )

    def _commit(
        self,
        table: LakeTable,
        change: Callable[[DeltaTable, CommitProperties], None],
        said: Mapping[str, int] = MappingProxyType({}),
        told: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Delta refuses it if another commit has set our mark, or changed the table, since the one we know."""
        mark, found = self._marks[table.id], self._tables[table.id]
        for _ in range(failures.MOST_TRIES):
            self._check_mark(found, mark)
            try:
                change(found, self._properties({**said, self._mark_id: mark}, told))
                found.update_incremental()
                return
            except CommitFailedError:
                found.update_incremental()
                if said and all(found.transaction_version(name) == version for name, version in said.items()):
                    return  # it was carried out, and the answer lost
        raise failures.contended(table.full_name, self._options)

    def _mark(self, found: DeltaTable, table: LakeTable) -> int:
        """Set a new mark in the table: those who have set it before cannot commit to it any more."""
        for _ in range(failures.MOST_TRIES):
            self._check()
            mark = (found.transaction_version(self._mark_id) or 0) + 1
            how = self._properties({self._mark_id: mark}, {})  # without a resolved-ts: it is no batch
            try:
                found.create_write_transaction([], "append", found.schema(), commit_properties=how)
            except CommitFailedError:
                found.update_incremental()
                continue
            found.update_incremental()
            return mark
        raise failures.contended(table.full_name, self._options)

    def _check_mark(self, found: DeltaTable, mark: int) -> None:
        if found.transaction_version(self._mark_id) != mark:
            raise failures.superseded(self._options)

    def _properties(self, said: Mapping[str, int], told: Mapping[str, str]) -> CommitProperties:
        who = {CHANGEFEED: self._options.changefeed, CLUSTER: self._options.cluster_id}
        return CommitProperties(
            custom_metadata={**who, **told},
            app_transactions=[Transaction(name, version) for name, version in said.items()],
        )

    def data_folder(self, table: LakeTable, info: TableInfo, physical_id: int, to_ts: Ts) -> str:
        return f"{table.location}/data"

    def data_folders(self, table: LakeTable, info: TableInfo) -> list[str]:
        return [f"{table.location}/data"]

    def describe(self, event: DdlEvent) -> None:
        """The table's log tells."""

    def publish(self, checkpoint_ts: Ts) -> None:
        """Each table's log tells."""

    def close(self) -> None:
        self._tables.clear()

    @property
    def _ddl_id(self) -> str:
        return f"{self._options.changefeed}/ddl"

    def _part_id(self, physical_id: int) -> str:
        return f"{self._options.changefeed}/{physical_id}"

    @property
    def _mark_id(self) -> str:
        return f"{self._options.changefeed}/{'term' if self._is_owner else 'generation'}"

    def _create(self, table: LakeTable) -> None:
        self._check()
        DeltaTable.create(
            _place(self._options, table),
            _schema(table),
            name=table.full_name,
            configuration={
                "delta.checkpointInterval": "100",
                CLUSTER: self._options.cluster_id,
                CHANGEFEED: self._options.changefeed,
                _LAKE_ID: table.id,
            },
            storage_options=storage_options(self._options.storage),
            commit_properties=self._properties({self._mark_id: 1}, {}),
            raise_if_key_not_exists=False,
        )
        self._tables[table.id], self._marks[table.id] = open_table(self._options, table), 1

    def _find(self, table: LakeTable) -> DeltaTable | None:
        if table.id not in self._tables:
            try:
                found = open_table(self._options, table)
            except TableNotFoundError:
                return None
            said = found.metadata().configuration
            if (said.get(CLUSTER), said.get(CHANGEFEED)) != (self._options.cluster_id, self._options.changefeed):
                place = _place(self._options, table)
                raise failures.foreign(f"at {place}", said.get(CHANGEFEED), said.get(CLUSTER), self._options)
            if said.get(_LAKE_ID) != table.id:
                raise failures.other_table(table.full_name, table.location, self._options)
            if table.id in self._marks:
                self._check_mark(found, self._marks[table.id])
            else:
                self._marks[table.id] = self._mark(found, table)
            self._tables[table.id] = found
        return self._tables[table.id]

    @contextmanager
    def _doing(self, what: str, table: LakeTable) -> Iterator[None]:
        try:
            yield
        except TidemillError:
            raise
        except Exception as error:  # what Delta and object stores raise has no common root
            where = f"Delta table {table.full_name} in {self._options.storage.shown}"
            raise failures.translate(f"{what} {where}", error) from error


def _place(options: LakeOptions, table: LakeTable) -> str:
    root = options.storage.uri if options.storage.is_s3 else options.storage.root
    return f"{root}/{table.location}"


def _schema(table: LakeTable) -> DeltaSchema:
    arrow = pa.schema([pa.field(c.name, type_named(c.type)) for c in table.columns])
    fields: list[Field] = DeltaSchema.from_arrow(arrow).fields
    return DeltaSchema(fields)


def storage_options(storage: StorageOptions) -> dict[str, str] | None:
    """What Delta's own readers and writers want to be told."""
    if not storage.is_s3:
        return None
    given = {
        "AWS_ENDPOINT_URL": storage.endpoint,
        "AWS_ALLOW_HTTP": "true" if storage.endpoint.startswith("http://") else "",
        "AWS_REGION": storage.region,
        "AWS_ACCESS_KEY_ID": storage.access_key,
        "AWS_SECRET_ACCESS_KEY": storage.secret_access_key,
        "AWS_SESSION_TOKEN": storage.session_token,
        "AWS_IAM_ROLE_ARN": storage.role_arn,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "" if storage.force_path_style else "true",
        "AWS_CONDITIONAL_PUT": "etag",  # no commit replaces another one
        # Longer outages are for the changefeed to wait out.
        "max_retries": "3",
        "retry_timeout": "20s",
    }
    return {name: value for name, value in given.items() if value}


def _add_action(table: LakeTable, file: DataFile, stamps: Stamps) -> AddAction:
    moment = physical_ms(max(stamps.resolved_ts, stamps.ddl[0]))
    path = file.path.removeprefix(table.location + "/")
    return AddAction(path, file.size, {}, moment, True, orjson.dumps(_statistics(file)).decode())


def _statistics(file: DataFile) -> dict[str, Any]:
    """Bounds for every column that can have some, once a file has any: delta-rs takes one that is missing for a bound
    that no value keeps, and passes over the file."""
    metadata = file.metadata
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(min(metadata.num_columns, _MOST_STATISTICS)):
        groups = [metadata.row_group(group).column(place) for group in range(metadata.num_row_groups)]
        found = [group.statistics for group in groups]
        if any(statistics is None or not statistics.has_null_count for statistics in found):
            continue
        name = groups[0].path_in_schema
        nulls[name] = sum(statistics.null_count for statistics in found)
        filled = [s for s in found if s.num_values]
        if filled and all(s.has_min_max for s in filled) and not isinstance(filled[0].min, bytes):
            lowest[name] = _least(min(s.min for s in filled))
            highest[name] = _greatest(max(s.max for s in filled))
        elif filled and filled[0].logical_type.type == "STRING":  # too long for Parquet to note
            lowest[name], highest[name] = "", _ABOVE_ALL_TEXTS
    return {"numRecords": file.rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _least(value: Any) -> Any:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else _json(value)


def _greatest(value: Any) -> Any:
    if not isinstance(value, str):
        return _json(value)
    return value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + _ABOVE_ALL_TEXTS


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat() + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    # Digit by digit: a float may lie above the least value of a file, and readers would pass over its rows.
    return orjson.Fragment(f"{value:f}") if isinstance(value, Decimal) else value
