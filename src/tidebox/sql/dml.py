"""INSERT, REPLACE, UPDATE and DELETE on one table, within a transaction.

    tree ──► rows of values ──► datums, defaults, generated columns ──► TableUse ──► transaction

The caller runs each statement under ``Transaction.run_statement``, so that it happens as a whole or not at all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tidebox.sql.autoid import AutoIds
from tidebox.sql.codec import Datum
from tidebox.sql.compute.compare import order_key
from tidebox.sql.compute.compiler import Compiler, literal_type
from tidebox.sql.compute.kinds import Computed, Kind, Telling, Type, type_of
from tidebox.sql.compute.operators import truth_of
from tidebox.sql.compute.scope import Context, Scope, ScopeColumn
from tidebox.sql.paths import rows_for
from tidebox.sql.syntax.tree import (
    Assignment,
    Default,
    Delete,
    Expression,
    Insert,
    Limit,
    Literal,
    Name,
    Ordering,
    Update,
    ValuesOf,
)
from tidebox.sql.tables import DuplicateError, StoredRow, TableAccess, TableUse, rowid_of
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.session import Affected
from tidemill.model.table import ColumnFlag, ColumnInfo

_CHECK_EVERY = 256  # rows, between looks whether the client still wants it


@dataclass
class Changer:
    """What every changing statement needs."""

    transaction: Transaction
    context: Context
    auto_ids: AutoIds
    is_counting_matches: bool = False  # an UPDATE reports rows matched

    def use(self, access: TableAccess, alias: str = "") -> TableUse:
        if access.info.is_partitioned:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "changing partitioned tables")
        if access.info.is_view or access.info.is_sequence:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "changing views and sequences")
        return TableUse(access, self.context, alias)

    def check_interrupted(self) -> None:
        if self.context.is_interrupted():
            raise sql_error(Errno.QUERY_INTERRUPTED)

    def rowid(self, use: TableUse) -> int | None:
        """A fresh hidden row id, if rows of the table need one."""
        if use.access.is_clustered:
            return None
        return self.auto_ids.next(use.access.table, is_rowid=True)


# Insert


def insert(
    changer: Changer, access: TableAccess, tree: Insert, rows: Iterable[tuple[Sequence[Any], Sequence[Type]]] | None
) -> Affected:
    """``rows``: those of a query, each with the types of its values; None if the statement gives them."""
    return _Insertion(changer, access, tree).run(rows)


class _Insertion:
    def __init__(self, changer: Changer, access: TableAccess, tree: Insert) -> None:
        self._changer = changer
        self._tree = tree
        self._use = changer.use(access)
        self._access = access
        self._context = changer.context
        self._settings = changer.context.settings
        self._settings.is_ignore = tree.is_ignore
        self._targets = self._named(tree.columns)
        self._places = [column.offset for column in self._targets]
        self._compiler = Compiler(self._use.scope, self._context, self._hook)
        self._current: list[Datum] = []
        self._first_id = 0
        self._has_inserted = False
        self._row_count = 0
        self._rowids: Iterator[int] | None = None
        self._is_single_row = False
        self._updated_id = 0
        self._given_id = 0
        self._update: _Assignments | None = None
        self._new: list[Any] = []
        self._defaults: dict[int, Datum] = {}  # by place; a column is complained about only once

    def _named(self, names: Sequence[str] | None) -> list[ColumnInfo]:
        columns = self._use.info.columns
        if names is None:
            return [column for column in columns if not column.is_hidden]
        by_name = {column.name.lower(): column for column in columns}
        found: list[ColumnInfo] = []
        for name in names:
            column = by_name.get(name.lower())
            if column is None:
                raise sql_error(Errno.BAD_FIELD_ERROR, name, "field list")
            found.append(column)
        return found

    def _check_once(self) -> None:
        seen: set[int] = set()
        for column in self._targets:
            if column.id in seen:
                raise sql_error(Errno.FIELD_SPECIFIED_TWICE, column.name)
            seen.add(column.id)

    def run(self, rows: Iterable[tuple[Sequence[Any], Sequence[Type]]] | None) -> Affected:
        if self._tree.on_duplicate:
            self._update = self._assignments()
        if rows is not None:
            self._settings.telling = Telling.CAST
        self._is_single_row = rows is None and len(self._tree.rows) == 1
        ready = self._given_rows() if rows is None else self._queried_rows(rows)
        self._row_count = len(ready)
        auto = self._access.auto_increment
        for number, public in enumerate(ready, 1):
            if auto is not None:
                self._number(public, auto)
                if self._first_id:
                    self._context.set_last_insert_id(self._first_id)
            self._use.fill_generated(public, number)
        affected = duplicates = count = 0
        for count, public in enumerate(ready, 1):
            if count % _CHECK_EVERY == 0:
                self._changer.check_interrupted()
            changed = self._write(public, count)
            affected += changed
            duplicates += changed != 1
        info = ""
        if count > 1 or rows is not None:
            info = f"Records: {count}  Duplicates: {duplicates}  Warnings: {len(self._settings.warnings)}"
        last_id = self._first_id or self._given_id
        if self._tree.on_duplicate and not self._has_inserted:
            last_id = self._updated_id
        if self._updated_id and not self._has_inserted:
            self._context.set_last_insert_id(self._updated_id)
        return Affected(affected, last_id, len(self._settings.warnings), info)

    # Rows to write

    def _given_rows(self) -> list[list[Datum]]:
        tree = self._tree
        width = len(self._targets)
        found = []
        for values in tree.rows:
            for column, value in zip(self._targets, values, strict=False):
                if isinstance(value, Default) and value.name is None and column.offset != self._access.auto_increment:
                    self._default(column)  # what DEFAULT cannot give ends the statement before any value does
        self._check_once()
        for number, values in enumerate(tree.rows, 1):
            if not values and (tree.columns is None or width == 0):
                found.append(self._row([], [], number))
                continue
            if len(values) != width:
                raise sql_error(Errno.WRONG_VALUE_COUNT_ON_ROW, number)
            found.append(self._given_row(values, number))
        return found

    def _given_row(self, values: Sequence[Expression], number: int) -> list[Datum]:
        """Values are computed from left to right, and may name columns to their left."""
        datums: dict[int, Datum] = {}
        for column, tree in zip(self._targets, values, strict=True):
            if isinstance(tree, Default) and tree.name is None:
                if column.is_generated:
                    continue
                if column.offset == self._access.auto_increment:
                    datums[column.offset] = None
                    continue
                datums[column.offset] = self._default(column)
                continue
            if column.is_generated:
                raise sql_error(Errno.BAD_GENERATED_COLUMN, column.name, self._use.info.name)
            if type(tree) is Literal and type(tree.value) is not bool:
                value, kind = tree.value, literal_type(tree.value)
            else:
                computed = self._compiler.compile(tree)
                kind = computed.type
                value = computed.compute(() if computed.is_constant else self._row_so_far(datums))
            datums[column.offset] = self._assigned(column, value, kind, number)
        return self._filled(datums, number)

    def _default(self, column: ColumnInfo) -> Datum:
        if column.is_generated:
            return None
        if column.offset not in self._defaults or self._access.documents[column.id].get("default_is_expr"):
            self._defaults[column.offset] = self._use.default(column)
        return self._defaults[column.offset]

    def _row_so_far(self, datums: dict[int, Datum]) -> list[Any]:
        return self._use.computable([datums.get(at) for at in range(len(self._use.info.columns))])

    def _queried_rows(self, rows: Iterable[tuple[Sequence[Any], Sequence[Type]]]) -> list[list[Datum]]:
        self._check_once()
        return [self._row(values, types, number) for number, (values, types) in enumerate(rows, 1)]

    def _row(self, values: Sequence[Any], types: Sequence[Type], number: int) -> list[Datum]:
        datums: dict[int, Datum] = {}
        targets = self._targets if values else []
        if len(values) != len(targets):
            raise sql_error(Errno.WRONG_VALUE_COUNT_ON_ROW, number)
        for column, value, kind in zip(targets, values, types, strict=True):
            if column.is_generated:
                raise sql_error(Errno.BAD_GENERATED_COLUMN, column.name, self._use.info.name)
            datums[column.offset] = self._assigned(column, value, kind, number)
        return self._filled(datums, number)

    def _assigned(self, column: ColumnInfo, value: Any, kind: Type, number: int) -> Datum:
        if value is None:
            return None  # whether it may be is looked at when the row has all its values
        return self._use.assigner(column).assign(value, kind, number)

    def _filled(self, datums: dict[int, Datum], number: int) -> list[Datum]:
        """With defaults, the next number, and generated columns."""
        access = self._access
        public: list[Datum] = []
        for column in self._use.info.columns:
            if column.is_generated or (column.offset not in datums and column.offset == access.auto_increment):
                public.append(None)
                continue
            datum = datums[column.offset] if column.offset in datums else self._default(column)
            public.append(self._null(column, number) if datum is None and column.is_not_null else datum)
        return public

    def _null(self, column: ColumnInfo, number: int) -> Datum:
        """Of a column that may not be NULL. Without strict rules a single row is refused all the same."""
        if column.offset == self._access.auto_increment:
            return None  # a number comes
        if self._is_single_row and not self._settings.is_ignore:
            raise sql_error(Errno.BAD_NULL_ERROR, column.name)
        return self._use.assigner(column).assign(None, Type(Kind.NULL), number)

    def _number(self, public: list[Datum], at: int) -> None:
        table, value = self._access.table, public[at]
        if value is None or value == 0:
            fresh = self._changer.auto_ids.next(table)
            column = self._use.info.columns[at]
            telling, self._settings.telling = self._settings.telling, Telling.CAST
            public[at] = self._use.assigner(column).assign(fresh, Type(Kind.INT))
            self._settings.telling = telling
            self._first_id = self._first_id or fresh
        elif isinstance(value, int | float):
            if value > 0:
                self._changer.auto_ids.rebase(table, int(value))
            self._given_id = _as_unsigned(value)

    # Writing

    def _write(self, public: list[Datum], number: int) -> int:
        """How many rows count as affected."""
        use, transaction = self._use, self._changer.transaction
        datums = use.complete(public, row=number)
        handle = use.handle_of(datums, self._rowid())
        if self._tree.is_replace:
            return self._replace(handle, datums)
        is_plain = not self._tree.on_duplicate and not self._tree.is_ignore
        try:
            use.add(transaction, handle, datums, is_presuming=is_plain)
            if self._access.auto_increment is not None:
                self._has_inserted = True
            return 1
        except DuplicateError as duplicate:
            if self._tree.on_duplicate:
                return self._on_duplicate(duplicate, public, number)
            if not self._tree.is_ignore:
                raise duplicate.error from duplicate
            error = duplicate.error
            self._settings.warnings.append(("Warning", error.number, error.message))
            return 0

    def _rowid(self) -> int | None:
        """The hidden ids of all rows are taken together, but for statements that look at each row by itself."""
        if self._access.is_clustered or self._tree.is_replace or self._tree.on_duplicate:
            return self._changer.rowid(self._use)
        if self._rowids is None:
            first = self._changer.auto_ids.next(self._access.table, is_rowid=True, count=self._row_count)
            self._rowids = iter(range(first, first + self._row_count))
        return next(self._rowids)

    def _replace(self, handle: bytes, datums: list[Datum]) -> int:
        use, transaction = self._use, self._changer.transaction
        affected = 1
        while True:
            try:
                use.add(transaction, handle, datums)
                return affected
            except DuplicateError as duplicate:
                before = self._holder(duplicate)
                if use.access.public(before.datums) == use.access.public(datums):
                    return affected
                use.remove(transaction, before)
                affected += 1

    def _holder(self, duplicate: DuplicateError) -> StoredRow:
        found = self._use.get(self._changer.transaction, duplicate.handle)
        if found is None:
            name = duplicate.index.name if duplicate.index else "PRIMARY"
            raise sql_error(
                Errno.UNKNOWN_ERROR, f"index {name} of {self._use.info.full_name} leads to a row that is not there"
            )
        return found

    def _on_duplicate(self, duplicate: DuplicateError, public: list[Datum], number: int) -> int:
        use = self._use
        before = self._holder(duplicate)
        assert self._update is not None  # made before the first row
        self._new = use.computable(list(public))
        row = use.values(before.datums)
        if self._tree.new_alias:
            row = row + self._new
        changed = self._update.apply(self._changer, before, row, number)
        if changed is None:
            return int(self._changer.is_counting_matches)
        try:
            use.change(self._changer.transaction, before, changed, self._rowid_for(before))
        except DuplicateError as other:
            if not self._tree.is_ignore:
                raise other.error from other
            return 0
        if self._access.auto_increment is not None:
            self._updated_id = _as_unsigned(changed[use.access.public_places[self._access.auto_increment]])
        return 2

    def _assignments(self) -> "_Assignments":
        columns = list(self._use.scope.columns)
        if self._tree.new_alias:
            alias = self._tree.new_alias
            columns += [ScopeColumn(c.name, c.type, alias, is_hidden=True) for c in self._use.scope.columns]
        scope = Scope(columns)
        return _Assignments(self._use, self._tree.on_duplicate, scope, self._context, self._hook, is_in_turn=True)

    def _rowid_for(self, before: StoredRow) -> int | None:
        return None if self._access.is_clustered else rowid_of(before)

    def _hook(self, tree: Expression) -> Computed | None:
        """``VALUES(column)``: what would have been inserted. ``DEFAULT(column)``."""
        if isinstance(tree, ValuesOf):
            place = self._use.scope.find(tree.name)
            if place is None:
                raise sql_error(Errno.BAD_FIELD_ERROR, tree.name, "field list")
            return Computed(self._use.scope.columns[place].type, lambda row: self._new[place])
        return _default_hook(self._use, tree)


def _default_hook(use: TableUse, tree: Expression) -> Computed | None:
    if not isinstance(tree, Default) or tree.name is None:
        return None
    place = use.scope.find(tree.name)
    if place is None:
        raise sql_error(Errno.BAD_FIELD_ERROR, tree.name, "field list")
    column = use.info.columns[place]
    value = use.computable([use.default(column) if at == place else None for at in range(len(use.info.columns))])[place]
    return Computed(type_of(column), lambda row: value, True)


# Update


class _Assignments:
    """``SET`` of an UPDATE, where each expression sees the row as it was; after ON DUPLICATE KEY each sees what
    those before it have set (``is_in_turn``)."""

    def __init__(
        self,
        use: TableUse,
        assignments: Sequence[Assignment],
        scope: Scope,
        context: Context,
        hook: Callable[[Expression], Computed | None] | None = None,
        *,
        is_in_turn: bool = False,
    ) -> None:
        self._use = use
        self._is_in_turn = is_in_turn
        compiler = Compiler(scope, context, hook)
        self._steps: list[tuple[ColumnInfo, Computed | None]] = []
        for assignment in assignments:
            place = self._place(assignment.column, scope)
            column = use.info.columns[place]
            is_default = isinstance(assignment.value, Default) and assignment.value.name is None
            if column.is_generated:
                if is_default:
                    continue
                raise sql_error(Errno.BAD_GENERATED_COLUMN, column.name, use.info.name)
            if is_default:
                use.default(column, is_update=True)  # ends the statement if there is none, rows or no rows
            self._steps.append((column, None if is_default else compiler.compile(assignment.value)))
        set_ids = {column.id for column, _ in self._steps}
        self._stamped = [
            column for column in use.info.columns if column.flag & ColumnFlag.ON_UPDATE_NOW and column.id not in set_ids
        ]

    def _place(self, name: Name, scope: Scope) -> int:
        place = scope.find(name)
        if place is None or place >= len(self._use.info.columns):
            raise sql_error(Errno.BAD_FIELD_ERROR, name, "field list")
        return place

    def apply(self, changer: Changer, before: StoredRow, row: list[Any], number: int) -> list[Datum] | None:
        """The changed row, complete; None if nothing changes. ``row``: the values that expressions see, changed too."""
        use = self._use
        old = use.access.public(before.datums)
        public = list(old)
        for column, computed in self._steps:
            at = column.offset
            if computed is None:
                datum = use.default(column, is_update=True)
            else:
                value = computed.compute(row)
                datum = None if value is None else use.assigner(column).assign(value, computed.type, number)
            public[at] = datum
            if self._is_in_turn:
                row[at] = use.computable(list(public))[at] if datum is not None else None
        for column, datum in zip(use.info.columns, public, strict=True):
            if datum is None and column.is_not_null and not column.is_generated:
                public[column.offset] = use.assigner(column).assign(None, Type(Kind.NULL), number)
        use.fill_generated(public, number)
        if public == old and all(type(a) is type(b) for a, b in zip(public, old, strict=True)):
            return None
        for column in self._stamped:
            public[column.offset] = use.now(column)
        auto = use.access.auto_increment
        if auto is not None and public[auto] != old[auto] and isinstance(public[auto], int):
            changer.auto_ids.rebase(use.access.table, public[auto])  # type: ignore[arg-type]  # an int
        return use.complete(public, before, number)


def update(changer: Changer, access: TableAccess, tree: Update) -> Affected:
    context = changer.context
    context.settings.is_ignore = tree.is_ignore
    context.settings.telling = Telling.UPDATE
    use = changer.use(access, tree.source.alias)
    assignments = _Assignments(use, tree.assignments, use.scope, context, lambda t: _default_hook(use, t))
    found = _matching(changer, use, tree.where, tree.order_by, tree.limit)
    changed = 0
    for number, before in enumerate(found, 1):
        if number % _CHECK_EVERY == 0:
            changer.check_interrupted()
        datums = assignments.apply(changer, before, use.values(before.datums), number)
        if datums is None:
            if changer.transaction.is_pessimistic:
                changer.transaction.lock([before.key])
            continue
        try:
            use.change(changer.transaction, before, datums, None if access.is_clustered else rowid_of(before))
        except DuplicateError as duplicate:
            if not tree.is_ignore:
                raise duplicate.error from duplicate
            error = duplicate.error
            context.settings.warnings.append(("Warning", error.number, error.message))
            continue
        changed += 1
    warnings = len(context.settings.warnings)
    info = f"Rows matched: {len(found)}  Changed: {changed}  Warnings: {warnings}"
    return Affected(len(found) if changer.is_counting_matches else changed, 0, warnings, info)


# Delete


def delete(changer: Changer, access: TableAccess, tree: Delete) -> Affected:
    use = changer.use(access, tree.source.alias)
    found = _matching(changer, use, tree.where, tree.order_by, tree.limit)
    for number, row in enumerate(found, 1):
        if number % _CHECK_EVERY == 0:
            changer.check_interrupted()
        use.remove(changer.transaction, row)
    return Affected(len(found), 0, len(changer.context.settings.warnings))


def _matching(
    changer: Changer,
    use: TableUse,
    where: Expression | None,
    order_by: Sequence[Ordering],
    limit: Limit | None,
) -> list[StoredRow]:
    """All rows to change, before the first is changed."""
    compiler = Compiler(use.scope, changer.context, lambda tree: _default_hook(use, tree))
    test = _where(compiler, where)
    most = _count(compiler, limit)
    found: list[StoredRow] = []
    for number, row in enumerate(rows_for(use, changer.transaction, where), 1):
        if number % _CHECK_EVERY == 0:
            changer.check_interrupted()
        if most is not None and len(found) >= most and not order_by:
            break
        if test is None or test(use.values(row.datums)):
            found.append(row)
    for ordering in reversed(order_by):
        computed = compiler.compile(ordering.by)
        key = order_key(computed.type)
        found.sort(key=lambda row: key(computed.compute(use.values(row.datums))), reverse=ordering.is_descending)
    return found if most is None else found[:most]


def _where(compiler: Compiler, where: Expression | None) -> Callable[[Any], Any] | None:
    if where is None:
        return None
    compiler.scope.clause = "where clause"
    return truth_of(compiler.compile(where), compiler.context.settings)


def _count(compiler: Compiler, limit: Limit | None) -> int | None:
    if limit is None:
        return None
    if limit.offset is not None:
        _refuse_limit()
    computed = compiler.compile(limit.count)
    value = computed.compute(())
    if not isinstance(value, int) or value < 0:
        raise sql_error(Errno.WRONG_ARGUMENTS, "LIMIT")
    return value


def _as_unsigned(value: Datum) -> int:
    """As the protocol tells an id."""
    return int(value) & (1 << 64) - 1 if isinstance(value, int | float) else 0


def _refuse_limit() -> NoReturn:
    raise sql_error(Errno.PARSE_ERROR, 'near "OFFSET"')
