"""Any raw operations, while regions split and move, leave what a dictionary would hold."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.tidebox.rawclient import RawClient
from tests.tidebox.stub import client_of
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.tidb.keys import encode_bytes

operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "batch_put", "batch_delete", "cas", "delete_range", "split", "move"]),
        st.integers(0, 2**32 - 1),
    ),
    max_size=30,
)
KEYS = [b"a", b"ab", b"abcdefg", b"abcdefgh", b"abcdefghi", b"b", b"b\x00", b"b\xff", b"c"]


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def shared(request):
    """One upstream for all examples; each cleans up after itself."""
    with (
        EmbeddedUpstream.start(stores=3, api_version=request.param, resolved_interval_seconds=3600) as upstream,
        client_of(upstream) as client,
    ):
        yield upstream, RawClient(client, request.param)


class Model:
    """Applies random operations both to the store and to a dictionary."""

    def __init__(self, upstream: EmbeddedUpstream, raw: RawClient) -> None:
        self.upstream, self.raw = upstream, raw
        self.state: dict[bytes, bytes] = {}

    def do(self, operation: str, seed: int) -> None:
        chance = random.Random(seed)
        getattr(self, operation)(chance, chance.choice(KEYS), chance.randbytes(chance.choice([0, 3, 300])))

    def put(self, chance, key, value):
        assert self.raw.put(key, value) == kvrpcpb_pb2.RawPutResponse()
        self.state[key] = value

    def delete(self, chance, key, value):
        assert self.raw.delete(key) == kvrpcpb_pb2.RawDeleteResponse()
        self.state.pop(key, None)

    def batch_put(self, chance, key, value):
        for region, keys in self._by_region(chance.choices(KEYS, k=4)):
            pairs = [kvrpcpb_pb2.KvPair(key=self.raw.key(k), value=value) for k in keys]
            assert self.raw.call("RawBatchPut", region, pairs=pairs) == kvrpcpb_pb2.RawBatchPutResponse()
            self.state.update(dict.fromkeys(keys, value))

    def batch_delete(self, chance, key, value):
        for region, keys in self._by_region(chance.choices(KEYS, k=4)):
            answer = self.raw.call("RawBatchDelete", region, keys=[self.raw.key(k) for k in keys])
            assert answer == kvrpcpb_pb2.RawBatchDeleteResponse()
            for k in keys:
                self.state.pop(k, None)

    def cas(self, chance, key, value):
        expected = self.state.get(key) if chance.random() < 0.7 else b"something else"
        before = {"previous_not_exist": True} if expected is None else {"previous_value": expected}
        answer = self.raw.call("RawCompareAndSwap", self.raw.region(key), key=self.raw.key(key), value=value, **before)
        assert answer.succeed == (self.state.get(key) == expected)
        if answer.succeed:
            self.state[key] = value

    def delete_range(self, chance, key, value):
        start, end = sorted(chance.sample(KEYS, 2))
        region = self.raw.region(start)
        last = min(self._physical(end), region.region.end_key) if region.region.end_key else self._physical(end)
        if last != self._physical(end):
            return
        answer = self.raw.call("RawDeleteRange", region, start_key=self.raw.key(start), end_key=self.raw.key(end))
        assert answer == kvrpcpb_pb2.RawDeleteRangeResponse()
        self.state = {k: v for k, v in self.state.items() if not start <= k < end}

    def split(self, chance, key, value):
        wire = self.raw.key(key)
        if self.upstream.region_of(wire).start != encode_bytes(wire) and len(self.upstream.regions()) < 20:
            self.upstream.split(wire)

    def move(self, chance, key, value):
        region = chance.choice(self.upstream.regions())
        self.upstream.transfer_leader(region.id, chance.choice(region.stores))

    def check(self) -> None:
        expected = sorted(self.state.items())
        for backwards in (False, True):
            found = [pair for region in self._regions() for pair in self.raw.scan(region=region, reverse=backwards)]
            assert sorted(found) == expected
        assert [self.raw.get(key) for key in KEYS] == [self.state.get(key) for key in KEYS]

    def clear(self) -> None:
        for key in list(self.state):
            self.raw.delete(key)

    def _physical(self, key: bytes) -> bytes:
        return encode_bytes(self.raw.key(key)) if self.raw.is_v2 else key

    def _regions(self):
        return self.raw.client.regions()

    def _by_region(self, keys):
        grouped: dict[int, tuple] = {}
        for key in keys:
            region = self.raw.region(key)
            grouped.setdefault(region.region.id, (region, []))[1].append(key)
        return grouped.values()


@settings(max_examples=examples(40), deadline=None)
@given(operations)
def test_any_operations_equal_a_dictionary(shared, steps):
    model = Model(*shared)
    for operation, seed in steps:
        model.do(operation, seed)
    model.check()
    model.clear()
