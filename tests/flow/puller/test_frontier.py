from hypothesis import given
from hypothesis import strategies as st

from tidemill.flow.puller.frontier import Frontier
from tidemill.model.span import KEY_END, WHOLE, Span
from tidemill.model.ts import Ts


def key(n):
    return b"%04x" % n


def span(start, end):
    return Span(key(start), key(end))


def parts(limit=16):
    cuts = st.integers(-2, limit + 2)
    return st.tuples(cuts, cuts).filter(lambda p: p[0] < p[1]).map(lambda p: (max(p[0], 0), max(p[1], 1)))


@given(st.lists(st.tuples(parts().filter(lambda p: p[0] < p[1]), st.integers(1, 100)), max_size=60), parts())
def test_resolved_ts_is_that_of_the_slowest_key(reports, asked):
    frontier = Frontier(span(0, 16), Ts(5))
    slowest = dict.fromkeys(range(16), 5)  # one entry per key: plainly right, too slow to ship
    for (start, end), ts in reports:
        frontier.advance(span(start, end), Ts(ts))
        for k in slowest:
            if start <= k < end:
                slowest[k] = max(slowest[k], ts)
        assert frontier.resolved_ts == min(slowest.values())
        held = {k for k in slowest if key(k) in frontier.slowest}
        assert {slowest[k] for k in held} == {min(slowest.values())}
        touched = [ts for k, ts in slowest.items() if asked[0] <= k < asked[1]]
        if touched:
            assert frontier.lowest(span(*asked)) == min(touched)


def test_after_a_split_the_frontier_waits_for_both_halves():
    frontier = Frontier(span(0, 10), Ts(1))
    frontier.advance(span(0, 10), Ts(20))
    frontier.advance(span(0, 5), Ts(30))
    assert frontier.resolved_ts == 20
    frontier.advance(span(5, 10), Ts(25))
    assert frontier.resolved_ts == 25
    assert frontier.slowest == span(5, 10)


def test_a_merged_region_starts_where_the_slower_half_was():
    frontier = Frontier(span(0, 10), Ts(1))
    frontier.advance(span(0, 5), Ts(30))
    frontier.advance(span(5, 10), Ts(20))
    assert frontier.lowest(span(0, 10)) == 20
    frontier.advance(span(0, 10), Ts(25))
    assert (frontier.resolved_ts, frontier.lowest(span(0, 5))) == (25, 30)
    frontier.advance(span(0, 10), Ts(40))
    assert (frontier.resolved_ts, len(frontier)) == (40, 1)


def test_the_whole_key_space_has_an_end_like_any_span():
    frontier = Frontier(WHOLE, Ts(1))
    frontier.advance(Span(b"", b"m"), Ts(5))
    frontier.advance(Span(b"m", KEY_END), Ts(4))
    assert frontier.resolved_ts == 4


def test_what_reports_cost_does_not_grow_with_the_number_of_regions():
    def turns_per_report(regions):
        frontier = Frontier(span(0, regions), Ts(0))
        ranges = [span(i, i + 1) for i in range(regions)]
        for ts in range(1, 6):
            for part in ranges:
                frontier.advance(part, Ts(ts))
                assert frontier.resolved_ts >= ts - 1
        assert frontier.resolved_ts == 5
        return frontier.turns / (5 * regions)

    assert turns_per_report(4000) <= turns_per_report(40) + 1 <= 3


def test_regions_that_come_and_go_leave_nothing_behind():
    frontier = Frontier(span(0, 64), Ts(0))
    for ts in range(1, 200):
        for i in range(0, 64, 2):
            frontier.advance(span(i, i + 2), Ts(2 * ts))
            frontier.advance(span(i, i + 1), Ts(2 * ts + 1))
        frontier.advance(span(0, 64), Ts(2 * ts + 1))
        assert frontier.resolved_ts == 2 * ts + 1
    assert len(frontier) == 1
    assert len(frontier._heap) < 200
