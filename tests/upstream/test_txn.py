"""Transactions of our own over real gRPC: all or nothing, whatever happens to regions, stores and answers."""

import asyncio
import random

import pytest

from tests.upstream.trouble import shake
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import (
    InvariantError,
    ProtocolViolationError,
    TransactionConflictError,
    TransactionEndedError,
    UndeterminedError,
    UpstreamError,
    UpstreamUnavailableError,
)
from tidemill.model.span import WHOLE
from tidemill.testing.hurry import HurriedClock
from tidemill.testing.scripted import ScriptedUpstream, region
from tidemill.upstream.keyspace import TXN_V1, txn_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.txn import PREWRITE_BYTES_PER_CALL, TxnClient

KEYSPACES = {1: TXN_V1, 2: txn_v2()}


@pytest.fixture(params=[1, 2], ids=["api v1", "api v2"])
def upstream(request):
    with EmbeddedUpstream.start(stores=3, api_version=request.param, resolved_interval_seconds=1.0) as upstream:
        yield upstream


def with_client(upstream, scenario, **options):
    async def run():
        async with PdClient(upstream.pd_address) as pd:
            client = TxnClient(pd, RegionCache(pd), **options)
            try:
                return await scenario(client)
            finally:
                await client.close()

    if isinstance(upstream, EmbeddedUpstream):
        options.setdefault("keyspace", KEYSPACES[upstream.cluster.api_version])
    return asyncio.run(run())


def logical(upstream, key):
    return KEYSPACES[upstream.cluster.api_version].logical(key)


async def put(client, pairs):
    transaction = await client.begin()
    for key, value in pairs.items():
        transaction.put(key, value)
    return await transaction.commit()


async def get(client, *keys):
    return await (await client.begin()).batch_get(keys)


def test_what_is_committed_is_seen_by_those_who_begin_later(upstream):
    async def scenario(client):
        early = await client.begin()
        commit_ts = await put(client, {b"a": b"1", b"b": b"", b"c": b"x" * 1000})
        later = await client.begin()
        assert early.start_ts < commit_ts < later.start_ts
        assert await later.batch_get([b"a", b"b", b"c", b"d"]) == {b"a": b"1", b"b": b"", b"c": b"x" * 1000}
        assert await later.get(b"a") == b"1"
        assert await early.get(b"a") is None
        assert await early.batch_get([b"a", b"b"]) == {}

    with_client(upstream, scenario)


def test_a_transaction_sees_its_own_writes_and_nobody_else_does_before_it_commits(upstream):
    async def scenario(client):
        await put(client, {b"a": b"old", b"b": b"old"})
        mine, other = await client.begin(), await client.begin()
        mine.put(b"a", b"new")
        mine.delete(b"b")
        assert [await mine.get(k) for k in (b"a", b"b", b"c")] == [b"new", None, None]
        assert await mine.batch_get([b"a", b"b", b"c"]) == {b"a": b"new"}
        assert await other.batch_get([b"a", b"b"]) == {b"a": b"old", b"b": b"old"}
        await mine.commit()
        assert await other.batch_get([b"a", b"b"]) == {b"a": b"old", b"b": b"old"}
        assert await get(client, b"a", b"b") == {b"a": b"new"}

    with_client(upstream, scenario)


def test_a_transaction_that_is_over_is_not_used_again(upstream):
    async def scenario(client):
        done, forgotten, empty = [await client.begin() for _ in range(3)]
        done.put(b"a", b"1")
        await done.commit()
        await done.rollback()  # nothing is left to undo
        forgotten.put(b"a", b"2")
        await forgotten.rollback()
        assert await empty.commit() == empty.start_ts
        for transaction, state in [(done, "committed"), (forgotten, "rolled back"), (empty, "committed")]:
            with pytest.raises(InvariantError, match=f"is {state} already"):
                transaction.put(b"a", b"3")
            with pytest.raises(InvariantError, match=f"is {state} already"):
                await transaction.commit()
        assert await get(client, b"a") == {b"a": b"1"}

    with_client(upstream, scenario)


