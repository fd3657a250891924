"""The change stream of RawKV over real gRPC: what is sent, to whom, and how far it is resolved."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidebox.rawclient import KEYSPACE, RawClient
from tests.tidebox.stub import COMMITTED, DEADLINE_SECONDS, client_of, put
from tidebox.engine import Family
from tidebox.feed import MESSAGE_BYTES, REST_SECONDS, FeedStream, Subscription, Throttle
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2
from tidemill.errors import UsageError
from tidemill.tidb.keys import encode_bytes

RAW, TIDB = cdcpb_pb2.ChangeDataRequest.RawKV, cdcpb_pb2.ChangeDataRequest.TiDB
PUT, DELETE = 1, 2


class HandClock:
    """A monotonic time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


@pytest.fixture
def upstream():
    with EmbeddedUpstream.start(
        stores=3, api_version=2, resolved_interval_seconds=3600, clock_refresh_seconds=3600
    ) as started:
        yield started


@pytest.fixture
def raw(upstream):
    with client_of(upstream) as client:
        yield RawClient(client, 2)


def following(raw, region=None, **fields):
    """A feed on the region, initialized."""
    region = region or raw.client.region()
    feed = raw.client.feed(region.leader.store_id, v2=fields.pop("v2", True))
    feed.register(region, kv_api=RAW, **fields)
    feed.wait_initialized(region.region.id)
    return feed


def shape(row):
    return row.op_type, row.key.removeprefix(KEYSPACE), row.value, row.expire_ts_unix_secs > 0


# Rows


@pytest.mark.parametrize("v2", [False, True], ids=["EventFeed", "EventFeedV2"])
def test_live_writes_come_as_committed_rows_with_one_ts(upstream, raw, v2):
    feed = following(raw, v2=v2)
    raw.put(b"a", b"1")
    raw.put(b"b", b"2", ttl=100)
    raw.delete(b"never was")
    feed.wait(lambda: len(feed.rows()) == 3)
    assert [shape(row) for row in feed.rows()] == [
        (PUT, b"a", b"1", False),
        (PUT, b"b", b"2", True),
        (DELETE, b"never was", b"", False),
    ]
    assert {row.type for row in feed.rows()} == {COMMITTED}
    assert all(row.start_ts == row.commit_ts for row in feed.rows())
    assert all(row.old_value == b"" for row in feed.rows())


def test_pairs_of_a_batch_share_their_ts_and_their_event(upstream, raw):
    feed = following(raw)
    pairs = [kvrpcpb_pb2.KvPair(key=raw.key(key), value=b"v") for key in (b"a", b"b", b"a")]
    raw.call("RawBatchPut", raw.region(b""), pairs=pairs)
    raw.call("RawBatchDelete", raw.region(b""), keys=[raw.key(b"a"), raw.key(b"b")])
    feed.wait(lambda: len(feed.rows()) == 4)
    assert [row.key[-1:] for row in feed.rows()] == [b"a", b"b", b"a", b"b"]
    stamps = [row.commit_ts for row in feed.rows()]
    assert stamps[0] == stamps[1] < stamps[2] == stamps[3]


def test_live_events_carry_a_rising_index_and_scans_none(upstream, raw):
    raw.put(b"old", b"v")
    feed = following(raw)
    assert set(feed.indexes) == {0}
    scanned = len(feed.indexes)
    for value in (b"1", b"2", b"3"):
        raw.put(b"k", value)
    feed.wait(lambda: len(feed.rows()) == 4)
    live = feed.indexes[scanned:]
    assert live == sorted(set(live))
    assert live[0] > 0


def test_a_swap_that_does_not_happen_is_not_told(upstream, raw):
    feed = following(raw)
    raw.put(b"k", b"1")
    for before, after in ((b"0", b"wrong"), (b"1", b"2")):
        raw.call("RawCompareAndSwap", raw.region(b"k"), key=raw.key(b"k"), previous_value=before, value=after)
    feed.wait(lambda: len(feed.rows()) == 2)
    assert [row.value for row in feed.rows()] == [b"1", b"2"]


def test_a_deleted_range_is_not_told(upstream, raw):
    feed = following(raw)
    raw.put(b"a", b"1")
    raw.call("RawDeleteRange", raw.region(b""), start_key=raw.key(b"a"), end_key=raw.key(b"b"))
    raw.put(b"c", b"1")
    feed.wait(lambda: len(feed.rows()) == 2)
    assert [row.key[-1:] for row in feed.rows()] == [b"a", b"c"]


