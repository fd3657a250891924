"""Bytes that are almost right: cut off, with bits turned, pieces doubled, moved or taken from others."""

import os
from collections.abc import Iterator, Sequence
from random import Random

ROUNDS, SEED = "FUZZ_ROUNDS", "FUZZ_SEED"  # how often, and from where; set by test_checked.py
_EDGES = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\x01", b"\xff" * 10, b"\x7f\xff\xff\xff", b"\x80", b"\0")


last_seed: list[int] = []  # of the case at hand; told if it fails


def seeded(usual: int) -> Iterator[Random]:
    """So many random sources, or as many times that as was asked for."""
    first = int(os.environ.get(SEED, "1"))
    for seed in range(first, first + usual * int(os.environ.get(ROUNDS, "1"))):
        last_seed[:] = [seed]
        yield Random(seed)


def mutated(chance: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """``data`` after some changes, one as a rule."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        data = _change(chance, data, others)
    return data


def _change(chance: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    to = min(len(data), at + chance.choice((1, 2, 4, 8, 64)))
    match chance.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[at:]
        case 2:
            return data[:at] + data[to:]
        case 3:
            return data[:at] + data[at:to] + data[at:]
        case 4:
            edge = chance.choice(_EDGES)
            return data[:at] + edge + data[at + len(edge) :]
        case 5:
            return data[:at] + chance.randbytes(chance.randrange(12)) + data[at:]
        case 6 if others:
            other = chance.choice(others)
            return data[:at] + other[chance.randrange(len(other) + 1) :]
        case _:
            return data[:at] + bytes(byte ^ 1 << chance.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]
