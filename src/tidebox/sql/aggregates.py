"""COUNT, SUM and their like: taken row by row, group by group."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from operator import and_, or_, xor
from typing import Any

from tidebox.sql.codec.datum import Json
from tidebox.sql.compute import convert, operators
from tidebox.sql.compute.casts import to_json
from tidebox.sql.compute.compare import group_key, order_key
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import INT, JSON, REAL, TEXT, UNSIGNED, Computed, Kind, Type
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call
from tidebox.sql.wire.errors import Errno, sql_error

_LONGEST_CONCAT = 1 << 20  # group_concat_max_len of TiDB


@dataclass
class Aggregate:
    """``start`` makes the state of a group, ``take`` gives it a row, ``result`` ends it."""

    type: Type
    start: Callable[[], Any]
    take: Callable[[Any, Any], None]
    result: Callable[[Any], Any]


def aggregate(tree: Call, arguments: list[Computed], compiler: Compiler, context: Context) -> Aggregate:
    """``arguments`` is empty for ``COUNT(*)``."""
    match tree.name:
        case "COUNT":
            return _count(tree, arguments)
        case "SUM" | "AVG":
            return _sum(tree, _only(tree, arguments), context)
        case "MIN" | "MAX":
            return _extreme(tree, _only(tree, arguments))
        case "BIT_AND" | "BIT_OR" | "BIT_XOR":
            return _bits(tree, _only(tree, arguments), context)
        case "GROUP_CONCAT":
            return _concat(tree, arguments, compiler)
        case "ANY_VALUE":
            return _any(_only(tree, arguments))
        case "JSON_ARRAYAGG":
            return _array(_only(tree, arguments))
        case _:
            raise sql_error(Errno.NOT_SUPPORTED_YET, f"function {tree.name}")


def _only(tree: Call, arguments: list[Computed]) -> Computed:
    if len(arguments) != 1:
        raise sql_error(Errno.WRONG_PARAMCOUNT, tree.name.lower())
    return arguments[0]


def _taker(tree: Call, argument: Computed, use: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Give ``use`` each value that is not NULL, with DISTINCT each once. States begin with a set for that."""
    compute, weigh = argument.compute, group_key(argument.type)
    if not tree.is_distinct:

        def take(state: list[Any], row: Any) -> None:
            value = compute(row)
            if value is not None:
                use(state, value)

        return take

    def take_once(state: list[Any], row: Any) -> None:
        value = compute(row)
        if value is None:
            return
        key = weigh(value)
        if key not in state[0]:
            state[0].add(key)
            use(state, value)

    return take_once


def _count(tree: Call, arguments: list[Computed]) -> Aggregate:
    if not arguments:

        def count_row(state: list[Any], row: Any) -> None:
            state[1] += 1

        return Aggregate(INT, lambda: [None, 0], count_row, lambda state: state[1])
    weighs = [(argument.compute, group_key(argument.type)) for argument in arguments]

    def take(state: list[Any], row: Any) -> None:
        values = [compute(row) for compute, _ in weighs]
        if None in values:
            return
        if tree.is_distinct:
            key = tuple(weigh(value) for value, (_, weigh) in zip(values, weighs, strict=True))
            if key in state[0]:
                return
            state[0].add(key)
        state[1] += 1

    return Aggregate(INT, lambda: [set(), 0], take, lambda state: state[1])


def _sum(tree: Call, argument: Computed, context: Context) -> Aggregate:
    settings, kind = context.settings, argument.type
    is_exact = kind.kind in (Kind.INT, Kind.DECIMAL, Kind.YEAR, Kind.BIT)
    scale = operators.scale_of(kind) if kind.kind is Kind.DECIMAL else 0

    def add(state: list[Any], value: Any) -> None:
        number = convert.number(value, kind, settings)
        if isinstance(number, Decimal):
            state[1] = convert.MATH.add(Decimal(state[1]), number)
        else:
            state[1] += number
        state[2] += 1

    if tree.name == "SUM":
        result = Type(Kind.DECIMAL, length=65, decimals=scale) if is_exact else REAL

        def total(state: list[Any]) -> Any:
            if not state[2]:
                return None
            return Decimal(state[1]) if is_exact else float(state[1])

        return Aggregate(result, lambda: [set(), 0, 0], _taker(tree, argument, add), total)
    digits = scale + operators.DIVISION_DIGITS

    def mean(state: list[Any]) -> Any:
        if not state[2]:
            return None
        if not is_exact:
            return float(state[1]) / state[2]
        return operators.rescaled(operators.divided(Decimal(state[1]), Decimal(state[2]), digits), digits)

    result = Type(Kind.DECIMAL, length=65, decimals=digits) if is_exact else REAL
    return Aggregate(result, lambda: [set(), 0, 0], _taker(tree, argument, add), mean)


def _extreme(tree: Call, argument: Computed) -> Aggregate:
    kind = argument.type
    if kind.kind in (Kind.ENUM, Kind.SET):  # by name here, though ordered by number elsewhere
        kind = kind._replace(kind=Kind.TEXT)
    key = order_key(kind)
    is_max = tree.name == "MAX"

    def use(state: list[Any], value: Any) -> None:
        weight = key(value)
        if state[1] is None or (weight > state[1] if is_max else weight < state[1]):
            state[1], state[2] = weight, value

    return Aggregate(argument.type, lambda: [set(), None, None], _taker(tree, argument, use), lambda state: state[2])


def _bits(tree: Call, argument: Computed, context: Context) -> Aggregate:
    settings, kind = context.settings, argument.type
    by_name: dict[str, Callable[[int, int], int]] = {"BIT_AND": and_, "BIT_OR": or_, "BIT_XOR": xor}
    apply = by_name[tree.name]
    first = operators.UNSIGNED_MAX if tree.name == "BIT_AND" else 0

    def use(state: list[Any], value: Any) -> None:
        state[1] = apply(state[1], convert.integer(value, kind, settings) & operators.UNSIGNED_MAX)

    return Aggregate(UNSIGNED, lambda: [set(), first], _taker(tree, argument, use), lambda state: state[1])


def _concat(tree: Call, arguments: list[Computed], compiler: Compiler) -> Aggregate:
    parts = [convert.as_text(argument) for argument in arguments]
    orders = [(compiler.compile(o.by), o.is_descending) for o in tree.order_by]

    def take(state: list[Any], row: Any) -> None:
        values = [part(row) for part in parts]
        if None in values:
            return
        text = "".join(values)
        if tree.is_distinct:
            if text in state[0]:
                return
            state[0].add(text)
        state[1].append((text, [order_key(by.type)(by.compute(row)) for by, _ in orders]))

    def result(state: list[Any]) -> str | None:
        if not state[1]:
            return None
        for at in reversed(range(len(orders))):
            state[1].sort(key=lambda pair: pair[1][at], reverse=orders[at][1])
        return tree.separator.join(text for text, _ in state[1])[:_LONGEST_CONCAT]

    return Aggregate(TEXT, lambda: [set(), []], take, result)


def _any(argument: Computed) -> Aggregate:
    def take(state: list[Any], row: Any) -> None:
        if not state[0]:
            state[0], state[1] = True, argument.compute(row)

    return Aggregate(argument.type, lambda: [False, None], take, lambda state: state[1])


def _array(argument: Computed) -> Aggregate:
    def take(state: list[Any], row: Any) -> None:
        value = argument.compute(row)
        state.append(None if value is None else to_json(value, argument.type, is_parsed=False).root)

    return Aggregate(JSON, list, take, lambda state: Json(state) if state else None)
