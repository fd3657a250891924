"""A changefeed's claim on the past: against the embedded upstream, and against PDs of other ages."""

import asyncio

import pytest

from tidebox.engine import Engine
from tidebox.safepoints import Safepoints
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import pdpb_pb2
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import IncompatibleUpstreamError, StartTsCollectedError, UpstreamError
from tidemill.model.ts import Ts
from tidemill.testing.scripted import ScriptedUpstream
from tidemill.upstream.gc import GcHold
from tidemill.upstream.pd import PdClient

BARRIER_CALLS = ["GetGCState", "SetGCBarrier", "DeleteGCBarrier"]


@pytest.fixture
def safepoints(tmp_path):
    engine = Engine(tmp_path / "d")
    yield Safepoints(engine, SYSTEM_CLOCK)
    engine.close()


def barriers(safepoints):
    return {b.service: b.ts for b in safepoints.state().barriers}


class AgedPd(ScriptedUpstream):
    """A PD that knows one form of the calls, or both, over the state of the embedded one."""

    def __init__(self, safepoints, *calls):
        super().__init__()
        self._safepoints = safepoints
        every = {
            "GetGCState": self._state,
            "SetGCBarrier": self._set,
            "DeleteGCBarrier": self._delete,
            "UpdateServiceGCSafePoint": self._service,
        }
        self.pd = {name: every[name] for name in calls}

    def _state(self, _):
        state = pdpb_pb2.GCState(txn_safe_point=self._safepoints.state().txn_safepoint)
        return pdpb_pb2.GetGCStateResponse(header=self.header(), gc_state=state)

    def _set(self, body):
        request, header = pdpb_pb2.SetGCBarrierRequest.FromString(body), self.header()
        try:
            self._safepoints.set_barrier(request.barrier_id.encode(), request.barrier_ts, request.ttl_seconds)
        except UpstreamError as refused:
            header.error.message = str(refused)
        return pdpb_pb2.SetGCBarrierResponse(header=header)

    def _delete(self, body):
        self._safepoints.delete_barrier(pdpb_pb2.DeleteGCBarrierRequest.FromString(body).barrier_id.encode())
        return pdpb_pb2.DeleteGCBarrierResponse(header=self.header())

    def _service(self, body):
        request = pdpb_pb2.UpdateServiceGCSafePointRequest.FromString(body)
        lowest = self._safepoints.update(request.service_id, request.safe_point, request.TTL)
        return pdpb_pb2.UpdateServiceGCSafePointResponse(header=self.header(), min_safe_point=lowest.ts)


FORMS = pytest.mark.parametrize(
    "calls",
    [BARRIER_CALLS, ["UpdateServiceGCSafePoint"], [*BARRIER_CALLS, "UpdateServiceGCSafePoint"]],
    ids=["barriers only", "service safepoints only", "both"],
)


@FORMS
def test_a_hold_moves_along_and_ends(safepoints, calls):
    async def scenario():
        async with AgedPd(safepoints, *calls) as aged, PdClient(aged.pd_address) as pd:
            hold = GcHold(pd, "tidemill-1", 60)
            await hold.hold(Ts(11))
            assert barriers(safepoints) == {b"tidemill-1": 10}
            await hold.hold(Ts(21))
            assert barriers(safepoints) == {b"tidemill-1": 20}
            await hold.release()
            assert barriers(safepoints) == {}
            asked = len(aged.calls)
            await hold.release()
            assert len(aged.calls) == asked

    asyncio.run(scenario())


@FORMS
def test_what_is_collected_already_is_refused_with_what_to_do(safepoints, calls):
    async def scenario():
        async with AgedPd(safepoints, *calls) as aged, PdClient(aged.pd_address) as pd:
            hold = GcHold(pd, "tidemill-1", 60)
            says = r"cannot start at .*\(ts 50\).* garbage-collected up to .*\(ts 50\).* Choose a --start-ts above it"
            with pytest.raises(StartTsCollectedError, match=says):
                await hold.hold(Ts(50))
            assert barriers(safepoints) == {}
            await hold.hold(Ts(51))
            assert barriers(safepoints) == {b"tidemill-1": 50}

    safepoints.announce_gc(50)
    asyncio.run(scenario())


def test_a_pd_that_forgets_barriers_is_asked_the_older_way(safepoints):
    async def scenario():
        every = (*BARRIER_CALLS, "UpdateServiceGCSafePoint")
        async with AgedPd(safepoints, *every) as aged, PdClient(aged.pd_address) as pd:
            hold = GcHold(pd, "tidemill-1", 60)
            await hold.hold(Ts(11))
            for call in BARRIER_CALLS:  # as after going back to an older release
                del aged.pd[call]
            await hold.hold(Ts(21))
            assert barriers(safepoints) == {b"tidemill-1": 20}
            await hold.release()
            assert barriers(safepoints) == {}

    asyncio.run(scenario())


def test_a_pd_that_knows_neither_form_is_named(safepoints):
    async def scenario():
        async with AgedPd(safepoints) as aged, PdClient(aged.pd_address) as pd:
            with pytest.raises(IncompatibleUpstreamError, match="UpdateServiceGCSafePoint: it does not know this call"):
                await GcHold(pd, "tidemill-1", 60).hold(Ts(11))

    asyncio.run(scenario())


def test_a_refusal_for_another_reason_is_no_refusal_of_the_ts(safepoints):
    async def scenario():
        async with AgedPd(safepoints, *BARRIER_CALLS) as aged, PdClient(aged.pd_address) as pd:
            with pytest.raises(UpstreamError, match="ErrReservedGCBarrierID"):
                await pd.set_gc_barrier("gc_worker", 60, Ts(10))
            with pytest.raises(UpstreamError, match="ErrInvalidArgument"):
                await pd.set_gc_barrier("tidemill-4", 0, Ts(10))

    asyncio.run(scenario())


def test_the_client_sees_both_forms_of_one_state(tmp_path):
    async def scenario(upstream):
        async with PdClient(upstream.pd_address) as pd:
            assert await pd.set_gc_barrier("a", 60, Ts(10))
            assert await pd.update_service_gc_safe_point("b", 60, Ts(20)) == 0
            upstream.set_gc_safepoint(50)
            state = await pd.get_gc_state()
            assert (state.txn_safepoint, state.gc_safepoint, state.barriers) == (10, 10, {"a": 10, "b": 20})
            assert await pd.get_gc_safe_point() == 50
            assert not await pd.set_gc_barrier("c", 60, Ts(9))
            await pd.delete_gc_barrier("a")
            await pd.delete_gc_barrier("a")
            assert await pd.update_service_gc_safe_point("c", 60, Ts(15)) == 20

    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as upstream:
        asyncio.run(scenario(upstream))
