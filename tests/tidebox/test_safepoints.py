"""Safepoints and barriers over real gRPC: who may hold what, what is refused in which words, and for how long."""

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.rounds import examples
from tests.tidebox.stub import client_of, delete, put
from tidebox.engine import Engine, Family
from tidebox.safepoints import GC_WORKER, NEVER, SafepointRefusedError, Safepoints
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import pdpb_pb2

NULL_KEYSPACE = 0xFFFFFFFF


class HandClock:
    def __init__(self):
        self.seconds = 1_000_000.0

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds


class GcClient:
    """PD's calls for garbage collection with plain answers; refusals come as text."""

    def __init__(self, client):
        self._client = client

    def call(self, method, **fields):
        request = getattr(pdpb_pb2, f"{method}Request")(header=self._client.header, **fields)
        return getattr(self._client.pd, method)(request)

    def refusal(self, method, **fields):
        error = self.call(method, **fields).header.error
        assert error.type == pdpb_pb2.UNKNOWN
        return error.message

    def service(self, service, ts, ttl):
        answer = self.call("UpdateServiceGCSafePoint", service_id=service, safe_point=ts, TTL=ttl)
        return answer.service_id, answer.min_safe_point

    def barrier(self, name, ts, ttl=60):
        answer = self.call("SetGCBarrier", barrier_id=name, barrier_ts=ts, ttl_seconds=ttl)
        assert not answer.header.HasField("error"), answer.header.error.message
        return answer.new_barrier_info

    def advance(self, target):
        answer = self.call("AdvanceTxnSafePoint", target=target)
        assert not answer.header.HasField("error"), answer.header.error.message
        return answer.old_txn_safe_point, answer.new_txn_safe_point, answer.blocker_description

    def state(self):
        """Txn safepoint, GC safepoint, barriers by name."""
        state = self.call("GetGCState").gc_state
        barriers = {b.barrier_id: b.barrier_ts for b in state.gc_barriers}
        return state.txn_safe_point, state.gc_safe_point, barriers

    def update(self, ts):
        return self.call("UpdateGCSafePoint", safe_point=ts).new_safe_point


@pytest.fixture
def gc(client):
    return GcClient(client)


# The older form


def test_the_lowest_live_service_is_reported(gc):
    assert gc.service(b"cdc", 100, 60) == (b"gc_worker", 0)
    assert gc.service(b"gc_worker", 90, NEVER) == (b"gc_worker", 90)
    assert gc.service(b"br", 95, 60) == (b"gc_worker", 90)
    assert gc.service(b"gc_worker", 200, NEVER) == (b"br", 95)


def test_a_request_below_the_minimum_is_not_stored_and_only_the_answer_tells(upstream, gc):
    upstream.set_gc_safepoint(100)
    assert gc.service(b"cdc", 99, 60) == (b"gc_worker", 100)
    assert gc.service(b"cdc", 100, 60)[1] == 100
    upstream.set_gc_safepoint(200)
    assert gc.service(b"other", 150, 60) == (b"cdc", 100)  # and so cdc holds the rest back


def test_a_service_may_move_down_as_long_as_it_stays_above_the_minimum(gc):
    gc.service(b"gc_worker", 10, NEVER)
    gc.service(b"cdc", 50, 60)
    gc.service(b"cdc", 20, 60)
    assert gc.service(b"gc_worker", 90, NEVER) == (b"cdc", 20)


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_service_leaves_with_a_ttl_of_zero_or_below(gc, ttl):
    gc.service(b"cdc", 50, 60)
    gc.service(b"gc_worker", 80, NEVER)
    assert gc.service(b"cdc", 0, ttl) == (b"gc_worker", 80)


@pytest.mark.parametrize(
    ("service", "ttl", "why"),
    [
        (b"gc_worker", 60, "TTL of gc_worker's service safe point must be infinity"),
        (b"gc_worker", 0, "TTL of gc_worker's service safe point must be infinity"),
        (b"", 60, "[PD:common:ErrInvalidArgument]invalid argument for barrierID: "),
    ],
)
def test_what_is_no_service_ends_the_call(gc, service, ttl, why):
    with pytest.raises(grpc.RpcError) as refused:
        gc.service(service, 50, ttl)
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNKNOWN, why)


def test_seconds_left_are_those_of_the_minimum(gc):
    gc.service(b"gc_worker", 10, NEVER)
    answer = gc.call("UpdateServiceGCSafePoint", service_id=b"cdc", safe_point=20, TTL=60)
    assert answer.TTL == NEVER
    answer = gc.call("UpdateServiceGCSafePoint", service_id=b"gc_worker", safe_point=30, TTL=NEVER)
    assert 0 < answer.TTL <= 60


