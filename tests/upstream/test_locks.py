"""A reader meets a lock: what it asks the store, and what it does with each answer."""

import asyncio

import pytest

from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import UpstreamError, UpstreamUnavailableError
from tidemill.model.span import KEY_END, Span
from tidemill.model.ts import Ts, compose
from tidemill.testing.hurry import HurriedClock
from tidemill.testing.scripted import ScriptedUpstream, region
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

START = compose(1_600_000_000_000)  # long before the scripted PD's clock: any lock of it has expired
READ_TS = Ts(START + 100)
LOCK = kvrpcpb_pb2.LockInfo(key=b"k", primary_lock=b"p", lock_version=START, lock_ttl=3000)
Status = kvrpcpb_pb2.CheckTxnStatusResponse


class LockedStore(ScriptedUpstream):
    """Holds one key, locked until it is resolved or the reader is told that the lock does not matter."""

    def __init__(self, statuses, secondaries=()):
        super().__init__()
        self.regions = [
            region(1, Span(b"", encode_bytes(b"s2"))),
            region(2, Span(encode_bytes(b"s2"), KEY_END)),
        ]
        self.statuses, self.secondaries = list(statuses), list(secondaries)
        self.asked, self.resolved = [], []
        self.kv = {
            "KvGet": self.get,
            "KvCheckTxnStatus": self.check,
            "KvCheckSecondaryLocks": self.check_secondaries,
            "KvResolveLock": self.resolve,
        }

    def get(self, body):
        request = kvrpcpb_pb2.GetRequest.FromString(body)
        if self.resolved or START in request.context.resolved_locks:
            return kvrpcpb_pb2.GetResponse(value=b"read")
        return kvrpcpb_pb2.GetResponse(error=kvrpcpb_pb2.KeyError(locked=LOCK))

    def check(self, body):
        self.asked.append(kvrpcpb_pb2.CheckTxnStatusRequest.FromString(body))
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def check_secondaries(self, body):
        keys = list(kvrpcpb_pb2.CheckSecondaryLocksRequest.FromString(body).keys)
        for known, answer in self.secondaries:
            if known == keys:
                return answer
        raise AssertionError(keys)

    def resolve(self, body):
        request = kvrpcpb_pb2.ResolveLockRequest.FromString(body)
        self.resolved.append((request.start_version, request.commit_version, list(request.keys)))
        return kvrpcpb_pb2.ResolveLockResponse()


def read(store):
    async def run():
        clock = HurriedClock()
        async with store, PdClient(store.pd_address) as pd:
            reader = SnapshotReader(pd, RegionCache(pd), clock=clock)
            try:
                return await reader.get(b"k", READ_TS), clock.slept_seconds
            finally:
                await reader.close()

    return asyncio.run(run())


ALIVE = Status(lock_ttl=10**12, lock_info=LOCK)
NOT_FOUND = Status(error=kvrpcpb_pb2.KeyError(txn_not_found=kvrpcpb_pb2.TxnNotFound(start_ts=START)))
ASYNC = Status(
    lock_ttl=3000,
    lock_info=kvrpcpb_pb2.LockInfo(
        key=b"p",
        primary_lock=b"p",
        lock_version=START,
        use_async_commit=True,
        min_commit_ts=START + 3,
        secondaries=[b"s1", b"s2", b"s3"],
    ),
)


def locks(*min_commit_ts):
    infos = [kvrpcpb_pb2.LockInfo(min_commit_ts=ts, use_async_commit=True) for ts in min_commit_ts]
    return kvrpcpb_pb2.CheckSecondaryLocksResponse(locks=infos)


@pytest.mark.parametrize(
    ("statuses", "secondaries", "resolved", "pauses"),
    [
        pytest.param(
            [Status(commit_version=START + 9)], [], [START + 9], 0, id="a committed one is committed here too"
        ),
        pytest.param([Status()], [], [0], 0, id="one rolled back is rolled back here too"),
        pytest.param(
            [ALIVE, ALIVE, Status(commit_version=START + 9)], [], [START + 9], 2, id="a living one is waited for"
        ),
        pytest.param([NOT_FOUND, Status()], [], [0], 1, id="a primary that is not there yet is waited for"),
        pytest.param(
            [Status(lock_ttl=10**12, action=kvrpcpb_pb2.MinCommitTSPushed)],
            [],
            [],
            0,
            id="one pushed above us is passed by",
        ),
        pytest.param(
            [ASYNC],
            [([b"s1"], locks(START + 7)), ([b"s2", b"s3"], locks(START + 5, START + 6))],
            [START + 7],
            0,
            id="an async one with all its locks is committed at the highest of them",
        ),
        pytest.param(
            [ASYNC],
            [([b"s1"], kvrpcpb_pb2.CheckSecondaryLocksResponse(commit_ts=START + 8))],
            [START + 8],
            0,
            id="an async one with one key committed is committed there",
        ),
        pytest.param(
            [ASYNC],
            [([b"s1"], locks(START + 7)), ([b"s2", b"s3"], locks())],
            [0],
            0,
            id="an async one with a lock missing is rolled back",
        ),
    ],
)
def test_fate(statuses, secondaries, resolved, pauses):
    store = LockedStore(statuses, secondaries)
    value, slept = read(store)
    assert value == b"read"
    assert store.resolved == [(START, commit_ts, [b"k"]) for commit_ts in resolved]
    assert len(slept) == pauses


def test_the_primary_is_asked_in_our_name_and_may_be_rolled_back_once_expired():
    store = LockedStore([Status()])
    read(store)
    (asked,) = store.asked
    assert (asked.primary_key, asked.lock_ts, asked.caller_start_ts) == (b"p", START, READ_TS)
    assert asked.rollback_if_not_exist
    assert asked.verify_is_primary
    assert asked.current_ts > READ_TS


def test_a_transaction_that_never_ends_is_named():
    with pytest.raises(UpstreamUnavailableError, match=f"key 6b is locked by the transaction that started at {START}"):
        read(LockedStore([ALIVE]))


def test_a_refusal_that_is_no_lock_is_told():
    with pytest.raises(UpstreamError, match=r"KvCheckTxnStatus.*abort"):
        read(LockedStore([Status(error=kvrpcpb_pb2.KeyError(abort="no"))]))
