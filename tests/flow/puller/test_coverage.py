"""Who follows which keys of a span, while regions split and merge faster than anybody hears of it."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.upstream.world import PEERS, World, key
from tidemill.flow.puller.coverage import Coverage
from tidemill.flow.puller.rangelock import Stale, Wait
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.upstream.feed.registration import Registration
from tidemill.upstream.topology import Region

WHOLE = Span(key(5), key(35))


def region(id, start, end, version):
    return Region(id, Span(key(start), key(end)), version, 1, PEERS, PEERS[0])


def coverage(*regions):
    whole = Coverage(1, WHOLE, Ts(100))
    return whole, [whole.claim(r) for r in regions]


def test_a_region_is_followed_as_far_as_it_lies_in_the_span():
    whole, (left, right) = coverage(region(1, 0, 20, 1), region(2, 20, 40, 1))
    assert (left.part, right.part) == (Span(key(5), key(20)), Span(key(20), key(35)))
    assert left.checkpoint_ts == right.checkpoint_ts == 100
    assert whole.claim(region(3, 40, 50, 1)) == Stale(())  # none of our keys
    assert whole.holder(key(7)) is left
    assert whole.holder(key(20)) is right
    assert whole.holder(key(2)) is None


def test_a_merged_region_starts_at_the_lower_of_what_its_parts_had_reached():
    whole, (left, right) = coverage(region(1, 0, 20, 4), region(2, 20, 40, 4))
    whole.frontier.advance(left.part, Ts(170))
    whole.frontier.advance(right.part, Ts(160))
    merged = region(2, 0, 40, 6)
    assert whole.release(left) == []
    assert whole.claim(merged) == Wait()  # the right half has not got its error yet
    assert whole.release(right) == [WHOLE]
    registration = whole.claim(merged)
    assert (registration.part, registration.checkpoint_ts) == (WHOLE, 160)
    assert whole.frontier.resolved_ts == 160


def test_children_start_where_their_parent_was():
    whole, (parent,) = coverage(region(1, 0, 40, 1))
    whole.frontier.advance(parent.part, Ts(150))
    assert whole.claim(region(2, 0, 20, 2)) == Wait()
    assert whole.release(parent) == [Span(key(5), key(20))]
    left, right = whole.claim(region(2, 0, 20, 2)), whole.claim(region(1, 20, 40, 2))
    assert left.checkpoint_ts == right.checkpoint_ts == 150


def test_an_old_picture_of_two_neighbours_does_not_take_keys_from_the_merged_region():
    whole, (_merged,) = coverage(region(2, 0, 30, 6))
    assert whole.claim(region(1, 0, 20, 4)) == Stale(())
    assert whole.claim(region(2, 20, 40, 4)) == Stale((Span(key(30), key(35)),))


class Upstream:
    """The other side: registrations that a store has accepted, and errors that are under way."""

    def __init__(self):
        self.world = World()
        self.accepted = []
        self.errors = []

    def register(self, registration):
        now = next((r for r in self.world.regions if r.id == registration.region.id), None)
        is_current = now is not None and now.version == registration.region.version
        (self.accepted if is_current else self.errors).append(registration)

    def change(self, act):
        act(self.world)
        current = {(r.id, r.version) for r in self.world.regions}
        gone = [r for r in self.accepted if (r.region.id, r.region.version) not in current]
        self.accepted = [r for r in self.accepted if r not in gone]
        self.errors += gone


class Follower:
    """What the puller does, step by step, with a model beside it that knows every key."""

    def __init__(self):
        self.upstream = Upstream()
        self.coverage = Coverage(1, WHOLE, Ts(100))
        self.pending = [WHOLE]  # being looked up
        self.reached = dict.fromkeys(range(5, 35), 100)
        self.frontier = 100

    def look_up(self, at, moment):
        """Find one pending range in a picture of any age."""
        part = self.pending.pop(at % len(self.pending))
        for found in [r for r in moment if r.span.overlaps(part)]:
            match self.coverage.claim(found):
                case Registration() as registration:
                    keys = [n for n in self.reached if key(n) in registration.part]
                    assert registration.checkpoint_ts == min(self.reached[n] for n in keys)
                    self.upstream.register(registration)
                case Stale(rest):
                    self.pending += rest

    def hear_error(self, at):
        lost = self.upstream.errors.pop(at % len(self.upstream.errors))
        self.pending += [lost.part, *self.coverage.release(lost)]

    def hear_resolved(self, at, ts):
        registration = self.upstream.accepted[at % len(self.upstream.accepted)]
        self.coverage.frontier.advance(registration.part, Ts(ts))
        for n in self.reached:
            if key(n) in registration.part:
                self.reached[n] = max(self.reached[n], ts)

    def check(self):
        held = sorted(r.part for r in self.coverage.registrations)
        assert all(one.end <= other.start for one, other in pairwise(held))
        assert list(WHOLE.minus([*held, *self.pending, *self.coverage.blocked])) == []
        assert self.coverage.frontier.resolved_ts == min(self.reached.values()) >= self.frontier
        self.frontier = self.coverage.frontier.resolved_ts


steps = st.one_of(
    st.tuples(st.just("split"), st.integers(1, 40)),
    st.tuples(st.just("merge left"), st.integers(0, 40)),
    st.tuples(st.just("merge right"), st.integers(0, 40)),
    st.tuples(st.just("look up"), st.integers(0, 10**6)),
    st.tuples(st.just("error"), st.integers(0, 100)),
    st.tuples(st.just("resolved"), st.integers(0, 10**4)),
)


@settings(max_examples=examples(300))
@given(st.lists(steps, max_size=120))
def test_splits_and_merges_leave_no_hole_and_no_overlap_and_never_move_the_frontier_back(steps):
    one = Follower()
    for what, n in steps:
        match what:
            case "split":
                one.upstream.change(lambda world, n=n: world.split(n))
            case "merge left" | "merge right":
                into_left = what == "merge left"
                one.upstream.change(lambda world, n=n, into_left=into_left: world.merge(n, into_left=into_left))
            case "look up" if one.pending:
                moments = one.upstream.world.moments
                one.look_up(n, moments[n // 7 % len(moments)])
            case "error" if one.upstream.errors:
                one.hear_error(n)
            case "resolved" if one.upstream.accepted:
                one.hear_resolved(n, 100 + n // 10)
        one.check()
    settle(one)


def settle(one):
    """Left alone, with PD up to date, every region of today comes to be followed."""
    for _ in range(10_000):
        if one.upstream.errors:
            one.hear_error(0)
        elif one.pending:
            one.look_up(0, one.upstream.world.regions)
        else:
            break
        one.check()
    today = [r for r in one.upstream.world.regions if r.span.overlaps(WHOLE)]
    followed = sorted(one.upstream.accepted, key=lambda r: r.part)
    assert [(r.region.id, r.region.version) for r in followed] == [(r.id, r.version) for r in today]
    assert one.coverage.blocked == ()
