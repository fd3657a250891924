"""The RawKV client over real gRPC, with API V1 and V2: across regions that split, merge and move."""

import asyncio
import random

import pytest

from tests.upstream.trouble import shake
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import (
    IncompatibleUpstreamError,
    ProtocolViolationError,
    UndeterminedError,
    UpstreamError,
    UsageError,
)
from tidemill.model.span import WHOLE
from tidemill.testing.scripted import ScriptedUpstream, region
from tidemill.upstream.keyspace import RAW_V1, raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import PAIRS_PER_SCAN, PUT_BYTES_PER_CALL, Checksum, RawClient, Swap
from tidemill.upstream.regions import RegionCache

KEYSPACES = {1: RAW_V1, 2: raw_v2()}


@pytest.fixture(params=[1, 2], ids=["api v1", "api v2"])
def upstream(request):
    with EmbeddedUpstream.start(stores=3, api_version=request.param, resolved_interval_seconds=1.0) as upstream:
        yield upstream


@pytest.fixture
def v2():
    with EmbeddedUpstream.start(stores=3, api_version=2, resolved_interval_seconds=1.0) as upstream:
        yield upstream


def with_client(upstream, scenario, **options):
    async def run():
        async with PdClient(upstream.pd_address) as pd:
            if isinstance(upstream, EmbeddedUpstream):
                options.setdefault("keyspace", KEYSPACES[upstream.cluster.api_version])
            client = RawClient(RegionCache(pd), **options)
            try:
                return await scenario(client)
            finally:
                await client.close()

    return asyncio.run(run())


def split(upstream, *keys):
    """Cut between raw keys, in whichever form the API keeps them."""
    prefix = KEYSPACES[upstream.cluster.api_version].prefix
    for key in keys:
        upstream.split(prefix + key)


async def scanned(client, *bounds, **options):
    lists = [pairs async for pairs in client.scan(*bounds, **options)]
    assert all(lists)
    return [pair for pairs in lists for pair in pairs]


def test_what_is_put_is_got_until_it_is_deleted(upstream):
    async def scenario(client):
        assert await client.get(b"k") is None
        await client.put(b"k", b"v")
        await client.put(b"empty", b"")
        assert [await client.get(k) for k in (b"k", b"empty")] == [b"v", b""]
        assert await client.batch_get([b"k", b"empty", b"x", b"k"]) == {b"k": b"v", b"empty": b""}
        await client.delete(b"k")
        await client.delete(b"never was")
        assert await client.get(b"k") is None

    with_client(upstream, scenario)


def test_batches_go_to_every_region_and_beyond_one_requests_size(upstream):
    pairs = {b"k%04d" % n: bytes([n % 256]) * 2000 for n in range(1500)}

    async def scenario(client):
        await client.batch_put(pairs)
        split(upstream, b"k0300", b"k0301", b"k0900")
        assert await client.batch_get(pairs) == pairs
        gone = [k for k in pairs if k[-1:] in b"3456"]
        await client.batch_delete(gone)
        assert dict(await scanned(client, b"")) == {k: v for k, v in pairs.items() if k not in gone}
        await client.batch_put({})
        assert await client.batch_get([]) == {}

    assert sum(map(len, pairs.values())) > 4 * PUT_BYTES_PER_CALL
    with_client(upstream, scenario)


@pytest.mark.parametrize("is_reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize(
    ("start", "end", "limit"),
    [
        pytest.param(b"", b"", None, id="everything"),
        pytest.param(b"k0100", b"k0200", None, id="within a region"),
        pytest.param(b"k0100", b"k1300", None, id="across regions"),
        pytest.param(b"k0600", b"", 700, id="so many"),
        pytest.param(b"", b"k0600", PAIRS_PER_SCAN, id="a whole page"),
        pytest.param(b"k0500", b"k0500", None, id="nothing"),
        pytest.param(b"", b"", 0, id="none"),
    ],
)
def test_a_scan_gives_the_pairs_of_the_range_in_order(upstream, start, end, limit, is_reverse):
    pairs = {b"k%04d" % n: b"%d" % n for n in range(1400)}
    inside = sorted(((k, v) for k, v in pairs.items() if start <= k and (not end or k < end)), reverse=is_reverse)

    async def scenario(client):
        await client.batch_put(pairs)
        split(upstream, b"k0300", b"k0600", b"k1200")
        assert await scanned(client, start, end, limit=limit, is_reverse=is_reverse) == inside[:limit]
        keys = await scanned(client, start, end, limit=limit, is_reverse=is_reverse, keys_only=True)
        assert keys == [(k, b"") for k, _ in inside[:limit]]

    with_client(upstream, scenario)


