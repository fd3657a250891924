"""Random raw writes while regions split, merge and move, stores die and streams break.

The store keeps every version, so at the end it tells itself what was written. Whoever followed must
have been told of nothing else, of the newest version of every key, and of nothing for the first time
that lies at or below what was promised.
"""

import random
import threading

import pytest

from tests.rounds import seeds
from tests.tidebox.follower import Follower
from tests.tidebox.rawclient import KEYSPACE
from tests.tidebox.stub import client_of
from tidebox.engine import Family
from tidebox.raw import RawValue
from tidebox.raw_service import RawService
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import UsageError
from tidemill.tidb.keys import encode_bytes, split_mvcc_key

STEPS = 60
PUT, DELETE = 1, 2


class Writer:
    """Writes keys of its own, and keys of all; remembers what the store acknowledged last for its own."""

    def __init__(self, upstream: EmbeddedUpstream, name: bytes, seed: int) -> None:
        self.upstream = upstream
        self.name = name
        self.random = random.Random(f"{seed} {name!r}")
        self.acknowledged: dict[bytes, bytes | None] = {}
        self.refused = 0

    def write(self) -> None:
        owner = self.random.choice([self.name, b"all"])
        key = KEYSPACE + b"%s/%02d" % (owner, self.random.randrange(12))
        value = None if self.random.random() < 0.3 else self.random.randbytes(self.random.choice([0, 5, 400]))
        if self._put(key, value):
            if owner == self.name:
                self.acknowledged[key] = value
        else:
            self.refused += 1

    def _put(self, key: bytes, value: bytes | None) -> bool:
        """One request to whom the key's region belongs now; whether it was done."""
        cluster = self.upstream.cluster
        with cluster.mutex:
            region = cluster.regions.of_key(encode_bytes(key))
        wire = region.to_wire()
        context = kvrpcpb_pb2.Context(
            region_id=region.id, region_epoch=wire.region_epoch, peer=region.leader_to_wire(), api_version=2
        )
        service = RawService(cluster, region.leader_store)
        if value is None:
            answer = service.RawDelete(kvrpcpb_pb2.RawDeleteRequest(context=context, key=key), None)
        else:
            answer = service.RawPut(kvrpcpb_pb2.RawPutRequest(context=context, key=key, value=value), None)
        assert answer.error == ""
        return not answer.HasField("region_error")


class World:
    """Everything that happens to regions, stores and streams, driven by a seed."""

    def __init__(self, upstream: EmbeddedUpstream, seed: int) -> None:
        self.upstream = upstream
        self.random = random.Random(seed)

    def step(self) -> None:
        actions = [self.split, self.split, self.merge, self.move, self.move, self.resolve, self.drop, self.restart]
        self.random.choice(actions)()

    def split(self) -> None:
        key = KEYSPACE + b"%s/%02d" % (self.random.choice([b"a", b"all", b"b"]), self.random.randrange(12))
        if self.upstream.region_of(key).raw_bounds[0] != key:
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
        try:
            self.upstream.transfer_leader(region.id, self.random.choice(region.stores))
        except UsageError:
            assert not all(store.is_up for store in self.upstream.cluster.stores.values())

    def resolve(self) -> None:
        self.upstream.publish_resolved()

    def drop(self) -> None:
        if self.random.random() < 0.3:
            self.upstream.drop_streams()

    def restart(self) -> None:
        if self.random.random() < 0.3:
            store = self.random.choice([1, 2, 3])
            self.upstream.kill_store(store, election_seconds=0)
            self.upstream.start_store(store)


def written(upstream: EmbeddedUpstream) -> dict[tuple[bytes, int], tuple[int, bytes]]:
    found = {}
    for stored, data in upstream.cluster.engine.items(Family.RAW):
        value = RawValue.decode(data)
        found[split_mvcc_key(stored)] = (DELETE if value.is_delete else PUT, value.value)
    return found


def check(follower: Follower, upstream: EmbeddedUpstream, writers) -> None:
    history = written(upstream)
    newest = dict(sorted(history))
    follower.follow_until(max(newest.values(), default=0))
    for (key, ts), change in follower.changes.items():
        assert history[key, ts] == (change.op, change.value)
        assert (change.start_ts, change.old_value) == (ts, b"")
    assert dict(sorted(follower.changes)) == newest
    for writer in writers:
        for key, value in writer.acknowledged.items():
            op, stored = history[key, newest[key]]
            assert (None if op == DELETE else stored) == value


def opened(**options):
    return EmbeddedUpstream.start(stores=3, api_version=2, resolved_interval_seconds=0.02, **options)


@pytest.mark.rounds
@pytest.mark.parametrize("seed", seeds(6))
def test_what_arrives_is_what_was_written(seed):
    with opened() as upstream, client_of(upstream) as client:
        world, writer = World(upstream, seed), Writer(upstream, b"a", seed)
        for _ in range(20):
            writer.write()
        follower = Follower(client, raw=True)
        for _ in range(STEPS):
            writer.write()
            if world.random.random() < 0.5:
                world.step()
            if world.random.random() < 0.5:
                follower.step()
        assert writer.refused == 0
        check(follower, upstream, [writer])


@pytest.mark.rounds
@pytest.mark.parametrize("seed", seeds(4))
def test_what_arrives_is_what_was_written_though_writes_take_their_time(seed):
    """Writers on threads of their own, with writes on their way while all else happens."""
    with opened() as upstream, client_of(upstream) as client:
        world = World(upstream, seed)
        writers = [Writer(upstream, name, seed) for name in (b"a", b"b")]
        follower = Follower(client, raw=True)
        upstream.delay_apply(0.002)
        done = threading.Event()

        def keep_writing(writer: Writer) -> None:
            while not done.is_set():
                writer.write()

        threads = [threading.Thread(target=keep_writing, args=[writer]) for writer in writers]
        for thread in threads:
            thread.start()
        try:
            for _ in range(STEPS):
                world.step()
                follower.step()
        finally:
            done.set()
            for thread in threads:
                thread.join()
        check(follower, upstream, writers)


@pytest.mark.rounds
@pytest.mark.parametrize("seed", seeds(3))
def test_what_arrives_is_what_was_written_though_the_process_dies(seed, tmp_path):
    writer = follower = None
    for _ in range(3):
        with opened(data_dir=tmp_path / "d") as upstream, client_of(upstream) as client:
            world = World(upstream, seed)
            writer = writer or Writer(upstream, b"a", seed)
            writer.upstream = upstream
            if follower is None:
                follower = Follower(client, raw=True)
            else:
                follower.move_to(client)
            for _ in range(20):
                writer.write()
                world.step()
                follower.step()
            check(follower, upstream, [writer])
            upstream.cluster.raw.close = lambda: None  # a process that dies does not tidy up
            upstream.cluster.tso.close = lambda: None
