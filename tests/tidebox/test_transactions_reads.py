"""Which locks stop a reader: the rules of reading at a ts, over the wire."""

from dataclasses import dataclass, field

import pytest

from tests.tidebox.percolator import delete, lock, percolator, pessimistic, put, variants
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.ts import MAX_TS


@pytest.fixture(scope="module")
def kv():
    with percolator() as started:
        yield started


@dataclass
class Case:
    """A key with an old value, a lock of a transaction on it, and a read."""

    mutation: object = put
    version: str = "later"
    is_primary: bool = False
    prewrite: dict = field(default_factory=dict)
    min_commit: str | None = None
    context: dict = field(default_factory=dict)
    lists: str | None = None


@pytest.mark.parametrize(
    ("case", "seen"),
    [
        pytest.param(Case(), "locked", id="a put may commit below the reader"),
        pytest.param(Case(delete), "locked", id="so may a delete"),
        pytest.param(Case(version="earlier"), b"old", id="a transaction that began later does not matter"),
        pytest.param(Case(version="at start"), "locked", id="one that began at the very ts does"),
        pytest.param(Case(lock), b"old", id="a lock that writes nothing does not matter"),
        pytest.param(Case(pessimistic), b"old", id="nor does a pessimistic lock"),
        pytest.param(Case(min_commit="above"), b"old", id="a lock that commits above the reader does not matter"),
        pytest.param(Case(min_commit="at"), "locked", id="one that may commit at the reader's ts does"),
        pytest.param(Case(lists="resolved_locks"), b"old", id="a lock the client has resolved does not matter"),
        pytest.param(Case(lists="committed_locks"), b"new", id="a lock known as committed is read through"),
        pytest.param(Case(delete, lists="committed_locks"), None, id="also a delete"),
        pytest.param(
            Case(lambda key: put(key, b"L" * 999), lists="committed_locks"), b"L" * 999, id="also a long value"
        ),
        pytest.param(Case(version="max"), "locked", id="the newest cannot be told from a secondary"),
        pytest.param(Case(version="max", is_primary=True), b"old", id="but from the primary"),
        pytest.param(
            Case(version="max", is_primary=True, prewrite={"use_async_commit": True}),
            "locked",
            id="unless its commit-ts is settled",
        ),
        pytest.param(Case(is_primary=True), "locked", id="at an ordinary ts the primary stops like any other"),
        pytest.param(Case(context={"isolation_level": kvrpcpb_pb2.RC}), b"old", id="read committed ignores locks"),
        pytest.param(
            Case(context={"isolation_level": kvrpcpb_pb2.RCCheckTS}), "conflict", id="or reports them, if it checks"
        ),
    ],
)
@pytest.mark.parametrize("how", ["get", "batch get", "scan", "scan backwards"])
def test_a_lock_and_a_reader(kv, case, seen, how):
    key, primary = kv.key(), kv.key()
    kv.write(put(key, b"old"))
    earlier = kv.tso()
    start = kv.tso()
    later = kv.tso()
    if case.mutation is pessimistic:
        assert not kv.lock(start, pessimistic(key)).errors
    else:
        extra = {"above": {"min_commit_ts": later + 1}, "at": {"min_commit_ts": later}}.get(case.min_commit, {})
        primary = key if case.is_primary else primary
        assert not kv.prewrite(start, case.mutation(key), primary=primary, **case.prewrite, **extra).errors
        if case.prewrite:
            later = kv.tso()
    version = {"later": later, "earlier": earlier, "at start": start, "max": MAX_TS}[case.version]
    context = {**case.context, **({case.lists: [start]} if case.lists else {})}
    assert read(kv, how, key, version, context) == seen
    assert not kv.resolve(key, start).HasField("error")


def read(kv, how, key, version, context):
    """The value, None, or which error."""
    if how == "get":
        answer = kv.get(key, version, **context)
        if answer.HasField("error"):
            return variants(answer.error)[0]
        return None if answer.not_found else answer.value
    if how == "batch get":
        pairs = kv.send("KvBatchGet", key, context, keys=[key], version=version).pairs
    else:
        bounds = {"start_key": key, "end_key": key + b"\0"}
        if how == "scan backwards":
            bounds = {"start_key": key + b"\0", "end_key": key, "reverse": True}
        pairs = kv.send("KvScan", key, context, version=version, limit=10, **bounds).pairs
    if not pairs:
        return None
    assert [pair.key for pair in pairs] == [key]
    return variants(pairs[0].error)[0] if pairs[0].HasField("error") else pairs[0].value