@pytest.mark.parametrize(("start", "end"), [(b"k2", b"k7"), (b"k5", b""), (b"", b""), (b"k7", b"k2")])
def test_a_range_is_deleted_and_nothing_else(upstream, start, end):
    pairs = {b"k%d" % n: b"v" for n in range(10)}

    async def scenario(client):
        await client.batch_put(pairs)
        split(upstream, b"k3", b"k6")
        await client.delete_range(start, end)
        assert dict(await scanned(client, b"")) == {k: v for k, v in pairs.items() if k < start or (end and k >= end)}

    with_client(upstream, scenario)


def test_a_swap_is_done_only_where_the_key_holds_what_was_expected(upstream):
    async def scenario(client):
        assert await client.compare_and_swap(b"k", b"x", b"1") == Swap(False, None)
        assert await client.compare_and_swap(b"k", None, b"1") == Swap(True, None)
        assert await client.compare_and_swap(b"k", None, b"2") == Swap(False, b"1")
        assert await client.compare_and_swap(b"k", b"1", b"") == Swap(True, b"1")
        assert await client.compare_and_swap(b"k", b"", None) == Swap(True, b"")
        assert await client.get(b"k") is None

    with_client(upstream, scenario, is_atomic=True)


def test_a_ttl_is_kept_per_key(v2):
    async def scenario(client):
        await client.put(b"a", b"v", ttl_seconds=1000)
        await client.batch_put({b"b": b"v", b"c": b"v"}, ttl_seconds={b"b": 500})
        await client.batch_put({b"d": b"v", b"e": b"v"}, ttl_seconds=700)
        left = [await client.ttl(k) for k in (b"a", b"b", b"c", b"d", b"e", b"f")]
        assert left[2] == 0
        assert left[5] is None
        for seconds, given in zip([left[0], left[1], left[3], left[4]], [1000, 500, 700, 700], strict=True):
            assert given - 100 < seconds <= given

    with_client(v2, scenario)


def test_without_ttl_in_api_v1_the_store_says_so():
    with EmbeddedUpstream.start(resolved_interval_seconds=1.0) as upstream:

        async def scenario(client):
            with pytest.raises(UpstreamError, match="refuses RawPut: ttl is not enabled"):
                await client.put(b"k", b"v", ttl_seconds=5)

        with_client(upstream, scenario)


def test_keyspaces_do_not_see_each_other(v2):
    async def write(client):
        await client.batch_put({b"k": b"mine", b"l": b"mine"})
        assert await scanned(client, b"") == [(b"k", b"mine"), (b"l", b"mine")]
        assert await scanned(client, b"", is_reverse=True) == [(b"l", b"mine"), (b"k", b"mine")]

    async def other(client):
        assert await scanned(client, b"") == []
        assert await scanned(client, b"", is_reverse=True) == []
        await client.put(b"k", b"other")
        await client.delete_range(b"", b"")

    async def again(client):
        assert await client.batch_get([b"k", b"l"]) == {b"k": b"mine", b"l": b"mine"}

    with_client(v2, write)
    for keyspace_id in (1, 0xFFFFFF):
        with_client(v2, other, keyspace=raw_v2(keyspace_id))
    with_client(v2, again)


def test_a_raw_key_beyond_all_that_spans_can_name_is_refused_and_not_searched_for():
    with pytest.raises(UsageError, match="must be below 32 bytes of ff"):
        RAW_V1.physical(b"\xff" * 33)
    assert RAW_V1.physical(b"\xff" * 31) == b"\xff" * 31


def test_a_keyspace_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="no keyspace 16777216"):
        raw_v2(1 << 24)


def test_the_wrong_api_version_is_named(upstream):
    wrong = KEYSPACES[3 - upstream.cluster.api_version]

    async def scenario(client):
        with pytest.raises(IncompatibleUpstreamError, match=r"RawPut.*api-version"):
            await client.put(b"k", b"v")
        with pytest.raises(IncompatibleUpstreamError, match=r"RawBatchGet.*api-version"):
            await client.batch_get([b"k"])

    with_client(upstream, scenario, keyspace=wrong)


@pytest.mark.parametrize("seed", range(6))
def test_while_regions_split_merge_and_move_the_data_equals_a_model(upstream, seed):
    chance, model = random.Random(seed), {}
    keys = [b"k%02d" % n for n in range(50)]

    async def step(client):
        some = chance.sample(keys, chance.randint(1, 12))
        low, high = sorted(chance.sample(keys, 2))
        match chance.randrange(7):
            case 0 | 1:
                pairs = {k: chance.randbytes(chance.choice([0, 3, 300])) for k in some}
                await client.batch_put(pairs)
                model.update(pairs)
            case 2:
                await client.batch_delete(some)
                for k in some:
                    model.pop(k, None)
            case 3:
                await client.put(some[0], b"one")
                model[some[0]] = b"one"
            case 4:
                assert await client.batch_get(some) == {k: model[k] for k in some if k in model}
            case 5:
                down = chance.random() < 0.5
                inside = sorted((p for p in model.items() if low <= p[0] < high), reverse=down)
                assert await scanned(client, low, high, is_reverse=down) == inside
            case 6:
                await client.delete_range(low, high)
                for k in [k for k in model if low <= k < high]:
                    del model[k]

    async def scenario(client):
        for _ in range(40):
            prefix = KEYSPACES[upstream.cluster.api_version].prefix
            trouble = asyncio.to_thread(shake, upstream, chance, [prefix + k for k in keys])
            await asyncio.gather(step(client), trouble)
        assert dict(await scanned(client, b"")) == model

    with_client(upstream, scenario)


