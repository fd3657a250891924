"""Every transition of a changefeed's state, one row per rule."""

from dataclasses import replace

import pytest

from tidemill.control.feed_states import (
    STUCK_CODE,
    WELL,
    Effect,
    ErrorClass,
    Event,
    Failed,
    Feed,
    Patience,
    PauseAsked,
    RemoveAsked,
    ResumeAsked,
    Retries,
    TargetReached,
    Ticked,
    Warned,
    error_class,
    holds_gc,
    step,
    worst,
)
from tidemill.model.cluster import AdminJob, FeedState
from tidemill.model.ts import Ts

NORMAL, WARNING, PENDING, FAILED = FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING, FeedState.FAILED
STOPPED, FINISHED, REMOVED = FeedState.STOPPED, FeedState.FINISHED, FeedState.REMOVED
NEW = Feed()
RUNNING = Feed(NORMAL, checkpoint_ts=Ts(50), moved_seconds=100.0)
ILL = replace(RUNNING, state=WARNING, retries=Retries(2, 90.0, 95.0, from_ts=Ts(50)))
WAITING = replace(RUNNING, state=PENDING, job=AdminJob.STOP, error_code="sink", retries=Retries(2, 90.0, 120.0))
ENDED = {
    state: Feed(state, job, checkpoint_ts=Ts(50))
    for state, job in ((FAILED, AdminJob.STOP), (STOPPED, AdminJob.STOP), (FINISHED, AdminJob.FINISH))
}
LEFT = {Effect.NEW_EPOCH, Effect.RELEASE}
GONE = {*LEFT, Effect.KEEP_ERROR}


def tick(seconds: float, checkpoint: int = 50, resolved: int = 60) -> Ticked:
    return Ticked(seconds, Ts(checkpoint), Ts(resolved))