def test_the_gc_safepoint_only_moves_forward(gc):
    assert [gc.update(10), gc.update(5), gc.update(20)] == [10, 10, 20]
    assert gc.call("GetGCSafePoint").safe_point == 20


def test_services_below_the_gc_safepoint_are_refused_even_if_gc_worker_never_spoke(gc):
    gc.update(100)
    assert gc.service(b"cdc", 99, 60) == (b"gc_worker", 100)


# The older form by keyspace


@pytest.mark.parametrize("keyspace", [0, NULL_KEYSPACE])
def test_the_keyspaces_that_exist_share_one_state(gc, keyspace):
    answer = gc.call("UpdateServiceSafePointV2", keyspace_id=keyspace, service_id=b"cdc", safe_point=7, ttl=60)
    assert (answer.service_id, answer.min_safe_point, answer.ttl) == (b"gc_worker", 0, NEVER)
    assert gc.call("UpdateGCSafePointV2", keyspace_id=keyspace, safe_point=9).new_safe_point == 9
    assert gc.call("GetGCSafePointV2", keyspace_id=keyspace).safe_point == 9
    assert gc.state() == (7, 7, {"cdc": 7})
    assert list(gc.call("GetAllGCSafePointV2").gc_safe_points) == []


@pytest.mark.parametrize("method", ["UpdateServiceSafePointV2", "UpdateGCSafePointV2", "GetGCSafePointV2"])
def test_a_keyspace_that_does_not_exist_ends_the_call(gc, method):
    with pytest.raises(grpc.RpcError, match="ErrKeyspaceNotFound"):
        gc.call(method, keyspace_id=5)


# The newer form


def test_a_barrier_is_set_moved_and_deleted(gc):
    assert gc.barrier("cdc", 10, 60).ttl_seconds == 60
    moved = gc.barrier("cdc", 5, NEVER)
    assert (moved.barrier_id, moved.barrier_ts, moved.ttl_seconds) == ("cdc", 5, NEVER)
    assert gc.state() == (0, 0, {"cdc": 5})
    assert gc.call("DeleteGCBarrier", barrier_id="cdc").deleted_barrier_info == moved
    assert not gc.call("DeleteGCBarrier", barrier_id="cdc").HasField("deleted_barrier_info")
    assert gc.state() == (0, 0, {})


def test_a_ttl_beyond_all_years_never_ends(gc):
    assert gc.barrier("cdc", 10, 9_223_372_036).ttl_seconds == 9_223_372_036
    assert gc.barrier("cdc", 10, 9_223_372_037).ttl_seconds == NEVER


def test_barriers_hold_the_txn_safepoint_and_the_one_in_the_way_is_named(gc):
    gc.barrier("cdc", 10, NEVER)
    gc.call("SetGlobalGCBarrier", barrier_id="br", barrier_ts=20, ttl_seconds=60)
    assert gc.advance(5) == (0, 5, "")
    blocker = 'GCBarrier { BarrierID: "cdc", BarrierTS: 10, ExpirationTime: "<nil>" }'
    assert gc.advance(30) == (5, 10, blocker)
    gc.call("DeleteGCBarrier", barrier_id="cdc")
    assert gc.state()[0] == 10  # until somebody advances it again
    old, new, blocker = gc.advance(30)
    assert (old, new) == (10, 20)
    assert blocker.startswith('GlobalGCBarrier { BarrierID: "br", BarrierTS: 20, ExpirationTime: "20')
    assert gc.advance(20) == (20, 20, "")


