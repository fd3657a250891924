"""Whether a changefeed may be created, updated or resumed, as far as the cluster has to be asked. Pure.

    what is asked for + what is there (now, GC safepoint, changefeeds) ──► nothing, or a refusal

Every service of the upstream may read what lies above the lowest safepoint of all; a changefeed reads its schema just
below its start, so that one has to lie above the safepoint by one.
"""

from collections.abc import Iterable

from tidemill.errors import (
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    StartTsCollectedError,
    TargetTsError,
    UpdateRefusedError,
    UsageError,
    suggestion,
)
from tidemill.model.cluster import NEVER, ChangefeedInfo, ChangefeedUpdate, FeedState, NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts, show

_UPDATABLE = (FeedState.STOPPED, FeedState.FAILED)
_RESUMABLE = (FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED)
_PAUSABLE = (FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING)


def start_of(new: NewChangefeed, existing: Iterable[ChangefeedKey], now_ts: Ts, safepoint_ts: Ts) -> Ts:
    """Where a new changefeed starts."""
    if new.key in existing:
        raise ChangefeedExistsError(
            f"cannot create changefeed {new.key.id!r} in namespace {new.key.namespace!r}: there is one of that name. "
            "Choose another name, or remove that one first."
        )
    start_ts = new.start_ts or now_ts
    _check_ts(f"create changefeed {new.key.id!r}", "start-ts", start_ts, now_ts, safepoint_ts)
    check_target(start_ts, new.target_ts)
    return start_ts


def check_target(start_ts: Ts, target_ts: Ts) -> None:
    if target_ts != NEVER and target_ts <= start_ts:
        raise TargetTsError(
            f"target-ts {show(target_ts)} is not above start-ts {show(start_ts)}. Choose a later one, or none."
        )


def updated(info: ChangefeedInfo, update: ChangefeedUpdate) -> ChangefeedUpdate:
    """What of ``update`` is another than before."""
    if info.state not in _UPDATABLE:
        raise UpdateRefusedError(
            f"cannot update changefeed {info.key.id!r}: it is {info.state}. Pause it first, then update and resume it."
        )
    differing = ChangefeedUpdate(
        None if update.sink_uri == info.sink_uri else update.sink_uri,
        None if update.target_ts == info.target_ts else update.target_ts,
        None if update.config == info.config else update.config,
        update.upstream,
    )
    if differing == ChangefeedUpdate():
        raise UpdateRefusedError(f"cannot update changefeed {info.key.id!r}: nothing would change.")
    if differing.target_ts is not None:
        check_target(info.start_ts, differing.target_ts)
    return differing


def can_pause(state: FeedState) -> bool:
    """Where it cannot be paused, asking for it does nothing."""
    return state in _PAUSABLE


def can_resume(state: FeedState) -> bool:
    return state in _RESUMABLE


def resume_point(info: ChangefeedInfo, overwrite_ts: Ts | None, now_ts: Ts, safepoint_ts: Ts) -> Ts:
    """Where a changefeed continues."""
    at_ts = info.checkpoint_ts if overwrite_ts is None else overwrite_ts
    name = "checkpoint-ts" if overwrite_ts is None else "overwrite-checkpoint-ts"
    _check_ts(f"resume changefeed {info.key.id!r}", name, at_ts, now_ts, safepoint_ts)
    return at_ts


def not_found(key: ChangefeedKey, existing: Iterable[ChangefeedKey]) -> ChangefeedNotFoundError:
    """The refusal of a name that no changefeed has, with one that is like it."""
    alike = [each.id for each in existing if each.namespace == key.namespace]
    return ChangefeedNotFoundError(
        f"no changefeed named {key.id!r} in namespace {key.namespace!r}.{suggestion(key.id, alike)}"
    )


def _check_ts(what: str, name: str, ts: Ts, now_ts: Ts, safepoint_ts: Ts) -> None:
    if ts > now_ts:
        raise UsageError(
            f"cannot {what}: its {name} {show(ts)} lies in the future, the upstream is at {show(now_ts)}. "
            "Choose an earlier one."
        )
    if ts <= safepoint_ts:
        raise StartTsCollectedError(
            f"cannot {what} at {name} {show(ts)}: the upstream has garbage-collected up to {show(safepoint_ts)}. "
            "Choose a ts above that, or copy the tables anew."
        )
