"""A filter's expression, compiled for one table into a mask over an image of its rows.

    text ── parse, at the start ──► tree ── compile, when the table is known ──► Predicate ── rows ──► mask

What the expression asks for and we do not have is refused by name; so are columns that the table does not have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import FilterError, suggestion
from tidemill.flow.filter import functions, moments, operators, values
from tidemill.flow.filter.syntax import Column, Literal, Moment, Operation, Tree, parse
from tidemill.flow.filter.values import Kind, Unfit, Value
from tidemill.model.table import TableInfo

_DEEPEST = 150
_CHAINED: Mapping[str, Callable[[Value, Value], Value]] = {
    "AND": operators.conjunction,
    "OR": operators.disjunction,
    "XOR": operators.exclusive,
}
_ANSWERS = frozenset({Kind.BOOL, Kind.INT, Kind.UINT, Kind.YEAR, Kind.NULL})


@dataclass(frozen=True, slots=True)
class Predicate:
    """An expression over rows of one table."""

    value: Value
    place: str
    table: str

    def mask(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """For each row, whether the expression is 1: neither 0 nor NULL, and no other number."""
        try:
            found = self.value.compute(rows)
        except pa.ArrowInvalid as error:
            raise FilterError(
                f"{self.place}: the expression cannot be computed for a row of table {self.table}: {error}. "
                "Change the expression so that its numbers stay in range."
            ) from error
        if not pa.types.is_boolean(found.type):
            found = pc.equal(found, pa.scalar(1, found.type)) if self.value.kind is not Kind.NULL else pa.scalar(False)
        found = pc.fill_null(found, pa.scalar(False))
        if isinstance(found, pa.Scalar):
            return np.full(len(rows), bool(found.as_py()))
        mask: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return mask if len(mask) == len(rows) else np.broadcast_to(mask, len(rows))


class Expression:
    """The text of an expression, of which the grammar is right. ``place`` says where it stands, for messages."""

    def __init__(self, text: str, place: str) -> None:
        self.text = text
        self._place = place
        self._tree = parse(text, place)

    def compile(self, table: TableInfo) -> Predicate:
        """For rows of this table. Raises FilterError where they do not fit together."""
        try:
            value = _Compiler(table, self._error(table)).compile(self._tree)
            if value.kind not in _ANSWERS:
                raise Unfit(f"a {value.kind.value} as its result: compare it with something")
        except Unfit as why:
            raise FilterError(
                f"{self._place}: the expression {self.text!r} cannot be used for table {table.full_name}: filters do "
                f"not have {why}. Change the expression, or the matcher so that it leaves this table out."
            ) from None
        return Predicate(value, self._place, table.full_name)

    def _error(self, table: TableInfo) -> str:
        return f"{self._place}: the expression {self.text!r} cannot be used for table {table.full_name}"


class _Compiler:
    def __init__(self, table: TableInfo, refusal: str) -> None:
        self._table = table
        self._refusal = refusal
        self._places = {column.name.lower(): place for place, column in enumerate(table.stored_columns)}
        self._depth = 0

    def compile(self, tree: Tree) -> Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unfit(f"expressions nested more than {_DEEPEST} deep")
        found = self._compile(tree)
        self._depth -= 1
        return found

    def _compile(self, tree: Tree) -> Value:
        match tree:
            case Literal(value):
                return values.constant(value)
            case Moment(kind, text):
                return moments.typed(kind, text)
            case Column():
                return self._column(tree)
            case Operation():
                return self._operation(tree)

    def _column(self, column: Column) -> Value:
        table = self._table
        if column.table and column.table.lower() != table.name.lower():
            raise FilterError(f"{self._refusal}: it names table {column.table!r}. Name columns without their table.")
        place = self._places.get(column.name.lower())
        if place is not None:
            return values.of_column(table.stored_columns[place], place)
        if any(c.name.lower() == column.name.lower() for c in table.columns):
            raise FilterError(
                f"{self._refusal}: column {column.name!r} is a virtual generated one, which is in no change. "
                "Write what it is generated from instead."
            )
        hint = suggestion(column.name, self._places) or f" It has {', '.join(self._places)}."
        raise FilterError(f"{self._refusal}: the table has no column {column.name!r}.{hint}")

    def _operation(self, tree: Operation) -> Value:
        if tree.is_call:
            return functions.call(tree.name, tuple(map(self.compile, tree.operands)))
        if tree.name == "LIKE":
            escape = tree.operands[2]
            assert isinstance(escape, Literal)
            return operators.like(self.compile(tree.operands[0]), self.compile(tree.operands[1]), str(escape.value))
        if tree.name in _CHAINED:
            return _balanced(_CHAINED[tree.name], [self.compile(operand) for operand in _chain(tree)])
        operands = [self.compile(operand) for operand in tree.operands]
        if tree.name in operators.COMPARISONS:
            return operators.comparison(tree.name, *operands)
        match tree.name, operands:
            case "NOT", [operand]:
                return operators.negation(operand)
            case "NEGATE", [operand]:
                return operators.minus(operand)
            case "IS NULL", [operand]:
                return operators.is_null(operand)
            case "IS TRUE" | "IS FALSE", [operand]:
                return operators.is_true(operand, tree.name == "IS TRUE")
            case "BETWEEN", [operand, low, high]:
                above = operators.comparison(">=", operand, low)
                return operators.conjunction(above, operators.comparison("<=", operand, high))
            case "IN", [operand, *items]:
                tests = [operators.comparison("=", operand, item) for item in items]
                return _balanced(operators.disjunction, tests)
            case "REGEXP", [operand, pattern]:
                return operators.regexp(operand, pattern)
            case "CASE", parts:
                return functions.case(tuple(parts))
            case sign, [left, right]:
                return operators.arithmetic(sign, left, right)
        raise Unfit(f"the operator {tree.name}")


def _chain(tree: Operation) -> list[Tree]:
    """The operands of an operator that is repeated, however the repetition is nested to the left."""
    found: list[Tree] = []
    rest: Tree = tree
    while isinstance(rest, Operation) and rest.name == tree.name and not rest.is_call:
        rest, last = rest.operands
        found.append(last)
    return [rest, *reversed(found)]


def _balanced(join: Callable[[Value, Value], Value], conditions: list[Value]) -> Value:
    """In halves, so that a long list does not make a deep chain of calls."""
    if len(conditions) == 1:
        return operators.truth(conditions[0])
    half = len(conditions) // 2
    return join(_balanced(join, conditions[:half]), _balanced(join, conditions[half:]))
