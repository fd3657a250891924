"""The life of a changefeed, as its owner decides it. Pure: what it is and what happens in, what it is then out.

    (new) ──► normal ── error that may pass ──► pending ── its time has come ──► warning ── it moves again ──► normal
                │                                  └── tried for too long ──┐
                ├── error that will not pass, or a warning for too long ─────┴──► failed ── resume ──► normal
                ├── pause ──► stopped ── resume ──► normal
                └── its target ──► finished                       any ── remove ──► removed

A changefeed that is normal or has a warning runs; no other does. Who acts on a step stores what it says, on the
condition that nobody has changed the changefeed meanwhile.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from tidemill.model.cluster import AdminJob, FeedState
from tidemill.model.schedule import NO_TS
from tidemill.model.ts import Ts


class ErrorClass(Enum):
    GARBAGE_COLLECTED = "what it needs is gone upstream: it fails, and holds nothing back there any more"
    FATAL = "somebody has to change something first"
    PASSING = "it is tried again"


# By code, never by what a message says. What is not named here may pass.
_GARBAGE_COLLECTED = frozenset(
    {"start-ts-collected", "CDC:ErrGCTTLExceeded", "CDC:ErrSnapshotLostByGC", "CDC:ErrStartTsBeforeGC"}
)
_FATAL = frozenset(
    {
        "usage",
        "config",
        "filter",
        "sink-uri",
        "unsupported-collation",
        "schema",
        "corrupt-data",
        "row-undecodable",
        "unencodable",
        "upstream-incompatible",
        "CDC:ErrExpressionColumnNotFound",
        "CDC:ErrExpressionParseFailed",
        "CDC:ErrSchemaSnapshotNotFound",
        "CDC:ErrSyncRenameTableFailed",
        "CDC:ErrChangefeedUnretryable",
        "CDC:ErrCorruptedDataMutation",
        "CDC:ErrDispatcherFailed",
        "CDC:ErrColumnSelectorFailed",
        "CDC:ErrSinkURIInvalid",
        "CDC:ErrKafkaInvalidConfig",
        "CDC:ErrMySQLInvalidConfig",
        "CDC:ErrStorageSinkInvalidConfig",
    }
)
STUCK_CODE = "CDC:ErrChangefeedUnretryable"  # of a warning that lasted too long


def error_class(code: str) -> ErrorClass:
    """``code`` as ``errors.py`` has it, or as TiCDC does."""
    if code in _GARBAGE_COLLECTED:
        return ErrorClass.GARBAGE_COLLECTED
    return ErrorClass.FATAL if code in _FATAL else ErrorClass.PASSING


def worst(codes: list[str]) -> str:
    """Of several that were met at once: the first that will not pass, else the last."""
    return next((code for code in codes if error_class(code) is not ErrorClass.PASSING), codes[-1])


def holds_gc(state: FeedState | None, error_code: str | None = None) -> bool:
    """Whether the upstream has to keep what the changefeed still needs."""
    if state is FeedState.FAILED:
        return error_code is None or error_class(error_code) is not ErrorClass.GARBAGE_COLLECTED
    return state not in (None, FeedState.FINISHED, FeedState.REMOVED)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, and how often, what failed is tried again. The first time is at once."""

    first_pause_seconds: float = 20.0
    longest_pause_seconds: float = 600.0
    jitter: float = 0.1
    budget_seconds: float = 1800.0  # since the first failure
    stuck_seconds: float = 1800.0  # for which a warning may last while the checkpoint stands still

    def pause_seconds(self, failures: int, chance: float) -> float:
        """Before the next try, after so many failures (one or more). ``chance``: from -1 to 1."""
        if failures == 1:
            return 0.0
        doubled = self.first_pause_seconds * 2.0 ** min(failures - 2, 30)
        return min(doubled, self.longest_pause_seconds) * (1.0 + self.jitter * chance)


@dataclass(frozen=True, slots=True)
class Retries:
    """Times are of a clock that never goes back. It is kept in memory: another owner begins anew."""

    failures: int = 0  # in a row
    since_seconds: float = 0.0
    next_seconds: float = 0.0
    from_ts: Ts | None = None  # the checkpoint when it was tried again
    warned_ts: Ts | None = None  # and when it was warned of


WELL = Retries()


@dataclass(frozen=True, slots=True)
class Feed:
    """``state`` None: it was created and nothing has happened to it yet."""

    state: FeedState | None = None
    job: AdminJob = AdminJob.NONE
    error_code: str | None = None
    retries: Retries = field(default=WELL)
    checkpoint_ts: Ts = NO_TS
    moved_seconds: float | None = None  # when the checkpoint moved last, or had nothing to move to

    @property
    def is_running(self) -> bool:
        return self.state in (FeedState.NORMAL, FeedState.WARNING)


# What happens to it.


@dataclass(frozen=True, slots=True)
class Ticked:
    now_seconds: float
    checkpoint_ts: Ts
    resolved_ts: Ts


@dataclass(frozen=True, slots=True)
class PauseAsked:
    pass


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    pass


@dataclass(frozen=True, slots=True)
class RemoveAsked:
    pass


@dataclass(frozen=True, slots=True)
class TargetReached:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    """``chance``: from -1 to 1, for the length of the pause."""

    now_seconds: float
    code: str
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Warned:
    """Something is tried again by itself, as by a sink that waits for its downstream."""

    now_seconds: float
    checkpoint_ts: Ts


Event = Ticked | PauseAsked | ResumeAsked | RemoveAsked | TargetReached | Failed | Warned


