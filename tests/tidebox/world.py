"""An upstream driven by a seed: writes of every kind, and all that may happen to regions and stores."""

import random
from dataclasses import dataclass, field

from tests.tidebox.follower import Change
from tests.tidebox.stub import delete, put
from tidebox.engine import Family
from tidebox.mvcc import physical_key
from tidebox.raw import DELETED, RawValue
from tidebox.transactions import Mutation
from tidebox.txn.prewrite import Intent, KeyMutation, Prewrite
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.model.ts import MAX_TS

TXN = b"x\0\0\0"
RAW = b"r\0\0\0"
KEYS = 40
PUT, DELETE = 1, 2


@dataclass
class World:
    """Drives one upstream of API V2 and remembers what was written, by key and commit-ts."""

    upstream: EmbeddedUpstream
    seed: int
    state: dict[bytes, bytes] = field(default_factory=dict)
    committed: dict[tuple[bytes, int], Change] = field(default_factory=dict)
    raw: dict[tuple[bytes, int], Change] = field(default_factory=dict)
    open: dict[int, list[Mutation]] = field(default_factory=dict)  # prewritten, by start-ts
    down: set[int] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._actions = [
            *[self.write] * 4,
            *[self.write_at_once] * 3,
            *[self.prewrite] * 2,
            *[self.finish] * 2,
            *[self.write_raw] * 6,
            *[self.resolve] * 2,
            *[self.move] * 2,
            self.split,
            self.merge,
            self.drop,
            self.lose_store,
        ]

    def step(self) -> None:
        action = self.random.choice(self._actions)
        action()
        self.done[action.__name__] = self.done.get(action.__name__, 0) + 1

    def end(self) -> int:
        """Finish what is open; a ts above everything written."""
        while self.open:
            self.finish()
        for store in list(self.down):
            self.upstream.start_store(store)
        self.down.clear()
        newest = max([self.upstream.tso(), *(ts for _, ts in self.raw)])
        self.upstream.cluster.tso.pass_by(newest)
        return newest

    # Writing

    def write(self) -> None:
        if mutations := self._mutations():
            start, commit = self.upstream.commit(mutations)
            self._note(mutations, start, commit)

    def write_at_once(self) -> None:
        """One-phase commit, or an asynchronous one whose locks are turned into commits later or never seen."""
        mutations = self._mutations()
        if not mutations:
            return
        start = self.upstream.tso()
        one_phase = self.random.random() < 0.5
        secondaries = tuple(m.key for m in mutations[1:])
        txn = Prewrite(start, mutations[0].key, 3000, txn_size=len(mutations), secondaries=secondaries)
        if one_phase:
            txn = Prewrite(start, mutations[0].key, 3000, txn_size=len(mutations), one_phase=True)
        intents = {Op.PUT: Intent.PUT, Op.DELETE: Intent.DELETE}
        if self.random.random() < 0.5:  # somebody has read ahead
            self.upstream.cluster.in_flight.observe(self.upstream.tso())
        with self.upstream.cluster.mutex:
            found = self.upstream.cluster.transactions.prewrite_keys(
                txn, [KeyMutation(intents[m.op], m.key, m.value) for m in mutations]
            )
        commit = found.one_phase_commit_ts
        if not one_phase:
            assert found.min_commit_ts > start
            self.resolve()  # must stay below what is settled
            commit = self.upstream.commit_prewritten([m.key for m in mutations], start, found.min_commit_ts)
        self._note(mutations, start, commit)

    def prewrite(self) -> None:
        if mutations := self._mutations():
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

    def write_raw(self) -> None:
        """One request to one region, as a store serves it."""
        cluster = self.upstream.cluster
        key = RAW + b"k%02d" % self.random.randrange(KEYS)
        with cluster.mutex:
            region = cluster.regions.of_key(physical_key(key))
            if not cluster.raw.clocks.clock(region.leader_store).is_synced:
                return
            keys = {key} | {k for k in self._raw_keys() if region.contains(physical_key(k))}
            changes = {k: DELETED if self.random.random() < 0.3 else RawValue(self.random.randbytes(5)) for k in keys}
            with cluster.in_flight.latch(changes) as latch:
                cluster.raw.write(region, Family.RAW, changes, latch, lambda: None)
            for k, change in changes.items():
                stored = next(iter(cluster.engine.items(Family.RAW, physical_key(k))))[0]
                ts = int.from_bytes(stored[-8:], "big") ^ MAX_TS
                older = [t for other, t in self.raw if other == k]
                assert not older or ts > max(older), "a later write has an earlier ts"
                self.raw[k, ts] = Change(ts, DELETE if change.is_delete else PUT, change.value, b"")

    # What happens to regions, stores and streams

    def split(self) -> None:
        key = self.random.choice([TXN, RAW]) + b"k%02d" % self.random.randrange(KEYS) + b"x" * self.random.randrange(9)
        if self.upstream.region_of(key).start != physical_key(key):
            self.upstream.split(key)

    def merge(self) -> None:
        regions = self.upstream.regions()
        if len(regions) > 1:
            at = self.random.randrange(len(regions) - 1)
            pair = [regions[at].id, regions[at + 1].id]
            self.random.shuffle(pair)
            self.upstream.merge(*pair)

    def move(self) -> None:
        region = self.random.choice(self.upstream.regions())
        up = [store for store in region.stores if store not in self.down]
        self.upstream.transfer_leader(region.id, self.random.choice(up))

    def resolve(self) -> None:
        self.upstream.publish_resolved()

    def drop(self) -> None:
        if self.random.random() < 0.3:
            self.upstream.drop_streams()

    def lose_store(self) -> None:
        """One at a time; the next call brings it back."""
        if self.down:
            self.upstream.start_store(self.down.pop())
            return
        store = self.random.choice(list(self.upstream.cluster.stores))
        if self.random.random() < 0.5:
            self.upstream.stop_store(store)
        else:
            self.upstream.kill_store(store, election_seconds=0)
        self.down.add(store)

    def _mutations(self) -> list[Mutation]:
        locked = {m.key for mutations in self.open.values() for m in mutations}
        keys = {TXN + b"k%02d" % self.random.randrange(KEYS) for _ in range(self.random.randint(1, 4))} - locked
        return [
            delete(key)
            if self.random.random() < 0.3
            else put(key, self.random.randbytes(self.random.choice([0, 5, 400])))
            for key in sorted(keys)
        ]

    def _raw_keys(self) -> set[bytes]:
        return {RAW + b"k%02d" % self.random.randrange(KEYS) for _ in range(self.random.randrange(3))}

    def _note(self, mutations: list[Mutation], start: int, commit: int) -> None:
        for mutation in mutations:
            old = self.state.pop(mutation.key, b"")
            if mutation.op is Op.PUT:
                self.state[mutation.key] = mutation.value
            kind = PUT if mutation.op is Op.PUT else DELETE
            self.committed[mutation.key, commit] = Change(start, kind, mutation.value, old)