def test_the_second_of_two_writers_is_told_of_the_conflict_and_leaves_nothing(upstream):
    async def scenario(client):
        first, second = await client.begin(), await client.begin()
        for transaction in (first, second):
            transaction.put(b"k", b"%d" % transaction.start_ts)
            transaction.put(b"own%d" % transaction.start_ts, b"v")
        commit_ts = await first.commit()
        with pytest.raises(TransactionConflictError, match="begin a new transaction") as caught:
            await second.commit()
        facts = caught.value
        assert (facts.key, facts.start_ts) == (logical(upstream, b"k"), second.start_ts)
        assert facts.conflict_ts == commit_ts
        own = b"own%d" % second.start_ts
        assert await get(client, b"k", own) == {b"k": b"%d" % first.start_ts}
        assert upstream.cluster.locks.get(logical(upstream, own)) is None

    with_client(upstream, scenario)


def test_large_transactions_go_in_pieces_to_all_regions(upstream):
    pairs = {b"k%04d" % n: bytes([n % 256]) * 1500 for n in range(2000)}

    async def scenario(client):
        for n in (200, 201, 1500):
            upstream.split(logical(upstream, b"k%04d" % n))
        commit_ts = await put(client, pairs)
        assert await get(client, *pairs) == pairs
        assert {upstream.cluster.get(logical(upstream, k)).commit_ts for k in pairs} == {commit_ts}

    assert sum(map(len, pairs.values())) > 5 * PREWRITE_BYTES_PER_CALL
    with_client(upstream, scenario)


def test_an_orphan_in_the_way_is_cleaned_up_and_a_living_lock_is_waited_for(upstream):
    async def scenario(client):
        orphan = upstream.orphan_lock(logical(upstream, b"dead"), 1)
        living = upstream.orphan_lock(logical(upstream, b"alive"), 10**7)
        await put(client, {b"dead": b"mine"})
        committing = asyncio.create_task(put(client, {b"alive": b"mine", b"also": b"mine"}))
        assert await get(client, b"dead") == {b"dead": b"mine"}
        assert not committing.done()
        await asyncio.to_thread(upstream.rollback, [logical(upstream, b"alive")], living)
        await asyncio.wait_for(committing, 30)
        assert await get(client, b"alive", b"also") == {b"alive": b"mine", b"also": b"mine"}
        with pytest.raises(UpstreamError):
            upstream.commit_prewritten([logical(upstream, b"dead")], orphan)

    with_client(upstream, scenario)


def test_a_living_lock_is_not_waited_for_for_ever(upstream):
    async def scenario(client):
        upstream.orphan_lock(logical(upstream, b"alive"), 10**7)
        with pytest.raises(UpstreamUnavailableError, match=r"cannot write.*try again later"):
            await put(client, {b"a": b"v", b"alive": b"v"})
        assert upstream.cluster.locks.get(logical(upstream, b"a")) is None

    with_client(upstream, scenario, lock_wait_seconds=0.0)


def test_one_that_somebody_has_rolled_back_is_told_so(upstream):
    async def scenario(client):
        transaction = await client.begin()
        transaction.put(b"k", b"v")
        await asyncio.to_thread(upstream.rollback, [logical(upstream, b"k")], transaction.start_ts)
        with pytest.raises(TransactionEndedError, match="longer lock-ttl"):
            await transaction.commit()
        assert await get(client, b"k") == {}

    with_client(upstream, scenario)


@pytest.mark.parametrize("seed", range(6))
def test_money_moves_between_accounts_and_none_is_lost_while_regions_split_merge_and_move(upstream, seed):
    chance = random.Random(seed)
    accounts = [b"k%02d" % n for n in range(12)]
    done = []

    async def move(client, own):
        for _ in range(12):
            source, target = own.sample(accounts, 2)
            transaction = await client.begin()
            held = await transaction.batch_get([source, target])
            amount = own.randint(0, int(held[source]))
            transaction.put(source, b"%d" % (int(held[source]) - amount))
            transaction.put(target, b"%d" % (int(held[target]) + amount))
            try:
                done.append(await transaction.commit())
            except (TransactionConflictError, TransactionEndedError):
                continue

    async def watch(client):
        for _ in range(15):
            held = await get(client, *accounts)
            assert sum(map(int, held.values())) == 1200
            await asyncio.to_thread(shake, upstream, chance, [logical(upstream, k) for k in accounts])

    async def scenario(client):
        await put(client, dict.fromkeys(accounts, b"100"))
        movers = [move(client, random.Random(100 * seed + n)) for n in range(4)]
        await asyncio.gather(watch(client), *movers)
        assert sum(map(int, (await get(client, *accounts)).values())) == 1200
        assert len(set(done)) == len(done) > 4

    with_client(upstream, scenario)


