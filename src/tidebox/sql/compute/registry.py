"""Functions by name. A function gets its arguments compiled and gives back its call, compiled."""

from collections.abc import Callable
from typing import Any

from tidebox.sql.compute import convert
from tidebox.sql.compute.kinds import Compute, Computed, Type
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call

Builder = Callable[[Call, list[Computed], Context], Computed]
FUNCTIONS: dict[str, tuple[int, int, Builder]] = {}  # by name: fewest arguments, most, and how it is made
MANY = 1 << 16


def function(*names: str, least: int, most: int | None = None) -> Callable[[Builder], Builder]:
    """Make a builder known; ``most`` is as ``least`` unless given."""

    def register(builder: Builder) -> Builder:
        for name in names:
            FUNCTIONS[name] = (least, least if most is None else most, builder)
        return builder

    return register


def is_constant(arguments: list[Computed]) -> bool:
    return all(argument.is_constant for argument in arguments)


def strict(kind: Type, arguments: list[Compute], apply: Callable[..., Any], constant: bool = False) -> Computed:
    """NULL if any argument is."""
    if len(arguments) == 1:
        only = arguments[0]

        def compute_one(row: Any) -> Any:
            value = only(row)
            return None if value is None else apply(value)

        return Computed(kind, compute_one, constant)

    def compute(row: Any) -> Any:
        values = []
        for argument in arguments:
            value = argument(row)
            if value is None:
                return None
            values.append(value)
        return apply(*values)

    return Computed(kind, compute, constant)


def texts(arguments: list[Computed]) -> list[Compute]:
    return [convert.as_text(argument) for argument in arguments]


def integers(arguments: list[Computed], context: Context) -> list[Compute]:
    settings = context.settings

    def as_integer(argument: Computed) -> Compute:
        kind, compute = argument.type, argument.compute

        def convert_row(row: Any) -> int | None:
            value = compute(row)
            return None if value is None else convert.integer(value, kind, settings)

        return convert_row

    return [as_integer(argument) for argument in arguments]
