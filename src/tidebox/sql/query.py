"""SELECT: rows from tables, joined, filtered, grouped, ordered; computed with MySQL's own types throughout.

    tree ──► Planner ──► Plan: names and types, known before it runs
                    └──► rows, one by one where nothing has to be sorted or grouped

It is for checking and playing: exact rather than quick. Rows are read by primary key or index where the
condition of a single table allows, joined by hash where an equation does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from tidebox.sql.aggregates import Aggregate, aggregate
from tidebox.sql.compute import casts, convert
from tidebox.sql.compute.compare import comparables, group_key
from tidebox.sql.compute.compiler import AGGREGATES, Compiler
from tidebox.sql.compute.kinds import WIRE_TYPES, Computed, Kind, Type
from tidebox.sql.compute.operators import truth_of
from tidebox.sql.compute.scope import Context, Scope, ScopeColumn
from tidebox.sql.orders import distinct, in_order, limits, orderings
from tidebox.sql.paths import rows_for
from tidebox.sql.syntax.tree import (
    Binary,
    Call,
    Derived,
    Expression,
    Item,
    Join,
    Literal,
    Locking,
    Name,
    Query,
    Select,
    Source,
    Star,
    TableSource,
    Union,
    With,
)
from tidebox.sql.tables import TableUse
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.columns import BINARY, NOT_FIXED, UTF8MB4_BIN, Column, column_of
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import ColumnFlag

Row = list[Any]
_CHECK_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """A table in the store, and the transaction to read it in."""

    use: TableUse
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Listed:
    """A table that is made up on demand, such as those of INFORMATION_SCHEMA."""

    columns: tuple[ScopeColumn, ...]
    rows: Callable[[], Iterable[Sequence[Any]]]


class Tables(Protocol):
    def open(self, source: TableSource) -> Stored | Listed: ...


@dataclass
class Plan:
    """A query that is ready to run, again and again where it is inside of another."""

    names: tuple[str, ...]
    types: tuple[Type, ...]
    columns: tuple[Column, ...]
    stream: Callable[[], Iterator[Row]]
    is_correlated: bool = False
    locked_keys: list[bytes] = field(default_factory=list)  # of the rows that a locking query has read

    def rows(self) -> list[Sequence[Any]]:
        return list(self.stream())


@dataclass
class _Rows:
    """Where rows come from: what they hold, and how to get them. ``where``: a condition that may be used to read
    less; it is tested again."""

    columns: list[ScopeColumn]
    stream: Callable[[Expression | None], Iterator[Row]]
    is_correlated: bool = False


class Planner:
    """Plans the queries of one statement."""

    def __init__(self, tables: Tables, context: Context) -> None:
        self._tables = tables
        self.context = context
        self._named: dict[str, Plan] = {}  # common table expressions

    def prepare(self, query: Query, scope: Scope) -> Plan:
        """Of a query inside of an expression."""
        return self.plan(query, scope)

    def plan(self, query: Query, outer: Scope | None = None) -> Plan:
        match query:
            case Select():
                return _SelectPlanner(self, query, outer).plan()
            case Union():
                return self._union(query, outer)
            case With(tables, inner):
                before = dict(self._named)
                for name, columns, table in tables:
                    self._named[name.lower()] = _renamed(self.plan(table, outer), columns)
                try:
                    return self.plan(inner, outer)
                finally:
                    self._named = before

    # Unions

    def _union(self, query: Union, outer: Scope | None) -> Plan:
        parts = [self.plan(part, outer) for part in query.parts]
        if len({len(part.types) for part in parts}) > 1:
            raise sql_error(Errno.WRONG_NUMBER_OF_COLUMNS_IN_SELECT)
        types: list[Type] = []
        turns: list[list[Callable[[Any], Any]]] = [[] for _ in parts]
        for at in range(len(parts[0].types)):
            sides = [Computed(part.types[at], lambda row, at=at: row[at]) for part in parts]  # type: ignore[misc]  # mypy knows no lambda with a default
            kind, computes = casts.unified(sides, self.context)
            types.append(kind)
            for turn, compute in zip(turns, computes, strict=True):
                turn.append(compute)
        names = parts[0].names
        scope = Scope(ScopeColumn(name, kind) for name, kind in zip(names, types, strict=True))
        keys = orderings(query.order_by, names, Compiler(scope, self.context))
        first, count = limits(query.limit, self.context)

        def stream() -> Iterator[Row]:
            rows: Iterator[Row] = (
                [compute(row) for compute in turn]
                for part, turn in zip(parts, turns, strict=True)
                for row in part.stream()
            )
            if not query.is_all:
                rows = distinct(rows, types)
            if keys:
                rows = iter(in_order([(row, row) for row in rows], keys))
            return islice(rows, first, None if count is None else first + count)

        columns = tuple(wire_column(name, kind) for name, kind in zip(names, types, strict=True))
        return Plan(names, tuple(types), columns, stream, any(part.is_correlated for part in parts))

    # Sources

    def source(self, source: Source, outer: Scope | None) -> _Rows:
        match source:
            case TableSource():
                return self._table(source)
            case Derived(query, alias, names):
                plan = _renamed(self.plan(query, outer), names)
                return self._planned(plan, alias)
            case Join():
                return self._join(source, outer)

    def _planned(self, plan: Plan, alias: str) -> _Rows:
        columns = [ScopeColumn(name, kind, alias) for name, kind in zip(plan.names, plan.types, strict=True)]
        return _Rows(columns, lambda where: plan.stream(), plan.is_correlated)

    def _table(self, source: TableSource) -> _Rows:
        if not source.table.schema and source.table.name.lower() in self._named:
            return self._planned(self._named[source.table.name.lower()], source.alias or source.table.name)
        opened = self._tables.open(source)
        if isinstance(opened, Listed):
            alias = source.alias
            columns = [
                ScopeColumn(c.name, c.type, alias or c.table, c.schema, c.original_table) for c in opened.columns
            ]
            listed = opened

            def list_rows(where: Expression | None) -> Iterator[Row]:
                return (list(row) for row in listed.rows())

            return _Rows(columns, list_rows)
        use, transaction = opened.use, opened.transaction

        def read(where: Expression | None) -> Iterator[Row]:
            for row in rows_for(use, transaction, where):
                yield [*use.values(row.datums), row.key]

        # The key of the record goes along, behind the columns.
        return _Rows([*use.scope.columns, ScopeColumn("", Type(Kind.BYTES), is_hidden=True)], read)

    def _join(self, join: Join, outer: Scope | None) -> _Rows:
        if join.kind == "RIGHT":
            return self._right_join(join, outer)
        left, right = self.source(join.left, outer), self.source(join.right, outer)
        using = self._using(join, left, right)
        hidden = {name.lower() for name in using}
        columns = left.columns + [
            ScopeColumn(c.name, c.type, c.table, c.schema, c.original_table, c.is_hidden or c.name.lower() in hidden)
            for c in right.columns
        ]
        conditions = _conjuncts(join.on)
        for name in using:
            conditions.append(Binary("=", _owned(name, left), _owned(name, right)))
        scope = Scope(columns, outer, "on clause")
        joiner = _Joiner(self.context, left, right, scope, conditions, is_left=join.kind == "LEFT")
        return _Rows(columns, joiner.stream, left.is_correlated or right.is_correlated)

    def _right_join(self, join: Join, outer: Scope | None) -> _Rows:
        """A left join the other way round, with the columns back in their places."""
        turned = self._join(Join("LEFT", join.right, join.left, join.on, join.using, join.is_natural), outer)
        width = len(self.source(join.right, outer).columns)

        def stream(where: Expression | None) -> Iterator[Row]:
            return ([*row[width:], *row[:width]] for row in turned.stream(None))

        return _Rows(turned.columns[width:] + turned.columns[:width], stream, turned.is_correlated)

    def _using(self, join: Join, left: _Rows, right: _Rows) -> tuple[str, ...]:
        if not join.is_natural:
            return join.using
        names = {c.name.lower() for c in right.columns if not c.is_hidden}
        return tuple(c.name for c in left.columns if not c.is_hidden and c.name.lower() in names)


def _owned(name: str, side: _Rows) -> Name:
    for column in side.columns:
        if column.name.lower() == name.lower() and not column.is_hidden:
            return Name(column.name, column.table, column.schema)
    raise sql_error(Errno.BAD_FIELD_ERROR, name, "from clause")


def _renamed(plan: Plan, names: Sequence[str]) -> Plan:
    if not names:
        return plan
    if len(names) != len(plan.names):
        raise sql_error(Errno.WRONG_NUMBER_OF_COLUMNS_IN_SELECT)
    return Plan(tuple(names), plan.types, plan.columns, plan.stream, plan.is_correlated)


def _conjuncts(tree: Expression | None) -> list[Expression]:
    if tree is None:
        return []
    if isinstance(tree, Binary) and tree.operator == "AND":
        return _conjuncts(tree.left) + _conjuncts(tree.right)
    return [tree]


class _Joiner:
    """Joins two streams: by hash on equations between them, else every row with every row."""

    def __init__(
        self,
        context: Context,
        left: _Rows,
        right: _Rows,
        scope: Scope,
        conditions: list[Expression],
        *,
        is_left: bool,
    ) -> None:
        self._context = context
        self._left, self._right, self._scope = left, right, scope
        self._conditions = conditions
        self._is_left = is_left
        self._left_scope, self._right_scope = Scope(left.columns), Scope(right.columns)

    def stream(self, where: Expression | None) -> Iterator[Row]:
        conditions = self._conditions if self._is_left else self._conditions + _conjuncts(where)
        keys = [pair for condition in conditions if (pair := self._equation(condition)) is not None]
        compiler = Compiler(self._scope, self._context)
        tests = [truth_of(compiler.compile(c), self._context.settings) for c in self._conditions]
        right = list(self._right.stream(None))
        empty = [None] * len(self._right.columns)
        table: dict[tuple[Any, ...], list[Row]] = {}
        for row in right if keys else ():
            table.setdefault(tuple(key(row) for _, key in keys), []).append(row)
        for row in self._left.stream(None):
            found = False
            if keys:
                wanted = tuple(key(row) for key, _ in keys)
                candidates = [] if None in wanted else table.get(wanted, [])
            else:
                candidates = right
            for other in candidates:
                joined = row + other
                if all(test(joined) for test in tests):
                    found = True
                    yield joined
            if self._is_left and not found:
                yield row + empty

    def _equation(self, condition: Expression) -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
        """Keys of both sides, if the condition equates a column of each."""
        if not isinstance(condition, Binary) or condition.operator != "=":
            return None
        if not isinstance(condition.left, Name) or not isinstance(condition.right, Name):
            return None
        for first, second in ((condition.left, condition.right), (condition.right, condition.left)):
            a, b = _find(self._left_scope, first), _find(self._right_scope, second)
            if a is None or b is None or _find(self._right_scope, first) is not None:
                continue
            if _find(self._left_scope, second) is not None:
                continue
            return comparables(
                self._left_scope.resolve(first), self._right_scope.resolve(second), self._context.settings
            )
        return None


def _find(scope: Scope, name: Name) -> int | None:
    try:
        return scope.find(name)
    except Exception:
        return None


# One SELECT


class _SelectPlanner:
    def __init__(self, planner: Planner, tree: Select, outer: Scope | None) -> None:
        self._planner = planner
        self._context = planner.context
        self._tree = tree
        self._outer = outer
        self._source = planner.source(tree.source, outer) if tree.source is not None else None
        columns = self._source.columns if self._source is not None else []
        self._scope = Scope(columns, outer)
        self._width = len(columns)
        self._aggregates: list[Aggregate] = []
        self._aliases: dict[str, Computed] = {}
        self._is_grouped = bool(tree.group_by)

    def plan(self) -> Plan:
        tree, context = self._tree, self._context
        where = self._where()
        compiler = Compiler(self._scope, context, self._hook)
        items = self._items(compiler)
        group_keys = self._group_keys(items)
        for item, computed in items:
            if item.alias:
                self._aliases.setdefault(item.alias.lower(), computed)
        having = self._having(items)
        names = tuple(_name(item) for item, _ in items)
        orders = orderings(tree.order_by, names, Compiler(self._scope, context, self._order_hook), items)
        self._is_grouped = self._is_grouped or bool(self._aggregates)
        first, count = limits(tree.limit, context)
        types = tuple(computed.type for _, computed in items)
        columns = tuple(self._wire(item, computed) for item, computed in items)
        plan = Plan(names, types, columns, lambda: iter(()), self._scope.is_correlated)
        if self._source is not None and self._source.is_correlated:
            plan.is_correlated = True
        computes = [computed.compute for _, computed in items]

        def stream() -> Iterator[Row]:
            rows = self._filtered(where, plan)
            if self._is_grouped:
                rows = self._grouped(rows, group_keys)
            if having is not None:
                rows = (row for row in rows if having(row))
            if orders:
                pairs = [([compute(row) for compute in computes], row) for row in rows]
                found: Iterator[Row] = iter(in_order(pairs, orders))
            else:
                found = ([compute(row) for compute in computes] for row in rows)
            if tree.is_distinct:
                found = distinct(found, types)
            return islice(found, first, None if count is None else first + count)

        plan.stream = stream
        return plan

    # Rows

    def _filtered(self, where: Callable[[Any], Any] | None, plan: Plan) -> Iterator[Row]:
        source: Iterable[Row] = self._source.stream(self._tree.where) if self._source is not None else [[]]
        is_locking = self._tree.locking is not Locking.NONE and isinstance(self._tree.source, TableSource)
        plan.locked_keys.clear()
        for number, row in enumerate(source, 1):
            if number % _CHECK_EVERY == 0 and self._context.is_interrupted():
                raise sql_error(Errno.QUERY_INTERRUPTED)
            if where is None or where(row):
                if is_locking and isinstance(row[-1], bytes):
                    plan.locked_keys.append(row[-1])
                yield row

    def _grouped(self, rows: Iterator[Row], keys: list[tuple[Computed, Callable[[Any], Any]]]) -> Iterator[Row]:
        groups: dict[tuple[Any, ...], tuple[Row, list[Any]]] = {}
        aggregates = self._aggregates
        for row in rows:
            key = tuple(weigh(computed.compute(row)) for computed, weigh in keys)
            found = groups.get(key)
            if found is None:
                found = groups[key] = (row, [each.start() for each in aggregates])
            for each, state in zip(aggregates, found[1], strict=True):
                each.take(state, row)
        if not groups and not keys:
            groups[()] = ([None] * self._width, [each.start() for each in aggregates])
        for row, states in groups.values():
            yield row + [each.result(state) for each, state in zip(aggregates, states, strict=True)]

    # Parts

    def _where(self) -> Callable[[Any], Any] | None:
        if self._tree.where is None:
            return None
        self._scope.clause = "where clause"
        compiled = Compiler(self._scope, self._context).compile(self._tree.where)
        self._scope.clause = "field list"
        return truth_of(compiled, self._context.settings)

    def _items(self, compiler: Compiler) -> list[tuple[Item, Computed]]:
        found: list[tuple[Item, Computed]] = []
        for item in self._tree.items:
            if isinstance(item.value, Star):
                found += self._star(item.value)
            else:
                found.append((item, compiler.compile(item.value)))
        return found

    def _star(self, star: Star) -> list[tuple[Item, Computed]]:
        if self._source is None:
            raise sql_error(Errno.NO_TABLES_USED)
        found = []
        table, schema = star.table.lower(), star.schema.lower()
        for at, column in enumerate(self._source.columns):
            if (column.is_hidden and not (table and column.name)) or (table and column.table.lower() != table):
                continue
            if schema and column.schema.lower() != schema:
                continue
            computed = Computed(column.type, lambda row, at=at: row[at])  # type: ignore[misc]  # mypy knows no lambda with a default
            found.append((Item(Name(column.name, column.table, column.schema), column.name), computed))
        if not found:
            raise sql_error(Errno.BAD_TABLE_ERROR, star.table)
        return found

    def _group_keys(self, items: list[tuple[Item, Computed]]) -> list[tuple[Computed, Callable[[Any], Any]]]:
        keys = []
        aliases = {item.alias.lower(): computed for item, computed in items if item.alias}
        self._scope.clause = "group statement"
        for tree in self._tree.group_by:
            if isinstance(tree, Literal) and isinstance(tree.value, int):
                if not 1 <= tree.value <= len(items):
                    raise sql_error(Errno.BAD_FIELD_ERROR, tree.value, "group statement")
                computed = items[tree.value - 1][1]
            elif isinstance(tree, Name) and not tree.table and self._scope.find(tree) is None:
                computed = aliases.get(tree.column.lower()) or self._scope.resolve(tree)
            else:
                computed = Compiler(self._scope, self._context).compile(tree)
            keys.append((computed, group_key(computed.type)))
        self._scope.clause = "field list"
        return keys

    def _having(self, items: list[tuple[Item, Computed]]) -> Callable[[Any], Any] | None:
        if self._tree.having is None:
            return None
        self._scope.clause = "having clause"
        compiled = Compiler(self._scope, self._context, self._order_hook).compile(self._tree.having)
        self._scope.clause = "field list"
        return truth_of(compiled, self._context.settings)

    def _hook(self, tree: Expression) -> Computed | None:
        """Sums: their results stand behind the columns of a group's first row."""
        if not isinstance(tree, Call) or tree.name not in AGGREGATES:
            return None
        arguments = () if _is_count_all(tree) else tree.arguments
        compiler = Compiler(self._scope, self._context)
        made = aggregate(tree, [compiler.compile(a) for a in arguments], compiler, self._context)
        self._aggregates.append(made)
        place = self._width + len(self._aggregates) - 1
        return Computed(made.type, lambda row: row[place])

    def _order_hook(self, tree: Expression) -> Computed | None:
        """As in the list of items, and their aliases by name."""
        if isinstance(tree, Name) and not tree.table:
            found = self._aliases.get(tree.column.lower())
            if found is not None:
                return found
        return self._hook(tree)

    def _wire(self, item: Item, computed: Computed) -> Column:
        if isinstance(item.value, Name) and computed.type.column is not None:
            place = self._scope.find(item.value)
            if place is not None:
                column = self._scope.columns[place]
                return column_of(
                    computed.type.column,
                    database=column.schema,
                    table=column.original_table,
                    alias=column.table,
                    name=_name(item),
                )
        return wire_column(_name(item), computed.type)


