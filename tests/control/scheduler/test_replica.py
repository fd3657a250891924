"""Every transition of a table's replica, one row per rule."""

import pytest

from tidemill.control.scheduler.replica import (
    ABSENT,
    Assign,
    Command,
    Event,
    Move,
    Remove,
    Replica,
    ReplicaState,
    Reported,
    Return,
    SendPrepare,
    SendRun,
    SendStop,
    check,
    rebuilt,
    step,
)
from tidemill.errors import InvariantError
from tidemill.model.schedule import CaptureId, TableState

A, B, C = CaptureId("a"), CaptureId("b"), CaptureId("c")
NOBODY: frozenset[CaptureId] = frozenset()


def prepare(primary: CaptureId | None = None, *undetermined: CaptureId) -> Replica:
    """``b`` prepares it."""
    return Replica(ReplicaState.PREPARE, primary, B, frozenset(undetermined))


def commit(primary: CaptureId | None, secondary: CaptureId | None = None, *undetermined: CaptureId) -> Replica:
    return Replica(ReplicaState.COMMIT, primary, secondary, frozenset(undetermined))


def removing(primary: CaptureId | None = A, *undetermined: CaptureId) -> Replica:
    return Replica(ReplicaState.REMOVING, primary, None, frozenset(undetermined))


WRITTEN_BY_A = Replica(ReplicaState.REPLICATING, A)
WRITTEN_BY_B = Replica(ReplicaState.REPLICATING, B)
ABSENT_AT, PREPARING, PREPARED = TableState.ABSENT, TableState.PREPARING, TableState.PREPARED
REPLICATING, STOPPING, STOPPED = TableState.REPLICATING, TableState.STOPPING, TableState.STOPPED


def says(capture: CaptureId, state: TableState) -> Reported:
    return Reported(capture, state)


