"""Which rows of captured tables go on, and with which columns. Runs on executors.

    mounter ── rows ──► RowFilter ── rows ──► split ──► ColumnSelector ── rows ──► encoder

Both work on whole batches, by masks. They hold the changefeed's configuration and little else, so they travel.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import FilterError
from tidemill.flow.filter import events
from tidemill.flow.filter.expression import Expression, Predicate
from tidemill.flow.filter.rules import ColumnRules, TableRules
from tidemill.model.changefeed import ChangefeedConfig, EventFilter
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, IndexInfo, TableInfo

Mask = npt.NDArray[np.bool_]


class RowFilter:
    """``filter.ignore-txn-start-ts``, then ``ignore-event`` and the expressions of every entry that matches."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self._config = config
        self._start_ts = np.array(sorted(config.ignore_txn_start_ts), np.uint64)
        entries = enumerate(config.event_filters)
        self._entries = [_Entry(entry, f"filter.event-filters[{i}]", config.case_sensitive) for i, entry in entries]
        self._last: tuple[TableInfo, list[_Bound]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._config,)

    def check(self, table: TableInfo) -> None:
        """Raises FilterError if an expression that matches the table does not fit it."""
        self._bound(table)

    def apply(self, rows: RowBatch) -> RowBatch:
        """The same without the rows that are to be left out. An update goes if its old or its new row is to go."""
        bound = self._bound(rows.table)
        if not len(rows) or (not bound and not len(self._start_ts)):
            return rows
        is_out = np.isin(rows.start_ts, self._start_ts)
        for entry in bound:
            is_out |= entry.ignores(rows)
        return without(rows, is_out)

    def concerns(self, table: TableInfo) -> bool:
        """Whether an entry may leave rows of the table out."""
        return bool(self._bound(table))

    def leaves_out(
        self, table: TableInfo, op: RowOp, *, new: pa.RecordBatch | None = None, old: pa.RecordBatch | None = None
    ) -> Mask:
        """Which changes of one kind are left out, as far as the rows that are given tell; one of them has to be."""
        found = new if new is not None else old
        assert found is not None
        is_out = np.zeros(len(found), np.bool_)
        for entry in self._bound(table):
            is_out |= entry.leaves_out(op, new, old, len(found))
        return is_out

    def _bound(self, table: TableInfo) -> "list[_Bound]":
        if self._last is None or self._last[0] is not table:
            matching = (entry for entry in self._entries if entry.rules.matches(table.schema, table.name))
            self._last = table, [bound for entry in matching if (bound := entry.bind(table)) is not None]
        return self._last[1]


def without(rows: RowBatch, is_out: Mask) -> RowBatch:
    """The changes for which the mask is false."""
    if not is_out.any():
        return rows
    kept = ~is_out
    return replace(
        rows,
        op=rows.op[kept],
        start_ts=rows.start_ts[kept],
        commit_ts=rows.commit_ts[kept],
        new=rows.new.filter(pa.array(kept[rows.op != RowOp.DELETE])),
        old=rows.old.filter(pa.array(kept[rows.op != RowOp.INSERT])),
    )


class _Entry:
    """One of ``filter.event-filters``, as far as it is about rows."""

    def __init__(self, entry: EventFilter, place: str, case_sensitive: bool) -> None:
        self.rules = TableRules(entry.matcher, f"{place}.matcher", case_sensitive=case_sensitive)
        self._kinds, _ = events.read(entry.ignore_event, f"{place}.ignore-event")

        def read(text: str, name: str) -> Expression | None:
            return Expression(text, f"{place}.ignore-{name}-value-expr") if text.strip() else None

        self._insert = read(entry.ignore_insert_value_expr, "insert")
        self._update_old = read(entry.ignore_update_old_value_expr, "update-old")
        self._update_new = read(entry.ignore_update_new_value_expr, "update-new")
        self._delete = read(entry.ignore_delete_value_expr, "delete")

    def bind(self, table: TableInfo) -> "_Bound | None":
        """For rows of the table; None if it leaves none of them out."""

        def compiled(expression: Expression | None) -> Predicate | None:
            return expression.compile(table) if expression else None

        new = ((RowOp.INSERT, compiled(self._insert)), (RowOp.UPDATE, compiled(self._update_new)))
        old = ((RowOp.UPDATE, compiled(self._update_old)), (RowOp.DELETE, compiled(self._delete)))
        if not self._kinds and not any(predicate for _, predicate in (*new, *old)):
            return None
        return _Bound(
            np.array(sorted(self._kinds), np.uint8),
            tuple((op, p) for op, p in new if p is not None),
            tuple((op, p) for op, p in old if p is not None),
        )


