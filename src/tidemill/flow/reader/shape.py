"""What documents of one kind have in common: the bytes between their values.

    {"u":{"id":{"t":8,"f":11,"v":7},"qty":{"t":3,"f":193,"v":null}}}
    ╰──────── literal ───────╯ ╰───────── literal ────────╯    ╰─ literal
                              hole                        hole

Almost all rows of a table are written with the same members in the same order. So a shape is learnt from the first
of them, and the others are compared with it in one compiled loop (``matching``), which needs no parser: a document
whose bytes between the holes are those of the shape has the same members. Names and types of columns are between the
holes, so what they mean is worked out once, for the shape.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

import numpy as np
import orjson

from tidemill.columnar.jit import Bytes, Longs

Path = tuple[str | int, ...]  # member names and array places, from the outermost value on
M = TypeVar("M")
SLACK = 8  # bytes behind the literals, which are compared eight at a time

_TOKEN = re.compile(rb'[ \t\r\n]*([{}\[\],:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^ \t\r\n{}\[\],:"]+)', re.DOTALL)


class Hole(IntEnum):
    """What may stand in a hole."""

    SCALAR = 0  # a string, a number, true, false or null
    ANY = 1  # any value: objects and arrays are skipped as a whole


Wanted = Callable[[Path], Hole | None]
"""Which values are holes. None: the value, or what is in it, belongs to the literals."""


class UnclearError(ValueError):
    """A document that is JSON and does not say what its protocol demands. Its text names no value of a row."""


@dataclass(frozen=True, slots=True)
class Shape(Generic[M]):
    literals: Bytes  # one after the other, with SLACK behind them
    ends: Longs  # of the literals; the last one stands behind the last hole
    kinds: Longs  # Hole, one less than there are literals
    meaning: M


def parse(document: bytes) -> Any:
    """The document, whatever its spelling. Raises ValueError if it is no JSON."""
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError:
        pass
    try:  # which knows halves of surrogate pairs too
        return json.loads(document, parse_constant=_refuse)
    except RecursionError as deep:
        raise ValueError("it is nested too deeply") from deep


def canonical(document: bytes) -> bytes:
    """The same in one spelling: no spaces, members by name. Raises ValueError if it is no JSON."""
    tree = parse(document)
    try:
        return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # halves of surrogate pairs, numbers beyond 64 bits
        return json.dumps(tree, separators=(",", ":"), sort_keys=True).encode()


def learn(document: bytes, wanted: Wanted) -> tuple[Bytes, Longs, Longs, list[Path]] | None:
    """Literals, their ends and holes of a document that is JSON. None if a member is there twice: which of them
    counts is the parser's to say."""
    scanner = _Scanner(document, wanted)
    if not scanner.scan():
        return None
    pieces = [*scanner.literals, document[scanner.copied :]]
    literals = np.frombuffer(b"".join(pieces) + bytes(SLACK), np.uint8)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return literals, ends, np.array(scanner.kinds, np.int64), scanner.paths


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


class _Scanner:
    """Walks over a document that is known to be JSON. Depth is kept in a list: documents come from outside."""

    def __init__(self, document: bytes, wanted: Wanted) -> None:
        self.literals: list[bytes] = []
        self.kinds: list[int] = []
        self.paths: list[Path] = []
        self.copied = 0  # of the document, into literals and holes
        self._document = document
        self._wanted = wanted
        self._path: list[str | int] = []
        self._names: list[set[str]] = []  # of each open object; an array has an empty set

    def scan(self) -> bool:
        skipped, name = 0, None
        hole_at, expects_name = 0, False
        for found in _TOKEN.finditer(self._document):
            token = found.group(1)
            if skipped:  # within a hole
                skipped += (token in b"{[") - (token in b"}]")
                if not skipped:
                    self._end_hole(hole_at, found.end(1))
                continue
            if token in (b"}", b"]"):
                self._path.pop()
                self._names.pop()
                expects_name = False
            elif token == b",":
                self._next()
                expects_name = isinstance(self._path[-1], str)
            elif token == b":":
                continue
            elif expects_name:
                name = parse(token)
                if name in self._names[-1]:
                    return False
                self._names[-1].add(name)
                self._path[-1] = name
                expects_name = False
            else:
                kind = self._wanted(tuple(self._path))
                if kind is not None and (kind is Hole.ANY or token not in (b"{", b"[")):
                    self.kinds.append(kind)
                    self.paths.append(tuple(self._path))
                    hole_at = found.start(1)
                    if token in (b"{", b"["):
                        skipped = 1
                    else:
                        self._end_hole(hole_at, found.end(1))
                elif token in (b"{", b"["):
                    self._path.append("" if token == b"{" else 0)
                    self._names.append(set())
                    expects_name = token == b"{"
        return True

    def _next(self) -> None:
        place = self._path[-1]
        if isinstance(place, int):
            self._path[-1] = place + 1

    def _end_hole(self, start: int, end: int) -> None:
        self.literals.append(self._document[self.copied : start])
        self.copied = end
