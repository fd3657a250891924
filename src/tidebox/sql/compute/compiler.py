"""From the tree of an expression to a function that computes it."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tidebox.sql.codec.collation import sort_key
from tidebox.sql.compute import casts, compare, convert, operators
from tidebox.sql.compute.functions import call
from tidebox.sql.compute.kinds import (
    BOOL,
    BYTES,
    INT,
    NULL,
    REAL,
    TEXT,
    UNSIGNED,
    Computed,
    Kind,
    Type,
)
from tidebox.sql.compute.scope import Context, Scope
from tidebox.sql.syntax.tree import (
    AssignVariable,
    Between,
    Binary,
    Bits,
    Call,
    Case,
    Cast,
    Collate,
    Default,
    Exists,
    Expression,
    In,
    Introduced,
    Is,
    Like,
    Literal,
    Name,
    Parameter,
    Row,
    Star,
    Subquery,
    SystemVariable,
    Typed,
    Unary,
    UserVariable,
    ValuesOf,
)
from tidebox.sql.wire.errors import Errno, sql_error

AGGREGATES = frozenset(
    {
        "COUNT",
        "SUM",
        "AVG",
        "MIN",
        "MAX",
        "GROUP_CONCAT",
        "BIT_AND",
        "BIT_OR",
        "BIT_XOR",
        "ANY_VALUE",
        "JSON_ARRAYAGG",
        "JSON_OBJECTAGG",
    }
)
Hook = Callable[[Expression], Computed | None]


def literal(value: Any) -> Computed:
    """A constant of the type that a literal of this value has."""
    return Computed(literal_type(value), lambda row: value, True)


def literal_type(value: Any) -> Type:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        if value > operators.SIGNED_MAX:
            return UNSIGNED if value <= operators.UNSIGNED_MAX else Type(Kind.DECIMAL, length=65, decimals=0)
        return INT if value >= operators.SIGNED_MIN else Type(Kind.DECIMAL, length=65, decimals=0)
    if isinstance(value, float):
        return REAL
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        scale = max(-exponent, 0) if isinstance(exponent, int) else 0
        return Type(Kind.DECIMAL, length=max(len(value.as_tuple().digits), scale), decimals=scale)
    if isinstance(value, bytes):
        return BYTES
    return TEXT


class Compiler:
    """Compiles expressions over one scope. ``hook`` may take an expression over before anything else is tried:
    that is how sums, ``VALUES(…)`` and ``DEFAULT(…)`` find their meaning."""

    def __init__(self, scope: Scope, context: Context, hook: Hook | None = None) -> None:
        self.scope = scope
        self.context = context
        self._settings = context.settings
        self._hook = hook

    def compile(self, tree: Expression) -> Computed:
        if self._hook is not None:
            found = self._hook(tree)
            if found is not None:
                return found
        match tree:
            case Literal(value):
                if isinstance(value, int) and not isinstance(value, bool):
                    kind = literal_type(value)
                    if kind.kind is Kind.DECIMAL:
                        return literal(Decimal(value))
                if isinstance(value, bool):
                    number = int(value)
                    return Computed(BOOL, lambda row: number, True)
                return literal(value)
            case Name():
                return self.scope.resolve(tree)
            case Binary():
                return self._binary(tree)
            case Unary():
                return self._unary(tree)
            case Parameter(index):
                return self._parameter(index)
            case Bits(value):
                return Computed(Type(Kind.BITS, collation="binary", length=len(value)), lambda row: value, True)
            case Introduced(charset, value):
                if charset == "binary":
                    return literal(value)
                return literal(value.decode("utf-8", "surrogateescape"))
            case Typed(kind, value):
                return casts.typed(kind, value, self.context)
            case Between(operand, low, high, is_negated):
                both = Binary("AND", Binary(">=", operand, low), Binary("<=", operand, high))
                return self.compile(Unary("NOT", both) if is_negated else both)
            case In():
                return self._in(tree)
            case Like():
                return self._like(tree)
            case Is():
                return self._is(tree)
            case Case():
                return self._case(tree)
            case Cast(operand, kind, length, scale):
                return casts.cast(self.compile(operand), kind, length, scale, self.context)
            case Collate(operand, collation):
                return self._collate(operand, collation)
            case Call():
                return self._call(tree)
            case UserVariable(name):
                return self._user_variable(name)
            case AssignVariable():
                return self._assign(tree)
            case SystemVariable(name, scope):
                return self._system_variable(name, scope)
            case Subquery():
                return self._scalar(tree)
            case Exists(query):
                prepared = self._prepare(query)
                return Computed(BOOL, lambda row: int(bool(prepared(row))))
            case Row():
                raise sql_error(Errno.OPERAND_COLUMNS, 1)
            case Star():
                raise sql_error(Errno.PARSE_ERROR, 'near "*"')
            case Default():
                raise sql_error(Errno.NOT_SUPPORTED_YET, "DEFAULT in an expression")
            case ValuesOf():
                return literal(None)

    # Leaves

    def _parameter(self, index: int) -> Computed:
        if index >= len(self.context.parameters):
            return Computed(NULL, lambda row: None, True)  # only prepared, not executed
        value, kind = self.context.parameters[index]
        return Computed(kind, lambda row: value, True)

    def _user_variable(self, name: str) -> Computed:
        variables = self.context.variables
        if variables is None:
            return literal(None)
        _, kind = variables.user(name)
        return Computed(kind, lambda row: variables.user(name)[0])

    def _assign(self, tree: AssignVariable) -> Computed:
        value, variables = self.compile(tree.value), self.context.variables
        assert variables is not None  # a session runs it

        def compute(row: Any) -> Any:
            found = value.compute(row)
            variables.set_user(tree.name, found, value.type)
            return found

        return Computed(value.type, compute)

    def _system_variable(self, name: str, scope: str) -> Computed:
        if self.context.variables is None:
            raise sql_error(Errno.UNKNOWN_SYSTEM_VARIABLE, name)
        value, kind = self.context.variables.system(name, scope)
        if name.lower() == "tidb_current_ts":  # of the open transaction, 0 without one
            return Computed(kind, lambda row: self.context.current_ts())
        return Computed(kind, lambda row: value, True)

    # Operators

    def _binary(self, tree: Binary) -> Computed:
        symbol = tree.operator
        if isinstance(tree.left, Row) or isinstance(tree.right, Row):
            return self._rows(tree)
        left, right = self.compile(tree.left), self.compile(tree.right)
        settings = self._settings
        match symbol:
            case "AND":
                return operators.conjunction(left, right, settings)
            case "OR":
                return operators.disjunction(left, right, settings)
            case "XOR":
                return operators.exclusive(left, right, settings)
            case "=" | "<>" | "<" | "<=" | ">" | ">=" | "<=>":
                return operators.comparison(symbol, left, right, settings)
            case "|" | "&" | "^" | "<<" | ">>":
                return operators.bits(symbol, left, right, settings)
            case _:
                return operators.arithmetic(symbol, left, right, settings, lambda: self.show(tree))

    def _unary(self, tree: Unary) -> Computed:
        operand = self.compile(tree.operand)
        match tree.operator:
            case "NOT":
                return operators.negation(operand, self._settings)
            case "~":
                return operators.inversion(operand, self._settings)
            case _:
                return operators.minus(operand, self._settings, lambda: self.show(tree))

    def _rows(self, tree: Binary) -> Computed:
        """``(a, b) = (1, 2)`` part by part."""
        left, right = tree.left, tree.right
        if not isinstance(left, Row) or not isinstance(right, Row) or len(left.items) != len(right.items):
            raise sql_error(Errno.OPERAND_COLUMNS, len(left.items) if isinstance(left, Row) else 1)
        pairs = list(zip(left.items, right.items, strict=True))
        match tree.operator:
            case "=" | "<=>":
                return self._all([Binary(tree.operator, a, b) for a, b in pairs])
            case "<>":
                return operators.negation(self._all([Binary("=", a, b) for a, b in pairs]), self._settings)
            case "<" | "<=" | ">" | ">=":
                strict = tree.operator[0]
                last: Expression = Binary(tree.operator, *pairs[-1])
                for a, b in reversed(pairs[:-1]):
                    last = Binary("OR", Binary(strict, a, b), Binary("AND", Binary("=", a, b), last))
                return self.compile(last)
        raise sql_error(Errno.OPERAND_COLUMNS, 1)

    def _all(self, conditions: list[Binary]) -> Computed:
        found = self.compile(conditions[0])
        for condition in conditions[1:]:
            found = operators.conjunction(found, self.compile(condition), self._settings)
        return found

    def _in(self, tree: In) -> Computed:
        if not isinstance(tree.among, tuple):
            return self._in_query(tree)
        if isinstance(tree.operand, Row):
            tests = [self._rows(Binary("=", tree.operand, item)) for item in tree.among]
        else:
            operand = self.compile(tree.operand)
            items = [self.compile(item) for item in tree.among]
            quick = self._in_constants(operand, items)
            if quick is not None:
                return operators.negation(quick, self._settings) if tree.is_negated else quick
            tests = [operators.comparison("=", operand, item, self._settings) for item in items]
        found = tests[0]
        for test in tests[1:]:
            found = operators.disjunction(found, test, self._settings)
        return operators.negation(found, self._settings) if tree.is_negated else found

    def _in_constants(self, operand: Computed, items: list[Computed]) -> Computed | None:
        """A set lookup, where all are constants that are compared in one way."""
        if len(items) < 4 or not all(item.is_constant and item.type.kind is items[0].type.kind for item in items):
            return None
        if items[0].type.kind is Kind.NULL:
            return None
        keys: set[Any] = set()
        has_null = False
        for item in items:
            _, key = compare.comparables(operand, item, self._settings)
            value = key(())
            has_null = has_null or value is None
            keys.add(value)
        first, _ = compare.comparables(operand, items[0], self._settings)

        def compute(row: Any) -> int | None:
            value = first(row)
            if value is None:
                return None
            return 1 if value in keys else None if has_null else 0

        return Computed(BOOL, compute)

    def _in_query(self, tree: In) -> Computed:
        assert not isinstance(tree.among, tuple)
        assert self.context.subqueries is not None
        prepared = self.context.subqueries.prepare(tree.among, self.scope)
        operands = tree.operand.items if isinstance(tree.operand, Row) else (tree.operand,)
        if len(prepared.types) != len(operands):
            raise sql_error(Errno.OPERAND_COLUMNS, len(operands))
        rows = self._run(prepared)
        sides = [self.compile(operand) for operand in operands]
        slot: list[Any] = [None]
        tests = []
        for place, (side, kind) in enumerate(zip(sides, prepared.types, strict=True)):
            value = Computed(kind, lambda row, place=place: slot[0][place])  # type: ignore[misc]  # mypy knows no lambda with a default
            tests.append(operators.comparison("=", side, value, self._settings).compute)

        def compute(row: Any) -> int | None:
            is_unknown = False
            for candidate in rows(row):
                slot[0] = candidate
                results = [test(row) for test in tests]
                if all(results):
                    return 1
                is_unknown = is_unknown or (None in results and 0 not in results)
            return None if is_unknown else 0

        found = Computed(BOOL, compute)
        return operators.negation(found, self._settings) if tree.is_negated else found

    def _like(self, tree: Like) -> Computed:
        operand, pattern = self.compile(tree.operand), self.compile(tree.pattern)
        text, shape = convert.as_text(operand), convert.as_text(pattern)
        kinds = [operand.type, pattern.type]
        is_folding = compare.common_collation(kinds).endswith("_ci") if any(k.kind.is_string for k in kinds) else False
        cache: dict[str, re.Pattern[str]] = {}

        def compute(row: Any) -> int | None:
            a, b = text(row), shape(row)
            if a is None or b is None:
                return None
            compiled = cache.get(b)
            if compiled is None:
                compiled = cache[b] = _pattern(b, tree, is_folding)
            if tree.is_regular:
                return int((compiled.search(a) is not None) != tree.is_negated)
            return int((compiled.fullmatch(a) is not None) != tree.is_negated)

        return Computed(BOOL, compute, operand.is_constant and pattern.is_constant)

    def _is(self, tree: Is) -> Computed:
        operand = self.compile(tree.operand)
        if tree.what is None:
            compute = operand.compute
            return Computed(BOOL, lambda row: int((compute(row) is None) != tree.is_negated), operand.is_constant)
        test, wanted = operators.truth_of(operand, self._settings), tree.what
        return Computed(BOOL, lambda row: int((test(row) is wanted) != tree.is_negated), operand.is_constant)

    def _case(self, tree: Case) -> Computed:
        tests = []
        operand = self.compile(tree.operand) if tree.operand is not None else None
        for condition, _ in tree.branches:
            compiled = self.compile(condition)
            if operand is not None:
                compiled = operators.comparison("=", operand, compiled, self._settings)
            tests.append(operators.truth_of(compiled, self._settings))
        values = [self.compile(value) for _, value in tree.branches]
        otherwise = self.compile(tree.otherwise) if tree.otherwise is not None else literal(None)
        kind, (*computes, last) = casts.unified([*values, otherwise], self.context)
        pairs = list(zip(tests, computes, strict=True))

        def compute(row: Any) -> Any:
            for test, value in pairs:
                if test(row):
                    return value(row)
            return last(row)

        return Computed(kind, compute)

    def _collate(self, operand: Expression, collation: str) -> Computed:
        compiled = self.compile(operand)
        sort_key(collation)  # known?
        return Computed(Type(Kind.TEXT, collation=collation), convert.as_text(compiled), compiled.is_constant)

    def _call(self, tree: Call) -> Computed:
        if tree.name in AGGREGATES:
            raise sql_error(Errno.INVALID_GROUP_FUNC_USE)
        return call(tree, [self.compile(argument) for argument in tree.arguments], self.context)

    # Queries inside

    def _prepare(self, query: Any) -> Callable[[Any], list[Any]]:
        assert self.context.subqueries is not None
        return self._run(self.context.subqueries.prepare(query, self.scope))

    def _run(self, prepared: Any) -> Callable[[Any], list[Any]]:
        """Rows of a query inside; one that does not look outside runs once."""
        kept: list[list[Any]] = []
        scope = self.scope

        def rows(row: Any) -> list[Any]:
            if not prepared.is_correlated and kept:
                return kept[0]
            scope.current = row
            found: list[Any] = prepared.rows()
            kept[:] = [found]
            return found

        return rows

    def _scalar(self, tree: Subquery) -> Computed:
        assert self.context.subqueries is not None
        prepared = self.context.subqueries.prepare(tree.query, self.scope)
        if len(prepared.types) != 1:
            raise sql_error(Errno.OPERAND_COLUMNS, 1)
        rows = self._run(prepared)

        def compute(row: Any) -> Any:
            found = rows(row)
            if len(found) > 1:
                raise sql_error(Errno.SUBQUERY_NO_1_ROW)
            return found[0][0] if found else None

        return Computed(prepared.types[0], compute)

    # For errors

    def show(self, tree: Expression) -> str:
        """An expression as TiDB prints it in error 1690."""
        match tree:
            case Binary(symbol, left, right):
                return f"({self.show(left)} {symbol} {self.show(right)})"
            case Unary(symbol, operand):
                return f"{symbol}({self.show(operand)})"
            case Name():
                place = self.scope.find(tree)
                if place is None:
                    return str(tree)
                column = self.scope.columns[place]
                return ".".join(part.lower() for part in (column.schema, column.table, column.name) if part)
            case Literal(value):
                return "NULL" if value is None else str(value)
            case Call(name, arguments):
                return f"{name.lower()}({', '.join(map(self.show, arguments))})"
            case _:
                return "?"


def _pattern(shape: str, tree: Like, is_folding: bool) -> re.Pattern[str]:
    if not tree.is_regular:
        return like_pattern(shape, tree.escape, is_folding=is_folding)
    try:
        return re.compile(shape, re.IGNORECASE if is_folding else 0)
    except re.error as error:
        raise sql_error(Errno.UNKNOWN_ERROR, f"Got error '{error}' from regexp") from error


def like_pattern(shape: str, escape: str, *, is_folding: bool) -> re.Pattern[str]:
    """What matches a pattern of LIKE."""
    out, at = [], 0
    while at < len(shape):
        character = shape[at]
        if character == escape and at + 1 < len(shape):
            at += 1
            out.append(re.escape(shape[at]))
        elif character == "%":
            out.append(".*")
        elif character == "_":
            out.append(".")
        else:
            out.append(re.escape(character))
        at += 1
    return re.compile("".join(out), re.DOTALL | (re.IGNORECASE if is_folding else 0))
