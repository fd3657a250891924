"""Pictures of regions that contradict each other, and registrations that take their turn."""

import asyncio

from tests.flow.puller.test_losses import INITIALIZED, WHOLE, committed, pulling, registrations, span
from tidemill._pb import cdcpb_pb2, errorpb_pb2
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.testing.scripted import ScriptedUpstream, region
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.feed.stream import MAX_SCANS

LEFT, RIGHT = span(b"a", b"m"), span(b"m", b"z")
EPOCH = cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())


class Regions:
    """Answers each registration of a region as told for that region, and remembers who asked."""

    def __init__(self, **answers):
        self.answers = {int(name[1:]): list(turns) for name, turns in answers.items()}
        self.seen = {}

    async def __call__(self, stream, request):
        self.seen.setdefault(request.region_id, []).append((stream, request))
        turns = self.answers.get(request.region_id, [])
        if turns:
            await turns.pop(0)(stream, request)

    async def error(self, region_id, error=EPOCH):
        stream, request = self.seen[region_id][-1]
        await stream.send_error(request, error)


def reaches(ts):
    async def answer(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(ts, request.region_id, request_id=request.request_id)

    return answer


def asked(upstream):
    return [(r.region_id, r.region_epoch.version, r.checkpoint_ts) for r in registrations(upstream)]


def test_a_merged_region_waits_for_both_halves_and_starts_where_the_slower_one_was():
    async def scenario():
        script = Regions(r8=[reaches(70), reaches(0)], r7=[reaches(60), reaches(100)])
        upstream = ScriptedUpstream(script)
        upstream.regions = [region(8, LEFT, version=4), region(7, RIGHT, version=4)]
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 60)
            upstream.regions = [region(7, WHOLE, version=6)]
            await script.error(8)  # only the left half has got its error: the merged region must wait
            async with asyncio.timeout(20):
                while upstream.calls.count("ScanRegions") < 2:
                    await SYSTEM_CLOCK.sleep(0)
            assert len(registrations(upstream)) == 2
            await script.error(7)
            await receiver.wait_resolved(1, 100)
        assert asked(upstream) == [(8, 4, 50), (7, 4, 50), (7, 6, 60)]

    asyncio.run(scenario())


def test_an_old_picture_from_pd_is_not_believed_against_a_newer_one_in_use():
    class Behind(ScriptedUpstream):
        def answer(self, method, request):
            self.regions = self.pictures.pop(0) if method == "ScanRegions" and self.pictures else self.regions
            return super().answer(method, request)

    async def scenario():
        script = Regions(r8=[reaches(70), reaches(90)], r7=[reaches(80)])
        upstream = Behind(script)
        now = [region(8, LEFT, version=4), region(7, RIGHT, version=4)]
        upstream.pictures = [now, [region(7, WHOLE, version=3)], now]
        upstream.regions = now
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 70)
            await script.error(8, cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=8)))
            await receiver.wait_resolved(1, 80)
        assert asked(upstream) == [(8, 4, 50), (7, 4, 50), (8, 4, 70)]

    asyncio.run(scenario())


def test_a_store_is_asked_for_so_many_scans_at_a_time_and_the_rest_follows():
    count = MAX_SCANS + 40
    keys = [b"b%04d" % n for n in range(count + 1)]
    held = []

    async def hold(stream, request):
        held.append((stream, request))

    async def scenario():
        upstream = ScriptedUpstream(hold)
        upstream.regions = [region(n + 1, span(keys[n], keys[n + 1])) for n in range(count)]
        async with pulling(upstream, of=span(keys[0], keys[-1])) as (puller, receiver, _):
            puller.subscribe(2, span(keys[0], keys[1]), Ts(50))
            async with asyncio.timeout(20):
                while len(held) < MAX_SCANS or puller.stats().regions < count + 1:
                    await SYSTEM_CLOCK.sleep(0)
            assert len(upstream.requests) == MAX_SCANS
            for stream, request in held[:MAX_SCANS]:
                await reaches(100)(stream, request)
            async with asyncio.timeout(20):
                while len(held) < count + 1:
                    await SYSTEM_CLOCK.sleep(0)
            for stream, request in held[MAX_SCANS:]:
                await reaches(100)(stream, request)
            await receiver.wait_resolved(1, 100)
            assert puller.stats().initialized_regions >= count

    asyncio.run(scenario())


def test_an_unsubscribed_span_is_deregistered_and_its_late_messages_are_ignored():
    async def scenario():
        script = Regions(r7=[reaches(60), reaches(60)])
        upstream = ScriptedUpstream(script)
        async with pulling(upstream) as (puller, receiver, _):
            await receiver.wait_resolved(1, 60)
            stream, request = script.seen[7][0]
            puller.unsubscribe(1)
            assert puller.stats().regions == 0
            await stream.send_rows(request, committed(b"c", 70))
            await stream.send_error(request, cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=7)))
            puller.subscribe(2, WHOLE, Ts(50))
            await receiver.wait_resolved(2, 60)
            assert receiver.changes[1] == {}
        first, left, second = upstream.requests
        assert left.HasField("deregister")
        assert (left.region_id, left.request_id) == (0, first.request_id)
        assert second.request_id != first.request_id

    asyncio.run(scenario())


def test_rows_of_the_region_outside_the_part_that_was_asked_for_are_dropped():
    async def scenario():
        async def whole_region(stream, request):
            await stream.send_rows(request, *(committed(key, 60) for key in (b"a", b"c", b"f", b"y")), INITIALIZED)
            await stream.send_resolved(70, 7, request_id=request.request_id)

        upstream = ScriptedUpstream(whole_region)
        upstream.regions = [region(7, WHOLE)]
        part = Span(encode_bytes(b"c"), encode_bytes(b"f"))
        async with pulling(upstream, of=part) as (_, receiver, _):
            await receiver.wait_resolved(1, 70)
            assert set(receiver.changes[1]) == {(b"c", 60)}
        (request,) = registrations(upstream)
        assert (request.start_key, request.end_key) == (part.start, part.end)

    asyncio.run(scenario())


def test_a_store_that_does_not_answer_makes_way_for_another_peer():
    async def scenario():
        async with ScriptedUpstream() as dead:
            nowhere = dead.pd_address
        upstream = ScriptedUpstream(Regions(r7=[reaches(60)]))
        upstream.stores[2] = type(upstream.stores[1])(id=2, address=nowhere, version="8.5.0")
        upstream.regions = [region(7, WHOLE, stores=(2, 1), leader=2)]
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, 60)
        assert len(upstream.streams) == 1

    asyncio.run(scenario())
