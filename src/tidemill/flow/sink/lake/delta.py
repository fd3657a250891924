"""Delta tables: one commit a batch, with the changefeed as application id and the resolved-ts as its version.

    {root}/{schema}/{table}/data/….parquet      {root}/{schema}/{table}/_delta_log/…

Delta without column mapping, which every reader understands, has no way to rename, drop or retype a column. So those
get a new column beside the old one, and ``_tidemill/tables.json`` says which holds what. The folder keeps the
name under which the table was first seen.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, tzinfo
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction

from tidemill.errors import InvariantError, SinkError
from tidemill.flow.sink.lake.columns import type_named
from tidemill.flow.sink.lake.files import DataFile
from tidemill.flow.sink.lake.options import LakeOptions
from tidemill.flow.sink.lake.sink import LakeSink, Stamps
from tidemill.flow.sink.lake.tables import LakeTable, Naming
from tidemill.flow.sink.storage import StorageOptions
from tidemill.model.ddl import DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms

CHANGEFEED = "tidemill.changefeed"
RESOLVED_TS = "tidemill.resolved-ts"
_MOST_STATISTICS = 32  # columns of a file for which bounds are noted, as other writers do


class DeltaSink(LakeSink):
    def open_backend(self, zone: tzinfo) -> "Delta":
        return Delta(self._options)


def open_table(options: LakeOptions, table: LakeTable, version: int | None = None) -> DeltaTable:
    """For readers."""
    return DeltaTable(_place(options, table), version=version, storage_options=storage_options(options.storage))


class Delta:
    """The backend; see ``sink.Backend``."""

    naming = Naming(can_rename=False, can_widen=False, forbidden=" ,;{}()\n\t=")
    is_transactional = True

    def __init__(self, options: LakeOptions) -> None:
        self._options = options
        self._tables: dict[str, DeltaTable] = {}

    def put(self, table: LakeTable) -> None:
        with self._doing("change", table):
            found = self._find(table)
            if found is None:
                self._tables[table.id] = DeltaTable.create(
                    _place(self._options, table),
                    _schema(table),
                    name=table.full_name,
                    configuration={"delta.checkpointInterval": "100"},
                    storage_options=storage_options(self._options.storage),
                )
                return
            names = {field.name for field in found.schema().fields}
            missing = [field for field in _schema(table).fields if field.name not in names]
            if missing:
                found.alter.add_columns(missing)

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
            said = {
                self._options.changefeed: stamps.resolved_ts,
                self._ddl_id: stamps.ddl[0],
                f"{self._ddl_id}/seq": stamps.ddl[1],
                **{self._part_id(id): stamps.resolved_ts for id in stamps.parts},
            }
            found.create_write_transaction(
                [_add_action(table, file, stamps) for file in files],
                "append",
                found.schema(),
                commit_properties=CommitProperties(
                    custom_metadata={
                        CHANGEFEED: self._options.changefeed,
                        RESOLVED_TS: str(stamps.resolved_ts),
                        "tidemill.ddl": f"{stamps.ddl[0]}.{stamps.ddl[1]}",
                    },
                    app_transactions=[Transaction(name, version) for name, version in said.items()],
                ),
            )
            found.update_incremental()

    def data_folder(self, table: LakeTable, info: TableInfo, physical_id: int, to_ts: Ts) -> str:
        return f"{table.location}/data"

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

    def _find(self, table: LakeTable) -> DeltaTable | None:
        if table.id not in self._tables:
            try:
                self._tables[table.id] = open_table(self._options, table)
            except TableNotFoundError:
                return None
        return self._tables[table.id]

    @contextmanager
    def _doing(self, what: str, table: LakeTable) -> Iterator[None]:
        try:
            yield
        except (SinkError, InvariantError):
            raise
        except Exception as error:  # what Delta and object stores raise has no common root
            raise SinkError(
                f"cannot {what} Delta table {table.full_name} in {self._options.storage.shown}: "
                f"{type(error).__name__}. See that the storage can be reached and written to, then start again; "
                "nothing is lost."
            ) from error


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
        # One changefeed, one writer: that two commits meet is excluded above.
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    return {name: value for name, value in given.items() if value}


def _add_action(table: LakeTable, file: DataFile, stamps: Stamps) -> AddAction:
    moment = physical_ms(max(stamps.resolved_ts, stamps.ddl[0]))
    path = file.path.removeprefix(table.location + "/")
    return AddAction(path, file.size, {}, moment, True, json.dumps(_statistics(file)))


def _statistics(file: DataFile) -> dict[str, Any]:
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
        bounds = [s for s in found if s.has_min_max]
        if bounds and len(bounds) == len([s for s in found if s.num_values]) and _is_exact(bounds[0]):
            lowest[name] = _json(min(s.min for s in bounds))
            highest[name] = _json(max(s.max for s in bounds))
    return {"numRecords": file.rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _is_exact(statistics: pq.Statistics) -> bool:
    """Texts may be cut, and floats compare oddly: readers get no bounds for them."""
    return isinstance(statistics.min, int | date | Decimal) and not isinstance(statistics.min, datetime)


def _json(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
