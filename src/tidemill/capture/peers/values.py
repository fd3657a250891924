"""Values as JSON and back. What comes back is of the type that was asked for, or a PeerMessageError says what is not.

Types are those that our values are made of: frozen dataclasses, their unions, enums, tuples, frozensets, mappings,
numbers, texts. A converter is made once for each type. Fields that are missing get their defaults and unknown ones are
passed over, so captures of neighbouring versions understand each other.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from tidemill.errors import InvariantError, PeerMessageError

_IS = "is"  # which class of a union

Convert = Callable[[Any], Any]


def pack(kind: type, value: Any) -> bytes:
    return orjson.dumps(_converters(kind)[0](value))


def unpack(kind: type, content: bytes) -> Any:
    """A value of ``kind``."""
    try:
        return _converters(kind)[1](orjson.loads(content))
    except (orjson.JSONDecodeError, RecursionError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise PeerMessageError(
            f"another capture has sent {len(content)} bytes that are no {kind.__name__}: {error}. Check that all "
            "captures of the cluster are of one version, and that nobody else uses their addresses."
        ) from error


@cache
def _converters(kind: Any) -> tuple[Convert, Convert]:
    """To JSON, and from it."""
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return _same, _same
    if kind in (int, str, bool, float):
        return _same, _checked(kind)
    if kind is type(None):
        return _same, _checked(type(None))
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        return _sequence(args[0], tuple)
    if origin is frozenset:
        return _sequence(args[0], frozenset)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*args)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return (lambda value: value.value), kind
    if is_dataclass(kind):
        return _record(kind)
    raise InvariantError(f"values of type {kind} do not travel. Report it.")


def _same(value: Any) -> Any:
    return value


def _checked(kind: type) -> Convert:
    def check(found: Any) -> Any:
        if type(found) is kind or (kind is float and type(found) is int):
            return found
        raise TypeError(f"{type(found).__name__} where {kind.__name__} should be")

    return check


def _sequence(kind: Any, make: Callable[[Any], Any]) -> tuple[Convert, Convert]:
    to, back = _converters(kind)

    def read(found: Any) -> Any:
        if type(found) is not list:
            raise TypeError(f"{type(found).__name__} where a list should be")
        return make(map(back, found))

    return (lambda value: list(map(to, value))), read


def _mapping(key: Any, kind: Any) -> tuple[Convert, Convert]:
    to, back = _converters(kind)
    key = getattr(key, "__supertype__", key)
    if key not in (int, str):
        raise InvariantError(f"mappings by {key} do not travel. Report it.")

    def read(found: Any) -> Any:
        if type(found) is not dict:
            raise TypeError(f"{type(found).__name__} where an object should be")
        return {key(name): back(each) for name, each in found.items()}

    return (lambda value: {str(name): to(each) for name, each in value.items()}), read


def _record(kind: Any) -> tuple[Convert, Convert]:
    hints = get_type_hints(kind)
    parts = {each.name: _converters(hints[each.name]) for each in fields(kind)}
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}

    def write(value: Any) -> Any:
        return {name: to(getattr(value, name)) for name, (to, _) in parts.items()}

    def read(found: Any) -> Any:
        if type(found) is not dict:
            raise TypeError(f"{type(found).__name__} where a {kind.__name__} should be")
        missing = needed - found.keys()
        if missing:
            raise ValueError(f"a {kind.__name__} without {min(missing)}")
        return kind(**{name: back(found[name]) for name, (_, back) in parts.items() if name in found})

    return write, read


def _union(kinds: tuple[Any, ...]) -> tuple[Convert, Convert]:
    """Of dataclasses, told apart by name; or of one type and None."""
    others = [each for each in kinds if each is not type(None)]
    if len(others) == 1:
        to, back = _converters(others[0])
        return (
            lambda value: None if value is None else to(value),
            lambda found: None if found is None else back(found),
        )
    if len(others) != len(kinds) or not all(is_dataclass(each) for each in kinds):
        raise InvariantError(f"a union of {kinds} does not travel. Report it.")
    by_name = {each.__name__: _converters(each) for each in kinds}

    def write(value: Any) -> Any:
        name = type(value).__name__
        return {_IS: name, **by_name[name][0](value)}

    def read(found: Any) -> Any:
        if type(found) is not dict or found.get(_IS) not in by_name:
            raise ValueError(f"none of {', '.join(by_name)}")
        return by_name[found[_IS]][1](found)

    return write, read