@pytest.mark.parametrize(
    ("before", "event", "after", "commands"),
    [
        # Absent
        pytest.param(ABSENT, Assign(B), prepare(), [SendPrepare(B)], id="an absent table is prepared first"),
        pytest.param(ABSENT, Return(A), commit(A), [SendRun(A)], id="one without rows goes back to the rest"),
        pytest.param(ABSENT, says(B, REPLICATING), ABSENT, [], id="nobody has an absent table"),
        pytest.param(ABSENT, says(B, PREPARED), ABSENT, [SendStop(B)], id="a stranger lets go of what it prepared"),
        pytest.param(ABSENT, says(B, PREPARING), ABSENT, [SendStop(B)], id="a stranger stops preparing"),
        # Prepare
        pytest.param(
            prepare(), says(B, ABSENT_AT), prepare(), [SendPrepare(B)], id="prepare: the word was lost, say it again"
        ),
        pytest.param(prepare(), says(B, PREPARING), prepare(), [], id="prepare: it takes its time"),
        pytest.param(
            prepare(A), says(B, PREPARED), commit(A, B), [SendStop(A)], id="prepare: prepared, the source is to stop"
        ),
        pytest.param(prepare(), says(B, PREPARED), commit(B), [SendRun(B)], id="prepare: prepared, nobody writes it"),
        pytest.param(
            prepare(None, C), says(B, PREPARED), commit(None, B, C), [], id="prepare: prepared, somebody is stopping"
        ),
        pytest.param(prepare(A), says(A, REPLICATING), prepare(A), [], id="prepare: the source goes on writing"),
        pytest.param(prepare(A), says(A, STOPPING), prepare(A), [], id="prepare: a source that stops may still write"),
        pytest.param(prepare(A), says(A, STOPPED), prepare(), [], id="prepare: the source has stopped by itself"),
        pytest.param(prepare(A), says(A, ABSENT_AT), prepare(), [], id="prepare: the source does not have it any more"),
        pytest.param(prepare(A), says(B, STOPPING), WRITTEN_BY_A, [], id="prepare: the target gives up in a move"),
        pytest.param(prepare(A), says(B, STOPPED), WRITTEN_BY_A, [], id="prepare: the target has given up in a move"),
        pytest.param(prepare(), says(B, STOPPING), ABSENT, [], id="prepare: the only one gives up"),
        pytest.param(prepare(), says(B, STOPPED), ABSENT, [], id="prepare: the only one has given up"),
        pytest.param(
            prepare(None, C), says(B, STOPPED), removing(None, C), [], id="prepare: the only one gives up, one is left"
        ),
        pytest.param(prepare(None, C), says(C, STOPPING), prepare(None, C), [], id="prepare: one is still stopping"),
        pytest.param(prepare(None, C), says(C, STOPPED), prepare(), [], id="prepare: one has stopped"),
        pytest.param(prepare(None, C), says(C, ABSENT_AT), prepare(), [], id="prepare: one is gone"),
        pytest.param(prepare(A), says(A, PREPARING), prepare(A), [], id="prepare: a source that prepares is late"),
        pytest.param(prepare(A), says(A, PREPARED), prepare(A), [], id="prepare: a source that is prepared is late"),
        pytest.param(prepare(A), says(B, REPLICATING), prepare(A), [], id="prepare: a target that writes is late"),
        # Commit
        pytest.param(
            commit(A, B), says(B, PREPARED), commit(A, B), [SendStop(A)], id="commit: the source is told again to stop"
        ),
        pytest.param(commit(None, B), says(B, PREPARED), commit(B), [SendRun(B)], id="commit: nobody writes any more"),
        pytest.param(
            commit(None, B, C), says(B, PREPARED), commit(None, B, C), [], id="commit: wait until the other is gone"
        ),
        pytest.param(commit(B), says(B, PREPARED), commit(B), [SendRun(B)], id="commit: the target is told again"),
        pytest.param(
            commit(A, B), says(A, REPLICATING), commit(A, B), [SendStop(A)], id="commit: the source has not heard it"
        ),
        pytest.param(commit(B), says(B, REPLICATING), WRITTEN_BY_B, [], id="commit: the target writes"),
        pytest.param(commit(A, B), says(A, STOPPING), commit(A, B), [], id="commit: the source is stopping"),
        pytest.param(commit(A, B), says(A, STOPPED), commit(B), [SendRun(B)], id="commit: the source has stopped"),
        pytest.param(commit(A, B), says(A, ABSENT_AT), commit(B), [SendRun(B)], id="commit: the source is gone"),
        pytest.param(
            commit(A, B, C), says(A, STOPPED), commit(None, B, C), [], id="commit: the source is gone, another is not"
        ),
        pytest.param(commit(B), says(B, STOPPED), ABSENT, [], id="commit: the target has stopped"),
        pytest.param(
            commit(B), says(B, ABSENT_AT), commit(B), [SendRun(B)], id="commit: the target has nothing prepared"
        ),
        pytest.param(commit(A, B), says(B, STOPPED), commit(A), [], id="commit: the target gives up"),
        pytest.param(commit(A, B), says(B, ABSENT_AT), commit(A), [], id="commit: the target has lost it"),
        pytest.param(commit(A), says(A, REPLICATING), WRITTEN_BY_A, [], id="commit: the source had not stopped"),
        pytest.param(commit(None, B), says(B, STOPPED), ABSENT, [], id="commit: the only one has stopped"),
        pytest.param(
            commit(None, B), says(B, ABSENT_AT), prepare(), [SendPrepare(B)], id="commit: the only one begins again"
        ),
        pytest.param(commit(None, B, C), says(C, STOPPED), commit(None, B), [], id="commit: the other has stopped"),
        pytest.param(commit(None, B, C), says(C, ABSENT_AT), commit(None, B), [], id="commit: the other is gone"),
        pytest.param(commit(None, B, C), says(C, STOPPING), commit(None, B, C), [], id="commit: the other is stopping"),
        pytest.param(commit(A, B), says(B, PREPARING), commit(A, B), [], id="commit: a target that prepares is late"),
        pytest.param(commit(A, B), says(A, PREPARING), commit(A, B), [], id="commit: a source that prepares is late"),
        pytest.param(commit(A, B), says(B, STOPPING), commit(A, B), [], id="commit: the target is stopping"),
        pytest.param(commit(B), says(B, STOPPING), commit(B), [], id="commit: the only one is stopping"),
        # Replicating
        pytest.param(WRITTEN_BY_A, says(A, REPLICATING), WRITTEN_BY_A, [], id="replicating: as it should be"),
        pytest.param(WRITTEN_BY_A, says(A, STOPPED), ABSENT, [], id="replicating: it has stopped by itself"),
        pytest.param(WRITTEN_BY_A, says(A, ABSENT_AT), ABSENT, [], id="replicating: it does not have it any more"),
        pytest.param(WRITTEN_BY_A, says(A, PREPARING), WRITTEN_BY_A, [], id="replicating: preparing is late"),
        pytest.param(WRITTEN_BY_A, says(A, PREPARED), WRITTEN_BY_A, [], id="replicating: prepared is late"),
        pytest.param(WRITTEN_BY_A, says(A, STOPPING), WRITTEN_BY_A, [], id="replicating: it is stopping by itself"),
        pytest.param(WRITTEN_BY_A, Move(B), prepare(A), [SendPrepare(B)], id="replicating: a move prepares first"),
        pytest.param(WRITTEN_BY_A, Move(A), WRITTEN_BY_A, [], id="replicating: it is there already"),
        pytest.param(WRITTEN_BY_A, Remove(), removing(), [SendStop(A)], id="replicating: it is to stop"),
        pytest.param(
            WRITTEN_BY_A, says(B, PREPARED), WRITTEN_BY_A, [SendStop(B)], id="replicating: a stranger lets go"
        ),
        # Requests out of season
        pytest.param(prepare(), Move(C), prepare(), [], id="what is being prepared is not moved"),
        pytest.param(commit(A, B), Remove(), commit(A, B), [], id="what is being handed over is not removed"),
        pytest.param(ABSENT, Move(B), ABSENT, [], id="what is absent is not moved"),
        pytest.param(ABSENT, Remove(), ABSENT, [], id="what is absent is not removed"),
        pytest.param(removing(), Move(B), removing(), [], id="what is being removed is not moved"),
        pytest.param(WRITTEN_BY_A, Assign(B), WRITTEN_BY_A, [], id="what somebody has is not added"),
        pytest.param(prepare(), Return(A), prepare(), [], id="what is being prepared does not go back"),
        # Removing
        pytest.param(removing(), says(A, REPLICATING), removing(), [SendStop(A)], id="removing: it has not heard it"),
        pytest.param(removing(), says(A, PREPARED), removing(), [SendStop(A)], id="removing: it is prepared"),
        pytest.param(removing(), says(A, PREPARING), removing(), [SendStop(A)], id="removing: it prepares"),
        pytest.param(removing(), says(A, STOPPING), removing(), [], id="removing: it takes its time"),
        pytest.param(removing(), says(A, STOPPED), None, [], id="removing: it has stopped"),
        pytest.param(removing(), says(A, ABSENT_AT), None, [], id="removing: it is gone"),
        pytest.param(
            removing(None, B, C), says(B, STOPPED), removing(None, C), [], id="removing: one of two has stopped"
        ),
    ],
)
def test_a_replica(before: Replica, event: Event, after: Replica | None, commands: list[Command]) -> None:
    assert step(before, event) == (after, tuple(commands))
    if after is not None:
        check([after])


