"""Real rows of a real TiDB: decoded as TiCDC decodes them, as TiDB shows them, and as the reference does."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.flow.schema.stores import fed_store
from tests.histories import History, load
from tests.reference.rows import Decoder
from tidemill.flow.mounter import mount, mount_values
from tidemill.flow.schema import SchemaStore
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import parse_database, parse_table
from tidemill.tidb.keys import record_range
from tidemill.tidb.meta import read_snapshot

NAMES = ("types", "ddl", "online")


def units(history: History, store: SchemaStore) -> Iterator[tuple[TableInfo, int, pa.RecordBatch]]:
    """All row changes with a known schema, cut where the schema changes."""
    for physical_id in history.physical_ids():
        changes = history.row_changes(physical_id)
        tables = [store.table(physical_id, ts) for ts in changes.column("commit_ts").to_pylist()]
        begin = 0
        for end in range(1, len(tables) + 1):
            if end == len(tables) or tables[end] is not tables[begin]:
                if (found := tables[begin]) is not None:
                    yield found, physical_id, changes.slice(begin, end - begin)
                begin = end


def images(batch: RowBatch) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """(new, old) of each change."""
    new, old = iter(batch.new.to_pylist()), iter(batch.old.to_pylist())
    for op in batch.op:
        yield next(new) if op != RowOp.DELETE else None, next(old) if op != RowOp.INSERT else None


def go_value(column: dict[str, Any]) -> Any:
    if column["value"] is None:
        return None
    kind, value = next(iter(column["value"].items()))
    match kind:
        case "int64" | "uint64":
            return int(value)
        case "float32":
            return float(np.float32(value))
        case "float64":
            return float(value)
        case "bytes":
            raw = base64.b64decode(value)
            return raw if column["charset"] == "binary" else raw.decode()
        case _:
            return value


def go_row(columns: list[dict[str, Any]]) -> dict[str, Any] | None:
    return {c["name"]: go_value(c) for c in columns} or None


@pytest.mark.parametrize("name", NAMES)
def test_every_row_decodes_as_ticdc_decodes_it(name: str) -> None:
    history, (store, _) = load(name), fed_store(name)
    mine = {}
    for table, physical_id, changes in units(history, store):
        batch = mount(table, physical_id, changes)
        kept = [row for row in changes.to_pylist() if row["value"] or row["old_value"]]
        for row, pair in zip(kept, images(batch), strict=True):
            mine[row["commit_ts"], row["key"].hex()] = pair
    theirs = [row for row in history.ticdc_rows() if "columns" in row]
    assert len(theirs) >= 145
    for row in theirs:
        expected = go_row(row["columns"]), go_row(row["pre_columns"])
        assert mine[row["commit_ts"], row["key"]] == expected, (row["table"], row["key"])


@pytest.mark.parametrize("name", [*NAMES, "bench-narrow", "bench-wide"])
def test_every_row_decodes_as_the_reference_decodes_it(name: str) -> None:
    history, (store, _) = load(name), fed_store(name)
    for table, physical_id, changes in units(history, store):
        changes = changes.slice(0, 400)  # enough of the long ones
        plain = Decoder(table, physical_id)
        expected = [
            tuple(plain.decode(row["key"], image) if image else None for image in (row["value"], row["old_value"]))
            for row in changes.to_pylist()
            if row["value"] or row["old_value"]
        ]
        assert list(images(mount(table, physical_id, changes))) == expected


def tables_at(history: History, ts: int) -> dict[tuple[str, str], TableInfo]:
    """As the metadata at ``ts`` has them, also those that cannot be replicated."""
    documents = read_snapshot(history.meta_at(ts))
    schemas = {id_: parse_database(raw, id_).name for id_, raw in documents.databases.items()}
    tables = (parse_table(raw, id_, schemas[id_], Ts(ts)) for (id_, _), raw in documents.tables.items())
    return {(t.schema, t.name): t for t in tables}


def shown(column: ColumnInfo, value: Any) -> Any:
    """A decoded value as TiDB's SELECT shows it in ``marks.jsonl``."""
    if value is None:
        return None
    if column.type is ColumnType.ENUM:
        return column.elems[value - 1] if value else ""
    if column.type is ColumnType.SET:
        return ",".join(e for i, e in enumerate(column.elems) if value >> i & 1)
    if column.type in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return value
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return str(value)


def selected(column: ColumnInfo, cell: Any) -> Any:
    if cell is not None and column.type in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return float(np.float32(cell)) if column.type is ColumnType.FLOAT else float(cell)
    return cell


@pytest.mark.parametrize("name", NAMES)
def test_every_table_read_at_every_mark_is_what_tidb_selects(name: str) -> None:
    history = load(name)
    marks = history.marks()
    assert marks
    for mark in marks:
        table = tables_at(history, mark["ts"])[mark["schema"], mark["table"]]
        mine = []
        for physical_id in table.physical_ids:
            pairs = list(history.scan_at(*record_range(physical_id), mark["ts"]))
            keys, values = (pa.array([pair[i] for pair in pairs], pa.binary()) for i in (0, 1))
            mine += mount_values(table, physical_id, keys, values).to_pylist()
        stored = {c.name: c for c in table.stored_columns}
        theirs = [
            [(n, selected(stored[n], cell)) for n, cell in zip(mark["columns"], row, strict=True) if n in stored]
            for row in mark["rows"]
        ]
        ours = [[(n, shown(stored[n], row[n])) for n in mark["columns"] if n in stored] for row in mine]
        assert sorted(ours, key=repr) == sorted(theirs, key=repr), (mark["mark"], table.full_name)
