"""Requests to the region that holds a key: where they go, what is tried again and what is told."""

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstream.world import PEERS
from tidemill._pb import errorpb_pb2, kvrpcpb_pb2, metapb_pb2
from tidemill.errors import IncompatibleUpstreamError, ProtocolViolationError, RegionUnavailableError, UpstreamError
from tidemill.model.span import KEY_END, WHOLE, Span
from tidemill.testing.hurry import HurriedClock
from tidemill.testing.scripted import ScriptedUpstream, region
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.keyspace import RAW_V1, TXN_V1, raw_v2, txn_v2
from tidemill.upstream.kv import KvClient, UnansweredError, _cut, decoder
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.topology import Region

Answer = kvrpcpb_pb2.GetResponse


class Store(ScriptedUpstream):
    """Answers KvGet with each of the turns, the last one for good."""

    def __init__(self, *turns):
        super().__init__()
        self.turns, self.asked = list(turns), []
        self.regions = [region(1, WHOLE)]
        self.kv = {"KvGet": self.get}

    def get(self, body):
        self.asked.append(kvrpcpb_pb2.GetRequest.FromString(body))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, Exception):
            raise turn
        return turn


async def ask(kv, key=b"k", **options):
    _, answer = await kv.send("KvGet", key, lambda region: kvrpcpb_pb2.GetRequest(key=key), decoder(Answer), **options)
    return answer.value


def with_kv(store, scenario, **options):
    async def run():
        clock = HurriedClock()
        async with store, PdClient(store.pd_address) as pd:
            kv = KvClient(RegionCache(pd, clock=clock), clock=clock, **options)
            try:
                return await scenario(kv)
            finally:
                await kv.close()

    return asyncio.run(run())


def refused(**variant):
    return Answer(region_error=errorpb_pb2.Error(**variant))


class Garbage:
    def SerializeToString(self):
        return b"\x0a\xff"


DIES = RuntimeError("the store dies")
GOOD = Answer(value=b"v")
NOT_FOUND = refused(region_not_found=errorpb_pb2.RegionNotFound(region_id=1))


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param([DIES, GOOD], id="no answer"),
        pytest.param([NOT_FOUND, refused(epoch_not_match=errorpb_pb2.EpochNotMatch()), GOOD], id="merged away"),
        pytest.param([refused(server_is_busy=errorpb_pb2.ServerIsBusy()), GOOD], id="busy"),
        pytest.param([refused(RecoveryInProgress=errorpb_pb2.RecoveryInProgress()), GOOD], id="recovering"),
    ],
)
def test_what_heals_is_asked_again(turns):
    store = Store(*turns)
    assert with_kv(store, ask) == b"v"
    assert len(store.asked) == len(turns)


@pytest.mark.parametrize(
    ("turns", "is_once", "kind", "asked"),
    [
        pytest.param([DIES], False, UnansweredError, None, id="silence is told as such in the end"),
        pytest.param([DIES], True, UnansweredError, 1, id="what must not be done twice is not sent again"),
        pytest.param([NOT_FOUND, DIES], True, UnansweredError, 2, id="but after a refusal it is"),
        pytest.param([NOT_FOUND], True, RegionUnavailableError, None, id="and refusals do not count as silence"),
        pytest.param([DIES, NOT_FOUND], False, UnansweredError, None, id="silence stays in memory"),
    ],
)
def test_in_the_end_we_give_up(turns, is_once, kind, asked):
    store = Store(*turns)

    async def scenario(kv):
        with pytest.raises(RegionUnavailableError, match="did not answer KvGet within 60 s") as caught:
            await ask(kv, is_once=is_once)
        assert type(caught.value) is kind

    with_kv(store, scenario)
    assert asked in (None, len(store.asked))


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(refused(raft_entry_too_large=errorpb_pb2.RaftEntryTooLarge()), id="a refusal for good"),
        pytest.param(Garbage(), id="bytes that are no answer"),
    ],
)
def test_silence_is_not_forgotten_over_what_comes_later(later):
    async def scenario(kv):
        with pytest.raises(UnansweredError, match="KvGet had no answer, and then"):
            await ask(kv)

    with_kv(Store(DIES, later), scenario)


