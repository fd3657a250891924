"""Span: a half-open range of keys ``[start, end)``.

Keys here are *physical*: as PD and the regions see them, that is memcomparable-encoded for
transactional data. On the wire an empty end key means "to the very end"; whoever reads the
wire writes ``KEY_END`` instead, so here ``start < end`` always holds by plain byte order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

KEY_START = b""
KEY_END = b"\xff" * 32  # above every key that the encodings in use can produce


@dataclass(frozen=True, slots=True, order=True)
class Span:
    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        if not self.start < self.end:
            raise ValueError(f"span [{self.start.hex()}, {self.end.hex()}) is empty or turned around")

    def __contains__(self, key: bytes) -> bool:
        return self.start <= key < self.end

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.end and other.start < self.end

    def covers(self, other: "Span") -> bool:
        return self.start <= other.start and other.end <= self.end

    def intersect(self, other: "Span") -> "Span | None":
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Span(start, end) if start < end else None

    def minus(self, others: Iterable["Span"]) -> Iterator["Span"]:
        """What is left of this span once every one of ``others`` is taken away, in key order."""
        at = self.start
        for other in sorted(others):
            if other.end <= at or other.start >= self.end:
                continue
            if at < other.start:
                yield Span(at, other.start)
            at = max(at, other.end)
        if at < self.end:
            yield Span(at, self.end)

    def __str__(self) -> str:
        end = "∞" if self.end == KEY_END else self.end.hex()
        return f"[{self.start.hex()}, {end})"


WHOLE = Span(KEY_START, KEY_END)


def from_wire(start: bytes, end: bytes) -> Span:
    """A range as protocols write it, where an empty end key means infinity."""
    return Span(start, end or KEY_END)


def end_to_wire(end: bytes) -> bytes:
    return b"" if end == KEY_END else end
