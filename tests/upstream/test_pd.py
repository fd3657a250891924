"""PD's client against a PD that says what the test tells it to."""

import asyncio

import grpc
import pytest

from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import metapb_pb2, pdpb_pb2
from tidemill.errors import (
    IncompatibleUpstreamError,
    ProtocolViolationError,
    UpstreamError,
    UpstreamUnavailableError,
    UsageError,
)
from tidemill.model.security import Security
from tidemill.model.span import KEY_END, WHOLE, Span
from tidemill.testing.hurry import HurriedClock
from tidemill.testing.scripted import CLUSTER_ID, ScriptedUpstream, region
from tidemill.upstream.channel import open_channel
from tidemill.upstream.pd import PdClient, parse_addresses
from tidemill.upstream.topology import Peer, region_from


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:2379", ("127.0.0.1:2379",)),
        ("http://pd-0:2379, http://pd-1:2379/ ,pd-2:1", ("pd-0:2379", "pd-1:2379", "pd-2:1")),
        (["[::1]:2379", ""], ("[::1]:2379",)),
    ],
)
def test_addresses_come_as_a_list_with_or_without_scheme(given, found):
    assert parse_addresses(given) == found


def test_the_scheme_of_an_address_has_to_go_with_the_certificates():
    tls = Security(ca_path="ca.pem")
    assert parse_addresses("https://pd-0:2379,pd-1:2379", tls) == ("pd-0:2379", "pd-1:2379")
    with pytest.raises(UsageError, match=r"'https://pd-0:2379' asks for TLS.*give --ca, and --cert and --key"):
        parse_addresses("https://pd-0:2379")
    with pytest.raises(UsageError, match=r"'http://pd-0:2379' is without TLS.*Write https://"):
        parse_addresses("http://pd-0:2379", tls)


@pytest.mark.parametrize("given", ["", " , ", "localhost", "pd:port", ":2379", "pd:0", "pd:99999", "u@pd:1", "pd:1/x"])
def test_what_is_no_address_is_refused_with_an_example(given):
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:2379"):
        parse_addresses(given)


def test_timestamps_for_many_waiters_come_in_few_requests_all_different_and_rising():
    async def scenario():
        async with ScriptedUpstream() as upstream, PdClient(upstream.pd_address) as pd:
            first = await pd.get_ts()
            many = await asyncio.gather(*(pd.get_ts() for _ in range(500)))
            assert first < min(many)
            assert many == sorted(set(many))
            assert sum(upstream.tso_counts) == 501
            assert len(upstream.tso_counts) <= 3
            assert pd.cluster_id == CLUSTER_ID

    asyncio.run(scenario())


def test_a_waiter_that_is_cancelled_leaves_the_others_their_timestamp():
    async def scenario():
        async with ScriptedUpstream() as upstream, PdClient(upstream.pd_address) as pd:
            waiters = [asyncio.ensure_future(pd.get_ts()) for _ in range(5)]
            await asyncio.sleep(0)
            waiters[0].cancel()  # it was about to ask for all
            done = await asyncio.gather(*waiters, return_exceptions=True)
            assert isinstance(done[0], asyncio.CancelledError)
            assert len(set(done[1:])) == 4

    asyncio.run(scenario())


def test_a_timestamp_stream_that_has_ended_meanwhile_is_opened_anew():
    async def scenario():
        with EmbeddedUpstream.start() as upstream:
            async with PdClient(upstream.pd_address) as pd:
                first = await pd.get_ts()
                upstream.pd_away()
                upstream.pd_back()
                await pd._timestamps._stream.code()  # our side has heard of it
                assert await pd.get_ts() > first

    asyncio.run(scenario())


def test_an_unreachable_pd_is_named_with_what_to_do():
    async def scenario():
        async with ScriptedUpstream() as upstream:
            address = upstream.pd_address
        pd = PdClient(f"http://{address}", clock=HurriedClock())
        with pytest.raises(UpstreamUnavailableError, match=f"cannot connect: no PD leader answers at {address}.*Check"):
            await pd.connect()

    asyncio.run(scenario())


def test_a_new_leader_is_followed():
    async def scenario():
        async with ScriptedUpstream() as old, ScriptedUpstream() as new:
            old.regions, new.regions = [region(1, WHOLE)], [region(2, WHOLE)]
            async with PdClient([old.pd_address, new.pd_address]) as pd:
                assert (await pd.get_region(b"k")).id == 1
                before = await pd.get_ts()
                old.leader_urls = new.leader_urls = [f"http://{new.pd_address}"]
                old.pd_refusal = (grpc.StatusCode.UNAVAILABLE, "not leader")
                new._physical_ms += 10
                assert (await pd.get_region(b"k")).id == 2
                assert await pd.get_ts() > before
                assert pd.leader == new.pd_address

    asyncio.run(scenario())


