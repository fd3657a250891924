"""Pairing of PREWRITE and COMMIT: one test per rule, then any stream against the obvious slow model."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tidemill._pb import cdcpb_pb2
from tidemill.errors import InvariantError, ProtocolViolationError
from tidemill.model.change import FULL_CHANGE_SCHEMA, RAW_CHANGE_SCHEMA, Op
from tidemill.upstream.feed import wire
from tidemill.upstream.feed.matcher import Matched, Matcher
from tidemill.upstream.feed.spill import Spill

Row = cdcpb_pb2.Event.Row
CHECKPOINT = 10


def prewrite(start, key, value=b"v", old=b"o", op=1, generation=0):
    return Row(type=1, start_ts=start, key=key, value=value, old_value=old, op_type=op, generation=generation)


def commit(start, key, ts, op=1):
    return Row(type=2, start_ts=start, commit_ts=ts, key=key, op_type=op)


def rollback(start, key):
    return Row(type=3, start_ts=start, key=key)


def committed(start, key, ts, value=b"v", old=b"", op=1):
    return Row(type=4, start_ts=start, commit_ts=ts, key=key, value=value, old_value=old, op_type=op)


INITIALIZED = Row(type=5)
UNKNOWN = Row()


def entries(*rows, region=1, request=1):
    event = cdcpb_pb2.Event(region_id=region, request_id=request, entries=cdcpb_pb2.Event.Entries(entries=rows))
    return cdcpb_pb2.ChangeDataEvent(events=[event])


def resolved(ts, *regions, request=1):
    return cdcpb_pb2.ChangeDataEvent(resolved_ts=cdcpb_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request))


def feed(matcher, *messages) -> Matched:
    return matcher.process(wire.parse([m.SerializeToString() for m in messages]))


def changes(matched):
    """(commit_ts, key, value, old_value, start_ts, op) of every change handed on."""
    found = []
    for _, batch in matched.batches:
        assert batch.schema == RAW_CHANGE_SCHEMA
        batch.validate(full=True)
        found += [
            (r["commit_ts"], r["key"], r["value"], r["old_value"], r["start_ts"], r["op"]) for r in batch.to_pylist()
        ]
    return found


@pytest.fixture
def matcher():
    matcher = Matcher()
    matcher.register(1, 1, CHECKPOINT)
    return matcher


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([committed(11, b"a", 12)], [(12, b"a", b"v", b"", 11, 1)], id="a committed row passes straight"),
        pytest.param(
            [INITIALIZED, prewrite(11, b"a"), commit(11, b"a", 12)],
            [(12, b"a", b"v", b"o", 11, 1)],
            id="a commit takes both values from its prewrite",
        ),
        pytest.param(
            [prewrite(11, b"a"), commit(11, b"a", 12)],
            [(12, b"a", b"v", b"o", 11, 1)],
            id="a pair that is whole need not wait for the scan",
        ),
        pytest.param(
            [commit(11, b"a", 12), prewrite(11, b"a"), INITIALIZED],
            [(12, b"a", b"v", b"o", 11, 1)],
            id="a commit ahead of the scan's prewrite waits for it",
        ),
        pytest.param([commit(11, b"a", 12), prewrite(11, b"a")], [], id="it waits until the scan has ended"),
        pytest.param(
            [commit(11, b"a", 12), committed(11, b"a", 12), INITIALIZED],
            [(12, b"a", b"v", b"", 11, 1)],
            id="a waiting commit that the scan brought as committed is not repeated",
        ),
        pytest.param(
            [prewrite(11, b"a", value=b"", op=2), commit(11, b"a", 12, op=2)],
            [],
            id="a prewrite without value is not matched while the scan runs",
        ),
        pytest.param(
            [prewrite(11, b"a", value=b"", op=2), commit(11, b"a", 12, op=2), INITIALIZED],
            [(12, b"a", b"", b"o", 11, 2)],
            id="a delete is handed on once the scan has ended",
        ),
        pytest.param(
            [prewrite(11, b"a", generation=1), commit(11, b"a", 12)],
            [],
            id="a prewrite of a flushed transaction is not matched while the scan runs",
        ),
        pytest.param(
            [prewrite(11, b"a", b"v"), prewrite(11, b"a", b""), INITIALIZED, commit(11, b"a", 12)],
            [(12, b"a", b"v", b"o", 11, 1)],
            id="a heartbeat without value does not overwrite",
        ),
        pytest.param(
            [prewrite(11, b"a", b"v"), prewrite(11, b"a", b"w"), INITIALIZED, commit(11, b"a", 12)],
            [(12, b"a", b"w", b"o", 11, 1)],
            id="a repeated prewrite with a value overwrites",
        ),
        pytest.param(
            [prewrite(11, b"a", b"v", generation=2), prewrite(11, b"a", b"w", generation=1), INITIALIZED,
             commit(11, b"a", 12)],
            [(12, b"a", b"v", b"o", 11, 1)],
            id="an older generation does not overwrite",
        ),
        pytest.param(
            [INITIALIZED, prewrite(11, b"a"), rollback(11, b"a"), prewrite(11, b"a", b"w"), commit(11, b"a", 12)],
            [(12, b"a", b"w", b"o", 11, 1)],
            id="a rollback removes its prewrite",
        ),
        pytest.param([INITIALIZED, rollback(11, b"a")], [], id="a rollback of nothing is nothing"),
        pytest.param(
            [rollback(11, b"a"), prewrite(11, b"a"), commit(11, b"a", 12)],
            [(12, b"a", b"v", b"o", 11, 1)],
            id="a rollback ahead of the scan waits for its end",
        ),
        pytest.param([INITIALIZED, prewrite(9, b"a"), commit(9, b"a", 10)], [], id="at the checkpoint: known already"),
        pytest.param([committed(9, b"a", 10), committed(9, b"b", 11)], [(11, b"b", b"v", b"", 9, 1)], id="above it"),
        pytest.param([UNKNOWN, INITIALIZED, UNKNOWN], [], id="rows without a type are ignored"),
        pytest.param([INITIALIZED, INITIALIZED], [], id="a second end of the scan is ignored"),
        pytest.param(
            [INITIALIZED, prewrite(11, b"a", b"1"), prewrite(12, b"a", b"2"), prewrite(11, b"b", b"3"),
             commit(12, b"a", 13)],
            [(13, b"a", b"2", b"o", 12, 1)],
            id="start-ts and key together name a prewrite",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_one_message", [True, False], ids=["at once", "one by one"])
def test_rule(matcher, rows, expected, is_one_message):
    if is_one_message:
        assert changes(feed(matcher, entries(*rows))) == expected
    else:
        assert [c for row in rows for c in changes(feed(matcher, entries(row)))] == expected


def test_cached_rollbacks_are_applied_after_cached_commits(matcher):
    feed(matcher, entries(rollback(11, b"a"), prewrite(11, b"a")))
    assert matcher.waiting == 2
    feed(matcher, entries(INITIALIZED))
    assert matcher.waiting == 0


def test_a_commit_without_prewrite_fails_its_registration_and_no_other(matcher):
    other = matcher.register(1, 2, CHECKPOINT)
    matched = feed(
        matcher,
        entries(INITIALIZED, prewrite(11, b"x"), commit(11, b"a", 12), committed(12, b"b", 13)),
        entries(committed(11, b"c", 12), INITIALIZED, region=2),
        resolved(20, 1, 2),
    )
    assert matched.failed == [matcher.find(1, 1)]
    assert changes(matched) == [(12, b"c", b"v", b"", 11, 1)]
    assert matched.advanced == [(other, 20)]
    assert matcher.waiting == 0


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        pytest.param([committed(14, b"a", 15)], "at or below the region's own resolved-ts", id="committed"),
        pytest.param([prewrite(14, b"a"), commit(14, b"a", 15)], "at or below the region's own", id="commit"),
        pytest.param([committed(14, b"a", 16, op=0)], "neither puts nor deletes", id="no operation"),
        pytest.param([prewrite(14, b"a"), commit(14, b"a", 16, op=0)], "neither puts nor", id="no operation in a pair"),
        pytest.param([Row(type=6, key=b"a")], "unknown type 6", id="a type of the future"),
    ],
)
def test_a_broken_promise_stops_the_flow(matcher, rows, complaint):
    feed(matcher, entries(INITIALIZED), resolved(15, 1))
    with pytest.raises(ProtocolViolationError, match=complaint):
        feed(matcher, entries(*rows))


def test_a_row_before_the_resolved_ts_that_covers_it_is_in_order(matcher):
    matched = feed(
        matcher, entries(INITIALIZED, committed(11, b"a", 15)), resolved(15, 1), entries(committed(15, b"a", 16))
    )
    assert [c[0] for c in changes(matched)] == [15, 16]
    with pytest.raises(ProtocolViolationError):
        feed(matcher, resolved(20, 1), entries(committed(16, b"a", 18)))


@pytest.mark.parametrize(
    ("messages", "reached"),
    [
        pytest.param([resolved(20, 1), entries(INITIALIZED)], None, id="before the scan has ended it means nothing"),
        pytest.param([entries(INITIALIZED), resolved(20, 1)], 20, id="after it, it counts"),
        pytest.param([entries(INITIALIZED), resolved(20, 1), resolved(18, 1)], 20, id="it never goes back"),
        pytest.param([entries(INITIALIZED), resolved(0, 1)], None, id="zero is ignored"),
        pytest.param([entries(INITIALIZED), resolved(CHECKPOINT, 1)], None, id="the checkpoint is no news"),
        pytest.param([entries(INITIALIZED), resolved(20, 7, 8)], None, id="unknown regions are ignored"),
        pytest.param([entries(INITIALIZED), resolved(20, 1, request=9)], None, id="unknown requests are ignored"),
        pytest.param([entries(INITIALIZED), resolved(20, 1, request=0)], None, id="here it must name its request"),
    ],
)
def test_resolved_ts(matcher, messages, reached):
    matched = feed(matcher, *messages)
    assert matched.advanced == ([] if reached is None else [(matcher.find(1, 1), reached)])


def test_a_stream_of_one_request_takes_a_resolved_ts_that_names_none():
    matcher = Matcher(only_request=7)
    slot = matcher.register(7, 1, CHECKPOINT)
    matched = feed(matcher, entries(INITIALIZED, request=7), resolved(20, 1, request=0))
    assert matched.advanced == [(slot, 20)]


def test_a_resolved_ts_of_an_old_server_comes_with_the_event(matcher):
    event = cdcpb_pb2.Event(region_id=1, request_id=1, resolved_ts=30)
    matched = feed(matcher, entries(INITIALIZED), cdcpb_pb2.ChangeDataEvent(events=[event]))
    assert matched.advanced == [(matcher.find(1, 1), 30)]


def test_keys_outside_the_range_are_dropped():
    matcher = Matcher()
    matcher.register(1, 1, CHECKPOINT, b"b", b"d")
    keys = [b"", b"a", b"b", b"b\0", b"c\xff\xff", b"d", b"da"]
    matched = feed(matcher, entries(INITIALIZED, *(committed(11, key, 12) for key in keys)))
    assert [c[1] for c in changes(matched)] == [b"b", b"b\0", b"c\xff\xff"]
    feed(matcher, entries(prewrite(11, b"a"), commit(11, b"z", 12), rollback(11, b"a")))
    assert matcher.waiting == 0


def test_changes_are_handed_on_by_request_in_order():
    matcher = Matcher()
    for request, region in ((2**64 - 1, 1), (2, 1), (2, 2)):
        matcher.register(request, region, CHECKPOINT)
    matched = feed(
        matcher,
        entries(committed(11, b"a", 13), region=1, request=2),
        entries(committed(11, b"b", 12), region=1, request=2**64 - 1),
        entries(committed(11, b"c", 12), region=2, request=2),
        entries(committed(11, b"d", 12), region=2, request=3),
    )
    keys = {request: batch.column("key").to_pylist() for request, batch in matched.batches}
    assert keys == {2: [b"a", b"c"], 2**64 - 1: [b"b"]}


def test_a_released_registration_forgets_what_waited_and_may_come_again(matcher):
    feed(matcher, entries(prewrite(11, b"a"), commit(11, b"b", 12), rollback(11, b"c")))
    assert matcher.waiting == 3
    matcher.release(matcher.find(1, 1))
    assert matcher.waiting == 0
    assert feed(matcher, entries(committed(11, b"a", 12))).batches == []
    matcher.register(1, 1, 11)
    assert changes(feed(matcher, entries(committed(11, b"a", 12)))) == [(12, b"a", b"v", b"", 11, 1)]


def test_a_region_is_registered_once_per_request(matcher):
    with pytest.raises(InvariantError, match="already registered"):
        matcher.register(1, 1, CHECKPOINT)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 12)), max_size=300))
def test_registrations_that_come_and_go_are_found_while_they_are_there(steps):
    matcher, there = Matcher(), {}
    for is_coming, request, region in steps:
        pair = (request, region)
        if is_coming and pair not in there:
            there[pair] = matcher.register(request, region, CHECKPOINT)
        elif not is_coming and pair in there:
            matcher.release(there.pop(pair))
        assert matcher.find(request, region) == there.get(pair)
    assert len(set(there.values())) == len(there)
    assert all(matcher.find(*pair) == slot for pair, slot in there.items())


def test_many_regions_and_long_values_grow_the_tables():
    matcher = Matcher()
    for region in range(1, 200):
        matcher.register(5, region, CHECKPOINT, bytes([region]), bytes([region + 1]))
    starts = [prewrite(11 + i, b"%d" % i, b"x" * 3000, b"y" * 100) for i in range(300)]
    for region in (1, 49, 50, 199):
        feed(matcher, entries(INITIALIZED, *starts, region=region, request=5))
    assert matcher.waiting == sum(any(str(i).encode()[0] == r for r in (1, 49, 50)) for i in range(300))
    matched = feed(matcher, entries(*(commit(11 + i, b"%d" % i, 1000) for i in range(10, 20)), region=49, request=5))
    assert [(c[1], len(c[2]), len(c[3])) for c in changes(matched)] == [(b"%d" % i, 3000, 100) for i in range(10, 20)]


@dataclass
class SlowMatcher:
    """The rules of one registration, as they are written down: plainly right, too slow to ship."""

    prewrites: dict = field(default_factory=dict)
    commits: list = field(default_factory=list)
    rollbacks: list = field(default_factory=list)
    is_live: bool = False
    resolved_ts: int = CHECKPOINT

    def take(self, row):
        """Changes handed on, or None where the stream breaks its promises."""
        if row.type == 5 and not self.is_live:
            self.is_live = True
            found = [c for r in self.commits for c in self.match(r) or []]
            for r in self.rollbacks:
                self.prewrites.pop((r.start_ts, r.key), None)
            return found
        if row.type == 1:
            known = self.prewrites.get((row.start_ts, row.key))
            if known is None or (row.value and row.generation >= known.generation):
                self.prewrites[row.start_ts, row.key] = row
        elif row.type == 2:
            known = self.prewrites.get((row.start_ts, row.key))
            if known is not None and (self.is_live or (known.value and not known.generation)):
                return self.match(row)
            if self.is_live:
                return None
            self.commits.append(row)
        elif row.type == 3:
            if self.is_live:
                self.prewrites.pop((row.start_ts, row.key), None)
            else:
                self.rollbacks.append(row)
        elif row.type == 4 and row.commit_ts > CHECKPOINT:
            return [(row.commit_ts, row.key, row.value, row.old_value, row.start_ts, row.op_type)]
        return []

    def match(self, row):
        known = self.prewrites.pop((row.start_ts, row.key), None)
        if known is None or row.commit_ts <= CHECKPOINT:
            return []
        return [(row.commit_ts, row.key, known.value, known.old_value, row.start_ts, row.op_type)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param([10, 10, 10, 10], [2, 2], id="as many rows as fit"),
        pytest.param([10, 50, 10, 10, 9], [1, 1, 2, 1], id="a row larger than a batch goes alone"),
        pytest.param([50], [1], id="one large row"),
        pytest.param([0, 0, 0, 0, 0], [5], id="rows without values"),
    ],
)
def test_a_delivery_is_cut_into_batches_by_bytes(sizes, expected):
    matcher = Matcher(batch_bytes=23)
    matcher.register(1, 1, CHECKPOINT)
    rows = [committed(11, b"%d" % n, 12, value=b"v" * (size // 2), old=b"o" * (size - size // 2)) for n, size in
            enumerate(sizes)]  # fmt: skip
    matched = feed(matcher, entries(*rows))
    assert [batch.num_rows for _, batch in matched.batches] == expected
    assert changes(matched) == [(12, r.key, r.value, r.old_value, 11, 1) for r in rows]


@pytest.mark.parametrize("place", ["disk", "full disk"])
def test_a_large_transaction_waits_on_disk_where_there_is_room(tmp_path, place):
    folder = tmp_path if place == "disk" else tmp_path / "gone"
    matcher = Matcher(spill=Spill(folder, least_bytes=1))
    matcher.register(1, 1, CHECKPOINT)
    keys = [b"%04d" % n for n in range(3_000)]
    for first in range(0, 3_000, 500):
        rows = [prewrite(11, key, value=key * 20) for key in keys[first : first + 500]]
        assert changes(feed(matcher, entries(INITIALIZED, *rows))) == []
    assert matcher.waiting == 3_000
    assert list(tmp_path.iterdir()) == []  # it has no name
    found = changes(feed(matcher, entries(*(commit(11, key, 12) for key in keys))))
    assert found == [(12, key, key * 20, b"o", 11, 1) for key in keys]
    assert matcher.waiting == 0


starts, some_keys = st.integers(8, 12), st.sampled_from([b"", b"a", b"ab", b"b"])
any_row = st.one_of(
    st.builds(prewrite, starts, some_keys, st.sampled_from([b"", b"1", b"22"]), generation=st.integers(0, 1)),
    st.builds(prewrite, starts, some_keys, st.sampled_from([b"", b"1", b"22"]), generation=st.integers(0, 1)),
    st.builds(commit, starts, some_keys, st.integers(9, 14), st.sampled_from(list(Op))),
    st.builds(rollback, starts, some_keys),
    st.builds(committed, starts, some_keys, st.integers(9, 14)),
    st.sampled_from([INITIALIZED, UNKNOWN]),
)


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.integers(1, 2), any_row), max_size=40), st.data())
def test_any_stream_gives_what_the_slow_model_gives(stream, data):
    matcher, slow = Matcher(), {1: SlowMatcher(), 2: SlowMatcher()}
    slots = {region: matcher.register(region, region, CHECKPOINT) for region in slow}
    expected, failed, messages = {1: [], 2: []}, set(), []
    for region, row in stream:
        if region not in failed:
            handed_on = slow[region].take(row)
            if handed_on is None:
                failed.add(region)
            else:
                expected[region] += handed_on
        messages.append(entries(row, region=region, request=region))
    got, got_failed = {1: [], 2: []}, []
    while messages:
        n = data.draw(st.integers(1, len(messages)))
        matched = feed(matcher, *messages[:n])
        got_failed += matched.failed
        for request, batch in matched.batches:
            got[request] += changes(Matched([(request, batch)], [], [], []))
        messages = messages[n:]
    assert got == expected
    assert sorted(got_failed) == sorted(slots[region] for region in failed)


def test_expiry_and_source_are_kept_where_a_change_has_one(matcher):
    forever = Row(type=4, start_ts=12, commit_ts=12, key=b"b", value=b"w", op_type=1)
    ending = Row(type=4, start_ts=11, commit_ts=11, key=b"a", value=b"v", op_type=1, expire_ts_unix_secs=2**64 - 1)
    half = Row(type=1, start_ts=13, key=b"c", value=b"x", op_type=1, txn_source=3)
    [(_, batch)] = feed(matcher, entries(ending, forever, INITIALIZED, half, commit(13, b"c", 14))).batches
    assert batch.schema == FULL_CHANGE_SCHEMA
    batch.validate(full=True)
    found = [(row["key"], row["expire_seconds"], row["txn_source"]) for row in batch.to_pylist()]
    assert found == [(b"a", 2**64 - 1, 0), (b"b", 0, 0), (b"c", 0, 3)]


def test_changes_without_either_have_no_columns_for_them_though_others_of_the_message_do():
    matcher = Matcher()
    for request in (1, 2):
        matcher.register(request, 1, CHECKPOINT)
    marked = Row(type=4, start_ts=11, commit_ts=12, key=b"a", value=b"v", op_type=1, txn_source=1)
    matched = feed(matcher, entries(marked), entries(committed(11, b"b", 12), request=2))
    assert {request: batch.schema for request, batch in matched.batches} == {
        1: FULL_CHANGE_SCHEMA,
        2: RAW_CHANGE_SCHEMA,
    }
    assert [batch.schema for _, batch in feed(matcher, entries(committed(13, b"c", 14))).batches] == [RAW_CHANGE_SCHEMA]