class Effect(Enum):
    """What is to be done beside storing the new state."""

    NEW_EPOCH = "whatever still runs of it is of an old epoch, and is ignored"
    RELEASE = "end what runs of it, and delete what its processors have reported"
    KEEP_ERROR = "store the error that was met"
    KEEP_WARNING = "store the warning"
    CLEAR_ERROR = "it has no error and no warning any more"
    DELETE = "delete all that is stored of it, and what the upstream keeps for it"


Step = tuple[Feed, tuple[Effect, ...]]


def step(feed: Feed, event: Event, patience: Patience | None = None) -> Step:
    """What is asked for in a state that does not allow it changes nothing."""
    patience = patience or Patience()
    match feed.state, event:
        case FeedState.REMOVED, _:
            return feed, ()
        case _, RemoveAsked():
            effects = _left(feed, AdminJob.REMOVE)
            return replace(feed, state=FeedState.REMOVED, job=AdminJob.REMOVE), (*effects, Effect.DELETE)
        case None, Ticked():
            return _ticked(replace(feed, state=FeedState.NORMAL), event), ()
        case ((FeedState.NORMAL | FeedState.WARNING | FeedState.PENDING), PauseAsked()):
            return _end(feed, FeedState.STOPPED, AdminJob.STOP)
        case ((FeedState.FAILED | FeedState.STOPPED | FeedState.FINISHED), ResumeAsked()):
            return Feed(FeedState.NORMAL, AdminJob.NONE, None, WELL, feed.checkpoint_ts), (Effect.CLEAR_ERROR,)
        case ((FeedState.NORMAL | FeedState.WARNING), TargetReached()):
            return _end(feed, FeedState.FINISHED, AdminJob.FINISH)
        case _, Failed():
            return _failed(feed, event, patience)
        case ((FeedState.NORMAL | FeedState.WARNING), Warned()):
            return _warned(feed, event, patience)
        case FeedState.PENDING, Ticked(now_seconds) if now_seconds >= feed.retries.next_seconds:
            retries = replace(feed.retries, from_ts=feed.checkpoint_ts)
            return replace(feed, state=FeedState.WARNING, job=AdminJob.NONE, retries=retries), ()
        case ((FeedState.NORMAL | FeedState.WARNING), Ticked()):
            return _healed(_ticked(feed, event))
    return feed, ()


def _left(feed: Feed, job: AdminJob) -> tuple[Effect, ...]:
    return (Effect.NEW_EPOCH, Effect.RELEASE) if feed.job is not job else ()


def _end(feed: Feed, state: FeedState, job: AdminJob, *effects: Effect) -> Step:
    """It does not run any more. How long its checkpoint has stood still is counted anew when it does."""
    return replace(feed, state=state, job=job, moved_seconds=None), (*_left(feed, job), *effects)


def _ticked(feed: Feed, now: Ticked) -> Feed:
    """With when its checkpoint moved last. One that has nothing to do does not stand still."""
    is_first = feed.moved_seconds is None
    has_moved = now.checkpoint_ts > feed.checkpoint_ts or now.checkpoint_ts >= now.resolved_ts
    moved_seconds = now.now_seconds if is_first or has_moved else feed.moved_seconds
    return replace(feed, checkpoint_ts=max(feed.checkpoint_ts, now.checkpoint_ts), moved_seconds=moved_seconds)


def _healed(feed: Feed) -> Step:
    """One with a warning is well when it has passed where it was tried again, and where it was warned of."""
    marks = [ts for ts in (feed.retries.from_ts, feed.retries.warned_ts) if ts is not None]
    if feed.state is not FeedState.WARNING or any(feed.checkpoint_ts <= ts for ts in marks):
        return feed, ()
    return replace(feed, state=FeedState.NORMAL, error_code=None, retries=WELL), (Effect.CLEAR_ERROR,)


def _failed(feed: Feed, event: Failed, patience: Patience) -> Step:
    kind = error_class(event.code)
    if kind is ErrorClass.GARBAGE_COLLECTED and holds_gc(feed.state, feed.error_code):
        return _end(replace(feed, error_code=event.code), FeedState.FAILED, AdminJob.STOP, Effect.KEEP_ERROR)
    if not feed.is_running:
        return feed, ()
    feed = replace(feed, error_code=event.code)
    if kind is not ErrorClass.PASSING:
        return _end(feed, FeedState.FAILED, AdminJob.STOP, Effect.KEEP_ERROR)
    failures = feed.retries.failures + 1
    since = event.now_seconds if failures == 1 else feed.retries.since_seconds
    pause = patience.pause_seconds(failures, event.chance)
    if event.now_seconds + pause - since > patience.budget_seconds:
        return _end(feed, FeedState.FAILED, AdminJob.STOP, Effect.KEEP_ERROR)
    retries = replace(feed.retries, failures=failures, since_seconds=since, next_seconds=event.now_seconds + pause)
    return _end(replace(feed, retries=retries), FeedState.PENDING, AdminJob.STOP, Effect.KEEP_ERROR)


def _warned(feed: Feed, event: Warned, patience: Patience) -> Step:
    feed = _ticked(feed, Ticked(event.now_seconds, event.checkpoint_ts, resolved_ts=Ts(event.checkpoint_ts + 1)))
    assert feed.moved_seconds is not None
    if event.now_seconds - feed.moved_seconds > patience.stuck_seconds:
        return _end(replace(feed, error_code=STUCK_CODE), FeedState.FAILED, AdminJob.STOP, Effect.KEEP_ERROR)
    retries = replace(feed.retries, warned_ts=feed.checkpoint_ts)
    return replace(feed, state=FeedState.WARNING, retries=retries), (Effect.KEEP_WARNING,)
