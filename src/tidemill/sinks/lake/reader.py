"""Reading a lake back: its checkpoint, its tables, their changes and their rows as of a ts.

lake = open_lake("iceberg:///data/warehouse")
lake.rows_at("shop", "item", lake.checkpoint_ts)        an Arrow table
lake.sql("shop", "item", ts, relation="changes")        SQL for DuckDB over lake.changes(...)
"""

from collections.abc import Mapping, Sequence

import orjson
import pyarrow as pa
import pyarrow.dataset as pads

from tidemill.errors import SinkError, UsageError
from tidemill.model.ts import show
from tidemill.sinks.files import layout
from tidemill.sinks.files.storage import open_files
from tidemill.sinks.lake.columns import type_named
from tidemill.sinks.lake.journal import HEADER, read_journal
from tidemill.sinks.lake.options import CHECKPOINT, LakeKind, LakeOptions, parse_lake_uri
from tidemill.sinks.lake.query import Dialect, rows_at, rows_at_sql
from tidemill.sinks.lake.tables import LakeTable


def open_lake(uri: str) -> "Lake":
    return Lake(parse_lake_uri(uri))


class Lake:
    """What the lake holds when this is made; make another to see more."""

    def __init__(self, options: LakeOptions) -> None:
        self.options = options
        self._files = open_files(options.storage)
        journal, checkpoint = read_journal(options, self._files), self._files.read(CHECKPOINT)
        if journal is None or checkpoint is None:
            raise UsageError(
                f"{options.storage.shown} holds no lake of ours: it has no {HEADER} and {CHECKPOINT}. "
                "Check the folder, or wait for the changefeed's first checkpoint."
            )
        self.journal = journal
        self.checkpoint_ts = int(orjson.loads(checkpoint)["checkpoint-ts"])

    def table(self, schema: str, name: str, ts: int | None = None) -> LakeTable:
        """The lake table that was ``schema.name`` at ``ts``, or is at the checkpoint."""
        at = self._checked(ts)
        found = self.journal.named_at(schema, name, at)
        if found is None:
            known = sorted({t.full_name for t in self.journal.tables if t.dropped_ts is None})
            raise UsageError(
                f"the lake has no table {schema}.{name} at {show(at)}. It has {', '.join(known) or 'none'}."
            )
        return found

    def changes(self, table: LakeTable, ts: int | None = None) -> pa.Table:
        """All its changes; with ``ts``, those of the first snapshot that is complete up to there, in the columns that
        the table has now. Parquet has no snapshots."""
        match self.options.kind:
            case LakeKind.ICEBERG:
                return self._iceberg(table, ts)
            case LakeKind.DELTA:
                return self._delta(table, ts)
            case LakeKind.PARQUET:
                return self._parquet(table)

    def rows_at(self, schema: str, name: str, ts: int | None = None) -> pa.Table:
        table, at = self.table(schema, name, ts), self._checked(ts)
        return rows_at(table, at, self.changes(table))

    def sql(
        self, schema: str, name: str, ts: int | None = None, relation: str = "changes", dialect: Dialect = "duckdb"
    ) -> str:
        return rows_at_sql(self.table(schema, name, ts), self._checked(ts), relation, dialect)

    def parquet_files(self, table: LakeTable) -> list[str]:
        """Of a Parquet lake: the URIs or paths of a table's files, for ``read_parquet(…, union_by_name = true)``."""
        wanted = {f"{layout.table_folder(v.schema, v.table)}/{v.ts}" for v in table.versions}
        root = self.options.storage.uri if self.options.storage.is_s3 else self.options.storage.root
        return sorted(
            f"{root}/{folder}/{name}"
            for folder, names in self._files.walk()
            if "/".join(folder.split("/")[:3]) in wanted
            for name in names
            if name.endswith(".parquet") and not name.startswith(".")
        )

    def _checked(self, ts: int | None) -> int:
        if ts is not None and ts > self.checkpoint_ts:
            raise UsageError(
                f"the lake is complete up to {show(self.checkpoint_ts)} only, and {show(ts)} lies behind it. "
                "Wait, or read earlier."
            )
        return self.checkpoint_ts if ts is None else ts

    def _iceberg(self, table: LakeTable, ts: int | None) -> pa.Table:
        from tidemill.sinks.lake.iceberg import RESOLVED_TS, identifier, open_catalog

        found = open_catalog(self.options).load_table(identifier(self.options, table))
        taken = sorted(found.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        at = _complete_at(ts, [int((s.summary[RESOLVED_TS] if s.summary else None) or 0) for s in taken])
        if at is None:
            return found.scan().to_arrow()
        then = found.schemas()[taken[at].schema_id or 0]
        names = {field.field_id: field.name for field in then.fields}
        return _as_now(table, found.scan(snapshot_id=taken[at].snapshot_id).to_arrow(), names)

    def _delta(self, table: LakeTable, ts: int | None) -> pa.Table:
        from tidemill.sinks.lake.delta import RESOLVED_TS, open_table

        found = open_table(self.options, table)
        commits = [commit for commit in reversed(found.history()) if RESOLVED_TS in commit] if ts is not None else []
        at = _complete_at(ts, [int(commit[RESOLVED_TS]) for commit in commits])
        if at is None:
            return found.to_pyarrow_table()
        then = open_table(self.options, table, commits[at]["version"]).to_pyarrow_table()
        return _as_now(table, then, {c.id: c.name for c in table.columns if c.name in then.column_names})

    def _parquet(self, table: LakeTable) -> pa.Table:
        schema = pa.schema([pa.field(c.name, type_named(c.type)) for c in table.columns])
        paths = [path.removeprefix("s3://") for path in self.parquet_files(table)]
        if not paths:
            return schema.empty_table()
        try:
            return pads.dataset(
                paths, schema, format="parquet", filesystem=self.options.storage.filesystem()
            ).to_table()
        except (OSError, pa.ArrowException) as error:
            raise SinkError(
                f"cannot read {self.options.storage.shown}: {type(error).__name__}. Check its files."
            ) from error


def _complete_at(ts: int | None, resolved: Sequence[int]) -> int | None:
    """The place of the first commit that is complete up to ``ts``, by what each says; None: that of today will do.
    Of several that say the same the last: a DDL exactly there may have written rows anew."""
    end = min((said for said in resolved if ts is not None and said >= ts), default=None)
    return None if end is None else len(resolved) - 1 - resolved[::-1].index(end)


def _as_now(table: LakeTable, changes: pa.Table, names: Mapping[int, str]) -> pa.Table:
    """Changes of an older snapshot in the columns of today; ``names`` are those that it had, by the columns' ids."""
    columns = {}
    for column in table.columns:
        kind = type_named(column.type)
        held = changes[names[column.id]].cast(kind) if column.id in names else pa.nulls(len(changes), kind)
        columns[column.name] = held
    return pa.table(columns)
