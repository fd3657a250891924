"""Transactions in the process: what a statement sees, what others see, and who wins."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        yield upstream.cluster


@pytest.fixture
def key(request) -> bytes:
    """A prefix that no other test writes under."""
    return request.node.name.encode() + b"/"


def write(cluster, pairs):
    txn = Transaction(cluster)
    for key, value in pairs.items():
        txn.put(key, value)
    return txn.commit()


def values(cluster, prefix):
    return [value for _, value in Transaction(cluster).scan(prefix, prefix + b"\xff")]


def test_what_is_written_is_seen_by_the_writer_and_by_others_after_the_commit(cluster, key):
    txn = Transaction(cluster)
    txn.put(key, b"1")
    assert txn.get(key) == b"1"
    assert Transaction(cluster).get(key) is None
    commit_ts = txn.commit()
    assert Transaction(cluster).get(key) == b"1"
    assert Transaction(cluster, start_ts=commit_ts - 1).get(key) is None


def test_a_transaction_reads_as_of_its_start(cluster, key):
    write(cluster, {key: b"old"})
    txn = Transaction(cluster)
    write(cluster, {key: b"new", key + b"x": b"more"})
    assert txn.get(key) == b"old"
    assert [value for _, value in txn.scan(key, key + b"\xff")] == [b"old"]


def test_a_scan_merges_what_is_stored_with_what_is_buffered(cluster, key):
    write(cluster, {key + b"%d" % n: b"%d" % n for n in (1, 3, 5, 7)})
    txn = Transaction(cluster)
    txn.put(key + b"0", b"0")
    txn.put(key + b"3", b"three")
    txn.delete(key + b"5")
    txn.put(key + b"9", b"9")
    assert [v for _, v in txn.scan(key, key + b"\xff")] == [b"0", b"1", b"three", b"7", b"9"]
    assert [v for _, v in txn.scan(key, key + b"\xff", reverse=True)] == [b"9", b"7", b"three", b"1", b"0"]
    assert [v for _, v in txn.scan(key, key + b"\xff", 2)] == [b"0", b"1"]
    assert [v for _, v in txn.scan(key + b"1", key + b"7", 2, reverse=True)] == [b"three", b"1"]


def test_a_failed_statement_leaves_the_transaction_as_it_was(cluster, key):
    txn = Transaction(cluster)
    txn.put(key + b"a", b"1")

    def statement():
        txn.put(key + b"a", b"2")
        txn.put(key + b"b", b"2")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        txn.run_statement(statement)
    txn.commit()
    assert values(cluster, key) == [b"1"]


def test_of_two_optimistic_writers_the_second_to_commit_gets_9007(cluster, key):
    first, second = Transaction(cluster), Transaction(cluster)
    first.put(key, b"1")
    second.put(key, b"2")
    second.put(key + b"x", b"2")
    first.commit()
    with pytest.raises(SqlError, match=r"Write conflict.*reason=Optimistic") as caught:
        second.commit()
    assert caught.value.number == 9007
    assert values(cluster, key) == [b"1"]


def test_a_pessimistic_statement_runs_again_on_the_newest_row(cluster, key):
    write(cluster, {key: b"1"})
    txn = Transaction(cluster, pessimistic=True)
    others = iter([b"2", None])

    def statement():
        found = txn.get(key)
        if (other := next(others)) is not None:
            write(cluster, {key: other})
        txn.put(key, found + b"!")

    txn.run_statement(statement)
    assert txn.get(key) == b"2!"
    txn.commit()
    assert values(cluster, key) == [b"2!"]


def test_a_pessimistic_lock_makes_other_writers_wait(cluster, key):
    write(cluster, {key: b"0"})
    first, second = (Transaction(cluster, pessimistic=True) for _ in range(2))

    def add(txn):
        txn.run_statement(lambda: txn.put(key, txn.get(key) + b"1"))

    add(first)
    waiter = threading.Thread(target=add, args=(second,))
    waiter.start()
    first.commit()
    waiter.join(10)
    second.commit()
    assert values(cluster, key) == [b"011"]


def test_waiting_longer_than_allowed_is_1205(cluster, key):
    first = Transaction(cluster, pessimistic=True)
    first.run_statement(lambda: first.put(key, b"1"))
    second = Transaction(cluster, pessimistic=True, lock_wait_seconds=0)
    with pytest.raises(SqlError, match="Lock wait timeout") as caught:
        second.run_statement(lambda: second.put(key, b"2"))
    assert caught.value.number == 1205
    first.rollback()
    second.run_statement(lambda: second.put(key, b"3"))
    second.commit()
    assert values(cluster, key) == [b"3"]


def test_two_that_wait_for_each_other_are_a_deadlock(cluster, key):
    one, two = (Transaction(cluster, pessimistic=True) for _ in range(2))
    one.run_statement(lambda: one.put(key + b"a", b"1"))
    two.run_statement(lambda: two.put(key + b"b", b"2"))
    outcomes = []

    def cross(txn, other):
        try:
            txn.run_statement(lambda: txn.put(other, b"x"))
            outcomes.append(0)
        except SqlError as error:
            outcomes.append(error.number)
            txn.rollback()

    threads = [threading.Thread(target=cross, args=pair) for pair in ((one, key + b"b"), (two, key + b"a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == [0, 1213]


def test_what_a_pessimistic_transaction_locks_and_rolls_back_is_free_again(cluster, key):
    txn = Transaction(cluster, pessimistic=True)
    txn.run_statement(lambda: txn.put(key, b"1"))
    txn.rollback()
    write(cluster, {key: b"2"})
    assert values(cluster, key) == [b"2"]
    assert cluster.locks.get(key) is None


def test_a_check_that_raises_at_the_commit_leaves_nothing_behind(cluster, key):
    txn = Transaction(cluster)
    txn.put(key, b"1")

    def refuse():
        raise RuntimeError("schema changed")

    with pytest.raises(RuntimeError, match="schema changed"):
        txn.commit(refuse)
    assert values(cluster, key) == []
    assert cluster.locks.get(key) is None


def test_a_transaction_over_several_regions_commits_everywhere(cluster, key):
    from tidebox.mvcc import physical_key

    cluster.split_at([physical_key(key + b"m")])
    commit_ts = write(cluster, {key + b"a": b"1", key + b"z": b"2"})
    assert values(cluster, key) == [b"1", b"2"]
    assert list(Transaction(cluster, start_ts=commit_ts - 1).scan(key, key + b"\xff")) == []


def test_a_row_too_large_is_8025(cluster, key):
    with pytest.raises(SqlError, match="entry too large") as caught:
        Transaction(cluster).put(key, b"x" * (7 << 20))
    assert caught.value.number == 8025


_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "mark", "back", "commit"]), st.integers(0, 8), st.binary(max_size=3)),
    max_size=30,
)


@settings(max_examples=examples(40), deadline=None)
@given(_STEPS)
def test_a_transaction_is_a_dictionary_with_marks(cluster, steps):
    prefix = b"model/"
    clear = Transaction(cluster)
    for found, _ in list(clear.scan(prefix, prefix + b"\xff")):
        clear.delete(found)
    clear.commit()
    model: dict[bytes, bytes] = {}
    kept, mark = dict(model), 0
    txn = Transaction(cluster)
    for step, number, value in steps:
        name = prefix + b"%d" % number
        match step:
            case "put":
                txn.put(name, value)
                model[name] = value
            case "delete":
                txn.delete(name)
                model.pop(name, None)
            case "mark":
                kept, mark = dict(model), txn.savepoint()
            case "back":
                txn.rollback_to(mark)
                model = dict(kept)
            case "commit":
                txn.commit()
                txn = Transaction(cluster)
                kept, mark = dict(model), 0
        assert dict(txn.scan(prefix, prefix + b"\xff")) == model
        assert txn.get(name) == model.get(name)
    txn.commit()
