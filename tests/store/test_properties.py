"""Random transactions while regions split, move and streams break: what arrives equals what was written."""

import random

import pytest

from tests.store.follower import Change, Follower
from tests.store.stub import client_of, delete, put
from tidemill.model.change import Op
from tidemill.store.upstream import EmbeddedUpstream

SEEDS = range(30)
STEPS = 60


class World:
    """Drives one upstream by a seed and remembers what was committed."""

    def __init__(self, upstream: EmbeddedUpstream, seed: int) -> None:
        self.upstream = upstream
        self.random = random.Random(seed)
        self.state: dict[bytes, bytes] = {}
        self.committed: dict[tuple[bytes, int], Change] = {}
        self.open: dict[int, list] = {}  # prewritten, by start-ts

    def step(self) -> None:
        actions = [self.write] * 6 + [self.prewrite] * 2 + [self.finish] * 2
        actions += [self.split, self.move, self.resolve, self.resolve, self.drop]
        self.random.choice(actions)()

    def end(self) -> int:
        while self.open:
            self.finish()
        return self.upstream.tso()

    def write(self) -> None:
        mutations = self._mutations()
        if mutations:
            start, commit = self.upstream.commit(mutations)
            self._note(mutations, start, commit)

    def prewrite(self) -> None:
        mutations = self._mutations()
        if mutations:
            self.open[self.upstream.prewrite(mutations)] = mutations

    def finish(self) -> None:
        if not self.open:
            return
        start = self.random.choice(list(self.open))
        mutations = self.open.pop(start)
        if self.random.random() < 0.3:
            self.upstream.rollback([m.key for m in mutations], start)
        else:
            commit = self.upstream.commit_prewritten([m.key for m in mutations], start)
            self._note(mutations, start, commit)

    def split(self) -> None:
        key = b"k%02d" % self.random.randrange(40) + b"x" * self.random.randrange(9)
        if self.upstream.region_of(key).raw_bounds[0] != key:
            self.upstream.split(key)

    def move(self) -> None:
        region = self.random.choice(self.upstream.regions())
        self.upstream.transfer_leader(region.id, self.random.choice(region.stores))

    def resolve(self) -> None:
        self.upstream.publish_resolved()

    def drop(self) -> None:
        if self.random.random() < 0.3:
            self.upstream.drop_streams()

    def _mutations(self) -> list:
        locked = {m.key for mutations in self.open.values() for m in mutations}
        keys = {b"k%02d" % self.random.randrange(40) for _ in range(self.random.randint(1, 4))} - locked
        return [
            delete(key)
            if self.random.random() < 0.3
            else put(key, self.random.randbytes(self.random.choice([0, 5, 400])))
            for key in sorted(keys)
        ]

    def _note(self, mutations, start: int, commit: int) -> None:
        for mutation in mutations:
            old = self.state.pop(mutation.key, b"")
            is_put = mutation.op is Op.PUT
            if is_put:
                self.state[mutation.key] = mutation.value
            self.committed[mutation.key, commit] = Change(start, 1 if is_put else 2, mutation.value, old)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_arrives_equals_what_was_written(seed):
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=0.02) as upstream, client_of(upstream) as client:
        world = World(upstream, seed)
        for _ in range(STEPS // 3):
            world.step()
        follower = Follower(client)
        for _ in range(STEPS):
            world.step()
            if world.random.random() < 0.5:
                follower.step()
        follower.follow_until(world.end())
        assert follower.changes == world.committed
