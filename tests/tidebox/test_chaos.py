"""A cluster that changes by itself: the same decisions for the same seed, and clients that always get through."""

import random
from itertools import islice

import pytest

from tests.tidebox.follower import Change, Follower
from tests.tidebox.stub import client_of, put
from tidebox.chaos import MAX_REGIONS, Chaos, Kind, decisions
from tidebox.regions import RegionMap
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SystemClock


class Ahead(SystemClock):
    """Somebody turns it on."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


KEYS = [b"k%03d" % at for at in range(200)]
STEPS = 150
SEEDS = range(4)


def test_decisions_depend_on_the_seed_alone():
    first, again, other = (list(islice(decisions(seed), 500)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_kind_of_change_comes_up_and_keeps_its_measure():
    seen = list(islice(decisions(1), 500))
    assert {decision.kind for decision in seen} == set(Kind)
    assert all(0.1 <= decision.pause_seconds <= 0.5 for decision in seen)
    assert all(0.2 <= decision.outage_seconds <= 1.5 for decision in seen)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_does_the_same_to_the_same_cluster(seed):
    def run():
        with EmbeddedUpstream.start(stores=3) as upstream:
            upstream.commit([put(key) for key in KEYS])
            chaos = Chaos(upstream, seed)
            regions = (d for d in decisions(seed) if d.kind in (Kind.SPLIT, Kind.MERGE, Kind.MOVE))
            done = [chaos.apply(decision) for decision in islice(regions, STEPS)]
            return done, upstream.regions()

    assert run() == run()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_region_is_led_and_every_key_readable_after_every_change(seed):
    clock = Ahead()
    with EmbeddedUpstream.start(stores=3, clock=clock) as upstream:
        upstream.commit([put(key, key * 2) for key in KEYS])
        chaos = Chaos(upstream, seed)
        outages = 0
        for decision in islice(decisions(seed), STEPS):
            clock.seconds += decision.pause_seconds
            outages += chaos.go() is not None
            chaos.apply(decision)
            regions = upstream.regions()
            RegionMap(regions)  # raises where they do not cover all keys once
            assert 1 <= len(regions) <= MAX_REGIONS
            assert sum(not store.is_up for store in upstream.cluster.stores.values()) <= 1
            assert all(upstream.cluster.leader_of(region) is not None for region in regions)
            for region in regions:
                assert region.raw_bounds is not None  # every bound can be decoded
        assert outages
        chaos.stop()
        assert all(store.is_up for store in upstream.cluster.stores.values())
        assert all(upstream.get(key) == key * 2 for key in KEYS)


def test_a_store_goes_only_when_it_leads_nothing_and_nobody_asks_it_any_more():
    clock = Ahead()
    with EmbeddedUpstream.start(stores=3, clock=clock) as upstream, client_of(upstream) as client:
        chaos = Chaos(upstream, 1)
        region = client.region()
        outage = next(d for d in decisions(1) if d.kind is Kind.KILL and d.where < 1 / 3)
        upstream.transfer_leader(region.region.id, 1)
        assert chaos.apply(outage) == "store 1 leads nothing any more"
        assert client.region().leader.store_id != 1
        clock.seconds += 0.9
        late = kvrpcpb_pb2.GetRequest(context=client.context(region), key=b"a", version=upstream.tso())
        assert client.kv[1].KvGet(late).region_error.not_leader.leader == client.region().leader
        clock.seconds += 0.9
        assert chaos.go() is None
        clock.seconds += 0.2
        assert chaos.go() == f"store 1 is gone for {outage.outage_seconds:.1f} s (kill-store)"
        assert not upstream.cluster.stores[1].is_up
        chaos.stop()
        assert upstream.cluster.stores[1].is_up


def test_a_store_that_is_asked_all_the_time_stays():
    clock = Ahead()
    with EmbeddedUpstream.start(stores=3, clock=clock) as upstream:
        chaos = Chaos(upstream, 1)
        chaos.apply(next(d for d in decisions(1) if d.kind is Kind.STOP))
        for _ in range(25):
            clock.seconds += 0.5
            for store in upstream.cluster.stores.values():
                store.asked_at = clock.monotonic()
            done = chaos.go()
            if done is not None:
                break
        assert "stays" in done
        assert all(store.is_up for store in upstream.cluster.stores.values())


def test_a_cluster_of_one_store_is_spared_outages():
    with EmbeddedUpstream.start(stores=1) as upstream:
        upstream.commit([put(key) for key in KEYS])
        chaos = Chaos(upstream, 3)
        for decision in islice((d for d in decisions(3) if d.kind in (Kind.STOP, Kind.KILL)), 20):
            assert chaos.apply(decision) is None
        assert upstream.cluster.stores[1].is_up


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_misses_nothing_while_the_cluster_changes_by_itself(seed):
    chance = random.Random(seed)
    committed = {}
    state: dict[bytes, bytes] = {}
    with (
        EmbeddedUpstream.start(stores=3, resolved_interval_seconds=0.02, chaos=seed) as upstream,
        client_of(upstream) as client,
    ):
        follower = Follower(client)
        for at in range(300):
            key = chance.choice(KEYS)
            start, commit = upstream.commit([put(key, b"%d" % at)])
            committed[key, commit] = Change(start, 1, b"%d" % at, state.get(key, b""))
            state[key] = b"%d" % at
            follower.step()
        follower.follow_until(upstream.tso())
    assert follower.changes == committed
