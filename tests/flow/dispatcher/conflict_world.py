"""A table with three unique keys whose values change places, as changes in commit order; and who applies them."""

import random
from dataclasses import dataclass, field

import numpy as np

from tidemill.flow.dispatcher.conflicts import NO_KEY, Hashes

Row = tuple[int, int, int]  # a value of each unique key; the first is the row key
Change = tuple[int, Row | None, Row | None]  # ts, old, new


def changes(rng: random.Random, transactions: int, rows: int = 6) -> tuple[list[Change], dict[int, Row]]:
    """Keys of rows never change; other values are swapped, freed and taken. And what is there in the end. Each
    transaction has its deletes first, as updates of a key are split."""
    there: dict[int, Row] = {}
    found: list[Change] = []
    for number in range(transactions):
        ts, before = 10 * (number + 1), dict(there)
        for _ in range(rng.randint(1, 3)):
            one, other = rng.randrange(rows), rng.randrange(rows)
            match rng.randrange(4):
                case 0 if one in there:
                    del there[one]
                case 1 if one in there and other in there and one != other:
                    a, b = there[one], there[other]
                    there[one], there[other] = (one, b[1], a[2]), (other, a[1], b[2])
                case 2 if one in there and other in there and one != other:
                    a, b = there[one], there[other]
                    there[one], there[other] = (one, a[1], b[2]), (other, b[1], a[2])
                case _ if one not in there:
                    free = [set(range(rows)) - {row[at] for row in there.values()} for at in (1, 2)]
                    there[one] = one, rng.choice(sorted(free[0])), rng.choice(sorted(free[1]))
        touched = sorted(key for key in before.keys() | there.keys() if before.get(key) != there.get(key))
        found += [(ts, before[key], None) for key in touched if key in before]
        found += [(ts, None, there[key]) for key in touched if key in there]
    return found, there


def hashed(some: list[Change]) -> Hashes:
    """As ``key_hashes`` does: new and old of each key."""
    found = np.full((len(some), 6), NO_KEY, np.uint64)
    for row, (_, old, new) in enumerate(some):
        for side, image in enumerate((new, old)):
            for key, value in enumerate(image or ()):
                found[row, 2 * key + side] = 1 + key * 1000 + value
    return found


@dataclass
class Downstream:
    """A table with three unique keys, written as REPLACE and DELETE by row key."""

    rows: dict[int, Row] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        _, old, new = change
        if new is None:
            assert old is not None
            self.rows.pop(old[0], None)
            return
        in_the_way = [key for key, row in self.rows.items() if any(a == b for a, b in zip(row, new, strict=True))]
        for key in in_the_way:
            del self.rows[key]
        self.rows[new[0]] = new