def test_a_member_that_is_down_is_passed_over():
    async def scenario():
        async with ScriptedUpstream() as down:
            address = down.pd_address
        async with ScriptedUpstream() as upstream, PdClient(f"{address},{upstream.pd_address}") as pd:
            assert pd.leader == upstream.pd_address

    asyncio.run(scenario())


def test_while_nobody_leads_a_call_waits():
    class Electing(ScriptedUpstream):
        def answer(self, method, request):
            if self.calls.count("GetMembers") == 3:
                self.leader_urls = None
            return super().answer(method, request)

    async def scenario():
        async with Electing() as upstream:
            upstream.leader_urls = []
            async with PdClient(upstream.pd_address, clock=HurriedClock()) as pd:
                assert pd.leader == upstream.pd_address

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, IncompatibleUpstreamError),
        (grpc.StatusCode.UNIMPLEMENTED, IncompatibleUpstreamError),
        (grpc.StatusCode.UNAVAILABLE, UpstreamUnavailableError),
        (grpc.StatusCode.UNKNOWN, UpstreamUnavailableError),
    ],
)
def test_refusals_end_at_once_or_at_the_deadline(status, kind):
    async def scenario():
        clock = HurriedClock()
        async with ScriptedUpstream() as upstream, PdClient(upstream.pd_address, clock=clock) as pd:
            upstream.pd_refusal = (status, "mismatch cluster id, need 1 but got 2")
            with pytest.raises(kind, match="mismatch cluster id"):
                await pd.get_all_stores()
            assert (len(clock.slept_seconds) > 5) == kind.retryable
            with pytest.raises(kind):
                await pd.get_ts()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "error"),
    [(pdpb_pb2.NOT_BOOTSTRAPPED, UpstreamUnavailableError), (pdpb_pb2.UNKNOWN, UpstreamError)],
)
def test_errors_inside_an_answer_count_as_errors(kind, error):
    async def scenario():
        async with ScriptedUpstream() as upstream, PdClient(upstream.pd_address, clock=HurriedClock()) as pd:
            upstream.pd_error = pdpb_pb2.Error(type=kind, message="invalid store ID 9")
            with pytest.raises(error, match=r"bootstrapped|invalid store ID 9"):
                await pd.get_store(9)

    asyncio.run(scenario())


def test_regions_and_stores_come_in_our_own_words():
    async def scenario():
        async with ScriptedUpstream() as upstream, PdClient(upstream.pd_address) as pd:
            upstream.regions = [
                region(1, Span(b"", b"m"), version=4, stores=(1, 2), leader=2),
                region(2, Span(b"m", KEY_END), leader=None),
            ]
            upstream.stores[2] = metapb_pb2.Store(
                id=2, version="v8.5.0", labels=[metapb_pb2.StoreLabel(key="engine", value="tiflash")]
            )
            first, second = await pd.scan_regions(WHOLE, 10)
            assert (first.id, first.version, first.peers) == (1, 4, (Peer(101, 1), Peer(102, 2)))
            assert (first.leader, second.leader) == (Peer(102, 2), None)
            assert second.span == Span(b"m", KEY_END)
            assert await pd.get_region(b"z") == second
            upstream.regions.clear()
            assert await pd.get_region(b"z") is None
            stores = {s.id: s for s in await pd.get_all_stores()}
            assert (stores[1].is_tikv, stores[2].is_tikv, stores[2].version) == (True, False, "8.5.0")

    asyncio.run(scenario())


def test_a_region_that_is_none_is_refused():
    with pytest.raises(ProtocolViolationError, match="region 3 with the range"):
        region_from(metapb_pb2.Region(id=3, start_key=b"b", end_key=b"a"), None)


def test_addresses_of_two_clusters_are_refused():
    class Stranger(ScriptedUpstream):
        def answer(self, method, request):
            answer = super().answer(method, request)
            answer.header.cluster_id = 1
            return answer

    async def scenario():
        async with (
            ScriptedUpstream() as ours,
            Stranger() as stranger,
            PdClient([ours.pd_address, stranger.pd_address]) as pd,
        ):
            await ours.stop()
            with pytest.raises(IncompatibleUpstreamError, match="belongs to cluster 1"):
                await pd.get_all_stores()

    asyncio.run(scenario())


@pytest.mark.parametrize("given", [{"cert_path": "c"}, {"key_path": "k"}, {"cert_path": "c", "key_path": "k"}])
def test_half_a_tls_setting_is_refused(given):
    with pytest.raises(UsageError, match="give"):
        Security(**given)


def test_a_tls_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"ca\.pem.*Check the path"):
        open_channel("127.0.0.1:1", Security(ca_path=str(tmp_path / "ca.pem")))