def test_a_scan_gives_the_newest_version_of_each_key_above_the_checkpoint(upstream, raw):
    raw.put(b"before", b"1")
    checkpoint = upstream.cluster.raw.clocks.max_ts(raw.region(b"").region.id)
    raw.put(b"a", b"1")
    raw.put(b"a", b"2")
    raw.put(b"gone", b"1")
    raw.delete(b"gone")
    raw.put(b"ttl", b"1", ttl=1000)
    feed = following(raw, checkpoint_ts=checkpoint)
    assert [shape(row) for row in feed.rows()] == [
        (PUT, b"a", b"2", False),
        (DELETE, b"gone", b"", False),
        (PUT, b"ttl", b"1", True),
    ]
    assert all(row.start_ts == row.commit_ts > checkpoint for row in feed.rows())


def test_live_rows_keep_to_the_asked_range_and_scans_to_the_region(upstream, raw):
    for key in (b"a", b"b", b"c"):
        raw.put(key, b"scanned")
    bounds = {"start_key": encode_bytes(raw.key(b"b")), "end_key": encode_bytes(raw.key(b"c"))}
    feed = following(raw, **bounds)
    for key in (b"a", b"b", b"c"):
        raw.put(key, b"live")
    feed.wait(lambda: any(row.value == b"live" for row in feed.rows()))
    feed.wait_resolved(raw.client.region().region.id, upstream.publish_resolved())
    assert [row.key[-1:] for row in feed.rows() if row.value == b"scanned"] == [b"a", b"b", b"c"]
    assert [row.key[-1:] for row in feed.rows() if row.value == b"live"] == [b"b"]


def test_raw_and_transactional_changes_go_to_those_who_asked_for_them(upstream, raw):
    upstream.commit([put(b"x\0\0\0scanned"), put(b"t\x80scanned"), put(b"m\0scanned")])
    raw.put(b"scanned", b"v")
    region = raw.client.region()
    feed = following(raw, request_id=1)
    feed.register(region, request_id=2, kv_api=TIDB)
    feed.wait_initialized(region.region.id, request_id=2)
    upstream.commit([put(b"x\0\0\0live"), put(b"t\x80live"), put(b"m\0live")])
    raw.put(b"live", b"v")
    ts = upstream.publish_resolved()
    for request_id in (1, 2):
        feed.wait_resolved(region.region.id, ts, request_id=request_id)
    assert {row.key for row in feed.rows(request_id=1)} == {KEYSPACE + b"scanned", KEYSPACE + b"live"}
    assert {row.key[:1] for row in feed.rows(request_id=2)} == {b"x", b"t", b"m"}


def test_a_server_of_v1_does_not_offer_raw_changes():
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream, client_of(upstream) as client:
        region = client.region()
        feed = client.feed(region.leader.store_id)
        feed.register(region, kv_api=RAW)
        assert feed.error().compatibility.required_version == "6.2.0"


# Resolved-ts


def test_the_resolved_ts_is_the_clock_of_the_leaders_store(upstream, raw):
    region = raw.client.region()
    feed = following(raw)
    clock = upstream.cluster.raw.clocks.clock(region.leader.store_id)
    clock.advance_to(upstream.tso() + (60_000 << 18))  # a minute ahead of the TSO
    ahead = clock.last
    upstream.publish_resolved()
    feed.wait_resolved(region.region.id, ahead)
    raw.put(b"k", b"v")
    feed.wait(lambda: feed.rows())
    assert feed.rows()[0].commit_ts > ahead


def test_a_promise_far_ahead_does_not_stop_transactions(upstream, raw):
    following(raw)
    upstream.cluster.raw.clocks.clock(raw.client.region().leader.store_id).advance_to(upstream.tso() + (60_000 << 18))
    upstream.publish_resolved()
    upstream.commit([put(b"x\0\0\0k", b"v")])
    assert upstream.get(b"x\0\0\0k") == b"v"


@pytest.fixture
def standstill():
    """An upstream whose clock stands still, so that a delayed write waits until the test lets it go."""
    clock = HandClock()
    with (
        EmbeddedUpstream.start(stores=3, api_version=2, resolved_interval_seconds=3600, clock=clock) as upstream,
        client_of(upstream) as client,
    ):
        yield upstream, RawClient(client, 2), clock


