"""A small, obvious client that follows all keys through splits, leader moves and broken streams.

It keeps every change once, matched from its rows, and fails on the first thing that a correct
upstream would never do: an unmatched commit, or a change that arrives for the first time at or
below a resolved-ts that its range was promised.
"""

import queue
from dataclasses import dataclass, field

from tests.tidebox.stub import DEADLINE_SECONDS, Client, Feed
from tidemill._pb import cdcpb_pb2, pdpb_pb2
from tidemill.tidb.keys import encode_bytes

RETRYABLE = {"not_leader", "epoch_not_match", "region_not_found", "congested", "server_is_busy"}


@dataclass(frozen=True)
class Change:
    start_ts: int
    op: int
    value: bytes
    old_value: bytes


@dataclass(eq=False)
class Registration:
    feed: Feed
    region_id: int
    start: bytes
    end: bytes
    checkpoint_ts: int
    resolved_ts: int = 0
    is_initialized: bool = False
    prewrites: dict = field(default_factory=dict)
    early_commits: list = field(default_factory=list)
    early_rollbacks: list = field(default_factory=list)

    def wants(self, physical_key: bytes) -> bool:
        return self.start <= physical_key and (not self.end or physical_key < self.end)


class Follower:
    """``raw``: follows RawKV instead of transactions."""

    def __init__(self, client: Client, start_ts: int = 0, *, raw: bool = False) -> None:
        self._client = client
        self._is_raw = raw
        self._inbox: queue.Queue = queue.Queue()
        self._feeds: dict[int, Feed] = {}
        self._registrations: dict[int, Registration] = {}
        self._next_request = 1
        self.changes: dict[tuple[bytes, int], Change] = {}
        self.relocations = 0
        self._cover(b"", b"", start_ts)

    def move_to(self, client: Client) -> None:
        """The upstream was started anew: go on there from what was promised before."""
        self._client = client
        self._inbox = queue.Queue()
        self._feeds = {}
        for request_id in list(self._registrations):
            self._relocate(request_id)

    @property
    def frontier(self) -> int:
        return min((max(r.resolved_ts, r.checkpoint_ts) for r in self._registrations.values()), default=0)

    def follow_until(self, ts: int) -> None:
        """Until everything up to ``ts`` is here."""
        while self.frontier < ts:
            self.step()

    def step(self) -> None:
        try:
            feed, entries = self._inbox.get(timeout=DEADLINE_SECONDS)
        except queue.Empty:
            raise AssertionError(f"nothing arrives any more; the frontier stands at {self.frontier}") from None
        for what, request_id, region_id, content in entries:
            if what == "ended":
                self._feeds = {store: f for store, f in self._feeds.items() if f is not feed}
                for request, registration in list(self._registrations.items()):
                    if registration.feed is feed:
                        self._relocate(request)
                continue
            registration = self._registrations.get(request_id)
            if registration is None or registration.feed is not feed:
                continue  # the last words of one that was given up
            assert region_id == registration.region_id
            if what == "error":
                assert {f.name for f, _ in content.ListFields()} <= RETRYABLE, content
                self._relocate(request_id)
            elif what == "resolved":
                assert registration.is_initialized, "a resolved-ts before the end of the scan"
                registration.resolved_ts = max(registration.resolved_ts, content)
            else:
                self._take(registration, content)

    def _take(self, registration: Registration, row) -> None:
        if self._is_raw:
            assert row.type in (4, 5), f"not of RawKV: {row}"
            # A scan of RawKV tells of the whole region, whatever was asked for.
            if row.type == 4 and not registration.wants(encode_bytes(row.key)):
                return
        key = (row.start_ts, row.key)
        match row.type:
            case 1:  # PREWRITE
                registration.prewrites[key] = row
            case 2:  # COMMIT
                if key in registration.prewrites:
                    self._commit(registration, row)
                else:
                    assert not registration.is_initialized, f"commit without prewrite: {row}"
                    registration.early_commits.append(row)
            case 3:  # ROLLBACK
                if registration.is_initialized:
                    registration.prewrites.pop(key, None)
                else:
                    registration.early_rollbacks.append(row)
            case 4:  # COMMITTED
                self._keep(registration, row, row.value, row.old_value)
            case 5:  # INITIALIZED
                registration.is_initialized = True
                for early in registration.early_commits:
                    if (early.start_ts, early.key) in registration.prewrites:
                        self._commit(registration, early)
                for early in registration.early_rollbacks:
                    registration.prewrites.pop((early.start_ts, early.key), None)
            case _:
                raise AssertionError(f"unknown row {row}")

    def _commit(self, registration: Registration, row) -> None:
        prewrite = registration.prewrites.pop((row.start_ts, row.key))
        assert row.op_type == prewrite.op_type
        assert row.value in (b"", prewrite.value)
        self._keep(registration, row, prewrite.value, prewrite.old_value)

    def _keep(self, registration: Registration, row, value: bytes, old_value: bytes) -> None:
        change = Change(row.start_ts, row.op_type, value, old_value)
        seen = self.changes.setdefault((row.key, row.commit_ts), change)
        if seen is not change:
            assert seen == change, f"a repetition that differs: {seen} and {change}"
            return
        promised = max(registration.resolved_ts, registration.checkpoint_ts)
        assert row.commit_ts > promised, f"{row} arrives after its range was resolved up to {promised}"

    def _relocate(self, request_id: int) -> None:
        registration = self._registrations.pop(request_id)
        self.relocations += 1
        promised = max(registration.resolved_ts, registration.checkpoint_ts)
        self._cover(registration.start, registration.end, promised)

    def _cover(self, start: bytes, end: bytes, checkpoint_ts: int) -> None:
        """Register whatever regions now hold the range, each for its part of it."""
        request = pdpb_pb2.ScanRegionsRequest(header=self._client.header, start_key=start, end_key=end)
        for region in self._client.pd.ScanRegions(request).regions:
            low = max(start, region.region.start_key)
            high = min(end, region.region.end_key) if end and region.region.end_key else end or region.region.end_key
            store = region.leader.store_id or region.region.peers[0].store_id
            feed = self._feeds.get(store)
            if feed is None:
                feed = self._feeds[store] = self._client.feed(store, inbox=self._inbox)
            self._registrations[self._next_request] = Registration(feed, region.region.id, low, high, checkpoint_ts)
            api = cdcpb_pb2.ChangeDataRequest.RawKV if self._is_raw else cdcpb_pb2.ChangeDataRequest.TiDB
            wanted = {"checkpoint_ts": checkpoint_ts, "start_key": low, "end_key": high, "kv_api": api}
            feed.register(region, self._next_request, **wanted)
            self._next_request += 1
