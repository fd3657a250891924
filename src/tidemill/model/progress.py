"""How far the tables of a changefeed are, and what lies between two such moments.

Most physical tables move together. Some do not: a DDL of theirs has still to run, or has just run, or they came from
another processor that was further. Only those are named, so a changefeed of a hundred thousand tables has a short
description all the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemill.errors import InvariantError
from tidemill.model.ts import Ts

Window = tuple[Ts, Ts]  # (from_ts, to_ts]: the lower end is not included


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Up to where each physical table is durable: ``base_ts``, but for those with a ts of their ``own``, most of which
    are behind."""

    base_ts: Ts
    own: Mapping[int, Ts] = field(default_factory=dict)

    def of(self, physical_id: int) -> Ts:
        return self.own.get(physical_id, self.base_ts)

    @property
    def lowest_ts(self) -> Ts:
        return min(self.base_ts, *self.own.values()) if self.own else self.base_ts

    @property
    def highest_ts(self) -> Ts:
        return max(self.base_ts, *self.own.values()) if self.own else self.base_ts

    def having(self, own: Mapping[int, Ts]) -> "Checkpoints":
        """With these tables where they are."""
        return Checkpoints(self.base_ts, {i: ts for i, ts in {**self.own, **own}.items() if ts != self.base_ts})

    def without(self, physical_ids: Iterable[int]) -> "Checkpoints":
        """Of all tables but these, which somebody else has."""
        gone = frozenset(physical_ids)
        return Checkpoints(self.base_ts, {i: ts for i, ts in self.own.items() if i not in gone})

    def moved(self, extent: "Extent") -> "Checkpoints":
        """When what lies in ``extent``, which begins here, is durable. Raises where one of them would move back."""
        own = {i: to_ts for i, (_, to_ts) in extent.own.items() if to_ts != extent.to_ts}
        for physical_id in self.own.keys() | own.keys():
            if own.get(physical_id, extent.to_ts) < self.of(physical_id):
                raise InvariantError(f"the checkpoint of table {physical_id} would move back from {self}. Report it.")
        if extent.from_ts != self.base_ts or extent.to_ts < self.base_ts:
            raise InvariantError(f"the checkpoint would move from {extent.from_ts} to {extent.to_ts} at {self}")
        return Checkpoints(extent.to_ts, own)


@dataclass(frozen=True, slots=True)
class Extent:
    """Changes with ``from_ts < commit_ts ≤ to_ts``; of some physical tables, or spans, those in windows of their
    ``own``."""

    from_ts: Ts
    to_ts: Ts
    own: Mapping[int, Window] = field(default_factory=dict)

    def of(self, number: int) -> Window:
        return self.own.get(number, (self.from_ts, self.to_ts))

    @property
    def lowest_ts(self) -> Ts:
        return min((self.from_ts, *(low for low, high in self.own.values() if low < high)))

    @property
    def highest_ts(self) -> Ts:
        return max((self.to_ts, *(high for low, high in self.own.values() if low < high)))

    @property
    def is_empty(self) -> bool:
        return self.from_ts >= self.to_ts and all(low >= high for low, high in self.own.values())

    def up_to(self, ts: Ts) -> "Extent":
        """Nothing of it above ``ts``."""
        own = {number: (low, max(low, min(high, ts))) for number, (low, high) in self.own.items()}
        return Extent(self.from_ts, max(self.from_ts, min(self.to_ts, ts)), own)

    def above(self, at: Checkpoints) -> "Extent":
        """Nothing of it that is durable already."""
        own = {number: (max(low, at.of(number)), high) for number, (low, high) in self.own.items()}
        own |= {number: (max(self.from_ts, ts), self.to_ts) for number, ts in at.own.items() if number not in own}
        return Extent(max(self.from_ts, at.base_ts), self.to_ts, own)

    def named(self, names: Mapping[int, Iterable[int]]) -> "Extent":
        """The same, where ``names`` says which spans, say, stand for each table. Others have none."""
        if not self.own:
            return self
        return Extent(self.from_ts, self.to_ts, {n: w for i, w in self.own.items() for n in names.get(i, ())})
