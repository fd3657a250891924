"""Locks on disk and in memory: TiKV's bytes, key order, and what a restart finds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidebox.percolator import delete, lock, percolator, pessimistic, put
from tidebox.engine import Engine
from tidebox.mvcc import Lock, LockTable, LockType, SortedKeys, Write, WriteType
from tidemill.errors import CorruptDataError

stamps = st.integers(0, (1 << 64) - 1)
locks = st.builds(
    Lock,
    st.sampled_from(LockType),
    st.binary(max_size=40),
    st.integers(1, (1 << 64) - 1),
    stamps,
    short_value=st.none() | st.binary(max_size=255),
    for_update_ts=stamps,
    txn_size=stamps,
    min_commit_ts=stamps,
    txn_source=stamps,
)
asynchronous = st.builds(
    lambda one, secondaries: Lock(**{**{f: getattr(one, f) for f in one.__slots__}, **secondaries}),
    locks,
    st.fixed_dictionaries(
        {"use_async_commit": st.just(True), "secondaries": st.lists(st.binary(max_size=200), max_size=5).map(tuple)}
    ),
)
writes = st.builds(
    Write,
    st.sampled_from(WriteType),
    stamps,
    st.none() | st.binary(max_size=255),
    stamps,
    st.booleans(),
)


@given(locks | asynchronous)
def test_a_lock_is_read_as_it_was_written(written):
    assert Lock.decode(written.encode()) == written


@given(writes)
def test_so_is_a_commit_record(written):
    assert Write.decode(written.encode()) == written


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        pytest.param(Lock(LockType.PUT, b"pk", 1, 3, b"v"), b"P\x04pk\x01\x03v\x01v", id="put"),
        pytest.param(
            Lock(LockType.PESSIMISTIC, b"pk", 1, 3, for_update_ts=5, min_commit_ts=6),
            b"S\x04pk\x01\x03f" + (5).to_bytes(8, "big") + b"c" + (6).to_bytes(8, "big"),
            id="pessimistic",
        ),
        pytest.param(
            Lock(LockType.DELETE, b"pk", 300, 0, use_async_commit=True, secondaries=(b"s1", b"")),
            b"D\x04pk\xac\x02\x00a\x02\x04s1\x00",
            id="asynchronous, with secondaries",
        ),
        pytest.param(Lock(LockType.LOCK, b"", 1, 0, txn_source=2), b"L\x00\x01\x00s\x02", id="with a source"),
        pytest.param(Write.rollback(5, is_protected=True), b"R\x05v\x01p", id="a protected rollback"),
        pytest.param(
            Write(WriteType.PUT, 5, b"x", has_overlapped_rollback=True), b"P\x05v\x01xR", id="an overlapped rollback"
        ),
    ],
)
def test_the_bytes_are_tikvs(written, bytes_):
    assert written.encode() == bytes_


@pytest.mark.parametrize("data", [b"", b"X", b"P\x09abc", b"P\x02a\x80", b"D\x04pk\x01\x00a\x02\x04s"])
def test_a_damaged_lock_is_named(data):
    with pytest.raises(CorruptDataError, match="lock"):
        Lock.decode(data)


@pytest.mark.parametrize("seed", range(5))
def test_keys_stay_in_order_whatever_comes_and_goes(seed):
    dice = random.Random(seed)
    model = {b"%05d" % dice.randrange(99999) for _ in range(dice.choice([0, 3000]))}
    keys = SortedKeys(sorted(model))
    for _ in range(6000):
        key = b"%05d" % dice.randrange(9999)
        if key in model:
            model.remove(key)
            keys.remove(key)
        else:
            model.add(key)
            keys.add(key)
        if dice.random() < 0.02:
            start, end = (b"%05d" % dice.randrange(99999) for _ in range(2))
            end = dice.choice([b"", end])
            assert list(keys.within(start, end)) == sorted(k for k in model if k >= start and (not end or k < end))
    for key in sorted(model, key=lambda _: dice.random()):
        keys.remove(key)
    assert list(keys.within(b"", b"")) == []


def test_the_table_is_rebuilt_from_disk(tmp_path):
    engine = Engine(tmp_path)
    table = LockTable(engine)
    batch = engine.batch()
    wanted = {b"k%04d" % n: Lock(LockType.PUT, b"p", n + 1, 0) for n in range(3000)}
    for key in sorted(wanted, reverse=True):
        table.put(batch, key, wanted[key])
    for key in [b"k0000", b"k1500", b"none"]:
        table.remove(batch, key)
        wanted.pop(key, None)
    engine.write(batch)
    for found in (table, LockTable(engine)):
        assert found.within(b"", b"") == sorted(wanted.items())
        assert [key for key, _ in found.within(b"k1499", b"k1502")] == [b"k1499", b"k1501"]
        assert len(found) == len(wanted)
    engine.close()


def test_after_a_restart_every_lock_is_there_with_all_it_says(tmp_path):
    with percolator(data_dir=tmp_path / "d") as kv:
        starts = [kv.tso() for _ in range(3)]
        kv.prewrite(starts[0], put(b"a"), primary=b"a", use_async_commit=True, secondaries=[b"b", b"c"])
        kv.prewrite(starts[1], delete(b"d"), lock(b"e"), min_commit_ts=starts[1] + 1, lock_ttl=77)
        kv.lock(starts[2], pessimistic(b"f"))
        before = kv.scan_lock(b"a", kv.tso()).locks
        read = kv.tso()
        kv.get(b"zz", read)
    assert len(before) == 4
    with percolator(data_dir=tmp_path / "d") as kv:
        assert kv.scan_lock(b"a", kv.tso()).locks == before
        # What was read or promised before is not forgotten either.
        assert kv.prewrite(starts[0] - 1, put(b"zz"), try_one_pc=True).one_pc_commit_ts > read
        assert not kv.commit(starts[0], before[0].min_commit_ts, b"a").HasField("error")
        assert kv.get(b"a").value == b"new"
