"""Which changes stand in each other's way: those that share a value of any unique key, directly or through others.

    (item, key number) pairs ──► components: items that must stay together, or in order

Items are entries of a net effect (transaction-atomicity=none) or transactions (table).
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tidemill.columnar.assembler import Array
from tidemill.columnar.jit import kernel
from tidemill.sinks.mysql.keycodes import NO_KEY

Ints = npt.NDArray[np.int64]


def components(items: int, sharing: Iterable[tuple[Ints, Ints]], links: Iterable[tuple[Ints, Ints]] = ()) -> Ints:
    """The component of each of ``items``, named by its smallest item.

    ``sharing`` has, for each unique index, items and the numbers of the keys they touch; ``links`` are pairs of
    items that belong together anyhow.
    """
    parent = np.arange(items, dtype=np.int64)
    for a, b in links:
        _unite_pairs(parent, a, b)
    for item, key in sharing:
        has_key = key != NO_KEY
        item, key = item[has_key], key[has_key]
        order = np.argsort(key, kind="stable")
        _unite_runs(parent, item[order], key[order])
    _flatten(parent)
    return parent


def warm_up() -> None:
    """Have the loops compiled, which on a new machine takes seconds."""
    some = np.array([0, 0], dtype=np.int64)
    components(1, [(some, some)], [(some, some)])


@kernel
def _root(parent: Array, item: int) -> int:
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item


@kernel
def _unite(parent: Array, a: int, b: int) -> None:
    a, b = _root(parent, a), _root(parent, b)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


@kernel
def _unite_pairs(parent: Array, a: Array, b: Array) -> None:
    for i in range(len(a)):
        _unite(parent, a[i], b[i])


@kernel
def _unite_runs(parent: Array, item: Array, key: Array) -> None:
    """Neighbours with the same key; ``key`` is sorted."""
    for i in range(1, len(key)):
        if key[i] == key[i - 1]:
            _unite(parent, item[i - 1], item[i])


@kernel
def _flatten(parent: Array) -> None:
    for item in range(len(parent)):
        parent[item] = parent[parent[item]]  # a parent is smaller, so it is a root already