def _is_count_all(tree: Call) -> bool:
    return tree.name == "COUNT" and len(tree.arguments) == 1 and isinstance(tree.arguments[0], Star)


def _name(item: Item) -> str:
    if item.alias:
        return item.alias
    if isinstance(item.value, Name):
        return item.value.column
    if isinstance(item.value, Literal) and isinstance(item.value.value, str):
        return item.value.value
    return item.text


def wire_column(name: str, kind: Type) -> Column:
    code = WIRE_TYPES[kind.kind]
    if kind.kind is Kind.REAL and kind.column is not None:
        code = kind.column.type  # MIN of a FLOAT is one
    is_text = kind.kind in (Kind.TEXT, Kind.ENUM, Kind.SET)
    decimals = None
    if kind.kind in (Kind.DECIMAL, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
        decimals = kind.fsp
    elif kind.kind is Kind.REAL:
        decimals = NOT_FIXED
    length = kind.length if kind.kind is Kind.BIT and kind.length > 0 else None
    return Column(
        name,
        code,
        flags=ColumnFlag.UNSIGNED if kind.is_unsigned else 0,
        collation=UTF8MB4_BIN if is_text else BINARY,
        length=length,
        decimals=decimals,
    )


# Results


def result_rows(plan: Plan) -> Iterator[Sequence[object]]:
    """Rows as the wire wants them."""
    shows = [_shower(kind) for kind in plan.types]
    if not any(shows):
        return iter(plan.stream())
    return (
        [value if value is None or show is None else show(value) for value, show in zip(row, shows, strict=True)]
        for row in plan.stream()
    )


def _shower(kind: Type) -> Callable[[Any], Any] | None:
    match kind.kind:
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.JSON | Kind.VECTOR:
            return lambda value: convert.shown(value, kind)
        case Kind.ENUM | Kind.SET:
            return str
        case Kind.DECIMAL if kind.decimals >= 0:
            return lambda value: convert.fixed(value, kind.decimals)
        case _:
            return None
