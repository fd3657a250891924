"""Raw versions read in bulk equal a model, whatever the size of a block; and what is dead is found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tidebox import blocks, raw_blocks
from tidebox.engine import Engine, Family
from tidebox.raw import DELETED, RawValue
from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2
from tidemill.tidb.keys import mvcc_key

KEYS = [b"a", b"ab", b"abcdefg", b"abcdefgh", b"abcdefghi", b"b", b"b\x00", b"b\xff", b"c"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    opened = Engine(tmp_path_factory.mktemp("raw") / "d")
    yield opened
    opened.close()


versions = st.dictionaries(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 20)),
    st.one_of(
        st.just(DELETED),
        st.builds(RawValue, st.binary(max_size=3), st.sampled_from([0, 50, 100])),
        st.just(RawValue(b"x" * 300)),
    ),
    max_size=25,
)


def fill(engine, stored):
    batch = engine.batch()
    for key, _ in engine.items(Family.RAW):
        batch.delete(Family.RAW, key)
    for (key, ts), value in stored.items():
        batch.put(Family.RAW, mvcc_key(key, ts), value.encode())
    engine.write(batch)
    newest: dict[bytes, tuple[int, RawValue]] = {}
    for (key, ts), value in sorted(stored.items()):
        newest[key] = (ts, value)
    return newest


@pytest.mark.parametrize("per_block", [1, 3, 8192])
@settings(max_examples=examples(40), deadline=None)
@given(versions, st.integers(0, 20), st.integers(1, 5))
def test_bulk_reading_equals_the_model(engine, per_block, stored, checkpoint, limit):
    newest = fill(engine, stored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_blocks, "RECORDS_PER_BLOCK", per_block)
        changed = list(raw_blocks.changes(engine.snapshot([Family.RAW]), b"", b"", checkpoint))
        live = list(raw_blocks.live(engine.items(Family.RAW), 60, limit))
    rows = cdcpb_pb2.Event.Entries.FromString(b"".join(part.data.tobytes() for part in changed)).entries
    assert [(r.key, r.start_ts, r.commit_ts, r.type, r.op_type, r.value, r.expire_ts_unix_secs) for r in rows] == [
        (key, ts, ts, 4, 2 if value.is_delete else 1, value.value, value.expire_ts)
        for key, (ts, value) in sorted(newest.items())
        if ts > checkpoint
    ]
    pairs = kvrpcpb_pb2.RawScanResponse.FromString(b"".join(part.data.tobytes() for part in live)).kvs
    expected = [(key, value.value) for key, (_, value) in sorted(newest.items()) if value.is_live(60)]
    assert [(pair.key, pair.value) for pair in pairs] == expected[:limit]


@pytest.mark.parametrize("per_block", [1, 3, 8192])
@settings(max_examples=examples(40), deadline=None)
@given(versions, st.integers(0, 21))
def test_only_what_no_reader_can_see_is_removed_and_each_step_is_safe(engine, per_block, stored, before):
    newest = fill(engine, stored)
    visible = {key: value.value for key, (_, value) in newest.items() if value.is_live(60)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_blocks, "RECORDS_PER_BLOCK", per_block)
        for dead in raw_blocks.dead(engine.snapshot([Family.RAW]), before, 60):
            batch = engine.batch()
            for key in dead:
                batch.delete(Family.RAW, key)
            engine.write(batch)
            live = b"".join(part.data.tobytes() for part in raw_blocks.live(engine.items(Family.RAW), 60, 1000))
            assert {p.key: p.value for p in kvrpcpb_pb2.RawScanResponse.FromString(live).kvs} == visible
    left = {key for key, _ in engine.items(Family.RAW)}
    assert left == {
        mvcc_key(key, ts)
        for (key, ts), value in stored.items()
        if ts >= before or (newest[key][0] == ts and value.is_live(60))
    }


def test_big_values_make_small_blocks(engine, monkeypatch):
    monkeypatch.setattr(raw_blocks, "BYTES_PER_BLOCK", 10_000)
    fill(engine, {(b"k%04d" % at, 5): RawValue(bytes(100)) for at in range(2000)})
    parts = list(raw_blocks.changes(engine.snapshot([Family.RAW]), b"", b"", 0))
    assert sum(map(len, parts)) == 2000
    assert max(map(len, parts)) < blocks.RECORDS_PER_BLOCK / 16
