"""Which tables go where, so that captures have as many, and as much traffic. Pure: lists of tables in, lists out.

Tables are ids in ascending order. A capture gets and gives runs of neighbours, so far as the numbers allow.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from tidemill.model.schedule import CaptureId, TableId

Moves = dict[tuple[CaptureId, CaptureId], list[TableId]]  # by (from, to)

_UNEVEN = 0.25  # part of the mean by which a capture's traffic may exceed that of the quietest
_LITTLE_TRAFFIC = 1_000.0  # rows per second, below which nothing is moved for it


def spread(tables: Sequence[TableId], loads: Mapping[CaptureId, int]) -> dict[CaptureId, list[TableId]]:
    """Share ascending ``tables`` out among captures that have so many already: one run for each."""
    room = _room(len(tables) + sum(loads.values()), loads)
    shares: dict[CaptureId, list[TableId]] = {}
    at = 0
    for capture in sorted(loads):
        shares[capture] = list(tables[at : at + room[capture]])
        at += len(shares[capture])
    return shares


def _room(total: int, loads: Mapping[CaptureId, int]) -> dict[CaptureId, int]:
    """How many each is to get, where all together are to have ``total``: those that have the least, first."""
    left, room = total - sum(loads.values()), {}
    captures = sorted(loads, key=lambda c: (-loads[c], c))
    for index, capture in enumerate(captures):
        # What the ones before have too many of is not shared any more.
        others = captures[index:]
        share = ceil((left + sum(loads[c] for c in others)) / len(others)) if left else 0
        room[capture] = min(left, max(0, share - loads[capture]))
        left -= room[capture]
    return room


def even_out(by_capture: Mapping[CaptureId, Sequence[TableId]]) -> Moves:
    """The fewest moves after which no capture has more than its share, rounded up; none where that is so."""
    if not by_capture:
        return {}
    share = ceil(sum(map(len, by_capture.values())) / len(by_capture))
    surplus = {c: list(tables) for c, tables in by_capture.items() if len(tables) > share}
    loads = {c: len(tables) for c, tables in by_capture.items()}
    moves: Moves = {}
    for source in sorted(surplus, key=lambda c: (-loads[c], c)):
        tables = surplus[source]
        excess = len(tables) - share
        while excess > 0:
            target = min((c for c in by_capture if c != source), key=lambda c: (loads[c], c))
            count = min(excess, max(1, share - loads[target]))
            run = _run(tables, count, by_capture[target])
            taken = frozenset(run)
            tables = [table for table in tables if table not in taken]
            moves.setdefault((source, target), []).extend(run)
            loads[target] += count
            excess -= count
    return moves


def _run(tables: Sequence[TableId], count: int, near: Sequence[TableId]) -> list[TableId]:
    """So many from the end of ``tables`` that lies next to what the other one has."""
    if near and near[0] < tables[0]:
        return list(tables[:count])
    return list(tables[len(tables) - count :])


def calm(by_capture: Mapping[CaptureId, Sequence[TableId]], traffic: Mapping[TableId, float]) -> Moves:
    """One busy table from the busiest capture to the quietest, and a quiet one back, where that makes them more even;
    none where they are even enough. The number of tables stays as it is, so this undoes nothing of ``even_out``."""
    if len(by_capture) < 2 or not traffic:
        return {}
    rates = {c: sum(traffic.get(table, 0.0) for table in tables) for c, tables in by_capture.items()}
    busiest = max(rates, key=lambda c: (rates[c], c))
    quietest = min(rates, key=lambda c: (rates[c], c))
    gap = rates[busiest] - rates[quietest]
    if gap <= max(_LITTLE_TRAFFIC, _UNEVEN * sum(rates.values()) / len(rates)):
        return {}
    # Whatever moves makes the quiet one busier by as much: more than the gap would only turn them around.
    movable = [t for t in by_capture[busiest] if 0.0 < traffic.get(t, 0.0) < gap]
    if not movable:
        return {}
    table = min(movable, key=lambda t: (abs(traffic[t] - gap / 2), t))
    moves: Moves = {(busiest, quietest): [table]}
    if len(by_capture[quietest]) >= len(by_capture[busiest]):
        quiet = min(by_capture[quietest], key=lambda t: (traffic.get(t, 0.0), t), default=None)
        if quiet is not None:
            if traffic[table] - traffic.get(quiet, 0.0) <= 0.0:
                return {}
            moves[quietest, busiest] = [quiet]
    return moves
