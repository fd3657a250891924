"""frontier.growth: how much dearer a region's report becomes when a span has 100,000 regions in place of 1,000.

Every region reports a newer resolved-ts in each round, in an order drawn by lot, and the frontier is asked for after
each report: the dearest way there is, since the puller asks once a message. The floor is how a bare heap of as many
entries grows, from which the lowest is taken and put back higher: logarithmic by construction, and slowed down by the
same caches. The ratio is the floor's growth by ours, so 1 and above is logarithmic or better.

    frontier.update.<regions>   µs of processor time a report
    frontier.growth             the last of them by the first
"""

import random
import time
from heapq import heapreplace
from itertools import pairwise
from typing import Any

from tidemill.flow.puller.frontier import Frontier
from tidemill.model.span import Span
from tidemill.model.ts import Ts

Result = dict[str, Any]
Reports = list[tuple[int, Ts]]  # the place of a region, and what it has reached

SIZES = (1_000, 10_000, 100_000)
_ROUNDS = 7
_REPORTS = 100_000  # a round has at least so many, or its time could not be told from noise


def bench_frontier(sizes: tuple[int, ...] = SIZES, reports: int = _REPORTS) -> list[Result]:
    costs = [measure(regions, reports) for regions in sizes]
    results = [
        _result(f"frontier.update.{regions}", ours, "µs", floor)
        for regions, (ours, floor) in zip(sizes, costs, strict=True)
    ]
    (first, first_floor), (last, last_floor) = costs[0], costs[-1]
    return [*results, _result("frontier.growth", last / first, "times", last_floor / first_floor)]


def measure(regions: int, at_least: int) -> tuple[float, float]:
    """µs of processor time a report: of the frontier, and of a bare heap. Each the best of some rounds."""
    keys = [b"t%08d" % number for number in range(regions + 1)]
    spans = [Span(start, end) for start, end in pairwise(keys)]
    frontier = Frontier(Span(keys[0], keys[-1]), Ts(0))
    for span in spans:
        frontier.advance(span, Ts(1))
    heap = [(1, number) for number in range(regions)]
    chance = random.Random(regions)
    ours, floor = [], []
    for number in range(_ROUNDS):
        reports = _reports(regions, number, at_least, chance)
        ours.append(_seconds_of_frontier(frontier, spans, reports) / len(reports) * 1e6)
        floor.append(_seconds_of_heap(heap, reports) / len(reports) * 1e6)
    return min(ours), min(floor)


def _reports(regions: int, number: int, at_least: int, chance: random.Random) -> Reports:
    """Round ``number``: of each region as often as of any other, each time with a higher ts."""
    reports: Reports = []
    while len(reports) < at_least:
        base = (number * (at_least + regions) + len(reports) + 1) * 1000
        places = list(range(regions))
        chance.shuffle(places)
        reports += [(place, Ts(base + chance.randrange(1000))) for place in places]
    return reports


def _seconds_of_frontier(frontier: Frontier, spans: list[Span], reports: Reports) -> float:
    began = time.process_time()
    for place, ts in reports:
        frontier.advance(spans[place], ts)
        _ = frontier.resolved_ts
    return time.process_time() - began


def _seconds_of_heap(heap: list[tuple[int, int]], reports: Reports) -> float:
    began = time.process_time()
    for place, ts in reports:
        heapreplace(heap, (ts, place))
    return time.process_time() - began


def _result(name: str, value: float, unit: str, floor: float) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": floor / value}