@pytest.mark.parametrize(
    ("method", "fields", "why"),
    [
        pytest.param(
            "SetGCBarrier",
            {"barrier_id": "cdc", "barrier_ts": 9, "ttl_seconds": 60},
            "[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]trying to set a GC barrier on ts 9 "
            "which is already behind the txn safe point 10",
            id="a barrier behind the txn safepoint",
        ),
        pytest.param(
            "SetGlobalGCBarrier",
            {"barrier_id": "br", "barrier_ts": 9, "ttl_seconds": 60},
            "[PD:gc:ErrGlobalGCBarrierTSBehindTxnSafePoint]trying to set a global GC barrier on ts 9 "
            "which is already behind the txn safe point 10 of keyspace <null_keyspace>",
            id="a global barrier behind it",
        ),
        pytest.param(
            "SetGCBarrier",
            {"barrier_id": "cdc", "barrier_ts": 20},
            "[PD:common:ErrInvalidArgument]invalid argument for ttl: 0s",
            id="a barrier that does not live",
        ),
        pytest.param(
            "SetGlobalGCBarrier",
            {"barrier_id": "cdc", "barrier_ts": 20, "ttl_seconds": -3},
            "[PD:common:ErrInvalidArgument]invalid argument for ttl: -3s",
            id="a global barrier that does not live",
        ),
        pytest.param(
            "SetGCBarrier",
            {"barrier_ts": 20, "ttl_seconds": 60},
            "[PD:common:ErrInvalidArgument]invalid argument for barrierID: ",
            id="a barrier without a name",
        ),
        pytest.param(
            "DeleteGlobalGCBarrier",
            {},
            "[PD:common:ErrInvalidArgument]invalid argument for barrierID: ",
            id="deleting without a name",
        ),
        pytest.param(
            "SetGCBarrier",
            {"barrier_id": "gc_worker", "barrier_ts": 20, "ttl_seconds": 60},
            "[PD:gc:ErrReservedGCBarrierID]trying to set a GC barrier with a barrier ID that is reserved: gc_worker",
            id="a name that is reserved",
        ),
        pytest.param(
            "DeleteGCBarrier",
            {"barrier_id": "gc_worker"},
            "[PD:gc:ErrReservedGCBarrierID]trying to set a GC barrier with a barrier ID that is reserved: gc_worker",
            id="deleting what is reserved",
        ),
        pytest.param(
            "AdvanceTxnSafePoint",
            {"target": 9},
            "[PD:gc:ErrDecreasingTxnSafePoint]trying to update txn safe point to a smaller value, "
            "current value: 10, given: 9",
            id="a txn safepoint that falls",
        ),
        pytest.param(
            "AdvanceGCSafePoint",
            {"target": 3},
            "[PD:gc:ErrDecreasingGCSafePoint]trying to update GC safe point to a smaller value, "
            "current value: 4, given: 3",
            id="a GC safepoint that falls",
        ),
        pytest.param(
            "AdvanceGCSafePoint",
            {"target": 11},
            "[PD:gc:ErrGCSafePointExceedsTxnSafePoint]trying to update GC safe point to a too large value that exceeds "
            "the txn safe point, current value: 4, given: 11, current txn safe point: 10",
            id="a GC safepoint above the txn safepoint",
        ),
        pytest.param(
            "GetGCState",
            {"keyspace_scope": pdpb_pb2.KeyspaceScope(keyspace_id=5)},
            "[PD:keyspace:ErrKeyspaceNotFound]keyspace does not exist",
            id="a keyspace that does not exist",
        ),
        pytest.param(
            "AdvanceTxnSafePoint",
            {"keyspace_scope": pdpb_pb2.KeyspaceScope(keyspace_id=0), "target": 20},
            "[PD:gc:ErrGCOnInvalidKeyspace]trying to manage GC in keyspace DEFAULT (id: 0) "
            "where keyspace level GC is not enabled",
            id="collecting in a keyspace that does not collect for itself",
        ),
    ],
)
def test_refused_with_pds_own_words(gc, method, fields, why):
    gc.advance(10)
    assert gc.call("AdvanceGCSafePoint", target=4).new_gc_safe_point == 4
    before = gc.state()
    assert gc.refusal(method, **fields) == why
    assert gc.state() == before


def test_the_gc_safepoint_follows_up_to_the_txn_safepoint(gc):
    gc.advance(10)
    for old, new in [(0, 4), (4, 4), (4, 10)]:
        answer = gc.call("AdvanceGCSafePoint", target=new)
        assert (answer.old_gc_safe_point, answer.new_gc_safe_point) == (old, new)
    assert gc.call("GetGCSafePoint").safe_point == 10


def test_the_default_keyspace_shows_the_state_that_all_share(gc):
    gc.barrier("cdc", 10)
    for scope in (None, pdpb_pb2.KeyspaceScope(keyspace_id=0), pdpb_pb2.KeyspaceScope(keyspace_id=1 << 24)):
        state = gc.call("GetGCState", keyspace_scope=scope).gc_state
        assert state.keyspace_scope.keyspace_id == NULL_KEYSPACE
        assert not state.is_keyspace_level_gc
        assert [b.barrier_id for b in state.gc_barriers] == ["cdc"]


