"""The region cache: what it hands out, and how each region error corrects it."""

import asyncio

import pytest

from tidemill._pb import errorpb_pb2, metapb_pb2
from tidemill.errors import RegionUnavailableError
from tidemill.model.span import KEY_END, WHOLE, Span
from tidemill.testing.hurry import HurriedClock
from tidemill.testing.scripted import ScriptedUpstream, region
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache, Retry
from tidemill.upstream.topology import Peer

LEFT, RIGHT = Span(b"", b"m"), Span(b"m", KEY_END)


def with_cache(upstream, scenario, clock=None):
    async def run():
        clock_used = clock or HurriedClock()
        async with upstream, PdClient(upstream.pd_address, clock=clock_used) as pd:
            return await scenario(RegionCache(pd, clock=clock_used))

    return asyncio.run(run())


def two_regions():
    upstream = ScriptedUpstream()
    upstream.regions = [region(1, LEFT, stores=(1, 2, 3)), region(2, RIGHT, stores=(1, 2, 3))]
    return upstream


def test_a_region_is_asked_of_pd_once():
    upstream = two_regions()

    async def scenario(cache):
        assert [r.id for r in await cache.load(WHOLE)] == [1, 2]
        assert [(await cache.locate(key)).id for key in (b"", b"a", b"m", b"z")] == [1, 1, 2, 2]
        assert [r.id for r in await cache.load(WHOLE)] == [1, 2]

    with_cache(upstream, scenario)
    assert [c for c in upstream.calls if c != "GetMembers"] == ["ScanRegions"]


def test_an_idle_picture_is_asked_for_again():
    upstream, clock = two_regions(), HurriedClock()

    async def scenario(cache):
        await cache.locate(b"a")
        clock.slept_seconds.append(601.0)
        await cache.locate(b"a")

    with_cache(upstream, scenario, clock)
    assert upstream.calls.count("GetRegion") == 2


@pytest.mark.parametrize(
    ("listed", "run"),
    [
        pytest.param([region(2, RIGHT), region(1, LEFT)], [1, 2], id="in any order"),
        pytest.param([region(1, Span(b"", b"k")), region(2, RIGHT)], [1], id="up to a gap"),
        pytest.param([region(1, LEFT), region(2, RIGHT, leader=None)], [1], id="up to one without leader"),
        pytest.param(
            [region(1, LEFT), region(3, Span(b"c", b"m"), version=9), region(2, RIGHT)], [1, 2], id="without overlaps"
        ),
    ],
)
def test_what_is_loaded_lies_side_by_side_from_the_start(listed, run):
    upstream = ScriptedUpstream()
    upstream.regions = listed

    async def scenario(cache):
        assert [r.id for r in await cache.load(WHOLE)] == run

    with_cache(upstream, scenario)


def test_a_key_without_region_is_named_in_the_end():
    async def scenario(cache):
        with pytest.raises(RegionUnavailableError, match="no region with a leader for key 6b for 20 s"):
            await cache.locate(b"k")

    with_cache(ScriptedUpstream(), scenario)


def error(**variant):
    return errorpb_pb2.Error(**variant)


@pytest.mark.parametrize(
    ("refusal", "retry", "leader"),
    [
        pytest.param(
            error(not_leader=errorpb_pb2.NotLeader(leader=metapb_pb2.Peer(id=102, store_id=2))),
            Retry.AT_ONCE,
            Peer(102, 2),
            id="a leader is named",
        ),
        pytest.param(error(not_leader=errorpb_pb2.NotLeader()), Retry.RELOAD, None, id="no leader is named"),
        pytest.param(error(epoch_not_match=errorpb_pb2.EpochNotMatch()), Retry.RELOAD, None, id="epoch, no regions"),
        pytest.param(
            error(
                epoch_not_match=errorpb_pb2.EpochNotMatch(
                    current_regions=[metapb_pb2.Region(id=1, region_epoch=metapb_pb2.RegionEpoch(version=0))]
                )
            ),
            Retry.LATER,
            Peer(101, 1),
            id="the store is behind",
        ),
        pytest.param(error(region_not_found=errorpb_pb2.RegionNotFound()), Retry.RELOAD, None, id="not found"),
        pytest.param(error(key_not_in_region=errorpb_pb2.KeyNotInRegion()), Retry.RELOAD, None, id="other keys"),
        pytest.param(error(store_not_match=errorpb_pb2.StoreNotMatch()), Retry.RELOAD, None, id="another store"),
        pytest.param(error(server_is_busy=errorpb_pb2.ServerIsBusy()), Retry.LATER, Peer(101, 1), id="busy"),
        pytest.param(error(stale_command=errorpb_pb2.StaleCommand()), Retry.LATER, Peer(101, 1), id="stale command"),
        pytest.param(error(disk_full=errorpb_pb2.DiskFull()), Retry.LATER, Peer(101, 1), id="disk full"),
        pytest.param(
            error(raft_entry_too_large=errorpb_pb2.RaftEntryTooLarge()), Retry.NEVER, Peer(101, 1), id="too large"
        ),
        pytest.param(error(message="of the future"), Retry.RELOAD, None, id="unknown"),
    ],
)
def test_a_region_error_corrects_the_cache(refusal, retry, leader):
    async def scenario(cache):
        asked = await cache.locate(b"a")
        assert cache.react(asked, refusal).retry is retry
        return cache._cached_run(Span(b"a", b"b"), 1)

    known = with_cache(two_regions(), scenario)
    assert [r.leader for r in known] == ([] if leader is None else [leader])


def test_the_children_named_by_an_epoch_error_take_the_parents_place():
    children = [region(9, Span(b"", b"c"), version=2), region(1, Span(b"c", b"m"), version=2, stores=(2, 3))]

    async def scenario(cache):
        asked = await cache.locate(b"a")
        current = errorpb_pb2.EpochNotMatch(current_regions=[child.region for child in children])
        assert cache.react(asked, error(epoch_not_match=current)).retry is Retry.RELOAD
        return cache._cached_run(LEFT, 10)

    known = with_cache(two_regions(), scenario)
    assert [(r.id, r.version, r.leader) for r in known] == [
        (9, 2, Peer(901, 1))
    ]  # nobody guesses a leader for the other


def test_a_silent_leader_makes_way_for_the_next_peer_and_behind_the_last_pd_is_asked():
    upstream = two_regions()

    async def scenario(cache):
        tried = []
        for _ in range(4):
            asked = await cache.locate(b"a")
            tried.append((asked.leader.store_id, upstream.calls.count("GetRegion")))
            cache.rotate_leader(asked)
        return tried

    assert with_cache(upstream, scenario) == [(1, 1), (2, 1), (3, 1), (1, 2)]


def test_stores_that_serve_no_regions_are_refused():
    upstream = two_regions()
    upstream.stores[2] = metapb_pb2.Store(id=2, address="x", state=metapb_pb2.Tombstone)
    upstream.stores[3] = metapb_pb2.Store(
        id=3, address="x", labels=[metapb_pb2.StoreLabel(key="engine", value="tiflash")]
    )

    async def scenario(cache):
        assert (await cache.store(1)).address == upstream.pd_address
        for store_id in (2, 3):
            with pytest.raises(RegionUnavailableError, match="serves no regions"):
                await cache.store(store_id)

    with_cache(upstream, scenario)