@pytest.mark.parametrize("how", ["get", "batch get", "scan"])
def test_read_committed_with_a_check_fails_where_something_is_newer(kv, how):
    key = kv.key()
    kv.write(put(key, b"old"))
    version = kv.tso()
    kv.write(put(key, b"newer"))
    checked = {"isolation_level": kvrpcpb_pb2.RCCheckTS}
    assert read(kv, how, key, version, checked) == "conflict"
    assert read(kv, how, key, kv.tso(), checked) == b"newer"


def test_locks_and_rollbacks_in_the_history_are_invisible(kv):
    key = kv.key()
    kv.write(put(key, b"old"))
    kv.write(lock(key))
    start = kv.tso()
    kv.send("KvBatchRollback", key, start_version=start, keys=[key])
    assert kv.get(key).value == b"old"
    assert read(kv, "scan", key, kv.tso(), {}) == b"old"


def test_a_read_tells_the_commit_ts_if_asked(kv):
    key = kv.key()
    _, commit = kv.write(put(key, b"1"))
    assert kv.send("KvGet", key, key=key, version=kv.tso(), need_commit_ts=True).commit_ts == commit
    pairs = kv.send("KvBatchGet", key, keys=[key], version=kv.tso(), need_commit_ts=True).pairs
    assert [pair.commit_ts for pair in pairs] == [commit]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_locked_keys_stand_in_their_place_in_a_scan_and_count(kv, backwards, limit):
    prefix = kv.key() + b"/"
    kv.write(*(put(prefix + name, b"old") for name in (b"a", b"c", b"e")))
    start = kv.tso()
    kv.prewrite(start, *(put(prefix + name) for name in (b"b", b"c", b"f")))
    bounds = (prefix + b"z", prefix) if backwards else (prefix, prefix + b"z")
    fields = {"start_key": bounds[0], "end_key": bounds[1], "reverse": backwards, "limit": limit}
    pairs = kv.send("KvScan", prefix, version=kv.tso(), **fields).pairs
    wanted = [("a", False), ("b", True), ("c", True), ("e", False), ("f", True)]
    found = [(pair.key[len(prefix) :].decode(), pair.HasField("error")) for pair in pairs]
    assert found == (wanted[::-1] if backwards else wanted)[:limit]
    through = {"committed_locks": [start]}
    pairs = kv.send("KvScan", prefix, through, version=kv.tso(), **{**fields, "limit": 100}).pairs
    assert sorted((pair.key[len(prefix) :], pair.value) for pair in pairs) == [
        (b"a", b"old"),
        (b"b", b"new"),
        (b"c", b"new"),
        (b"e", b"old"),
        (b"f", b"new"),
    ]


def test_a_scan_for_keys_only_brings_no_values(kv):
    key = kv.key()
    kv.write(put(key, b"x" * 1000))
    for bounds in ({"start_key": key, "end_key": key + b"\0"}, {"end_key": key, "start_key": key + b"\0"}):
        fields = {**bounds, "reverse": bounds["start_key"] > key}
        pairs = kv.send("KvScan", key, version=kv.tso(), limit=9, key_only=True, **fields).pairs
        assert [(pair.key, pair.value) for pair in pairs] == [(key, b"")]


def test_a_read_keeps_later_settled_commits_above_it(kv):
    key = kv.key()
    start, version = kv.tso(), kv.tso()
    assert kv.get(key, version).not_found
    answer = kv.prewrite(start, put(key), use_async_commit=True)
    assert answer.min_commit_ts > version


def test_a_ts_from_the_future_is_refused_and_not_remembered(kv):
    key = kv.key()
    answer = kv.get(key, kv.tso() + (61_000 << 18))
    assert "ahead of PD's clock" in answer.error.abort
    settled = kv.prewrite(kv.tso(), put(key), try_one_pc=True).one_pc_commit_ts
    assert settled <= kv.tso()