def begin_put(upstream, raw, pool):
    """A put that is on its way, and the ts that it is held by."""
    upstream.delay_apply(60)
    writing = pool.submit(raw.put, b"a", b"v")
    while True:
        with upstream.cluster.mutex:
            on_its_way = list(upstream.cluster.in_flight.raw_writes())
        if on_its_way:
            return writing, on_its_way[0][1]
        assert not writing.done()


def let_go(upstream, raw, clock):
    upstream.delay_apply(0)
    clock.seconds += 60
    raw.put(b"z", b"wakes the other up")


def test_a_write_on_its_way_holds_the_resolved_ts_below_its_own(standstill):
    upstream, raw, clock = standstill
    region = raw.client.region()
    feed, elsewhere = following(raw), following(raw, start_key=encode_bytes(raw.key(b"m")))
    with ThreadPoolExecutor() as pool:
        writing, held = begin_put(upstream, raw, pool)
        present = upstream.publish_resolved()
        elsewhere.wait_resolved(region.region.id, present)  # the write is not in its range
        feed.wait_resolved(region.region.id, held)
        assert feed.resolved(region.region.id)[-1][3] == held
        assert feed.rows() == []
        let_go(upstream, raw, clock)
        writing.result()
    feed.wait(lambda: len(feed.rows()) == 2)
    late = next(row.commit_ts for row in feed.rows() if row.key == raw.key(b"a"))
    assert held < late <= elsewhere.resolved(region.region.id)[0][3]  # without it the promise would be broken now
    feed.wait_resolved(region.region.id, upstream.publish_resolved())


@pytest.mark.parametrize("change", ["move", "split"])
def test_a_write_whose_region_changes_while_it_is_on_its_way_does_not_happen(standstill, change):
    upstream, raw, clock = standstill
    region = raw.client.region()
    other = next(p.store_id for p in region.region.peers if p.store_id != region.leader.store_id)
    with ThreadPoolExecutor() as pool:
        writing, _ = begin_put(upstream, raw, pool)
        if change == "move":
            upstream.transfer_leader(region.region.id, other)
        else:
            upstream.split(raw.key(b"m"))
        let_go(upstream, raw, clock)
        error = writing.result().region_error
    assert error.not_leader.leader.store_id == other if change == "move" else error.HasField("epoch_not_match")
    assert raw.get(b"a") is None


# Causality over changes of leader, splits, merges and restarts


def test_the_leader_transfer_case_of_the_proposal_keeps_causality(upstream, raw):
    """First put at 10 on a store whose clock is then 11; the leader moves to a store whose clock is 8."""
    base = upstream.tso() + (3_600_000 << 18)  # so far ahead that only these clocks count
    region = raw.client.region()
    one, two = region.leader.store_id, next(p.store_id for p in region.region.peers if p != region.leader)
    clocks = upstream.cluster.raw.clocks
    clocks.clock(one).advance_to(base + 8)
    clocks.clock(two).advance_to(base + 7)
    raw.put(b"k", b"first")
    assert [clocks.clock(store).last + 1 - base for store in (one, two)] == [11, 8]
    upstream.transfer_leader(region.region.id, two)
    raw.put(b"k", b"second")
    feed = following(raw)
    versions = sorted(stamps_of(upstream, b"k"))
    assert versions[0] == base + 10 < versions[1]
    assert [row.value for row in feed.rows()] == [b"second"]
    assert raw.get(b"k") == b"second"


def stamps_of(upstream, key: bytes) -> list[int]:
    prefix = encode_bytes(KEYSPACE + key)
    stored = upstream.cluster.engine.items(Family.RAW, prefix, prefix + b"\xff" * 9)
    return [int.from_bytes(found[-8:], "big") ^ (1 << 64) - 1 for found, _ in stored]