@pytest.mark.parametrize(
    ("before", "event", "state", "job", "effects"),
    [
        pytest.param(NEW, tick(1.0), NORMAL, AdminJob.NONE, set(), id="a new one runs with the first tick"),
        pytest.param(RUNNING, PauseAsked(), STOPPED, AdminJob.STOP, LEFT, id="pause: normal"),
        pytest.param(ILL, PauseAsked(), STOPPED, AdminJob.STOP, LEFT, id="pause: warning"),
        pytest.param(WAITING, PauseAsked(), STOPPED, AdminJob.STOP, set(), id="pause: pending, which runs no more"),
        pytest.param(ENDED[STOPPED], PauseAsked(), STOPPED, AdminJob.STOP, set(), id="pause: stopped"),
        pytest.param(ENDED[FAILED], PauseAsked(), FAILED, AdminJob.STOP, set(), id="pause: failed"),
        pytest.param(ENDED[FINISHED], PauseAsked(), FINISHED, AdminJob.FINISH, set(), id="pause: finished"),
        pytest.param(ENDED[FAILED], ResumeAsked(), NORMAL, AdminJob.NONE, {Effect.CLEAR_ERROR}, id="resume: failed"),
        pytest.param(ENDED[STOPPED], ResumeAsked(), NORMAL, AdminJob.NONE, {Effect.CLEAR_ERROR}, id="resume: stopped"),
        pytest.param(
            ENDED[FINISHED], ResumeAsked(), NORMAL, AdminJob.NONE, {Effect.CLEAR_ERROR}, id="resume: finished"
        ),
        pytest.param(RUNNING, ResumeAsked(), NORMAL, AdminJob.NONE, set(), id="resume: normal"),
        pytest.param(ILL, ResumeAsked(), WARNING, AdminJob.NONE, set(), id="resume: warning"),
        pytest.param(WAITING, ResumeAsked(), PENDING, AdminJob.STOP, set(), id="resume: pending"),
        pytest.param(RUNNING, RemoveAsked(), REMOVED, AdminJob.REMOVE, {*LEFT, Effect.DELETE}, id="remove: normal"),
        pytest.param(
            ENDED[FAILED], RemoveAsked(), REMOVED, AdminJob.REMOVE, {*LEFT, Effect.DELETE}, id="remove: failed"
        ),
        pytest.param(NEW, RemoveAsked(), REMOVED, AdminJob.REMOVE, {*LEFT, Effect.DELETE}, id="remove: new"),
        pytest.param(RUNNING, TargetReached(), FINISHED, AdminJob.FINISH, LEFT, id="the target: normal"),
        pytest.param(ILL, TargetReached(), FINISHED, AdminJob.FINISH, LEFT, id="the target: warning"),
        pytest.param(WAITING, TargetReached(), PENDING, AdminJob.STOP, set(), id="the target: pending"),
        pytest.param(RUNNING, Failed(1.0, "config"), FAILED, AdminJob.STOP, GONE, id="fatal: normal"),
        pytest.param(ILL, Failed(1.0, "config"), FAILED, AdminJob.STOP, GONE, id="fatal: warning"),
        pytest.param(
            ENDED[STOPPED], Failed(1.0, "CDC:ErrGCTTLExceeded"), FAILED, AdminJob.STOP, {Effect.KEEP_ERROR},
            id="garbage was collected: stopped",
        ),
        pytest.param(
            WAITING, Failed(1.0, "start-ts-collected"), FAILED, AdminJob.STOP, {Effect.KEEP_ERROR},
            id="garbage was collected: pending",
        ),
        pytest.param(
            replace(ENDED[FAILED], error_code="sink"), Failed(1.0, "CDC:ErrSnapshotLostByGC"), FAILED, AdminJob.STOP,
            {Effect.KEEP_ERROR}, id="garbage was collected: failed for another reason",
        ),
        pytest.param(
            replace(ENDED[FAILED], error_code="start-ts-collected"), Failed(1.0, "CDC:ErrSnapshotLostByGC"), FAILED,
            AdminJob.STOP, set(), id="garbage was collected: failed for that already",
        ),
        pytest.param(
            ENDED[FINISHED], Failed(1.0, "start-ts-collected"), FINISHED, AdminJob.FINISH, set(),
            id="garbage was collected: finished",
        ),
        pytest.param(RUNNING, Failed(1.0, "start-ts-collected"), FAILED, AdminJob.STOP, GONE, id="garbage: normal"),
        pytest.param(ENDED[STOPPED], Failed(1.0, "sink"), STOPPED, AdminJob.STOP, set(), id="passing: stopped"),
        pytest.param(WAITING, Failed(1.0, "config"), PENDING, AdminJob.STOP, set(), id="fatal: pending, is late"),
        pytest.param(RUNNING, Failed(1.0, "sink"), PENDING, AdminJob.STOP, GONE, id="passing: normal"),
        pytest.param(ILL, Failed(91.0, "sink"), PENDING, AdminJob.STOP, GONE, id="passing: warning"),
        pytest.param(WAITING, tick(119.9), PENDING, AdminJob.STOP, set(), id="its time has not come"),
        pytest.param(WAITING, tick(120.0), WARNING, AdminJob.NONE, set(), id="its time has come"),
        pytest.param(ILL, Failed(1900.0, "sink"), FAILED, AdminJob.STOP, GONE, id="it was tried for too long"),
        pytest.param(RUNNING, Warned(101.0, Ts(50)), WARNING, AdminJob.NONE, {Effect.KEEP_WARNING}, id="warn: normal"),
        pytest.param(ILL, Warned(101.0, Ts(50)), WARNING, AdminJob.NONE, {Effect.KEEP_WARNING}, id="warn: warning"),
        pytest.param(WAITING, Warned(101.0, Ts(50)), PENDING, AdminJob.STOP, set(), id="warn: pending"),
        pytest.param(RUNNING, Warned(1901.0, Ts(50)), FAILED, AdminJob.STOP, GONE, id="warned, and stuck for too long"),
        pytest.param(
            RUNNING, Warned(1901.0, Ts(51)), WARNING, AdminJob.NONE, {Effect.KEEP_WARNING}, id="warned, but it moves"
        ),
        pytest.param(ILL, tick(101.0, 50), WARNING, AdminJob.NONE, set(), id="it has not moved yet"),
        pytest.param(ILL, tick(101.0, 51), NORMAL, AdminJob.NONE, {Effect.CLEAR_ERROR}, id="it moves again"),
        pytest.param(RUNNING, tick(101.0, 51), NORMAL, AdminJob.NONE, set(), id="it moves as always"),
        pytest.param(Feed(REMOVED), ResumeAsked(), REMOVED, AdminJob.NONE, set(), id="what was removed stays so"),
    ],
)  # fmt: skip
def test_a_changefeed(before: Feed, event: Event, state: FeedState, job: AdminJob, effects: set[Effect]) -> None:
    after, found = step(before, event)
    assert (after.state, after.job, set(found)) == (state, job, effects)