@pytest.mark.parametrize(
    ("before", "dead", "after", "commands"),
    [
        pytest.param(prepare(), B, ABSENT, [], id="preparing an addition: it is added again"),
        pytest.param(prepare(A), A, prepare(), [], id="preparing a move: the source; the target will write at once"),
        pytest.param(prepare(A), B, WRITTEN_BY_A, [], id="preparing a move: the target; the source keeps it"),
        pytest.param(commit(B), B, ABSENT, [], id="about to write"),
        pytest.param(commit(A, B), A, commit(B), [SendRun(B)], id="handing over: the source; the target writes"),
        pytest.param(commit(A, B), B, commit(A), [], id="handing over: the target; the source says how it is"),
        pytest.param(commit(None, B, C), C, commit(None, B), [], id="one that was stopping, in commit"),
        pytest.param(prepare(None, C), C, prepare(), [], id="one that was stopping, in prepare"),
        pytest.param(WRITTEN_BY_A, A, ABSENT, [], id="the writer"),
        pytest.param(removing(), A, None, [], id="the last one that is to stop"),
        pytest.param(WRITTEN_BY_A, B, WRITTEN_BY_A, [], id="a stranger"),
    ],
)
def test_a_capture_that_is_gone_and_fenced(
    before: Replica, dead: CaptureId, after: Replica | None, commands: list[Command]
) -> None:
    assert step(before, Reported(dead, STOPPED)) == (after, tuple(commands))


@pytest.mark.parametrize(
    ("before", "writer"),
    [
        pytest.param(commit(A, B), B, id="the target, before it was told"),
        pytest.param(commit(None, B, C), C, id="one that was stopping"),
        pytest.param(Replica(ReplicaState.REPLICATING, A, None, frozenset({B})), B, id="one beside the writer"),
    ],
)
def test_two_writers_are_a_bug(before: Replica, writer: CaptureId) -> None:
    with pytest.raises(InvariantError, match="both write one table"):
        step(before, Reported(writer, REPLICATING))


@pytest.mark.parametrize(
    ("reports", "replica"),
    [
        pytest.param({}, ABSENT, id="nobody"),
        pytest.param({A: ABSENT_AT, B: STOPPED}, ABSENT, id="nobody any more"),
        pytest.param({A: REPLICATING}, WRITTEN_BY_A, id="a writer"),
        pytest.param({A: REPLICATING, B: PREPARING}, prepare(A), id="a move that was begun"),
        pytest.param({A: REPLICATING, B: PREPARED}, commit(A, B), id="a move that is prepared"),
        pytest.param({B: PREPARED, C: STOPPING}, commit(None, B, C), id="a move whose source is stopping"),
        pytest.param({B: PREPARING, C: STOPPING}, prepare(None, C), id="the same, not prepared"),
        pytest.param({B: PREPARED}, commit(None, B), id="an addition that is prepared"),
        pytest.param({B: PREPARED, C: PREPARED}, commit(None, B), id="two prepare it, one of them for it"),
        pytest.param({C: PREPARING, B: PREPARED}, commit(None, B), id="the one that is prepared"),
        pytest.param({C: STOPPING}, removing(None, C), id="somebody stops"),
        pytest.param(
            {A: REPLICATING, C: STOPPING},
            Replica(ReplicaState.REPLICATING, A, None, frozenset({C})),
            id="somebody stops beside the writer",
        ),
    ],
)
def test_a_new_owner_learns_from_reports(reports: dict[CaptureId, TableState], replica: Replica) -> None:
    assert rebuilt(reports) == replica
    check([replica])


def test_a_new_owner_that_finds_two_writers_finds_a_bug() -> None:
    with pytest.raises(InvariantError, match="both write one table"):
        rebuilt({A: REPLICATING, B: REPLICATING})