def test_the_checksum_of_a_range_does_not_depend_on_regions_or_order(upstream):
    pairs = {b"k%02d" % n: b"%d" % n for n in range(50)}

    async def scenario(client):
        assert await client.checksum(b"") == Checksum()
        await client.batch_put(pairs)
        whole = await client.checksum(b"k")
        split(upstream, b"k10", b"k30")
        assert await client.checksum(b"k", b"l") == whole
        left, right = await client.checksum(b"", b"k25"), await client.checksum(b"k25")
        assert left.with_more(right) == right.with_more(left) == whole
        assert (left.pairs, right.pairs, whole.pairs) == (25, 25, 50)
        await client.put(b"k25", b"another")
        assert (await client.checksum(b"")).crc64_xor != whole.crc64_xor

    with_client(upstream, scenario)


# Answers that no healthy store gives


class Answering(ScriptedUpstream):
    def __init__(self, **kv):
        super().__init__()
        self.regions = [region(1, WHOLE)]
        self.kv = {name: (lambda body, answer=answer: answer) for name, answer in kv.items()}


async def scan_all(client):
    return await scanned(client, b"b", b"d")


def kv_pairs(*keys):
    return [kvrpcpb_pb2.KvPair(key=key, value=b"v") for key in keys]


def scan_answer(*keys):
    return kvrpcpb_pb2.RawScanResponse(kvs=kv_pairs(*keys))


class NotAMessage:
    def SerializeToString(self):
        return b"\x0a\x05x"


@pytest.mark.parametrize(
    ("answers", "ask", "message"),
    [
        pytest.param({"RawScan": scan_answer(b"c", b"b")}, scan_all, "out of", id="order"),
        pytest.param({"RawScan": scan_answer(b"a")}, scan_all, "out of range", id="below"),
        pytest.param({"RawScan": scan_answer(b"d")}, scan_all, "out of range", id="above"),
        pytest.param(
            {"RawBatchGet": kvrpcpb_pb2.RawBatchGetResponse(pairs=kv_pairs(b"y"))},
            lambda client: client.batch_get([b"x"]),
            "key 79, not asked for",
            id="another key",
        ),
        pytest.param(
            {"RawGet": NotAMessage()}, lambda client: client.get(b"x"), "no RawGetResponse", id="bytes that are nothing"
        ),
    ],
)
def test_answers_that_break_the_protocol_are_named(answers, ask, message):
    async def run():
        async with Answering(**answers) as upstream, PdClient(upstream.pd_address) as pd:
            client = RawClient(RegionCache(pd))
            try:
                with pytest.raises(ProtocolViolationError, match=message):
                    await ask(client)
            finally:
                await client.close()

    asyncio.run(run())


def test_a_swap_whose_answer_cannot_be_read_is_undetermined():
    async def run():
        async with Answering(RawCompareAndSwap=NotAMessage()) as upstream, PdClient(upstream.pd_address) as pd:
            client = RawClient(RegionCache(pd))
            try:
                with pytest.raises(UndeterminedError, match="Read the key"):
                    await client.compare_and_swap(b"k", None, b"v")
            finally:
                await client.close()

    asyncio.run(run())


def test_a_swap_whose_answer_is_lost_is_not_repeated():
    asked = []

    class Dying(Answering):
        def __init__(self):
            super().__init__()
            self.kv = {"RawCompareAndSwap": self.swap, "RawPut": self.put}

        def swap(self, body):
            asked.append("swap")
            raise RuntimeError("the store dies")

        def put(self, body):
            asked.append("put")
            if asked.count("put") < 2:
                raise RuntimeError("the store dies")
            return kvrpcpb_pb2.RawPutResponse()

    async def run():
        async with Dying() as upstream, PdClient(upstream.pd_address) as pd:
            client = RawClient(RegionCache(pd))
            try:
                with pytest.raises(UndeterminedError, match="Read the key"):
                    await client.compare_and_swap(b"k", None, b"v")
                await client.put(b"k", b"v")
            finally:
                await client.close()

    asyncio.run(run())
    assert asked == ["swap", "put", "put"]
