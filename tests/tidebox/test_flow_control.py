"""A client that does not read: the upstream's memory stays bounded, and nothing is lost without a word."""

import pytest

from tests.tidebox.stub import COMMIT, COMMITTED, client_of, put
from tidebox import feed as feeds
from tidebox.upstream import EmbeddedUpstream

MIB = 1 << 20


@pytest.fixture
def small_queues(monkeypatch):
    monkeypatch.setattr(feeds, "SCAN_QUEUE_BYTES", 1 * MIB)
    monkeypatch.setattr(feeds, "LIVE_QUEUE_BYTES", 4 * MIB)


def test_a_scan_waits_for_a_slow_client_and_then_delivers_all(upstream, client, small_queues):
    upstream.commit([put(b"k%03d" % at, bytes(256 << 10)) for at in range(120)])
    region = client.region()
    feed = client.feed(region.leader.store_id, paused=True)
    feed.register(region)
    other = client.feed(region.leader.store_id)  # a slow client stops nobody else
    other.register(region)
    other.wait_initialized(region.region.id)
    assert len(other.rows(kind=COMMITTED)) == 120
    assert max(s.queued_bytes for s in upstream.cluster.streams) < 4 * MIB
    feed.may_read.set()
    feed.wait_initialized(region.region.id)
    assert [row.key for row in feed.rows()] == [b"k%03d" % at for at in range(120)]


def test_live_changes_beyond_the_quota_end_in_congested(upstream, client, small_queues):
    region = client.region()
    feed = client.feed(region.leader.store_id, paused=True)
    witness = client.feed(region.leader.store_id)
    for one in (feed, witness):
        one.register(region)
    witness.wait_initialized(region.region.id)
    for at in range(100):
        upstream.commit([put(b"k%03d" % at, bytes(256 << 10))])
        witness.wait(lambda: witness.log[-1][3].type == COMMIT and witness.log[-1][3].key == b"k%03d" % at)  # noqa: B023
    assert max(s.queued_bytes for s in upstream.cluster.streams) < 5 * MIB
    feed.may_read.set()
    assert feed.error().congested.region_id == region.region.id
    feed.register(region, request_id=2)
    feed.wait_initialized(region.region.id, request_id=2)
    assert len(feed.rows(request_id=2, kind=COMMITTED)) == 100


def test_a_long_message_is_cut(upstream, client):
    upstream.commit([put(b"k%05d" % at, bytes(1000)) for at in range(5000)])
    region = client.region()
    feed = client.feed(region.leader.store_id)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    assert len(feed.rows()) == 5000
    assert feed.largest_message < 3 * MIB


def test_a_cancelled_stream_leaves_nothing_behind(upstream, client):
    region = client.region()
    feed = client.feed(region.leader.store_id)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    feed.close()
    witness = client.feed(region.leader.store_id)
    witness.register(region)
    witness.wait_initialized(region.region.id)
    # The server notices a cancelled call on its own threads; the next publications find it gone.
    for _ in range(1000):
        upstream.commit([put(b"a")])
        if len(upstream.cluster.streams) == 1:
            break
    assert len(upstream.cluster.streams) == 1


def test_stopping_ends_open_streams_and_does_not_wait_for_clients():
    upstream = EmbeddedUpstream.start(resolved_interval_seconds=0.01)
    with client_of(upstream) as client:
        region = client.region()
        feed = client.feed(region.leader.store_id)
        feed.register(region)
        feed.wait_resolved(region.region.id, 1)
        upstream.stop()
        feed.wait(lambda: feed.ended)
        upstream.stop()  # a second time does nothing
