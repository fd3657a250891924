"""Which keys of a TiKV are wanted that is used without SQL.

Keys are the user's own everywhere here: without the prefix of a keyspace, so none lies outside of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tidemill.errors import UsageError
from tidemill.model.ts import Ts, compose, physical_ms

DEFAULT_KEYSPACE = "DEFAULT"
DEFAULT_SAFE_INTERVAL_SECONDS = 3.0  # as TiKV-CDC's resolved-ts-safe-interval
DEFAULT_SPAN_COUNT = 2
MOST_SPANS = 64

Bounds = tuple[bytes, bytes]  # from the first, which belongs to it, to below the second; empty: to the very last


class KeyApi(StrEnum):
    """How the keys are written."""

    raw = "raw"  # RawKV: without transactions, of API V2
    txn = "txn"  # by transactions, without SQL


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """What of the ranges is wanted. ``prefixes``: any of them; none: all keys. Patterns are regular expressions of RE2,
    found anywhere, each byte a character; that of values is for puts alone, so deletes always pass it."""

    prefixes: tuple[bytes, ...] = ()
    key_pattern: str = ""
    value_pattern: str = ""

    def __bool__(self) -> bool:
        return bool(self.prefixes or self.key_pattern or self.value_pattern)

    @property
    def name(self) -> str:
        parts = [f"prefix {prefix.hex()}" for prefix in self.prefixes]
        parts += [f"key {self.key_pattern!r}"] if self.key_pattern else []
        parts += [f"value {self.value_pattern!r}"] if self.value_pattern else []
        return "; ".join(parts)


ALL_KEYS = KeyFilter()


@dataclass(frozen=True, slots=True)
class KeyRange:
    """``[start, end)`` of one keyspace, and ``more`` of it; an empty ``end`` is the keyspace's own."""

    start: bytes = b""
    end: bytes = b""
    keyspace: str = ""  # by its name; empty: the default one
    safe_interval_seconds: float = DEFAULT_SAFE_INTERVAL_SECONDS
    more: tuple[Bounds, ...] = ()
    span_count: int = DEFAULT_SPAN_COUNT  # into how many parts they are cut, where there are as many regions
    filter: KeyFilter = ALL_KEYS
    api: KeyApi = KeyApi.raw

    def __post_init__(self) -> None:
        for start, end in self.ranges:
            if end and start >= end:
                trouble = "is empty" if start == end else "is inverted"
                raise UsageError(
                    f"the range from --start-key {start.hex()} to --end-key {end.hex()} (in hex) {trouble}: the "
                    "start belongs to it and the end does not, so the start has to be the lower one. Leave both out "
                    "for the whole keyspace."
                )
        for (start, end), (later, behind) in pairwise(self.ranges):
            if not end or later < end:
                raise UsageError(
                    f"the ranges {shown(start, end)} and {shown(later, behind)} (in hex) overlap: their keys would be "
                    "captured twice. Give ranges that do not."
                )

    @property
    def ranges(self) -> Sequence[Bounds]:
        """In the order of their keys."""
        return sorted([(self.start, self.end), *self.more])

    def before(self, now_ts: Ts) -> Ts:
        """Where to begin for every write from ``now_ts`` on. Stores stamp those of RawKV by clocks that may be behind
        PD's."""
        if self.api is KeyApi.txn:
            return now_ts
        return compose(max(0, physical_ms(now_ts) - round(self.safe_interval_seconds * 1000)))

    @property
    def name(self) -> str:
        """For the changefeed's state: two of one name capture the same."""
        prefix = "" if self.api is KeyApi.raw else f"{self.api}:"
        chosen = f" ({self.filter.name})" if self.filter else ""
        return f"{prefix}{self.keyspace or DEFAULT_KEYSPACE}{''.join(shown(*each) for each in self.ranges)}{chosen}"


def shown(start: bytes, end: bytes) -> str:
    return f"[{start.hex()},{end.hex()})"


def split(ranges: Sequence[Bounds], borders: Sequence[bytes], count: int) -> list[Bounds]:
    """The ranges in about ``count`` parts that together are exactly the ranges. Each ends at a border of regions, or
    where its range does, and all have nearly as many regions. A range is never joined with another, so there are at
    least as many parts as ranges, and no more than regions."""
    regions = [cut(start, end, borders) for start, end in ranges]
    shares = _shares([len(each) for each in regions], count)
    return [part for each, share in zip(regions, shares, strict=True) for part in _joined(each, share)]


def overlap(one: KeyRange, other: KeyRange) -> Bounds | None:
    """The first keys that both name, filters apart."""
    for start, end in one.ranges:
        for low, high in other.ranges:
            common = max(start, low), min(end, high) if end and high else end or high
            if not common[1] or common[0] < common[1]:
                return common
    return None


def cut(start: bytes, end: bytes, borders: Sequence[bytes]) -> list[Bounds]:
    """``[start, end)`` in parts that end at those of the ``borders`` that lie inside; an empty end is the very last."""
    inside = sorted({border for border in borders if border > start and (not end or border < end)})
    return list(pairwise([start, *inside, end]))


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """How many parts each gets: one, then one more for whoever has the largest parts."""
    shares = [1] * len(sizes)
    for _ in range(count - len(sizes)):
        most = max(range(len(sizes)), key=lambda each: sizes[each] / shares[each])
        if sizes[most] == shares[most]:
            break
        shares[most] += 1
    return shares


def _joined(regions: Sequence[Bounds], count: int) -> list[Bounds]:
    ends = [len(regions) * number // count for number in range(count + 1)]
    return [(regions[first][0], regions[behind - 1][1]) for first, behind in pairwise(ends)]