@pytest.mark.parametrize("change", ["move", "split", "merge", "restart", "split and move", "merge and move"])
def test_no_write_comes_at_or_below_what_was_promised_before_a_change(upstream, raw, change):
    upstream.split(raw.key(b"m"))
    left, right = raw.region(b"a"), raw.region(b"z")
    for region in (left, right):
        store = region.leader.store_id
        upstream.cluster.raw.clocks.clock(store).advance_to(upstream.tso() + (60_000 << 18))
        feed = following(raw, region)
        upstream.publish_resolved()
        feed.wait_resolved(region.region.id, 1)
        promised = feed.resolved(region.region.id)[-1][3]
    if "split" in change:
        upstream.split(raw.key(b"f"))
    if "merge" in change:
        upstream.merge(left.region.id, right.region.id)
    if "move" in change:
        for region in upstream.regions():
            upstream.transfer_leader(region.id, next(s for s in region.stores if s != region.leader_store))
    if "restart" in change:
        for store in (1, 2, 3):
            upstream.kill_store(store, election_seconds=0)
            upstream.start_store(store)
    for key in (b"a", b"g", b"z"):
        raw.put(key, b"v")
        assert min(stamps_of(upstream, key)) > promised


def test_no_write_comes_at_or_below_what_was_promised_before_the_process_died(tmp_path):
    def opened():
        return EmbeddedUpstream.start(data_dir=tmp_path / "d", api_version=2, resolved_interval_seconds=3600)

    with opened() as upstream, client_of(upstream) as client:
        raw = RawClient(client, 2)
        region = client.region()
        upstream.cluster.raw.clocks.clock(1).advance_to(upstream.tso() + (60_000 << 18))
        feed = following(raw, region)
        upstream.publish_resolved()
        feed.wait_resolved(region.region.id, 1)
        promised = feed.resolved(region.region.id)[-1][3]
        upstream.cluster.raw.close = lambda: None  # it dies: the bound stays as it is
    with opened() as upstream, client_of(upstream) as client:
        raw = RawClient(client, 2)
        raw.put(b"k", b"v")
        assert stamps_of(upstream, b"k")[0] > promised


# The sender's rest, and the pace of scans


@pytest.fixture
def resting():
    """A stream whose sender has just sent something, by a clock that stands still."""
    clock = HandClock()
    stream = FeedStream(1, True, Throttle(clock), clock)
    subscription = Subscription(stream, 1, 5, b"", b"", 0, False)
    stream.push(subscription, b"first")
    assert stream.take() == b"first"
    return clock, stream, subscription


def test_live_changes_wait_for_the_end_of_the_senders_rest(resting):
    clock, stream, subscription = resting
    with ThreadPoolExecutor() as pool:
        taking = pool.submit(stream.take)
        for part in (b"a", b"b", b"c"):
            stream.push(subscription, part)
        clock.seconds += REST_SECONDS
        assert taking.result(DEADLINE_SECONDS) == b"abc"


@pytest.mark.parametrize("what", ["resolved-ts", "scan", "error", "much"])
def test_what_is_urgent_ends_the_rest(resting, what):
    _, stream, subscription = resting
    with ThreadPoolExecutor() as pool:
        taking = pool.submit(stream.take)
        stream.push(subscription, b"a")
        if what == "resolved-ts":
            stream.push_message(b"r", mergeable=False)
        elif what == "scan":
            stream.push_scan(subscription, b"s")
        elif what == "error":
            stream.push_error(subscription, cdcpb_pb2.Error())
        else:
            stream.push(subscription, bytes(MESSAGE_BYTES))
        assert taking.result(DEADLINE_SECONDS)[:1] == b"a"


def test_scans_together_keep_to_their_rate():
    clock = HandClock()
    throttle = Throttle(clock, bytes_per_second=1000)
    assert throttle.delay(100) == 0.0  # a little at once is free
    assert throttle.delay(1000) == pytest.approx(1.0)
    assert throttle.delay(500) == pytest.approx(1.5)
    clock.seconds += 60
    assert throttle.delay(100) == 0.0


@pytest.mark.parametrize("bad", [{"clock_refresh_seconds": 0}, {"scan_bytes_per_second": 0}])
def test_a_pace_of_nothing_is_refused(bad):
    with pytest.raises(UsageError, match="must be positive"):
        EmbeddedUpstream.start(**bad)


def test_a_closed_stream_does_not_wait_for_its_throttled_scan(upstream, raw):
    for at in range(50):
        raw.put(b"%d" % at, bytes(100_000))
    upstream.cluster.scan_throttle.bytes_per_second = 1000
    region = raw.client.region()
    feed = raw.client.feed(region.leader.store_id)
    feed.register(region, kv_api=RAW)
    feed.wait(lambda: upstream.cluster.streams)
    stopped = threading.Thread(target=upstream.drop_streams)
    stopped.start()
    feed.wait(lambda: feed.ended)
    stopped.join()
