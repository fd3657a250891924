"""A plain client of RawKV: finds the region of a key, asks once, and hands back what the store says."""

from tests.tidebox.stub import Client
from tidemill._pb import kvrpcpb_pb2
from tidemill.tidb.keys import encode_bytes

KEYSPACE = b"r\x00\x00\x00"


class RawClient:
    def __init__(self, client: Client, api_version: int) -> None:
        self.client = client
        self.is_v2 = api_version == 2
        self.prefix = KEYSPACE if self.is_v2 else b""

    def key(self, key: bytes) -> bytes:
        """As it goes on the wire."""
        return self.prefix + key

    def region(self, key: bytes):
        wire = self.key(key)
        return self.client.region(encode_bytes(wire) if self.is_v2 else wire)

    def call(self, method: str, region, **fields):
        """One request to the region's leader."""
        names = {"RawCompareAndSwap": "RawCAS"}
        request = getattr(kvrpcpb_pb2, names.get(method, method) + "Request")(context=self.context(region), **fields)
        return getattr(self.client.kv[region.leader.store_id], method)(request)

    def context(self, region, **other):
        version = kvrpcpb_pb2.V2 if self.is_v2 else kvrpcpb_pb2.V1
        return self.client.context(region, **{"api_version": version, **other})

    def put(self, key: bytes, value: bytes, **other):
        return self.call("RawPut", self.region(key), key=self.key(key), value=value, **other)

    def get(self, key: bytes, **other) -> bytes | None:
        answer = self.call("RawGet", self.region(key), key=self.key(key), **other)
        assert not answer.error
        assert not answer.HasField("region_error")
        return None if answer.not_found else answer.value

    def delete(self, key: bytes, **other):
        return self.call("RawDelete", self.region(key), key=self.key(key), **other)

    def scan(self, start: bytes = b"", end: bytes | None = None, *, limit: int = 1000, region=None, **other):
        """Pairs from one region; keys without their prefix."""
        last = (b"s" if self.is_v2 else b"") if end is None else self.key(end)
        bounds = {"start_key": self.key(start), "end_key": last}
        if other.get("reverse"):
            bounds = {"start_key": bounds["end_key"], "end_key": bounds["start_key"]}
        answer = self.call("RawScan", region or self.region(start), limit=limit, **bounds, **other)
        return [(pair.key.removeprefix(self.prefix), pair.value) for pair in answer.kvs]
