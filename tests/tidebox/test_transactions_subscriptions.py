"""What the change stream is told of transactions: a row for each step that matters, and none for others."""

import pytest

from tests.tidebox.percolator import check_not_exists, delete, insert, later, lock, percolator, pessimistic, put
from tests.tidebox.stub import COMMIT, COMMITTED, PREWRITE, ROLLBACK
from tidemill._pb import kvrpcpb_pb2
from tidemill.tidb.keys import encode_bytes

PUT, DELETE, UNKNOWN = 1, 2, 0
EXPECT_LOCK = kvrpcpb_pb2.PrewriteRequest.DO_PESSIMISTIC_CHECK


@pytest.fixture(scope="module")
def kv():
    with percolator() as started:
        region = started.client.region(encode_bytes(b"key"))
        started.feed = started.client.feed(region.leader.store_id)
        started.feed.register(region)
        started.feed.wait_initialized(region.region.id)
        yield started


def rows(kv, key):
    """All rows of the key so far: (type, op, value, old value, start-ts, commit-ts)."""
    end = kv.key()
    kv.prewrite(kv.tso(), put(end), try_one_pc=True)
    kv.feed.wait(lambda: any(row.key == end for row in kv.feed.rows()))
    return [
        (row.type, row.op_type, row.value, row.old_value, row.start_ts, row.commit_ts)
        for row in kv.feed.rows()
        if row.key == key
    ]


def with_old(kv) -> bytes:
    """A key with a value, and one row to its name."""
    key = kv.key()
    kv.prewrite(kv.tso(), put(key, b"old"), try_one_pc=True)
    return key


@pytest.mark.parametrize(
    ("mutation", "op", "value", "in_commit"),
    [
        pytest.param(lambda key: put(key, b"short"), PUT, b"short", b"short", id="put"),
        pytest.param(lambda key: put(key, b"L" * 256), PUT, b"L" * 256, b"", id="a long value comes once"),
        pytest.param(delete, DELETE, b"", b"", id="delete"),
    ],
)
@pytest.mark.parametrize("how", ["two phases", "asynchronous", "pessimistic"])
def test_prewrite_and_commit(kv, mutation, op, value, in_commit, how):
    key = with_old(kv)
    start = kv.tso()
    fields = {}
    if how == "asynchronous":
        fields = {"use_async_commit": True}
    elif how == "pessimistic":
        kv.lock(start, pessimistic(key))
        fields = {"for_update_ts": kv.tso(), "pessimistic_actions": [EXPECT_LOCK]}
    settled = kv.prewrite(start, mutation(key), **fields).min_commit_ts
    commit = settled or kv.tso()
    kv.commit(start, commit, key)
    assert rows(kv, key)[1:] == [
        (PREWRITE, op, value, b"old", start, 0),
        (COMMIT, op, in_commit, b"", start, commit),
    ]


def test_the_old_value_of_a_pessimistic_prewrite_is_the_one_it_locked(kv):
    key = with_old(kv)
    start = kv.tso()
    newer = kv.prewrite(kv.tso(), put(key, b"newer"), try_one_pc=True).one_pc_commit_ts
    kv.lock(start, pessimistic(key))
    kv.prewrite(start, put(key), for_update_ts=kv.tso(), pessimistic_actions=[EXPECT_LOCK])
    assert newer > start
    assert rows(kv, key)[-1] == (PREWRITE, PUT, b"new", b"newer", start, 0)
    kv.resolve(key, start)


@pytest.mark.parametrize(
    ("mutation", "op", "value"),
    [
        pytest.param(lambda key: put(key, b"short"), PUT, b"short", id="put"),
        pytest.param(lambda key: put(key, b"L" * 256), PUT, b"L" * 256, id="a long value"),
        pytest.param(delete, DELETE, b"", id="delete"),
    ],
)
def test_one_phase_is_a_single_row(kv, mutation, op, value):
    key = with_old(kv)
    start = kv.tso()
    commit = kv.prewrite(start, mutation(key), try_one_pc=True).one_pc_commit_ts
    assert rows(kv, key)[1:] == [(COMMITTED, op, value, b"old", start, commit)]


def test_an_insert_has_no_old_value(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, insert(key, b"v"))
    assert rows(kv, key) == [(PREWRITE, PUT, b"v", b"", start, 0)]
    kv.resolve(key, start)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda kv, k, s: kv.send("KvBatchRollback", k, start_version=s, keys=[k]), id="rollback"),
        pytest.param(lambda kv, k, s: kv.send("KvCleanup", k, key=k, start_version=s), id="clean-up"),
        pytest.param(lambda kv, k, s: kv.resolve(k, s), id="resolve the region"),
        pytest.param(lambda kv, k, s: kv.resolve(k, s, keys=[k]), id="resolve the key"),
        pytest.param(lambda kv, k, s: kv.status(k, s, current_ts=later(s, 9000)), id="its time is up"),
    ],
)
def test_every_way_to_roll_back_is_told(kv, end):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key))
    end(kv, key, start)
    assert rows(kv, key)[1:] == [(ROLLBACK, UNKNOWN, b"", b"", start, 0)]


def test_the_rollback_of_a_missing_secondary_is_told(kv):
    key = kv.key()
    start = kv.tso()
    kv.send("KvCheckSecondaryLocks", key, keys=[key], start_version=start)
    assert rows(kv, key) == [(ROLLBACK, UNKNOWN, b"", b"", start, 0)]


def test_nothing_is_told_where_no_data_changes(kv):
    locked, checked, only, at_once = (kv.key() for _ in range(4))
    start = kv.tso()
    kv.lock(start, pessimistic(locked))
    kv.send("KVPessimisticRollback", locked, start_version=start, for_update_ts=kv.tso(), keys=[locked])
    kv.prewrite(start, check_not_exists(checked))
    kv.write(lock(only))
    kv.prewrite(kv.tso(), lock(at_once), try_one_pc=True)
    assert [rows(kv, key) for key in (locked, checked, only, at_once)] == [[], [], [], []]


def test_a_heart_beat_and_a_deleted_range_are_not_told(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key))
    kv.send("KvTxnHeartBeat", key, primary_lock=key, start_version=start, advise_lock_ttl=60_000)
    kv.send("KvDeleteRange", key, start_key=key, end_key=key + b"\0")
    assert [row[0] for row in rows(kv, key)] == [PREWRITE]


def test_the_source_of_a_transaction_is_told(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key), context={"txn_source": 5})
    kv.commit(start, kv.tso(), key)
    rows(kv, key)
    assert [row.txn_source for row in kv.feed.rows() if row.key == key] == [5, 5]


def test_a_commit_that_was_settled_before_a_promise_is_not_refused(kv):
    # The promise of the region's other keys is higher than what this key's lock allows.
    key = kv.key()
    region = kv.client.region(encode_bytes(key))
    kv.feed.register(region, 2, end_key=encode_bytes(b"a"))
    kv.feed.wait_initialized(region.region.id, request_id=2)
    start = kv.tso()
    settled = kv.prewrite(start, put(key), use_async_commit=True).min_commit_ts
    present = kv.upstream.publish_resolved()
    kv.feed.wait_resolved(region.region.id, present, 2)
    assert settled < present
    assert not kv.commit(start, settled, key).HasField("error")
