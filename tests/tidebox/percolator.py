"""A plain transactional client: one request per call, to the region of its key; errors are the test's to judge."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from google.protobuf.message_factory import GetMessageClass

from tests.tidebox.stub import DEADLINE_SECONDS, Client, client_of
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2, tikvpb_pb2
from tidemill.tidb.keys import encode_bytes

METHODS = tikvpb_pb2.DESCRIPTOR.services_by_name["Tikv"].methods_by_name


def put(key: bytes, value: bytes = b"new", **fields) -> kvrpcpb_pb2.Mutation:
    return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Put, key=key, value=value, **fields)


def delete(key: bytes, **fields) -> kvrpcpb_pb2.Mutation:
    return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Del, key=key, **fields)


def lock(key: bytes, **fields) -> kvrpcpb_pb2.Mutation:
    return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Lock, key=key, **fields)


def insert(key: bytes, value: bytes = b"new", **fields) -> kvrpcpb_pb2.Mutation:
    return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Insert, key=key, value=value, **fields)


def check_not_exists(key: bytes, **fields) -> kvrpcpb_pb2.Mutation:
    return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.CheckNotExists, key=key, **fields)


def pessimistic(key: bytes, **fields) -> kvrpcpb_pb2.Mutation:
    return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.PessimisticLock, key=key, **fields)


class Percolator:
    def __init__(self, upstream: EmbeddedUpstream, client: Client) -> None:
        self.upstream = upstream
        self.client = client
        self._names = count()

    def key(self) -> bytes:
        """One that nobody has used yet."""
        return b"key-%06d" % next(self._names)

    def tso(self) -> int:
        return self.upstream.tso()

    def send(self, method: str, at: bytes, context=None, **fields):
        region = self.client.region(encode_bytes(at))
        request = GetMessageClass(METHODS[method].input_type)(**fields)
        request.context.CopyFrom(self.client.context(region, **(context or {})))
        call = getattr(self.client.kv[region.leader.store_id], method)
        return call(request, timeout=DEADLINE_SECONDS)

    def get(self, key: bytes, version: int | None = None, **context) -> kvrpcpb_pb2.GetResponse:
        return self.send("KvGet", key, context, key=key, version=self.tso() if version is None else version)

    def prewrite(self, start_ts: int, *mutations, primary: bytes | None = None, context=None, **fields):
        fields = {"lock_ttl": 3000, "txn_size": len(mutations), **fields}
        primary = mutations[0].key if primary is None else primary
        return self.send(
            "KvPrewrite",
            mutations[0].key,
            context,
            mutations=mutations,
            primary_lock=primary,
            start_version=start_ts,
            **fields,
        )

    def commit(self, start_ts: int, commit_ts: int, *keys: bytes):
        return self.send("KvCommit", keys[0], keys=keys, start_version=start_ts, commit_version=commit_ts)

    def write(self, *mutations, **fields) -> tuple[int, int]:
        """A transaction of two phases from begin to end; start-ts and commit-ts."""
        start_ts = self.tso()
        answer = self.prewrite(start_ts, *mutations, **fields)
        assert not answer.errors
        assert not answer.HasField("region_error")
        commit_ts = self.tso()
        keys = [m.key for m in mutations if m.op != kvrpcpb_pb2.CheckNotExists]
        assert not self.commit(start_ts, commit_ts, *keys).HasField("error")
        return start_ts, commit_ts

    def lock(self, start_ts: int, *mutations, for_update_ts: int | None = None, primary: bytes | None = None, **fields):
        return self.send(
            "KvPessimisticLock",
            mutations[0].key,
            mutations=mutations,
            primary_lock=mutations[0].key if primary is None else primary,
            start_version=start_ts,
            for_update_ts=self.tso() if for_update_ts is None else for_update_ts,
            **{"lock_ttl": 3000, "wait_timeout": -1, **fields},
        )

    def status(self, key: bytes, lock_ts: int, **fields) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        return self.send("KvCheckTxnStatus", key, primary_key=key, lock_ts=lock_ts, **fields)

    def resolve(self, key: bytes, start_ts: int, commit_ts: int = 0, **fields) -> kvrpcpb_pb2.ResolveLockResponse:
        return self.send("KvResolveLock", key, start_version=start_ts, commit_version=commit_ts, **fields)

    def scan_lock(self, key: bytes, max_version: int, **fields) -> kvrpcpb_pb2.ScanLockResponse:
        return self.send("KvScanLock", key, max_version=max_version, **fields)


def variants(error) -> list[str]:
    """Which variants of a region error or key error are set."""
    return [field.name for field, _ in error.ListFields() if field.name not in ("message", "retryable")]


def later(ts: int, milliseconds: int) -> int:
    """A ts so much later."""
    return ts + (milliseconds << 18)


@contextmanager
def percolator(**options) -> Iterator[Percolator]:
    options = {"resolved_interval_seconds": 3600, **options}
    with EmbeddedUpstream.start(**options) as upstream, client_of(upstream) as client:
        yield Percolator(upstream, client)
