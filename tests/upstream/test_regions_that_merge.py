"""The region cache while regions split, merge and move: the later picture counts, whoever brings it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstream.test_regions import LEFT, RIGHT, error, two_regions, with_cache
from tests.upstream.world import World, key
from tidemill._pb import errorpb_pb2, metapb_pb2
from tidemill.errors import InvariantError, RegionUnavailableError
from tidemill.model.span import KEY_END, WHOLE, Span
from tidemill.testing.scripted import region
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache, Retry
from tidemill.upstream.topology import region_from

MERGED = region(2, WHOLE, version=3, stores=(1, 2, 3))


def known(cache):
    return [(r.id, r.version) for r in cache._cached_run(WHOLE, 10)]


def epoch(*current):
    return error(epoch_not_match=errorpb_pb2.EpochNotMatch(current_regions=[c.region for c in current]))


@pytest.mark.parametrize("asked_at", [b"a", b"z"])
def test_a_merged_region_named_by_a_store_takes_the_place_of_both_halves(asked_at):
    async def scenario(cache):
        await cache.load(WHOLE)
        assert cache.react(await cache.locate(asked_at), epoch(MERGED)).retry is Retry.RELOAD
        assert known(cache) == [(2, 3)]

    with_cache(two_regions(), scenario)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(epoch(), id="in the middle of a merge"),
        pytest.param(error(region_not_found=errorpb_pb2.RegionNotFound(region_id=1)), id="after it"),
    ],
)
def test_a_region_that_was_merged_away_is_looked_up_anew(refusal):
    upstream = two_regions()

    async def scenario(cache):
        await cache.load(WHOLE)
        upstream.regions = [MERGED]
        cache.react(await cache.locate(b"a"), refusal)
        assert known(cache) == []  # the other half may still be right, but a run begins at the first key
        assert (await cache.locate(b"a")).id == 2
        assert known(cache) == [(2, 3)]

    with_cache(upstream, scenario)


def test_pd_is_waited_for_while_it_tells_of_regions_before_a_split():
    children = [region(9, Span(b"", b"c"), version=2), region(1, Span(b"c", b"m"), version=2)]
    upstream = two_regions()

    async def scenario(cache):
        asked = await cache.locate(b"a")
        cache.react(asked, epoch(children[1]))  # only the right child is known
        slept = cache._clock.slept_seconds
        upstream.calls.clear()

        def catch_up(method, request, answer=upstream.answer):
            if method == "GetRegion" and len(slept) >= 3:
                upstream.regions = [*children, region(2, RIGHT)]
            return answer(method, request)

        upstream.answer = catch_up
        assert (await cache.locate(b"a")).id == 9
        assert upstream.calls.count("GetRegion") == 4
        assert (await cache.locate(b"d")).version == 2

    with_cache(upstream, scenario)


def test_pd_is_believed_in_the_end():
    async def scenario(cache):
        cache.insert(region_from(region(9, Span(b"c", b"m"), version=7).region, None))
        with pytest.raises(RegionUnavailableError, match="for key 61 for 20 s"):
            await cache.locate(b"a")
        assert (await cache.locate(b"a")).version == 1

    with_cache(two_regions(), scenario)


def test_word_of_an_old_picture_does_not_drop_a_later_one():
    async def scenario(cache):
        asked = await cache.locate(b"a")
        cache.react(asked, epoch(MERGED))
        cache.react(asked, error(region_not_found=errorpb_pb2.RegionNotFound(region_id=2)))
        cache.react(region_from(region(2, RIGHT).region, None), epoch())
        assert known(cache) == [(2, 3)]

    with_cache(two_regions(), scenario)


def test_a_change_of_peers_counts_within_one_version():
    async def scenario(cache):
        before = await cache.locate(b"a")
        meta = region(1, LEFT, stores=(1, 4)).region
        meta.region_epoch.conf_ver = 5
        assert cache.insert(region_from(meta, meta.peers[1]))
        assert not cache.insert(before)
        assert [p.store_id for p in (await cache.locate(b"a")).peers] == [1, 4]

    with_cache(two_regions(), scenario)


def test_a_store_that_names_a_range_that_is_none_is_not_believed():
    broken = metapb_pb2.Region(id=1, start_key=b"m", end_key=b"a", peers=[metapb_pb2.Peer(id=101, store_id=1)])
    broken.region_epoch.version = 9
    current = errorpb_pb2.EpochNotMatch(current_regions=[broken])

    async def scenario(cache):
        assert cache.react(await cache.locate(b"a"), error(epoch_not_match=current)).retry is Retry.RELOAD
        assert (await cache.locate(b"a")).span == LEFT

    with_cache(two_regions(), scenario)


def test_the_region_below_a_key_is_found_for_scans_that_go_backwards():
    upstream = two_regions()

    async def scenario(cache):
        assert [(await cache.locate_below(k)).id for k in (b"a", b"m", b"n", KEY_END)] == [1, 1, 2, 2]
        upstream.calls.clear()
        assert [(await cache.locate_below(k)).id for k in (b"a", b"m", b"n", KEY_END)] == [1, 1, 2, 2]
        assert upstream.calls == []
        with pytest.raises(InvariantError, match="below the first key"):
            await cache.locate_below(b"")

    with_cache(upstream, scenario)


def test_a_store_that_comes_back_elsewhere_is_asked_of_pd_again():
    upstream = two_regions()

    async def scenario(cache):
        asked = await cache.locate(b"a")
        assert (await cache.store(1)).address == upstream.pd_address
        upstream.stores[1].address = "127.0.0.1:1"
        assert (await cache.store(1)).address == upstream.pd_address
        cache.react(asked, error(store_not_match=errorpb_pb2.StoreNotMatch()))
        assert (await cache.store(1)).address == "127.0.0.1:1"

    with_cache(upstream, scenario)


def test_a_store_without_address_serves_nothing():
    upstream = two_regions()

    async def scenario(cache):
        upstream.stores[2] = metapb_pb2.Store(id=2)
        for store_id in (2, 9):
            with pytest.raises(RegionUnavailableError, match=f"store {store_id} at no address"):
                await cache.store(store_id)

    with_cache(upstream, scenario)


changes = st.one_of(
    st.tuples(st.just("split"), st.integers(1, 40)),
    st.tuples(st.just("merge left"), st.integers(0, 40)),
    st.tuples(st.just("merge right"), st.integers(0, 40)),
    st.tuples(st.just("look"), st.integers(0, 10**6)),
    st.tuples(st.just("refuse"), st.integers(0, 10**6)),
)


@given(st.lists(changes, max_size=60))
def test_pictures_of_any_age_never_overlap_and_no_key_goes_back_in_time(steps):
    async def scenario():
        world, cache = World(), RegionCache(PdClient("127.0.0.1:1"))
        seen = dict.fromkeys(range(41), 0)  # per key: the version that it was last known in
        for what, n in steps:
            match what:
                case "split":
                    world.split(n)
                case "merge left" | "merge right":
                    world.merge(n, into_left=what == "merge left")
                case "look":  # a picture from any moment arrives
                    moment = world.moments[n % len(world.moments)]
                    cache.insert(moment[n // 7 % len(moment)])
                case "refuse":  # a store that is up to date refuses an old picture
                    moment = world.moments[n % len(world.moments)]
                    old = moment[n // 7 % len(moment)]
                    current = [r for r in world.regions if r.span.overlaps(old.span)]
                    cache.react_to_epoch(old, [to_wire(r) for r in current])
            check(cache, seen)
        for each in world.regions:
            assert cache.insert(each)
        assert cache._cached_run(WHOLE, 1000) == world.regions

    asyncio.run(scenario())


def check(cache, seen):
    pictures = [cached.region for cached in cache._cached.values()]
    for one in pictures:
        assert not any(one.span.overlaps(other.span) for other in pictures if other is not one)
    assert sorted(r.id for r in pictures) == sorted(cache._by_id)
    assert cache._starts == sorted(r.span.start for r in pictures)
    for n in seen:
        holder = next((r for r in pictures if key(n) in r.span), None)
        if holder is not None:
            assert holder.version >= seen[n]
            seen[n] = holder.version


def to_wire(r):
    meta = region(r.id, r.span, version=r.version).region
    del meta.peers[:]
    meta.peers.extend(p.to_wire() for p in r.peers)
    return meta
