"""Bulk reads against the obvious slow model, over blocks so small that everything crosses their edges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.tidebox.stub import COMMITTED
from tidebox import blocks
from tidebox.engine import Engine, Family
from tidebox.mvcc import Lock, LockType, Write, WriteType
from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2
from tidemill.errors import CorruptDataError
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import encode_bytes, mvcc_key

SHORT, LONG = 255, 256

keys = st.sampled_from([b"a", b"abcdefgh", b"abcdefghi", b"b", b"b" * 16])
kinds = st.sampled_from(list(WriteType))
sizes = st.sampled_from([0, 1, SHORT, LONG, 2000])
# A history of records: key, kind, size of the value, how far the start lies before the commit, source.
records = st.lists(st.tuples(keys, kinds, sizes, st.integers(1, 9), st.sampled_from([0, 1, 256])), max_size=60)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """One for all examples: opening costs more than wiping."""
    engine = Engine(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.close()


def write_records(engine, history):
    """In place of what is there. Record i is committed at 10 * (i + 1); its start-ts is unique."""
    batch = engine.batch()
    for family in (Family.WRITE, Family.DEFAULT):
        for stored, _ in engine.items(family):
            batch.delete(family, stored)
    stored = []
    for at, (key, kind, size, back, source) in enumerate(history):
        commit_ts = 10 * (at + 1)
        start_ts = commit_ts - back
        value = (b"%d-" % at * 1000)[:size] if kind is WriteType.PUT else b""
        is_long = kind is WriteType.PUT and size > SHORT
        short = value if kind is WriteType.PUT and not is_long else None
        batch.put(Family.WRITE, mvcc_key(key, commit_ts), Write(kind, start_ts, short, source).encode())
        if is_long:
            batch.put(Family.DEFAULT, mvcc_key(key, start_ts), value)
        stored.append((key, commit_ts, start_ts, kind, value, source))
    engine.write(batch)
    return stored


def expected_changes(stored, checkpoint, drop_looped):
    """As rows, in key order and from the newest: plainly right."""
    rows = []
    for key in sorted({row[0] for row in stored}):
        versions = [row for row in stored if row[0] == key and row[3] in (WriteType.PUT, WriteType.DELETE)]
        for at in range(len(versions) - 1, -1, -1):
            _, commit_ts, start_ts, kind, value, source = versions[at]
            if commit_ts <= checkpoint or source >> 8 or (drop_looped and source & 0xFF):
                continue
            old = versions[at - 1][4] if at else b""
            op = 1 if kind is WriteType.PUT else 2
            rows.append((COMMITTED, op, key, value, old, start_ts, commit_ts, source))
    return rows


def read_changes(snapshot, checkpoint, drop_looped, max_bytes):
    rows = []
    for part in blocks.changes(snapshot, b"", b"", checkpoint, drop_looped=drop_looped):
        for run in part.cut(max_bytes):
            entries = cdcpb_pb2.Event.Entries.FromString(run).entries
            assert len(run) <= max_bytes or len(entries) == 1
            rows += [
                (r.type, r.op_type, r.key, r.value, r.old_value, r.start_ts, r.commit_ts, r.txn_source) for r in entries
            ]
    return rows


@pytest.mark.parametrize(("per_block", "long_bytes"), [(1, 1), (2, 3000), (7, 1), (7, 500), (8192, 8 << 20)])
@settings(max_examples=examples(40), deadline=None)
@given(records, st.integers(0, 400), st.booleans(), st.sampled_from([1, 300, 1 << 20]))
def test_changes_equal_the_model(engine, per_block, long_bytes, history, checkpoint, drop_looped, max_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "RECORDS_PER_BLOCK", per_block)
        patch.setattr(blocks, "LONG_BYTES_PER_BLOCK", long_bytes)
        patch.setattr(blocks, "_POINT_READS", 2)
        stored = write_records(engine, history)
        rows = read_changes(engine.snapshot(), checkpoint, drop_looped, max_bytes)
    assert rows == expected_changes(stored, checkpoint, drop_looped)


@pytest.mark.parametrize("per_block", [1, 3, 8192])
@settings(max_examples=examples(40), deadline=None)
@given(records, st.integers(0, 650), st.integers(1, 5))
def test_visible_rows_equal_the_model(engine, per_block, history, version, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "RECORDS_PER_BLOCK", per_block)
        stored = write_records(engine, history)
        data = b"".join(r.data.tobytes() for r in blocks.visible(engine.snapshot(), b"", b"", version, limit))
    state = {}
    for key, commit_ts, _, kind, value, _ in stored:
        if commit_ts <= version and kind is WriteType.PUT:
            state[key] = value
        elif commit_ts <= version and kind is WriteType.DELETE:
            state.pop(key, None)
    pairs = [(p.key, p.value) for p in kvrpcpb_pb2.ScanResponse.FromString(data).pairs]
    assert pairs == sorted(state.items())[:limit]


def test_pessimistic_transactions_keep_their_values_though_their_start_ts_cross(tmp_path):
    engine = Engine(tmp_path / "d")
    batch = engine.batch()
    for start, commit in ((30, 40), (10, 50), (20, 60)):  # the first to begin is not the first to commit
        batch.put(Family.WRITE, mvcc_key(b"k", commit), Write(WriteType.PUT, start).encode())
        batch.put(Family.DEFAULT, mvcc_key(b"k", start), b"%d" % commit * 200)
    engine.write(batch)
    rows = read_changes(engine.snapshot(), 0, False, 1 << 20)
    engine.close()
    assert [(r[3][:2], r[4][:2]) for r in rows] == [(b"60", b"50"), (b"50", b"40"), (b"40", b"")]


def test_a_missing_long_value_and_an_unreadable_record_are_named(tmp_path):
    engine = Engine(tmp_path / "d")
    engine.put(Family.WRITE, mvcc_key(b"k", 5), Write(WriteType.PUT, 4).encode())
    with pytest.raises(CorruptDataError, match=mvcc_key(b"k", 5).hex()):
        list(blocks.changes(engine.snapshot(), b"", b"", 0))
    engine.put(Family.WRITE, mvcc_key(b"k", 5), b"P\xff")
    with pytest.raises(CorruptDataError, match="not readable"):
        list(blocks.changes(engine.snapshot(), b"", b"", 0))
    engine.close()


@given(
    st.sampled_from(list(WriteType)),
    st.integers(0, MAX_TS),
    st.one_of(st.none(), st.binary(max_size=255)),
    st.integers(0, MAX_TS),
)
def test_commit_records_survive_a_round_trip(kind, start_ts, short, source):
    write = Write(kind, start_ts, short, source)
    assert Write.decode(write.encode()) == write


@given(
    st.sampled_from(list(LockType)),
    st.binary(),
    st.integers(0, MAX_TS),
    st.one_of(st.none(), st.binary(max_size=255)),
    st.lists(st.integers(0, MAX_TS), min_size=4, max_size=4),
)
def test_locks_survive_a_round_trip(kind, primary, start_ts, short, stamps):
    lock = Lock(kind, primary, start_ts, 3000, short, *stamps)
    assert Lock.decode(lock.encode()) == lock


@pytest.mark.parametrize(
    ("record", "wire"),
    [
        (Write(WriteType.PUT, 300, b"hi"), "50 ac 02 76 02 68 69"),
        (Write(WriteType.DELETE, 5), "44 05"),
        (Write(WriteType.ROLLBACK, 5), "52 05"),
        (Lock(LockType.PUT, b"pk", 300, 3000, b"hi"), "50 04 70 6b ac 02 b8 17 76 02 68 69"),
        (
            Lock(LockType.DELETE, b"pk", 5, 1, for_update_ts=7),
            "44 04 70 6b 05 01 66 00 00 00 00 00 00 00 07",
        ),
    ],
)
def test_records_are_tikvs_byte_for_byte(record, wire):
    assert record.encode().hex(" ") == wire


@pytest.mark.parametrize("decode", [Write.decode, Lock.decode])
@pytest.mark.parametrize("data", [b"", b"X", b"P\xff"])
def test_records_that_are_not_ours_are_refused(decode, data):
    with pytest.raises(CorruptDataError):
        decode(data)


def test_stored_keys_sort_by_key_then_newest_first():
    wanted = [(b"a", 9), (b"a", 3), (b"a\x00", 5), (b"abcdefgh", 1), (b"b", 2)]
    assert sorted(mvcc_key(k, ts) for k, ts in wanted) == [mvcc_key(k, ts) for k, ts in wanted]
    assert mvcc_key(b"a", 9).startswith(encode_bytes(b"a"))