@dataclass(frozen=True, slots=True)
class _Bound:
    """An entry for one table."""

    kinds: npt.NDArray[np.uint8]
    new: tuple[tuple[RowOp, Predicate], ...]  # over the new rows of changes of this kind
    old: tuple[tuple[RowOp, Predicate], ...]

    def leaves_out(self, op: RowOp, new: pa.RecordBatch | None, old: pa.RecordBatch | None, rows: int) -> Mask:
        is_out = np.full(rows, op in self.kinds)
        for image, predicates in ((new, self.new), (old, self.old)):
            for kind, predicate in predicates if image is not None else ():
                if kind == op:
                    is_out |= predicate.mask(image)
        return is_out

    def ignores(self, rows: RowBatch) -> Mask:
        is_out = np.isin(rows.op, self.kinds)
        for image, absent, predicates in ((rows.new, RowOp.DELETE, self.new), (rows.old, RowOp.INSERT, self.old)):
            changes = np.flatnonzero(rows.op != absent)  # the change of each row of the image
            for op, predicate in predicates:
                of_kind = rows.op[changes] == op
                if of_kind.all():
                    is_out[changes] |= predicate.mask(image)
                elif of_kind.any():
                    is_out[changes[of_kind]] |= predicate.mask(image.filter(pa.array(of_kind)))
        return is_out


class ColumnSelector:
    """``sink.column-selectors``: the first entry that matches a table says which of its columns go out."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self._config = config
        self._entries = []
        for i, entry in enumerate(config.column_selectors):
            place = f"sink.column-selectors[{i}]"
            rules = TableRules(entry.matcher, f"{place}.matcher", case_sensitive=config.case_sensitive)
            self._entries.append((place, rules, ColumnRules(entry.columns, f"{place}.columns")))
        self._last: tuple[TableInfo, TableInfo] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._config,)

    def table(self, table: TableInfo) -> TableInfo:
        """The table with the columns that go out, and the indexes that are whole among them; itself if it keeps all.

        Raises FilterError where no key would be left by which rows can be told apart.
        """
        if self._last is None or self._last[0] is not table:
            self._last = table, self._reduced(table)
        return self._last[1]

    def apply(self, rows: RowBatch) -> RowBatch:
        table = self.table(rows.table)
        if table is rows.table:
            return rows
        names = [column.name for column in table.stored_columns]
        return replace(rows, table=table, new=rows.new.select(names), old=rows.old.select(names))

    def _reduced(self, table: TableInfo) -> TableInfo:
        for place, rules, columns in self._entries:
            if rules.matches(table.schema, table.name):
                kept = [column for column in table.columns if columns.matches(column.name)]
                return table if len(kept) == len(table.columns) else _with_columns(table, kept, place)
        return table


def _with_columns(table: TableInfo, kept: list[ColumnInfo], place: str) -> TableInfo:
    offsets = {column.offset: offset for offset, column in enumerate(kept)}
    indexes = tuple(
        _moved(index, offsets) for index in table.indexes if all(c.offset in offsets for c in index.columns)
    )
    has_handle = table.pk_is_handle and all(c.offset in offsets for c in table.primary_key)
    reduced = replace(
        table,
        columns=tuple(replace(column, offset=offset) for offset, column in enumerate(kept)),
        indexes=indexes,
        pk_is_handle=has_handle,
        is_common_handle=table.is_common_handle and any(index.is_primary for index in indexes),
    )
    if table.handle_key and not reduced.handle_key:
        lost = [c.name for c in table.handle_key if c.offset not in offsets]
        raise FilterError(
            f"{place}: of table {table.full_name} no whole primary or NOT NULL unique key would remain, so its rows "
            f"could not be told apart. Add {', '.join(map(repr, lost))} to the entry's columns."
        )
    if not kept:
        raise FilterError(f"{place}: of table {table.full_name} no column would remain. Name some in 'columns'.")
    return reduced


def _moved(index: IndexInfo, offsets: dict[int, int]) -> IndexInfo:
    return replace(index, columns=tuple(replace(c, offset=offsets[c.offset]) for c in index.columns))