def test_what_is_not_asked_for_is_left_out(gc):
    gc.barrier("cdc", 10)
    plain = gc.call("GetGCState", exclude_gc_barriers=True)
    assert not plain.gc_state.gc_barriers
    assert not plain.HasField("global_gc_barriers")
    empty = gc.call("GetGCState", include_global_gc_barriers=True)
    assert empty.HasField("global_gc_barriers")
    assert not empty.global_gc_barriers.barriers
    gc.call("SetGlobalGCBarrier", barrier_id="br", barrier_ts=3, ttl_seconds=60)
    full = gc.call("GetGCState", include_global_gc_barriers=True)
    assert [b.barrier_id for b in full.global_gc_barriers.barriers] == ["br"]
    every = gc.call("GetAllKeyspacesGCStates")
    assert (list(every.gc_states), list(every.global_gc_barriers)) == (
        [full.gc_state],
        list(full.global_gc_barriers.barriers),
    )
    none = gc.call("GetAllKeyspacesGCStates", exclude_gc_barriers=True, exclude_global_gc_barriers=True)
    assert (len(none.gc_states[0].gc_barriers), len(none.global_gc_barriers)) == (0, 0)
    deleted = gc.call("DeleteGlobalGCBarrier", barrier_id="br").deleted_barrier_info
    assert (deleted.barrier_ts, gc.call("GetAllKeyspacesGCStates").global_gc_barriers) == (3, [])


# Both forms see one state


def test_a_service_safepoint_is_a_barrier_and_a_barrier_a_service_safepoint(gc):
    gc.service(b"cdc", 10, 60)
    assert gc.state()[2] == {"cdc": 10}
    gc.barrier("other", 20)
    assert gc.service(b"gc_worker", 50, NEVER) == (b"cdc", 10)
    gc.call("DeleteGCBarrier", barrier_id="cdc")
    assert gc.service(b"gc_worker", 50, NEVER) == (b"other", 20)
    assert gc.state()[0] == 20


def test_the_backup_tools_service_safepoint_is_a_global_barrier(gc):
    gc.service(b"native_br", 10, 60)
    [barrier] = gc.call("GetAllKeyspacesGCStates").global_gc_barriers
    assert (barrier.barrier_id, barrier.barrier_ts) == ("native_br", 10)
    assert gc.advance(20)[1] == 10
    assert gc.service(b"native_br", 0, 0) == (b"gc_worker", 10)
    assert gc.advance(20)[1] == 20


def test_a_gc_safepoint_announced_beyond_a_barrier_takes_effect_when_the_barrier_goes(upstream, gc):
    gc.barrier("cdc", 10)
    assert gc.update(100) == 100
    assert gc.state() == (10, 10, {"cdc": 10})
    assert upstream.cluster.collect_garbage().safepoint == 10
    gc.call("DeleteGCBarrier", barrier_id="cdc")
    assert upstream.cluster.collect_garbage().safepoint == 100
    assert gc.state() == (100, 100, {})


def test_the_listing_shows_services_the_minimum_and_the_gc_safepoint(upstream, gc):
    gc.update(5)
    gc.service(b"cdc", 9, 60)
    with upstream.cluster.mutex:
        listing = upstream.cluster.safepoints.listing()
    assert [(b.service, b.ts) for b in listing.services] == [(b"cdc", 9), (b"gc_worker", 5)]
    assert (listing.minimum, listing.gc_safepoint) == (5, 5)


# Time, and what survives


def test_everything_survives_a_restart_and_expires_by_the_clock(tmp_path):
    clock = HandClock()
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", clock=clock) as first, client_of(first) as client:
        gc = GcClient(client)
        gc.service(b"cdc", 70, 60)
        gc.call("SetGlobalGCBarrier", barrier_id="br", barrier_ts=80, ttl_seconds=NEVER)
        gc.service(b"gc_worker", 90, NEVER)
        gc.update(60)
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", clock=clock) as second, client_of(second) as client:
        gc = GcClient(client)
        clock.seconds += 60
        assert gc.state() == (70, 60, {"cdc": 70})
        assert gc.service(b"other", 90, 600) == (b"cdc", 70)
        clock.seconds += 1
        assert gc.service(b"other", 90, 600) == (b"br", 80)
        assert gc.call("GetGCState").gc_state.gc_barriers[0].barrier_id == "other"
        assert not gc.call("DeleteGCBarrier", barrier_id="cdc").HasField("deleted_barrier_info")


def test_setting_a_barrier_again_restarts_its_time(tmp_path):
    clock = HandClock()
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", clock=clock) as upstream, client_of(upstream) as client:
        gc = GcClient(client)
        gc.barrier("cdc", 10, 60)
        clock.seconds += 50.5
        assert gc.call("GetGCState").gc_state.gc_barriers[0].ttl_seconds == 10
        gc.barrier("cdc", 10, 60)
        clock.seconds += 60
        assert gc.advance(20)[1] == 10
        clock.seconds += 1
        assert gc.advance(20)[1] == 20