def test_what_no_attempt_can_better_is_told_at_once():
    store = Store(refused(raft_entry_too_large=errorpb_pb2.RaftEntryTooLarge()))

    async def scenario(kv):
        with pytest.raises(UpstreamError, match=r"raft_entry_too_large\. Trying again would not help"):
            await ask(kv)
        with pytest.raises(IncompatibleUpstreamError, match="does not know KvNever"):
            await kv.send("KvNever", b"k", lambda region: kvrpcpb_pb2.GetRequest(), decoder(Answer))

    with_kv(store, scenario)
    assert len(store.asked) == 1


def test_a_store_of_another_cluster_is_named():
    async def abort(request, context):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "mismatch cluster id, need 1 but got 2")

    async def run():
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(abort)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tikvpb.Tikv", {"KvGet": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        upstream = Store(GOOD)
        upstream.stores[1].address = f"127.0.0.1:{port}"
        try:
            async with upstream, PdClient(upstream.pd_address) as pd:
                kv = KvClient(RegionCache(pd))
                with pytest.raises(IncompatibleUpstreamError, match=r"of one cluster \(INVALID_ARGUMENT: mismatch"):
                    await ask(kv)
                await kv.close()
        finally:
            await server.stop(None)

    asyncio.run(run())


def test_a_store_is_followed_to_another_address():
    async def run():
        old, new = Store(Answer(value=b"old")), Store(Answer(value=b"new"))
        async with old, new, PdClient(new.pd_address) as pd:
            new.stores[1].address = old.pd_address
            kv = KvClient(RegionCache(pd))
            try:
                assert await ask(kv) == b"old"
                await old.stop()
                new.stores[1].address = new.pd_address
                assert await ask(kv) == b"new"
                assert [address for address, _ in kv._channels.values()] == [new.pd_address]
            finally:
                await kv.close()

    asyncio.run(run())


def test_when_another_store_answers_there_pd_is_asked_where_ours_is():
    async def run():
        mismatch = refused(store_not_match=errorpb_pb2.StoreNotMatch(request_store_id=1, actual_store_id=2))
        async with Store(mismatch) as other, Store(GOOD) as ours, PdClient(ours.pd_address) as pd:
            ours.stores[1].address = other.pd_address
            kv = KvClient(RegionCache(pd))
            try:
                usual = ours.answer

                def moved(method, request):
                    if other.asked:
                        ours.stores[1].address = ours.pd_address
                    return usual(method, request)

                ours.answer = moved
                assert await ask(kv) == b"v"
                assert (len(other.asked), len(ours.asked)) == (1, 1)
            finally:
                await kv.close()

    asyncio.run(run())


def test_a_region_still_listed_on_a_tombstone_store_is_looked_up_until_it_has_moved():
    store = Store(GOOD)
    store.stores[2] = metapb_pb2.Store(id=2, address="127.0.0.1:1", state=metapb_pb2.Tombstone)
    store.regions = [region(1, WHOLE, stores=(2, 1), leader=2)]
    usual, looks = store.answer, []

    def moved(method, request):
        looks.append(method)
        if looks.count("GetRegion") > 2:
            store.regions = [region(1, WHOLE, stores=(2, 1), leader=1)]
        return usual(method, request)

    store.answer = moved
    assert with_kv(store, ask) == b"v"
    assert looks.count("GetStore") >= 2


def test_bytes_that_are_no_answer_are_named():
    async def scenario(kv):
        with pytest.raises(ProtocolViolationError, match="no GetResponse"):
            await ask(kv)

    with_kv(Store(Garbage()), scenario)