# Answers that no healthy store gives, and clocks that run


class Garbage:
    def SerializeToString(self):
        return b"\x0a\xff"


class OneStore(ScriptedUpstream):
    """Says yes to everything, unless told otherwise: a list of answers per method, the last one for good."""

    def __init__(self, **answers):
        super().__init__()
        self.regions = [region(1, WHOLE)]
        self.asked = []
        usual = {
            "KvPrewrite": [kvrpcpb_pb2.PrewriteResponse()],
            "KvCommit": [kvrpcpb_pb2.CommitResponse()],
            "KvBatchRollback": [kvrpcpb_pb2.BatchRollbackResponse()],
            "KvTxnHeartBeat": [kvrpcpb_pb2.TxnHeartBeatResponse()],
        }
        self.kv = {name: self.say(name, list(answers.get(name, turns))) for name, turns in usual.items()}

    def say(self, name, turns):
        def answer(body):
            self.asked.append((name, body))
            turn = turns.pop(0) if len(turns) > 1 else turns[0]
            if isinstance(turn, Exception):
                raise turn
            return turn

        return answer

    def names(self):
        return [name for name, _ in self.asked]


def committing(store, clock=None):
    async def run():
        async with store, PdClient(store.pd_address) as pd:
            options = {} if clock is None else {"clock": clock}
            client = TxnClient(pd, RegionCache(pd), **options)
            try:
                transaction = await client.begin()
                transaction.put(b"a", b"1")
                transaction.put(b"b", b"2")
                return await transaction.commit()
            finally:
                await client.close()

    return asyncio.run(run())


def refusal(**error):
    return kvrpcpb_pb2.CommitResponse(error=kvrpcpb_pb2.KeyError(**error))


def test_the_primary_is_committed_first_and_alone():
    store = OneStore()
    commit_ts = committing(store)
    prewrite = kvrpcpb_pb2.PrewriteRequest.FromString(store.asked[0][1])
    assert store.names() == ["KvPrewrite", "KvCommit", "KvCommit"]
    assert (prewrite.primary_lock, [m.key for m in prewrite.mutations]) == (b"a", [b"a", b"b"])
    commits = [kvrpcpb_pb2.CommitRequest.FromString(body) for _, body in store.asked[1:]]
    assert [(list(c.keys), c.commit_version) for c in commits] == [([b"a"], commit_ts), ([b"b"], commit_ts)]
    assert commit_ts > prewrite.start_version


def test_a_commit_ts_that_a_reader_has_overtaken_is_replaced():
    expired = refusal(commit_ts_expired=kvrpcpb_pb2.CommitTsExpired(min_commit_ts=5))
    store = OneStore(KvCommit=[expired, kvrpcpb_pb2.CommitResponse()])
    commit_ts = committing(store)
    first, second, rest = [kvrpcpb_pb2.CommitRequest.FromString(body) for _, body in store.asked[1:]]
    assert first.commit_version < second.commit_version == rest.commit_version == commit_ts


def test_a_commit_whose_answer_is_lost_is_sent_again():
    store = OneStore(KvCommit=[RuntimeError("the store dies"), kvrpcpb_pb2.CommitResponse()])
    assert committing(store)
    assert store.names() == ["KvPrewrite", "KvCommit", "KvCommit", "KvCommit"]


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(RuntimeError("the store dies"), id="silence"),
        pytest.param(
            kvrpcpb_pb2.CommitResponse(
                region_error=errorpb_pb2.Error(undetermined_result=errorpb_pb2.UndeterminedResult())
            ),
            id="the store does not know",
        ),
        pytest.param(Garbage(), id="an answer that cannot be read"),
    ],
)
def test_a_commit_that_is_never_answered_is_undetermined_and_not_rolled_back(lost):
    store = OneStore(KvCommit=[lost])
    with pytest.raises(UndeterminedError, match=r"whether the transaction .* is committed"):
        committing(store, HurriedClock())
    assert "KvBatchRollback" not in store.names()


