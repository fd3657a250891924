"""Functions of vectors: their size, and how far two are from each other."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tidebox.sql.compute import convert
from tidebox.sql.compute.kinds import INT, REAL, TEXT, Compute, Computed, Kind, Type
from tidebox.sql.compute.registry import function, is_constant, strict
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call
from tidebox.sql.wire.errors import Errno, sql_error

Vector = tuple[float, ...]


def _vectors(arguments: list[Computed]) -> list[Compute]:
    return [_as_vector(argument) for argument in arguments]


def _as_vector(argument: Computed) -> Compute:
    compute, kind = argument.compute, argument.type
    if kind.kind is Kind.VECTOR:
        return compute

    def convert_row(row: Any) -> Vector | None:
        value = compute(row)
        return None if value is None else parse_vector(str(convert.shown(value, kind)))

    return convert_row


def parse_vector(text: str) -> Vector:
    """From ``[1, 2.5]``; 1105 if it is none."""
    body = text.strip()
    try:
        if not (body.startswith("[") and body.endswith("]")):
            raise ValueError(body)
        inside = body[1:-1].strip()
        parts = tuple(float(np.float32(part)) for part in inside.split(",")) if inside else ()
        if not all(map(math.isfinite, parts)):
            raise ValueError(body)
        return parts
    except ValueError as error:
        raise sql_error(Errno.UNKNOWN_ERROR, f"Invalid vector text: {text}") from error


@function("VEC_DIMS", least=1, most=1)
def _dims(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(INT, _vectors(arguments), len, is_constant(arguments))


@function("VEC_L2_NORM", least=1, most=1)
def _norm(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(REAL, _vectors(arguments), _length, is_constant(arguments))


@function("VEC_AS_TEXT", least=1, most=1)
def _as_text(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = Type(Kind.VECTOR)
    return strict(TEXT, _vectors(arguments), lambda value: convert.shown(value, kind), is_constant(arguments))


@function("VEC_FROM_TEXT", least=1, most=1)
def _from_text(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(Type(Kind.VECTOR), _vectors(arguments), lambda value: value, is_constant(arguments))


def _length(vector: Vector) -> float:
    return math.sqrt(sum(part * part for part in vector))


def _cosine(a: Vector, b: Vector) -> float | None:
    size = _length(a) * _length(b)
    return 1 - max(-1.0, min(1.0, _inner(a, b) / size)) if size else None


def _inner(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _distance(name: str, apply: Callable[[Vector, Vector], float | None]) -> None:
    def measure(a: Vector, b: Vector) -> float | None:
        if len(a) != len(b):
            raise sql_error(Errno.UNKNOWN_ERROR, f"vectors have different dimensions: {len(a)} and {len(b)}")
        return apply(a, b)

    @function(name, least=2, most=2)
    def _of_two(tree: Call, arguments: list[Computed], context: Context) -> Computed:
        return strict(REAL, _vectors(arguments), measure, is_constant(arguments))


_distance("VEC_L2_DISTANCE", lambda a, b: math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))))
_distance("VEC_L1_DISTANCE", lambda a, b: sum(abs(x - y) for x, y in zip(a, b, strict=True)))
_distance("VEC_NEGATIVE_INNER_PRODUCT", lambda a, b: -_inner(a, b))
_distance("VEC_COSINE_DISTANCE", _cosine)