def test_it_is_tried_again_at_once_and_then_after_pauses_that_double() -> None:
    feed, now, pauses = RUNNING, 1000.0, []
    for _ in range(20):
        feed, _ = step(feed, Failed(now, "sink"))
        if feed.state is FAILED:
            break
        pauses.append(feed.retries.next_seconds - now)
        now = feed.retries.next_seconds
        feed, _ = step(feed, tick(now))
        assert feed.state is WARNING
    assert feed.state is FAILED
    assert pauses == [0.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0]
    assert now - 1000.0 <= 1800.0


@pytest.mark.parametrize(("chance", "pause"), [(-1.0, 18.0), (0.0, 20.0), (1.0, 22.0)])
def test_pauses_differ_by_a_tenth(chance: float, pause: float) -> None:
    assert Patience().pause_seconds(2, chance) == pytest.approx(pause)


def test_one_that_is_well_again_begins_anew() -> None:
    feed, _ = step(ILL, tick(101.0, 51))
    assert (feed.state, feed.retries, feed.error_code) == (NORMAL, WELL, None)
    feed, _ = step(feed, Failed(5000.0, "sink"))
    assert feed.retries == Retries(1, 5000.0, 5000.0)


def test_it_is_well_when_it_has_passed_both_marks() -> None:
    feed = replace(ILL, retries=replace(ILL.retries, from_ts=Ts(50), warned_ts=Ts(55)))
    assert step(feed, tick(101.0, 55))[0].state is WARNING
    assert step(feed, tick(101.0, 56))[0].state is NORMAL


def test_an_idle_changefeed_is_not_stuck() -> None:
    feed, _ = step(RUNNING, tick(5000.0, 50, resolved=50))
    assert step(feed, Warned(5001.0, Ts(50)))[0].state is WARNING


def test_time_while_it_does_not_run_does_not_count_as_stuck() -> None:
    stopped, _ = step(RUNNING, PauseAsked())
    resumed, _ = step(stopped, ResumeAsked())
    resumed, _ = step(resumed, tick(9000.0))
    assert step(resumed, Warned(9001.0, Ts(50)))[0].state is WARNING


def test_one_that_was_stuck_says_so() -> None:
    assert step(RUNNING, Warned(1901.0, Ts(50)))[0].error_code == STUCK_CODE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("start-ts-collected", ErrorClass.GARBAGE_COLLECTED),
        ("CDC:ErrStartTsBeforeGC", ErrorClass.GARBAGE_COLLECTED),
        ("CDC:ErrKafkaInvalidConfig", ErrorClass.FATAL),
        ("row-undecodable", ErrorClass.FATAL),
        ("sink-unavailable", ErrorClass.PASSING),
        ("CDC:ErrProcessorUnknown", ErrorClass.PASSING),
        ("internal", ErrorClass.PASSING),
    ],
)
def test_errors_have_a_class_by_their_code(code: str, kind: ErrorClass) -> None:
    assert error_class(code) is kind


def test_of_several_errors_the_one_that_will_not_pass_counts() -> None:
    assert worst(["sink", "config", "engine"]) == "config"
    assert worst(["sink", "engine"]) == "engine"


@pytest.mark.parametrize(
    ("state", "code", "holds"),
    [
        (None, None, False),
        (NORMAL, None, True),
        (WARNING, None, True),
        (PENDING, "sink", True),
        (STOPPED, None, True),
        (FAILED, "sink", True),
        (FAILED, "CDC:ErrGCTTLExceeded", False),
        (FINISHED, None, False),
        (REMOVED, None, False),
    ],
)
def test_which_changefeeds_the_upstream_keeps_changes_for(state: FeedState, code: str | None, holds: bool) -> None:
    assert holds_gc(state, code) is holds
