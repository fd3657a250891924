"""Writes that are decided and not applied yet: what readers, writers and subscribers see of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidebox.percolator import percolator, pessimistic, put, variants
from tests.tidebox.stub import DEADLINE_SECONDS
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import encode_bytes

ASYNC, ONE_PHASE = {"use_async_commit": True}, {"try_one_pc": True}


@pytest.fixture
def kv():
    with percolator(stores=2) as started:
        yield started
        started.upstream.delay_apply(0)


@pytest.fixture
def background(kv):
    with ThreadPoolExecutor(8) as pool:
        yield pool
        kv.upstream.delay_apply(0)


def delayed(kv, background, start_ts, *mutations, **fields):
    """Send a prewrite that waits to be applied until the delay ends; return when it does."""
    kv.upstream.delay_apply(3600)
    answer = background.submit(kv.prewrite, start_ts, *mutations, **fields)
    poll(lambda: kv.upstream.cluster.in_flight.is_latched(mutations[0].key))
    return answer


def poll(predicate) -> None:
    pause = threading.Event()
    for _ in range(DEADLINE_SECONDS * 1000):
        if predicate():
            return
        pause.wait(0.001)
    raise AssertionError("waited in vain")


@pytest.mark.parametrize("how", [ASYNC, ONE_PHASE])
def test_a_reader_is_stopped_by_what_is_on_its_way(kv, background, how):
    key = kv.key()
    kv.write(put(key, b"old"))
    before, start = kv.tso(), kv.tso()
    answer = delayed(kv, background, start, put(key), **how)
    bounds = {"start_key": key, "end_key": key + b"\0", "limit": 9}
    for version in (kv.tso(), MAX_TS):  # the newest as well, though it is the primary
        assert kv.get(key, version).error.locked.lock_version == start
        [pair] = kv.send("KvScan", key, version=version, **bounds).pairs
        assert pair.error.locked.lock_version == start
        [pair] = kv.send("KvBatchGet", key, version=version, keys=[key]).pairs
        assert pair.error.locked.lock_version == start
    assert kv.get(key, before).value == b"old"
    assert kv.scan_lock(key, kv.tso()).error.locked.key == key
    kv.upstream.delay_apply(0)
    assert not answer.result(DEADLINE_SECONDS).errors


@pytest.mark.parametrize("how", [ASYNC, ONE_PHASE])
def test_a_reader_below_the_settled_commit_ts_passes(kv, background, how):
    key = kv.key()
    start, reader = kv.tso(), kv.tso()
    ahead = kv.tso()
    kv.get(kv.key(), ahead)
    answer = delayed(kv, background, start, put(key), **how)
    assert kv.get(key, reader).not_found
    kv.upstream.delay_apply(0)
    result = answer.result(DEADLINE_SECONDS)
    assert (result.min_commit_ts or result.one_pc_commit_ts) > ahead


def test_two_phases_show_nothing_before_they_are_applied(kv, background):
    key = kv.key()
    kv.write(put(key, b"old"))
    answer = delayed(kv, background, kv.tso(), put(key))
    reader = kv.tso()
    assert kv.get(key, reader).value == b"old"
    kv.upstream.delay_apply(0)
    assert not answer.result(DEADLINE_SECONDS).errors
    assert kv.get(key, reader).HasField("error")  # its commit-ts will be taken later than the reader's


def test_other_commands_on_the_key_wait_their_turn(kv, background):
    key = kv.key()
    start = kv.tso()
    first = delayed(kv, background, start, put(key), **ONE_PHASE)
    status = background.submit(kv.status, key, start, rollback_if_not_exist=True)
    second = background.submit(kv.prewrite, kv.tso(), put(key), **ONE_PHASE)
    kv.upstream.delay_apply(0)
    commit = first.result(DEADLINE_SECONDS).one_pc_commit_ts
    assert status.result(DEADLINE_SECONDS).commit_version == commit  # never "unknown, rolled back"
    second.result(DEADLINE_SECONDS)


def test_commands_on_other_keys_and_with_nothing_to_write_do_not_wait(kv, background):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key))
    delayed(kv, background, kv.tso(), put(kv.key()))
    assert kv.status(key, start).lock_ttl
    assert not kv.prewrite(start, put(key)).errors


@pytest.mark.parametrize("change", ["split", "leader"])
def test_what_was_decided_is_not_applied_to_a_region_that_changed(kv, background, change):
    key = kv.key()
    kv.write(put(key, b"old"))
    answer = delayed(kv, background, kv.tso(), put(key), **ONE_PHASE)
    region = kv.upstream.region_of(key)
    if change == "split":
        kv.upstream.split(key + b"x")
    else:
        kv.upstream.transfer_leader(region.id, next(s for s in region.stores if s != region.leader_store))
    kv.upstream.delay_apply(0)
    refused = answer.result(DEADLINE_SECONDS)
    wanted = "epoch_not_match" if change == "split" else "not_leader"
    assert (variants(refused.region_error), refused.one_pc_commit_ts) == ([wanted], 0)
    assert kv.get(key).value == b"old"


@pytest.mark.parametrize("how", [ASYNC, ONE_PHASE])
def test_the_resolved_ts_waits_for_what_is_on_its_way(kv, background, how):
    key = kv.key()
    region = kv.client.region(encode_bytes(key))
    feed = kv.client.feed(region.leader.store_id)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    start = kv.tso()
    answer = delayed(kv, background, start, put(key), **how)
    kv.upstream.publish_resolved()
    feed.wait_resolved(region.region.id, start - 1)
    assert feed.resolved(region.region.id)[-1][3] <= start
    kv.upstream.delay_apply(0)
    result = answer.result(DEADLINE_SECONDS)
    if result.min_commit_ts:
        kv.commit(start, result.min_commit_ts, key)
    present = kv.upstream.publish_resolved()
    feed.wait_resolved(region.region.id, present)
    assert start < (result.min_commit_ts or result.one_pc_commit_ts) <= present


def test_it_does_not_wait_for_two_phases_nor_for_locks_without_data(kv, background):
    key = kv.key()
    region = kv.client.region(encode_bytes(key))
    feed = kv.client.feed(region.leader.store_id)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    kv.lock(kv.tso(), pessimistic(kv.key()))
    kv.prewrite(kv.tso(), kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Lock, key=kv.key()))
    delayed(kv, background, kv.tso(), put(key))
    feed.wait_resolved(region.region.id, kv.upstream.publish_resolved())


def test_stopping_does_not_wait_for_a_delay():
    with percolator() as kv, ThreadPoolExecutor(1) as pool:
        key = kv.key()
        answer = delayed(kv, pool, kv.tso(), put(key))
        kv.upstream.stop()
        assert answer.exception(DEADLINE_SECONDS) is not None or not answer.result().errors


def test_a_delay_that_gets_shorter_counts_at_once(kv, background):
    key = kv.key()
    answer = delayed(kv, background, kv.tso(), put(key))
    kv.upstream.delay_apply(0.001)
    assert not answer.result(DEADLINE_SECONDS).errors
