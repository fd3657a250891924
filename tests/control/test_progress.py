"""What a changefeed may do next, one row per rule."""

from dataclasses import replace
from typing import Any

import pytest

from tidemill.control.progress import (
    Advance,
    Finish,
    Offer,
    Progress,
    RunDdl,
    Wait,
    ddl_done,
    decide,
    moved_to,
    stage,
)
from tidemill.errors import InvariantError
from tidemill.model.ts import Ts

AT_10 = Progress(checkpoint_ts=Ts(10), ddl_ts=Ts(10), frontier_ts=Ts(30), schema_ts=Ts(25))


@pytest.mark.parametrize(
    ("progress", "has_changes", "decision"),
    [
        pytest.param(AT_10, True, Offer(Ts(25)), id="the schema's resolved-ts holds rows back"),
        pytest.param(replace(AT_10, schema_ts=Ts(99)), True, Offer(Ts(30)), id="the frontier holds rows back"),
        pytest.param(AT_10, False, Advance(Ts(25)), id="without changes the checkpoint moves by itself"),
        pytest.param(replace(AT_10, barrier_ts=Ts(20)), True, Offer(Ts(20)), id="a batch ends at the barrier"),
        pytest.param(replace(AT_10, barrier_ts=Ts(10)), True, RunDdl(Ts(10)), id="a DDL runs at its own ts"),
        pytest.param(replace(AT_10, target_ts=Ts(15)), True, Offer(Ts(15)), id="a batch ends at the target"),
        pytest.param(replace(AT_10, target_ts=Ts(10)), True, Finish(), id="at the target it ends"),
        pytest.param(
            replace(AT_10, target_ts=Ts(10), barrier_ts=Ts(10), ddl_ts=Ts(9)),
            False,
            RunDdl(Ts(10)),
            id="a DDL exactly at the target runs first",
        ),
        pytest.param(
            replace(AT_10, target_ts=Ts(10), ddl_ts=Ts(9), schema_ts=Ts(9)),
            False,
            Wait(),
            id="at the target it waits until it knows whether a DDL is there",
        ),
        pytest.param(replace(AT_10, in_flight_ts=Ts(20)), True, Wait(), id="one batch at a time"),
        pytest.param(replace(AT_10, in_flight_ts=Ts(20), barrier_ts=Ts(10)), True, Wait(), id="no DDL during a batch"),
        pytest.param(replace(AT_10, frontier_ts=Ts(10)), False, Wait(), id="nothing new was promised"),
        pytest.param(replace(AT_10, is_stopping=True), True, Wait(), id="a stopping changefeed begins no batch"),
    ],
)
def test_decide(progress: Progress, has_changes: bool, decision: object) -> None:
    assert decide(progress, lambda: has_changes) == decision


@pytest.mark.parametrize("busy", [{"in_flight_ts": Ts(20)}, {"is_sink_busy": True}, {"frontier_ts": Ts(10)}])
def test_nobody_looks_for_changes_that_cannot_be_taken_yet(busy: dict[str, Any]) -> None:
    """Each resolved-ts that comes asks, and with much in store looking costs more than all the rest."""

    def look() -> bool:
        raise AssertionError("somebody looked")

    assert decide(replace(AT_10, **busy), look) == Wait()


@pytest.mark.parametrize(
    ("ends", "is_barred"),
    [
        pytest.param({}, False, id="the frontier"),
        pytest.param({"barrier_ts": Ts(15)}, True, id="a DDL below the frontier"),
        pytest.param({"sync_ts": Ts(15)}, True, id="a sync point below the frontier"),
        pytest.param({"target_ts": Ts(15)}, True, id="the end"),
        pytest.param({"barrier_ts": Ts(20)}, False, id="a DDL at the frontier"),
        pytest.param({"schema_ts": Ts(15)}, False, id="what is known of DDL"),
    ],
)
def test_a_batch_does_not_grow_by_waiting_before_a_barrier(ends: dict[str, Ts], is_barred: bool) -> None:
    at = {"checkpoint_ts": Ts(10), "ddl_ts": Ts(10), "frontier_ts": Ts(20), "schema_ts": Ts(20)}
    assert Progress(**{**at, **ends}).is_barred == is_barred


def test_a_ddl_at_the_checkpoint_is_remembered_as_not_yet_run() -> None:
    at_barrier = moved_to(replace(AT_10, barrier_ts=Ts(20), in_flight_ts=Ts(20)), Ts(20))
    assert (at_barrier.checkpoint_ts, at_barrier.ddl_ts, at_barrier.in_flight_ts) == (20, 19, None)
    after = ddl_done(at_barrier, Ts(20), None)
    assert (after.checkpoint_ts, after.ddl_ts, after.barrier_ts) == (20, 20, None)


def test_the_checkpoint_never_moves_back() -> None:
    with pytest.raises(InvariantError, match="back from 10 to 9"):
        moved_to(AT_10, Ts(9))


def test_the_checkpoint_never_passes_the_limit() -> None:
    with pytest.raises(InvariantError, match="26 would pass the limit 25"):
        moved_to(AT_10, Ts(26))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param({}, "idle", id="nothing to do"),
        pytest.param({"batch_seconds": 1.0}, "writing", id="a batch under way"),
        pytest.param({"batch_seconds": 61.2}, "writing for 61 s, the sink is slow", id="for long"),
        pytest.param(
            {"batch_seconds": 61.2, "is_held": True},
            "writing for 61 s, the sink is slow; the upstream waits",
            id="and nothing more is read",
        ),
        pytest.param(
            {"batch_seconds": 1.0, "is_held": True}, "writing; the upstream waits", id="a full disk while batches move"
        ),
        pytest.param(
            {"trouble": "cannot reach db:3306. See that it runs.", "batch_seconds": 3.0},
            "waiting for the sink (cannot reach db:3306)",
            id="a sink that is away",
        ),
        pytest.param({"scanned": 1, "regions": 3}, "scanning 1/3 regions", id="the start"),
    ],
)
def test_what_people_are_told(known: dict[str, Any], said: str) -> None:
    assert stage(AT_10, **known) == said


def test_people_are_told_that_the_upstream_is_waited_for() -> None:
    assert stage(replace(AT_10, frontier_ts=Ts(10))) == "waiting for resolved-ts"
