"""ORDER BY, DISTINCT and LIMIT."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tidebox.sql.compute.compare import group_key, order_key
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import Computed, Type
from tidebox.sql.compute.scope import Context, Scope
from tidebox.sql.syntax.tree import (
    Item,
    Limit,
    Literal,
    Ordering,
)
from tidebox.sql.wire.errors import Errno, sql_error

Row = list[Any]
_Key = tuple[Callable[[Row, Row], Any], bool]  # from output and source row to a key; whether it descends


def orderings(
    order_by: Sequence[Ordering],
    names: Sequence[str],
    compiler: Compiler,
    items: Sequence[tuple[Item, Computed]] = (),
) -> list[_Key]:
    found: list[_Key] = []
    compiler.scope.clause = "order clause"
    for ordering in order_by:
        tree = ordering.by
        if isinstance(tree, Literal) and isinstance(tree.value, int) and not isinstance(tree.value, bool):
            if not 1 <= tree.value <= len(names):
                raise sql_error(Errno.BAD_FIELD_ERROR, tree.value, "order clause")
            at = tree.value - 1
            kind = items[at][1].type if items else compiler.scope.columns[at].type
            weigh = order_key(kind)
            found.append((_output_key(at, weigh), ordering.is_descending))
            continue
        computed = compiler.compile(tree)
        found.append((_source_key(computed, order_key(computed.type)), ordering.is_descending))
    compiler.scope.clause = "field list"
    return found


def _output_key(at: int, weigh: Callable[[Any], Any]) -> Callable[[Row, Row], Any]:
    return lambda output, source: weigh(output[at])


def _source_key(computed: Computed, weigh: Callable[[Any], Any]) -> Callable[[Row, Row], Any]:
    return lambda output, source: weigh(computed.compute(source))


def in_order(pairs: list[tuple[Row, Row]], keys: list[_Key]) -> list[Row]:
    for key, is_descending in reversed(keys):
        pairs.sort(key=lambda pair: key(pair[0], pair[1]), reverse=is_descending)
    return [output for output, _ in pairs]


def distinct(rows: Iterable[Row], types: Sequence[Type]) -> Iterator[Row]:
    weighs = [group_key(kind) for kind in types]
    seen: set[Any] = set()
    for row in rows:
        key = tuple(_hashable(weigh(value)) for weigh, value in zip(weighs, row, strict=True))
        if key not in seen:
            seen.add(key)
            yield row


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, tuple):
        return tuple(map(_hashable, value))
    return value


def limits(limit: Limit | None, context: Context) -> tuple[int, int | None]:
    """How many rows to leave out, and how many to give."""
    if limit is None:
        return 0, None
    compiler = Compiler(Scope(()), context)
    numbers = []
    for tree in (limit.offset, limit.count):
        value = 0 if tree is None else compiler.compile(tree).compute(())
        if value is None and context.parameters == ():
            value = 0  # only prepared
        if not isinstance(value, int) or value < 0:
            raise sql_error(Errno.WRONG_ARGUMENTS, "LIMIT")
        numbers.append(value)
    return numbers[0], numbers[1]
