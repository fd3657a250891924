"""The owner's record of one table: who has it, and how far a handover is. Pure: a state and an event in, the next out.

    Absent ── Assign ──► Prepare ── prepared ──► Commit ── it writes ──► Replicating ── Move ──► Prepare ...
                                                                              └── Remove ──► Removing ──► gone

*Primary* is the capture that writes, or that is to write next. *Secondary* is the one that prepares. Of one that is
*undetermined* it is only known that it is stopping. A capture that is gone, and fenced, counts as one that says that it
has stopped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from tidemill.errors import InvariantError
from tidemill.model.schedule import CaptureId, TableState


class ReplicaState(Enum):
    """The numbers are TiCDC's."""

    ABSENT = 1
    PREPARE = 2
    COMMIT = 3
    REPLICATING = 4
    REMOVING = 5


@dataclass(frozen=True, slots=True)
class Replica:
    state: ReplicaState = ReplicaState.ABSENT
    primary: CaptureId | None = None
    secondary: CaptureId | None = None
    undetermined: frozenset[CaptureId] = field(default=frozenset())

    @property
    def holders(self) -> frozenset[CaptureId]:
        """Captures that have something of it, or may have."""
        return self.undetermined | {each for each in (self.primary, self.secondary) if each is not None}


ABSENT = Replica()


# What happens to it.


@dataclass(frozen=True, slots=True)
class Assign:
    """Nobody has it; this capture is to have it."""

    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Return:
    """Nobody has it, and there is nothing to prepare: this capture, which has the rest, is to take it back."""

    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Move:
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Remove:
    pass


@dataclass(frozen=True, slots=True)
class Reported:
    """A capture says how it is there. ``STOPPED``, too, of one that is gone and fenced."""

    capture: CaptureId
    state: TableState


Event = Assign | Return | Move | Remove | Reported


# What is to be told to captures.


@dataclass(frozen=True, slots=True)
class SendPrepare:
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class SendRun:
    """Write from now on; it has to be told from where."""

    capture: CaptureId


@dataclass(frozen=True, slots=True)
class SendStop:
    capture: CaptureId


Command = SendPrepare | SendRun | SendStop
Step = tuple[Replica | None, tuple[Command, ...]]  # None: there is no need to follow it any more

_ENDED = frozenset({TableState.STOPPED, TableState.ABSENT})


def step(replica: Replica, event: Event) -> Step:
    """What is late, repeated or from a stranger changes nothing. Raises InvariantError where two say they write."""
    match replica.state, event:
        case ReplicaState.ABSENT, Assign(capture):
            return Replica(ReplicaState.PREPARE, secondary=capture), (SendPrepare(capture),)
        case ReplicaState.ABSENT, Return(capture):
            return Replica(ReplicaState.COMMIT, primary=capture), (SendRun(capture),)
        case ReplicaState.REPLICATING, Move(capture) if capture != replica.primary:
            return replace(replica, state=ReplicaState.PREPARE, secondary=capture), (SendPrepare(capture),)
        case ReplicaState.REPLICATING, Remove() if replica.primary is not None:
            return replace(replica, state=ReplicaState.REMOVING), (SendStop(replica.primary),)
        case _, Reported(capture, state):
            return _reported(replica, capture, state)
    return replica, ()