def test_a_service_safepoint_holds_versions_back_until_its_ttl_ends(tmp_path):
    clock = HandClock()
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", clock=clock) as upstream, client_of(upstream) as client:
        gc = GcClient(client)
        _, first = upstream.commit([put(b"k", b"1")])
        _, second = upstream.commit([put(b"k", b"2")])
        _, third = upstream.commit([delete(b"k")])
        gc.service(b"cdc", first, 60)
        gc.update(upstream.tso())
        assert upstream.cluster.collect_garbage().versions == 0
        assert (upstream.get(b"k", first), upstream.get(b"k", second), upstream.get(b"k", third)) == (b"1", b"2", None)
        clock.seconds += 61
        assert upstream.cluster.collect_garbage().versions == 3
        assert gc.service(b"cdc", first, 60)[1] > third  # and it is too late to ask again


class TwoForms(RuleBasedStateMachine):
    """Any order of calls of both forms, on the state alone."""

    names = st.sampled_from([b"a", b"b", b"native_br"])
    stamps = st.integers(0, 40)
    ttls = st.sampled_from([-1, 0, 5, 20, NEVER])

    def __init__(self):
        super().__init__()
        self.clock = HandClock()
        self.seen = (0, 0)
        self.answered = 0

    @initialize()
    def begin(self):
        batch = type(self).engine.batch()
        for key, _ in type(self).engine.items(Family.META):
            batch.delete(Family.META, key)
        type(self).engine.write(batch)
        self.safepoints = Safepoints(type(self).engine, self.clock)

    @rule(service=names, ts=stamps, ttl=ttls)
    def update(self, service, ts, ttl):
        lowest = self.answer(service, ts, ttl)
        stored = [b for b in self.safepoints.listing().services if (b.service, b.ts) == (service, ts)]
        if ttl > 0:
            assert bool(stored) == (lowest.ts <= ts)

    @rule(ts=stamps)
    def gc_worker(self, ts):
        self.answer(GC_WORKER, ts, NEVER)

    def answer(self, service, ts, ttl):
        lowest = self.safepoints.update(service, ts, ttl)
        assert lowest.ts >= self.answered
        self.answered = lowest.ts
        return lowest

    @rule(name=names, ts=stamps, ttl=ttls, is_global=st.booleans())
    def barrier(self, name, ts, ttl, is_global):
        txn = self.safepoints.state().txn_safepoint
        try:
            self.safepoints.set_barrier(name, ts, ttl, is_global=is_global)
            assert ttl > 0
            assert ts >= txn
        except SafepointRefusedError:
            assert ttl <= 0 or ts < txn

    @rule(name=names, is_global=st.booleans())
    def drop(self, name, is_global):
        self.safepoints.delete_barrier(name, is_global=is_global)

    @rule(ts=stamps)
    def announce(self, ts):
        assert self.safepoints.announce_gc(ts) >= ts

    @rule(up=st.integers(0, 10))
    def advance(self, up):
        state = self.safepoints.state()
        target = state.txn_safepoint + up
        advance = self.safepoints.advance_txn(target)
        assert (advance.new == target) == (advance.blocker is None or advance.blocker.ts == target)
        self.safepoints.advance_gc(min(advance.new, state.gc_safepoint + up))

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds):
        self.clock.seconds += seconds

    @rule()
    def restart(self):
        before = (self.safepoints.state(), self.safepoints.listing())
        self.safepoints = Safepoints(type(self).engine, self.clock)
        assert (self.safepoints.state(), self.safepoints.listing()) == before

    @invariant()
    def promises_are_kept(self):
        if not hasattr(self, "safepoints"):
            return
        state, listing = self.safepoints.state(), self.safepoints.listing()
        barriers = [b.ts for b in (*state.barriers, *state.global_barriers)]
        assert state.gc_safepoint <= state.txn_safepoint <= min([listing.minimum, *barriers])
        collectable = self.safepoints.collectable()
        assert collectable == min([listing.gc_safepoint, *barriers]) or collectable == state.gc_safepoint
        now = (state.txn_safepoint, collectable)
        assert all(new >= old for old, new in zip(self.seen, now, strict=True))
        self.seen = now


def test_neither_form_breaks_what_the_other_promised(tmp_path):
    TwoForms.engine = Engine(tmp_path)
    try:
        case = TwoForms.TestCase
        case.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
        case().runTest()
    finally:
        TwoForms.engine.close()
