"""frontier.growth: what is reported of it, and that what it measures is the frontier at work."""

import random

from bench.frontier import _reports, bench_frontier


def test_growth_is_the_cost_with_most_regions_by_that_with_fewest():
    results = {result["name"]: result for result in bench_frontier((10, 100), reports=1000)}
    assert list(results) == ["frontier.update.10", "frontier.update.100", "frontier.growth"]
    growth = results["frontier.update.100"]["value"] / results["frontier.update.10"]["value"]
    assert results["frontier.growth"]["value"] == growth
    assert all(result["ratio"] == result["floor"] / result["value"] for result in results.values())


def test_every_region_reports_equally_often_and_always_more_than_before():
    reports = [report for number in range(2) for report in _reports(7, number, 20, random.Random(1))]
    last = dict.fromkeys(range(7), 0)
    for place, ts in reports:
        assert ts > last[place]
        last[place] = ts
    assert {[place for place, _ in reports].count(place) for place in range(7)} == {6}
