"""Random writes of every kind while regions and stores change: what arrives equals what was written."""

import pytest

from tests.rounds import seeds
from tests.tidebox.follower import Follower
from tests.tidebox.stub import client_of
from tests.tidebox.world import World
from tidebox.upstream import EmbeddedUpstream

STEPS = 60


@pytest.mark.rounds
@pytest.mark.parametrize("seed", seeds(20))
def test_what_arrives_equals_what_was_written(seed):
    with (
        EmbeddedUpstream.start(stores=3, api_version=2, resolved_interval_seconds=0.02) as upstream,
        client_of(upstream) as client,
    ):
        world = World(upstream, seed)
        for _ in range(STEPS // 3):
            world.step()
        followers = [Follower(client), Follower(client, raw=True)]
        for _ in range(STEPS):
            world.step()
            for follower in followers:
                if world.random.random() < 0.3:
                    follower.step()
        end = world.end()
        for follower in followers:
            follower.follow_until(end)
        transactions, raw = (follower.changes for follower in followers)
        assert transactions == world.committed
        # A scan gives the newest version of a raw key alone: what came before it may be left out, nothing else.
        assert raw.items() <= world.raw.items()
        newest = dict(sorted(world.raw))
        assert {key: max(ts for k, ts in raw if k == key) for key, _ in raw} == newest
