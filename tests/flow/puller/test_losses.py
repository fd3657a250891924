"""How the puller takes every error of the change stream, from a store that says what the test tells it to."""

import asyncio
import contextlib

import pytest

from tidemill._pb import cdcpb_pb2, errorpb_pb2, metapb_pb2
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import IncompatibleUpstreamError, ProtocolViolationError
from tidemill.flow.puller import Puller
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.testing.hurry import HurriedClock
from tidemill.testing.receiver import RecordingReceiver
from tidemill.testing.scripted import CLUSTER_ID, ScriptedUpstream, region
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.pd import PdClient

Row = cdcpb_pb2.Event.Row
INITIALIZED = Row(type=5)


def span(start, end):
    return Span(encode_bytes(start), encode_bytes(end))


WHOLE = span(b"a", b"z")


def committed(key, ts):
    return Row(type=4, start_ts=ts - 1, commit_ts=ts, key=key, value=b"v", op_type=1)


class Script:
    """Answers the first registrations as told, and every later one with a row, INITIALIZED and a resolved-ts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.ts = 100

    async def __call__(self, stream, request):
        if self.answers:
            await self.answers.pop(0)(stream, request)
        else:
            self.ts += 10
            await stream.send_rows(request, committed(b"b", max(self.ts - 5, request.checkpoint_ts + 1)), INITIALIZED)
            await stream.send_resolved(self.ts, request.region_id, request_id=request.request_id)


def error(**variant):
    async def answer(stream, request):
        await stream.send_error(request, cdcpb_pb2.Error(**variant))

    return answer


@contextlib.asynccontextmanager
async def pulling(upstream, start_ts=50, of=WHOLE, clock=SYSTEM_CLOCK):
    upstream.regions = upstream.regions or [region(7, of, version=3)]
    async with upstream, PdClient(upstream.pd_address) as pd:
        receiver = RecordingReceiver()
        puller = Puller(pd, receiver, clock=clock, locks=None)
        puller.subscribe(1, of, Ts(start_ts))
        running = asyncio.create_task(puller.run())
        try:
            yield puller, receiver, running
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running
        assert receiver.broken_promises == []


def registrations(upstream):
    return [r for r in upstream.requests if not r.HasField("deregister")]


def test_a_registration_says_who_we_are_and_what_we_want():
    async def scenario():
        upstream = ScriptedUpstream(Script())
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
        (request,) = registrations(upstream)
        assert (request.header.cluster_id, request.header.ticdc_version) == (CLUSTER_ID, "9.0.0")
        assert (request.region_id, request.region_epoch.version, request.checkpoint_ts) == (7, 3, 50)
        assert (request.start_key, request.end_key) == (WHOLE.start, WHOLE.end)
        assert request.request_id > 0
        (stream,) = upstream.streams
        assert (stream.method, stream.metadata["features"]) == ("EventFeedV2", "stream-multiplexing")

    asyncio.run(scenario())


LEADER = metapb_pb2.Peer(id=701, store_id=1)


@pytest.mark.parametrize(
    ("variant", "asks_pd_again"),
    [
        pytest.param({"not_leader": errorpb_pb2.NotLeader(region_id=7, leader=LEADER)}, False, id="leader named"),
        pytest.param({"not_leader": errorpb_pb2.NotLeader(region_id=7)}, True, id="leader unknown"),
        pytest.param(
            {"not_leader": errorpb_pb2.NotLeader(region_id=7, leader=metapb_pb2.Peer(id=9, store_id=9))},
            True,
            id="a leader that we do not know",
        ),
        pytest.param({"epoch_not_match": errorpb_pb2.EpochNotMatch()}, True, id="epoch"),
        pytest.param({"region_not_found": errorpb_pb2.RegionNotFound(region_id=7)}, True, id="region gone"),
        pytest.param({"congested": cdcpb_pb2.Congested(region_id=7)}, False, id="congested"),
        pytest.param({"server_is_busy": errorpb_pb2.ServerIsBusy(reason="scans", backoff_ms=30)}, False, id="busy"),
        pytest.param({}, False, id="an error of the future"),
    ],
)
def test_what_heals_is_registered_again_from_the_ts_that_was_reached(variant, asks_pd_again):
    async def first(stream, request):
        await stream.send_rows(request, committed(b"c", 60), INITIALIZED)
        await stream.send_resolved(70, 7, request_id=request.request_id)
        await stream.send_rows(request, committed(b"c", 80))
        await stream.send_error(request, cdcpb_pb2.Error(**variant))

    async def scenario():
        upstream = ScriptedUpstream(Script(first))
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
            assert receiver.resolved[1] == [70, 110]
            assert set(receiver.changes[1]) == {(b"c", 60), (b"c", 80), (b"b", 105)}
        assert [(r.region_id, r.checkpoint_ts) for r in registrations(upstream)] == [(7, 50), (7, 70)]
        assert len(upstream.streams) == 1
        assert (upstream.calls.count("ScanRegions") == 2) == asks_pd_again

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("variant", "kind", "message"),
    [
        pytest.param(
            {"duplicate_request": cdcpb_pb2.DuplicateRequest(region_id=7)},
            ProtocolViolationError,
            "region 7 was registered twice",
            id="duplicate",
        ),
        pytest.param(
            {"compatibility": cdcpb_pb2.Compatibility(required_version="6.2.0")},
            IncompatibleUpstreamError,
            "requires version 6.2.0",
            id="compatibility",
        ),
        pytest.param(
            {"cluster_id_mismatch": cdcpb_pb2.ClusterIDMismatch(current=8, request=9)},
            IncompatibleUpstreamError,
            "belongs to cluster 8, but PD answered for cluster 9",
            id="cluster",
        ),
    ],
)
def test_what_does_not_heal_ends_the_puller(variant, kind, message):
    async def scenario():
        async with pulling(ScriptedUpstream(Script(error(**variant)))) as (_, _, running):
            with pytest.raises(kind, match=message):
                await asyncio.wait_for(running, 20)

    asyncio.run(scenario())


def test_a_row_below_the_resolved_ts_ends_the_puller():
    async def lies(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(90, 7, request_id=request.request_id)
        await stream.send_rows(request, committed(b"c", 80))

    async def scenario():
        async with pulling(ScriptedUpstream(Script(lies))) as (_, _, running):
            with pytest.raises(ProtocolViolationError, match="resume from the checkpoint"):
                await asyncio.wait_for(running, 20)

    asyncio.run(scenario())


def test_after_a_split_the_children_start_where_the_parent_was():
    async def parent(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(70, 7, request_id=request.request_id)
        upstream.regions = [region(8, span(b"a", b"m"), version=4), region(7, span(b"m", b"z"), version=4)]
        await stream.send_error(request, cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch()))

    async def left(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(90, 8, request_id=request.request_id)

    upstream = ScriptedUpstream(Script(parent, left))

    async def scenario():
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 90)
            assert receiver.resolved[1] == [70, 90]
        children = [(r.region_id, r.region_epoch.version, r.checkpoint_ts) for r in registrations(upstream)[1:]]
        assert children == [(8, 4, 70), (7, 4, 70)]
        bounds = [(r.start_key, r.end_key) for r in registrations(upstream)[1:]]
        assert bounds == [(WHOLE.start, encode_bytes(b"m")), (encode_bytes(b"m"), WHOLE.end)]

    asyncio.run(scenario())


def test_a_gap_between_regions_is_waited_for():
    async def scenario():
        upstream = ScriptedUpstream(Script())
        upstream.regions = [region(8, span(b"a", b"m")), region(9, span(b"n", b"z"))]

        async def close_gap(stream, request):
            upstream.regions.append(region(10, span(b"m", b"n")))
            await Script()(stream, request)

        upstream.registered = Script(close_gap)
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
        assert [r.region_id for r in registrations(upstream)] == [8, 10, 9]

    asyncio.run(scenario())


def test_a_region_without_leader_is_waited_for():
    class Electing(ScriptedUpstream):
        def answer(self, method, request):
            if self.calls.count("ScanRegions") == 3:
                self.regions = [region(7, WHOLE)]
            return super().answer(method, request)

    async def scenario():
        upstream = Electing(Script())
        upstream.regions = [region(7, WHOLE, leader=None)]
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
        assert upstream.calls.count("ScanRegions") == 3

    asyncio.run(scenario())


def test_a_commit_without_prewrite_has_its_region_registered_anew():
    async def confused(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(70, 7, request_id=request.request_id)
        await stream.send_rows(request, Row(type=2, start_ts=75, commit_ts=80, key=b"c", op_type=1))
        await stream.send_resolved(85, 7, request_id=request.request_id)  # not to be believed

    async def scenario():
        upstream = ScriptedUpstream(Script(confused))
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
            assert receiver.resolved[1] == [70, 110]
        first, left, again = upstream.requests
        assert left.HasField("deregister")
        assert (left.region_id, left.request_id) == (7, first.request_id)
        assert (again.region_id, again.checkpoint_ts) == (7, 70)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x0a\xff", id="cut off"),
        pytest.param(b"\xde\xad\xbe\xef" * 8, id="no message at all"),
    ],
)
def test_bytes_that_are_no_message_cost_the_stream_and_nothing_else(message):
    async def garbage(stream, request):
        await stream.send_rows(request, committed(b"c", 60), INITIALIZED)
        await stream.send_resolved(70, 7, request_id=request.request_id)
        await stream.send(message)

    async def scenario():
        upstream = ScriptedUpstream(Script(garbage))
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
        assert [r.checkpoint_ts for r in registrations(upstream)][-1] in (50, 70)
        assert len(upstream.streams) == 2

    asyncio.run(scenario())


def test_a_store_that_sends_nothing_but_garbage_is_given_up():
    async def garbage(stream, request):
        await stream.send(b"\x0a\xff")

    async def scenario():
        upstream = ScriptedUpstream(garbage)
        async with pulling(upstream, clock=HurriedClock()) as (_, _, running):
            with pytest.raises(ProtocolViolationError, match=r"store 1, 5 times in a row: .* cut off at byte"):
                await asyncio.wait_for(running, 20)
        assert len(upstream.streams) == 5

    asyncio.run(scenario())


def test_a_region_that_is_lost_again_and_again_is_left_alone_longer_each_time():
    async def scenario():
        clock = HurriedClock()
        busy = [error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=1500))]
        upstream = ScriptedUpstream(Script(*[error(congested=cdcpb_pb2.Congested(region_id=7))] * 7, *busy))
        async with pulling(upstream, clock=clock) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
        wholes = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
        for slept, whole in zip(clock.slept_seconds, wholes, strict=False):
            assert whole / 2 <= slept <= whole
        assert clock.slept_seconds[7] >= 1.5
        assert len(clock.slept_seconds) == 8

    asyncio.run(scenario())


def test_a_stream_that_the_store_ends_is_opened_again():
    async def ends(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(70, 7, request_id=request.request_id)
        await stream.end()

    async def scenario():
        upstream = ScriptedUpstream(Script(ends))
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 110)
        assert [r.checkpoint_ts for r in registrations(upstream)] == [50, 70]

    asyncio.run(scenario())


def test_a_store_that_cannot_multiplex_gets_one_plain_stream_per_request():
    async def scenario():
        upstream = ScriptedUpstream()
        upstream.feed_methods = {"EventFeed"}

        async def plain(stream, request):
            await stream.send_rows(request, committed(b"c", 60), INITIALIZED)
            await stream.send_resolved(70 + request.request_id, 7, request_id=0)

        upstream.registered = plain
        async with pulling(upstream) as (puller, receiver, _):
            puller.subscribe(2, span(b"b", b"d"), Ts(50))
            await receiver.wait_resolved(1, 71)
            await receiver.wait_resolved(2, 72)
            assert (b"c", 60) in receiver.changes[1]
            assert (b"c", 60) in receiver.changes[2]
        assert [s.method for s in upstream.streams] == ["EventFeed", "EventFeed"]

    asyncio.run(scenario())


def test_a_store_without_change_stream_is_named():
    async def scenario():
        upstream = ScriptedUpstream()
        upstream.feed_methods = set()
        async with pulling(upstream) as (_, _, running):
            with pytest.raises(
                IncompatibleUpstreamError, match=r"store 1 has no change stream .* TiKV of version 7\.1"
            ):
                await asyncio.wait_for(running, 20)

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["6.5.3", "7.0.9", "10.0.0"])
def test_a_store_of_another_age_is_named(version):
    async def scenario():
        upstream = ScriptedUpstream()
        upstream.stores[1].version = version
        async with pulling(upstream) as (_, _, running):
            with pytest.raises(IncompatibleUpstreamError, match=f"store 1 at .* is of version {version}"):
                await asyncio.wait_for(running, 20)

    asyncio.run(scenario())


def test_odd_resolved_ts_move_nothing():
    async def odd(stream, request):
        await stream.send_resolved(65, 7, request_id=request.request_id)  # before INITIALIZED
        await stream.send_rows(request, INITIALIZED)
        for ts, regions, request_id in (
            (0, [7], request.request_id),
            (49, [7], request.request_id),
            (60, [5, 7, 6], request.request_id),
            (55, [7], request.request_id),
            (99, [5, 6], request.request_id),
            (99, [7], request.request_id + 1),
            (61, [7], request.request_id),
        ):
            await stream.send_resolved(ts, *regions, request_id=request_id)

    async def scenario():
        async with pulling(ScriptedUpstream(Script(odd))) as (_, receiver, _):
            await receiver.wait_resolved(1, 61)
            assert receiver.resolved[1] in ([60, 61], [61])  # several messages may be taken as one

    asyncio.run(scenario())