def test_secondaries_that_cannot_be_committed_are_left_to_their_readers():
    store = OneStore(KvCommit=[kvrpcpb_pb2.CommitResponse(), refusal(abort="no")])
    assert committing(store)


@pytest.mark.parametrize(
    ("answers", "kind", "message"),
    [
        pytest.param(
            {"KvCommit": [refusal(txn_lock_not_found=kvrpcpb_pb2.TxnLockNotFound(key=b"a"), retryable="gone")]},
            TransactionEndedError,
            "they had expired",
            id="rolled back by another",
        ),
        pytest.param({"KvCommit": [refusal(abort="no room")]}, UpstreamError, r"abort \(no room\)", id="aborted"),
        pytest.param({"KvCommit": [refusal()]}, ProtocolViolationError, "empty error", id="no reason"),
        pytest.param(
            {
                "KvPrewrite": [
                    kvrpcpb_pb2.PrewriteResponse(
                        errors=[kvrpcpb_pb2.KeyError(conflict=kvrpcpb_pb2.WriteConflict(reason=3))]
                    )
                ]
            },
            TransactionEndedError,
            "they had expired",
            id="rolled back before it was written",
        ),
    ],
)
def test_a_refusal_is_named_and_the_locks_are_taken_back(answers, kind, message):
    store = OneStore(**answers)
    with pytest.raises(kind, match=message):
        committing(store)
    assert store.names()[-1] == "KvBatchRollback"
    undone = kvrpcpb_pb2.BatchRollbackRequest.FromString(store.asked[-1][1])
    assert list(undone.keys) == [b"a", b"b"]


def test_heart_beats_ask_for_more_life_as_time_goes_by():
    async def run():
        clock = HurriedClock()
        store = OneStore()
        async with store, PdClient(store.pd_address) as pd:
            client = TxnClient(pd, RegionCache(pd), clock=clock)
            try:
                transaction = await client.begin()
                transaction.put(b"a", b"1")
                async with transaction._kept_alive(b"a"), asyncio.timeout(20):
                    while store.names().count("KvTxnHeartBeat") < 3:
                        await SYSTEM_CLOCK.sleep(0)
                beats = [kvrpcpb_pb2.TxnHeartBeatRequest.FromString(body) for _, body in store.asked]
                wanted = [beat.advise_lock_ttl for beat in beats]
                assert {(beat.primary_lock, beat.start_version) for beat in beats} == {(b"a", transaction.start_ts)}
                assert wanted == sorted(wanted)
                assert wanted[2] >= wanted[0] + 2000
            finally:
                await client.close()

    asyncio.run(run())


def test_who_waits_for_another_lets_its_own_locks_expire(upstream):
    """Two that wait for each other would otherwise keep each other waiting."""
    mine, foreign = logical(upstream, b"a"), logical(upstream, b"z")

    async def scenario(client):
        other = await asyncio.to_thread(upstream.orphan_lock, foreign, 600_000)
        transaction = await client.begin()
        transaction.put(b"a", b"1")
        transaction.put(b"z", b"1")
        committing = asyncio.create_task(transaction.commit())
        while transaction._waiting == 0 or upstream.cluster.locks.get(mine) is None:
            await SYSTEM_CLOCK.sleep(0.005)
        life = upstream.cluster.locks.get(mine).ttl_ms
        await SYSTEM_CLOCK.sleep(0.5)  # some heart-beats long
        assert upstream.cluster.locks.get(mine).ttl_ms == life
        await asyncio.to_thread(upstream.rollback, [foreign], other)
        await committing
        assert await get(client, b"a", b"z") == {b"a": b"1", b"z": b"1"}

    upstream.split(logical(upstream, b"m"))
    with_client(upstream, scenario, lock_ttl_ms=300)
