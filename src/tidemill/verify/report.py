"""What was found, for people and machines: rows that differ, both sides of each, and the SQL that would fix them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.model.table import ColumnInfo, ColumnType
from tidemill.model.ts import Ts, show
from tidemill.sinks.mysql.literals import Literals
from tidemill.sinks.mysql.plan import Form as Statement
from tidemill.sinks.mysql.statement import Shapes
from tidemill.verify.forms import UNFIT, Comparison, Form, same_json

PREAMBLE = (
    "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES', time_zone = '+00:00', "
    "foreign_key_checks = 0;"
)
_LONGEST_SHOWN = 200


class Kind(StrEnum):
    MISSING = "missing"  # upstream alone has the row
    EXTRA = "extra"  # downstream alone has it
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Cell:
    """A column whose values differ, as text; None: NULL."""

    column: str
    upstream: str | None
    downstream: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    kind: Kind
    key: tuple[tuple[str, str | None], ...]
    cells: tuple[Cell, ...] = ()  # of a changed row
    sql: str = ""

    @property
    def shown_key(self) -> str:
        return ", ".join(f"{name} = {_short(value)}" for name, value in self.key)


@dataclass(slots=True)
class TableReport:
    table: str
    upstream_rows: int = 0
    downstream_rows: int = 0
    chunks: int = 0
    differing_chunks: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    unsettled: int = 0  # rows that differed whenever we looked, but changed upstream in between
    filtered: int = 0  # rows that differ as the changefeed's filters explain: they do not count
    schema: list[str] = field(default_factory=list)  # sentences: what of the table itself differs
    differences: list[Difference] = field(default_factory=list)
    is_partial: bool = False  # more rows differ than were looked into

    @property
    def is_equal(self) -> bool:
        found = self.missing or self.extra or self.changed or self.unsettled
        return not (found or self.schema or self.is_partial)


@dataclass(slots=True)
class Report:
    ts: Ts
    tables: list[TableReport]
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()  # tables without a key

    @property
    def is_equal(self) -> bool:
        return all(table.is_equal for table in self.tables)

    def document(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "ts": int(self.ts),
            "seconds": round(self.seconds, 3),
            "rows": sum(t.upstream_rows for t in self.tables),
            "left_out": self.left_out,
            "tables": [_table_document(table) for table in self.tables],
        }

    def lines(self) -> Iterator[str]:
        for table in self.tables:
            if not table.is_equal:
                yield from _table_lines(table)
        mends = [d.sql for wanted in (True, False) for t in self.tables for d in t.differences
                 if d.sql and (d.kind is Kind.EXTRA) is wanted]  # fmt: skip
        if mends:
            yield ""
            yield "-- The SQL that would fix it:"
            yield PREAMBLE
            yield from mends
            yield ""
        rows, count = sum(t.upstream_rows for t in self.tables), len(self.tables)
        tables = f"{count} table{'s' if count != 1 else ''}"
        filtered = sum(t.filtered for t in self.tables)
        if filtered:
            yield f"{filtered:,} rows differ as the changefeed's filters explain; they do not count."
        if self.left_out:
            yield f"Not checked, since they have no key: {', '.join(self.left_out)}."
        if self.is_equal:
            yield f"Equal at {show(self.ts)}: {tables}, {rows:,} rows, {self.seconds:.1f} s."
            return
        differing = sum(not t.is_equal for t in self.tables)
        yield f"Different at {show(self.ts)}: {differing} of {tables}, {rows:,} rows, {self.seconds:.1f} s."


def _table_document(table: TableReport) -> dict[str, Any]:
    return {
        "table": table.table,
        "equal": table.is_equal,
        "upstream_rows": table.upstream_rows,
        "downstream_rows": table.downstream_rows,
        "chunks": table.chunks,
        "differing_chunks": table.differing_chunks,
        "missing": table.missing,
        "extra": table.extra,
        "changed": table.changed,
        "unsettled": table.unsettled,
        "filtered": table.filtered,
        "partial": table.is_partial,
        "schema": table.schema,
        "differences": [
            {
                "kind": d.kind.value,
                "key": dict(d.key),
                "columns": [{"name": c.column, "upstream": c.upstream, "downstream": c.downstream} for c in d.cells],
                "sql": d.sql,
            }
            for d in table.differences
        ],
    }


def _table_lines(table: TableReport) -> Iterator[str]:
    parts = [
        f"{count:,} {word}"
        for count, word in (
            (table.missing, "missing"),
            (table.extra, "extra"),
            (table.changed, "changed"),
            (table.unsettled, "unsettled"),
        )
        if count
    ]
    yield f"{table.table}: " + (", ".join(parts) if parts else "its definition differs")
    for sentence in table.schema:
        yield f"  ! {sentence}"
    for difference in table.differences:
        yield f"  {_SIGNS[difference.kind]} {difference.kind.value} row {difference.shown_key}"
        for cell in difference.cells:
            yield f"      {cell.column}: upstream {_short(cell.upstream)}, downstream {_short(cell.downstream)}"
    shown = len(table.differences)
    found = table.missing + table.extra + table.changed
    if found > shown or table.is_partial:
        least = "at least " if table.is_partial else ""
        yield f"  … and {least}{max(found - shown, 0):,} more rows"


_SIGNS: Mapping[Kind, str] = {Kind.MISSING: "-", Kind.EXTRA: "+", Kind.CHANGED: "~"}


def _short(text: str | None) -> str:
    if text is None:
        return "NULL"
    quoted = "'" + text + "'"
    return quoted if len(quoted) <= _LONGEST_SHOWN else quoted[:_LONGEST_SHOWN] + "…"


# From rows of both sides to differences

RowKey = tuple[Any, ...]


def keyed(comparison: Comparison, tables: list[pa.Table]) -> dict[RowKey, dict[str, Any]]:
    """Rows by their key. Of rows with the same key, which only files could hold, the last."""
    rows: dict[RowKey, dict[str, Any]] = {}
    for table in tables:
        for row in table.to_pylist():
            rows[tuple(row[name] for name in comparison.key_names)] = row
    return rows


def differences(
    comparison: Comparison,
    up: Mapping[RowKey, dict[str, Any]],
    down: Mapping[RowKey, dict[str, Any]],
    *,
    with_sql: bool,
) -> list[Difference]:
    """Of rows that do not look the same those that are not the same, by key."""
    found = []
    mend = _Mender(comparison) if with_sql else None
    for key in sorted({*up, *down}, key=_order):
        ours, theirs = up.get(key), down.get(key)
        kind = Kind.EXTRA if ours is None else Kind.MISSING if theirs is None else Kind.CHANGED
        cells: tuple[Cell, ...] = ()
        if ours is not None and theirs is not None:
            cells = tuple(_cells(comparison, ours, theirs))
            if not cells:
                continue
        row = ours if ours is not None else theirs
        assert row is not None
        named = tuple((name, _text(comparison, name, row[name])) for name in comparison.key_names)
        found.append(Difference(kind, named, cells, mend.statement(kind, row) if mend else ""))
    return found


def _order(key: RowKey) -> tuple[Any, ...]:
    return tuple((value is None, value if isinstance(value, int | float) else str(value)) for value in key)


def _cells(comparison: Comparison, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Cell]:
    kinds = {column.name: column.type for column in comparison.table.stored_columns}
    for name in comparison.schema.names:
        before, after = ours[name], theirs[name]
        if before == after:
            continue
        if kinds.get(name) is ColumnType.JSON and None not in (before, after) and same_json(before) == same_json(after):
            continue
        yield Cell(name, _text(comparison, name, before), _text(comparison, name, after))


def _text(comparison: Comparison, name: str, value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return "0x" + value.hex()
    column = next((c for c in comparison.table.stored_columns if c.name == name), None)
    if isinstance(value, float):
        is_single = column is not None and column.type is ColumnType.FLOAT
        return str(np.float32(value)) if is_single else repr(value)
    if column is not None and name != UNFIT and comparison.form is Form.MOUNTED:
        return _named(column, value)
    return str(value)


def _named(column: ColumnInfo, value: Any) -> str:
    """Elements of ENUM and SET by their names."""
    if column.type is ColumnType.ENUM and 0 < value <= len(column.elems):
        return str(column.elems[value - 1])
    if column.type is ColumnType.SET and value >> len(column.elems) == 0:
        return ",".join(element for bit, element in enumerate(column.elems) if value >> bit & 1)
    return str(value)


class _Mender:
    """Writes the statement that makes the downstream's row what it is upstream."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._literals = Literals(comparison.table)
        self._shapes = Shapes.of(comparison.table)

    def statement(self, kind: Kind, row: dict[str, Any]) -> str:
        schema = self._comparison.schema
        nothing, one = pa.RecordBatch.from_pylist([], schema), pa.RecordBatch.from_pylist([row], schema)
        form = Statement.DELETE if kind is Kind.EXTRA else Statement.REPLACE
        encoded = self._literals.write(*((nothing, one) if kind is Kind.EXTRA else (one, nothing)))
        text = bytes(encoded.payload)[: int(encoded.ends[0]) - 1]
        return (self._shapes.heads[form] + text + self._shapes.tails[form]).decode() + ";"