@pytest.mark.parametrize(
    ("keyspace", "version", "number"),
    [(TXN_V1, kvrpcpb_pb2.V1, 0), (txn_v2(7), kvrpcpb_pb2.V2, 7), (raw_v2(0xABCDEF), kvrpcpb_pb2.V2, 0xABCDEF)],
)
def test_the_context_says_which_region_and_api_is_meant(keyspace, version, number):
    store = Store(GOOD)
    with_kv(store, ask, keyspace=keyspace)
    context = store.asked[0].context
    assert (context.region_id, context.region_epoch.version, context.peer.store_id) == (1, 1, 1)
    assert (context.api_version, context.keyspace_id) == (version, number)


@pytest.mark.parametrize(
    ("keyspace", "start", "end", "logical"),
    [
        (TXN_V1, b"a", b"b", (b"a", b"b")),
        (TXN_V1, b"", b"", (b"", b"")),
        (raw_v2(), b"a", b"", (b"r\0\0\0a", b"r\0\0\1")),
        (txn_v2(0xFF), b"", b"z", (b"x\0\0\xff", b"x\0\0\xffz")),
        (txn_v2(0xFF), b"", b"", (b"x\0\0\xff", b"x\0\1\0")),
        (raw_v2(0xFFFFFF), b"", b"", (b"r\xff\xff\xff", b"s")),
    ],
)
def test_a_range_of_a_keyspace(keyspace, start, end, logical):
    assert keyspace.range(start, end) == logical


def test_a_key_of_another_keyspace_is_refused():
    assert raw_v2(1).user(b"r\0\0\1k") == b"k"
    with pytest.raises(ProtocolViolationError, match="not of the keyspace 72000001"):
        raw_v2(1).user(b"r\0\0\2k")


keys = st.lists(st.binary(max_size=12), unique=True, min_size=1, max_size=40).map(sorted)


@given(keys, st.binary(max_size=20), st.booleans())
def test_a_keyspace_puts_the_same_keys_into_a_region_as_regions_do(keys, border, is_memcomparable):
    keyspace = TXN_V1 if is_memcomparable else RAW_V1
    for span in (Span(b"", border or b"a"), Span(border, KEY_END)):
        start, end = keyspace.bounds(Region(1, span, 1, 1, PEERS, PEERS[0]))
        inside = [key for key in keys if start <= key and (not end or key < end)]
        assert inside == [key for key in keys if keyspace.physical(key) in span]


@given(keys, st.integers(1, 10), st.integers(1, 60))
def test_keys_are_cut_into_pieces_that_keep_to_the_limits(keys, max_keys, max_bytes):
    pieces = _cut(keys, max_keys, max_bytes, len)
    assert [key for piece in pieces for key in piece] == keys
    for piece in pieces:
        assert 1 <= len(piece) <= max_keys
        assert len(piece) == 1 or sum(map(len, piece)) <= max_bytes


def test_work_is_spread_over_regions_and_what_is_left_over_is_given_again():
    store = Store(GOOD)
    store.regions = [
        region(1, Span(b"", encode_bytes(b"k3"))),
        region(2, Span(encode_bytes(b"k3"), encode_bytes(b"k5"))),
        region(3, Span(encode_bytes(b"k5"), KEY_END)),
    ]
    given_keys, at_once, most = [], 0, 0

    async def scenario(kv):
        async def deal_with(some):
            nonlocal at_once, most
            given_keys.append(list(some))
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return 1

        await kv.spread([b"k%d" % n for n in range(8)], deal_with, max_keys=2, max_calls=3)

    with_kv(store, scenario)
    assert [b"k0", b"k1"] in given_keys
    assert [b"k2"] in given_keys
    assert [b"k3", b"k4"] in given_keys
    assert [b"k7"] in given_keys
    assert all(len(some) <= 2 for some in given_keys)
    assert sorted(some[0] for some in given_keys) == [b"k%d" % n for n in range(8)]
    assert most == 3


def test_when_one_part_fails_that_is_the_error():
    async def scenario(kv):
        async def fail(some):
            raise UpstreamError("of this part")

        with pytest.raises(UpstreamError, match="of this part"):
            await kv.spread([b"a", b"b"], fail, max_keys=1)

    with_kv(Store(GOOD), scenario)