def _reported(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    if capture not in replica.holders:
        return replica, _stray(capture, state)
    match replica.state:
        case ReplicaState.ABSENT:
            return replica, ()
        case ReplicaState.PREPARE:
            return _in_prepare(replica, capture, state)
        case ReplicaState.COMMIT:
            return _in_commit(replica, capture, state)
        case ReplicaState.REPLICATING:
            return _in_replicating(replica, capture, state)
        case ReplicaState.REMOVING:
            return _in_removing(replica, capture, state)
        case _:
            assert_never(replica.state)


def _stray(capture: CaptureId, state: TableState) -> tuple[Command, ...]:
    """What somebody has prepared whom nobody waits for any more: he lets go of it."""
    return (SendStop(capture),) if state in (TableState.PREPARING, TableState.PREPARED) else ()


def _in_prepare(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    if capture in replica.undetermined:
        return _without_undetermined(replica, capture, state), ()
    if capture == replica.secondary:
        match state:
            case TableState.ABSENT:
                return replica, (SendPrepare(capture),)
            case TableState.PREPARED:
                return _prepared(replace(replica, state=ReplicaState.COMMIT))
            case TableState.STOPPING | TableState.STOPPED if replica.primary is not None:
                return replace(replica, state=ReplicaState.REPLICATING, secondary=None), ()
            case TableState.STOPPING | TableState.STOPPED if replica.undetermined:
                return replace(replica, state=ReplicaState.REMOVING, secondary=None), ()
            case TableState.STOPPING | TableState.STOPPED:
                return ABSENT, ()
        return replica, ()
    # One that is stopping may still write: it stays the primary until it has stopped.
    return (replace(replica, primary=None), ()) if state in _ENDED else (replica, ())


def _prepared(replica: Replica) -> Step:
    """In Commit, the secondary is prepared: it is the next to write as soon as nobody else may."""
    if replica.primary is not None:
        return replica, (SendStop(replica.primary),)
    if replica.undetermined or replica.secondary is None:
        return replica, ()
    return replace(replica, primary=replica.secondary, secondary=None), (SendRun(replica.secondary),)


def _in_commit(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    if capture in replica.undetermined:
        if state is TableState.REPLICATING:
            raise _two_writers(replica, capture)
        return _without_undetermined(replica, capture, state), ()
    if capture == replica.secondary:
        return _secondary_in_commit(replica, capture, state)
    if replica.secondary is not None:
        return _source_in_commit(replica, capture, state)
    match state:
        case TableState.PREPARED | TableState.ABSENT:  # it runs what it has not prepared as well
            return replica, (SendRun(capture),)
        case TableState.REPLICATING:
            return replace(replica, state=ReplicaState.REPLICATING), ()
        case TableState.STOPPED:
            return ABSENT, ()
    return replica, ()


def _secondary_in_commit(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    alone = replica.primary is None
    match state:
        case TableState.PREPARED:
            return _prepared(replica)
        case TableState.REPLICATING:
            raise _two_writers(replica, capture)
        case TableState.STOPPED | TableState.ABSENT if not alone:
            return replace(replica, secondary=None), ()  # what the primary says next decides
        case TableState.ABSENT:
            return replace(replica, state=ReplicaState.PREPARE), (SendPrepare(capture),)
        case TableState.STOPPED if replica.undetermined:
            return replace(replica, state=ReplicaState.REMOVING, secondary=None), ()
        case TableState.STOPPED:
            return ABSENT, ()
    return replica, ()


def _source_in_commit(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    """The primary from which it moves to the secondary."""
    match state:
        case TableState.REPLICATING:
            return replica, (SendStop(capture),)
        case TableState.STOPPED | TableState.ABSENT:
            return _prepared(replace(replica, primary=None))
    return replica, ()


def _in_replicating(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    if capture != replica.primary:
        if state is TableState.REPLICATING:
            raise _two_writers(replica, capture)
        return _without_undetermined(replica, capture, state), ()
    return (ABSENT, ()) if state in _ENDED else (replica, ())


def _in_removing(replica: Replica, capture: CaptureId, state: TableState) -> Step:
    match state:
        case TableState.PREPARING | TableState.PREPARED | TableState.REPLICATING:
            return replica, (SendStop(capture),)
        case TableState.STOPPING:
            return replica, ()
    left = replica.holders - {capture}
    return (Replica(ReplicaState.REMOVING, undetermined=left), ()) if left else (None, ())


def _without_undetermined(replica: Replica, capture: CaptureId, state: TableState) -> Replica:
    """One that has stopped is none any more, whatever else goes on."""
    if state not in _ENDED:
        return replica
    return replace(replica, undetermined=replica.undetermined - {capture})


def rebuilt(reports: Mapping[CaptureId, TableState]) -> Replica:
    """What it must be where these captures say how it is there: for an owner that knows nothing yet."""
    in_state: dict[TableState, list[CaptureId]] = {}
    for capture in sorted(reports):
        in_state.setdefault(reports[capture], []).append(capture)
    primaries = in_state.get(TableState.REPLICATING, [])
    if len(primaries) > 1:
        raise _two_writers(Replica(ReplicaState.REPLICATING, primaries[0]), primaries[1])
    primary = primaries[0] if primaries else None
    prepared = in_state.get(TableState.PREPARED, [])
    # One prepares for the others; these are strangers from now on, and are told to let go.
    secondary = next(iter(prepared + in_state.get(TableState.PREPARING, [])), None)
    stopping = frozenset(in_state.get(TableState.STOPPING, []))
    if prepared:
        state = ReplicaState.COMMIT
    elif secondary is not None:
        state = ReplicaState.PREPARE
    elif primary is not None:
        state = ReplicaState.REPLICATING
    else:
        state = ReplicaState.REMOVING if stopping else ReplicaState.ABSENT
    return Replica(state, primary, secondary, stopping)


def check(replicas: Iterable[Replica]) -> None:
    """Raises where one has a state that it cannot have."""
    for replica in replicas:
        has_none = not replica.holders
        if has_none != (replica.state is ReplicaState.ABSENT) or (
            replica.primary is not None and replica.primary == replica.secondary
        ):
            raise InvariantError(f"a table is {replica}, which cannot be. Report it.")


def _two_writers(replica: Replica, capture: CaptureId) -> InvariantError:
    return InvariantError(f"captures {replica.primary!r} and {capture!r} both write one table ({replica}). Report it.")
