"""A store started anywhere, also in the middle of a job, agrees with one that saw everything."""

from collections.abc import Iterable

import pytest

from tests.flow.schema.stores import NAMES, fed_store, job_tuples, pairs_at, past_at
from tests.histories import History, load
from tidemill.flow.schema import Absent, Followed, SchemaStore, past_reads
from tidemill.flow.schema.jobs import JobRow, read_changes
from tidemill.model.ddl import ActionType
from tidemill.model.ts import Ts
from tidemill.tidb.documents import JobState

LOOK_AHEAD = 24  # changes of the job table: more than the longest job has transitions


def started_at(history: History, ts: int, full: SchemaStore) -> SchemaStore:
    pairs = pairs_at(history, ts)
    return SchemaStore.from_snapshot(
        pairs,
        Ts(ts),
        past=past_at(history, pairs),
        base_ts=Ts(history.bootstrap_ts),
        versions=full.versions(ts),
    )


def above(intervals: Iterable[Followed], ts: int, to: int) -> set[tuple[int, int, int | None, int]]:
    """The intervals as far as a changefeed with checkpoint ``ts`` will use them, as far as known at ``to``."""
    out = set()
    for f in intervals:
        if (f.until_ts is not None and f.until_ts <= ts) or f.begin_ts is None or f.begin_ts > to:
            continue
        until = f.until_ts if f.until_ts is not None and f.until_ts <= to else None
        since = f.since_ts if f.begin_ts >= ts else ts
        out.add((f.physical_id, max(since, ts) if f.since_ts == f.begin_ts else since, until, max(f.begin_ts, ts)))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_start_at_or_just_before_any_transition_agrees_with_an_uninterrupted_run(name: str) -> None:
    history, (full, changes) = load(name), fed_store(name)
    jobs = job_tuples(history, above=history.bootstrap_ts)
    ids = {f.physical_id for f in full.followed()} | set(history.physical_ids())
    transitions = sorted({commit_ts for commit_ts, *_ in jobs})
    for at, transition in enumerate(transitions):
        to = transitions[min(at + LOOK_AHEAD, len(transitions) - 1)]
        for ts in (transition - 1, transition):
            store = started_at(history, ts, full)
            told = store.apply(job for job in jobs if ts - 1 < job[0] <= to)
            assert [(c.finished_ts, c.events) for c in told if c.finished_ts > ts] == [
                (c.finished_ts, c.events) for c in changes if ts < c.finished_ts <= to
            ], ts
            assert above(store.followed(), ts, to) == above(full.followed(), ts, to), ts
            moments = {ts + 1, *(c.finished_ts for c in told if c.finished_ts > ts), *(c.finished_ts + 1 for c in told)}
            for physical_id in ids:
                for commit_ts in moments:
                    assert same(store.lookup(physical_id, commit_ts), full.lookup(physical_id, commit_ts)), (
                        physical_id,
                        ts,
                        commit_ts,
                    )


def same(restarted: object, uninterrupted: object) -> bool:
    """What was dropped before a restart is not even known after it."""
    return restarted == uninterrupted or (restarted is Absent.UNKNOWN and uninterrupted is Absent.DROPPED)


@pytest.mark.parametrize("name", ["ddl", "online"])
def test_without_the_past_ids_are_still_followed_alike(name: str) -> None:
    """The past may be garbage-collected. Then columns and names may be ahead, but no row is lost."""
    history, (full, _) = load(name), fed_store(name)
    jobs = job_tuples(history, above=history.bootstrap_ts)
    rows = [row for row in read_changes(jobs) if isinstance(row, JobRow) and row.job.is_running]
    assert rows
    for row in rows:
        ts = row.commit_ts
        if row.job.type in (ActionType.DROP_INDEX, ActionType.MULTI_SCHEMA_CHANGE):
            continue  # an index on its way out may have been the only key
        store = SchemaStore.from_snapshot(pairs_at(history, ts), ts)
        store.apply(job for job in jobs if ts < job[0])
        assert above(store.followed(), ts, history.end_ts) == above(full.followed(), ts, history.end_ts), row


def test_a_store_started_inside_a_drop_of_a_column_still_has_it() -> None:
    history, (full, changes) = load("ddl"), fed_store("ddl")
    done = next(c for c in changes for e in c.events if e.query == "alter table a drop column d")
    store = started_at(history, done.visible_ts, full)
    assert "d" in [c.name for c in store.table(112, done.finished_ts).columns]  # type: ignore[union-attr]
    store.apply(job_tuples(history, above=done.visible_ts, to=done.finished_ts))
    assert "d" not in [c.name for c in store.table(112, done.finished_ts + 1).columns]  # type: ignore[union-attr]


def test_a_store_started_inside_a_rename_tells_the_old_name_even_without_the_past() -> None:
    history, (_, changes) = load("ddl"), fed_store("ddl")
    done = next(c for c in changes for e in c.events if e.query == "rename table b4 to shop2.b5")
    pairs = pairs_at(history, done.visible_ts)
    assert past_reads(pairs)
    told = SchemaStore.from_snapshot(pairs, done.visible_ts).apply(
        job_tuples(history, above=done.visible_ts, to=done.finished_ts)
    )
    (event,) = told[0].events
    assert (event.pre_schema, event.pre_table, event.schema, event.table) == ("shop", "b4", "shop2", "b5")


def test_a_start_exactly_at_the_end_of_a_truncation_still_delivers_what_the_new_ids_hold() -> None:
    history, (full, changes) = load("ddl"), fed_store("ddl")
    done = [c for c in changes for e in c.events if e.type == ActionType.TRUNCATE_TABLE_PARTITION]
    for change in done:
        ts = change.finished_ts
        store = started_at(history, ts, full)
        (told,) = store.apply(job_tuples(history, above=ts - 1, to=ts))
        assert (told.finished_ts, told.events) == (ts, ())
        assert {(f.physical_id, f.since_ts, f.begin_ts) for f in told.started} == {
            (f.physical_id, f.since_ts, f.begin_ts) for f in change.started
        }


def test_a_start_exactly_at_the_end_of_a_dropped_partition_replays_no_less() -> None:
    history, (full, changes) = load("ddl"), fed_store("ddl")
    done = [c.finished_ts for c in changes for e in c.events if e.type == ActionType.DROP_TABLE_PARTITION]
    wanted = [f for f in full.replayed() if f.begin_ts in done]
    assert wanted
    for ts in done:
        store = started_at(history, ts, full)
        store.apply(job_tuples(history, above=ts - 1, to=ts))
        assert {f for f in wanted if f.begin_ts == ts} <= set(store.replayed())


@pytest.mark.parametrize("name", NAMES)
def test_no_job_is_running_when_nothing_has_to_be_read_from_the_past(name: str) -> None:
    history = load(name)
    for row in read_changes(job_tuples(history, above=history.bootstrap_ts)):
        if isinstance(row, JobRow) and row.job.state in (JobState.QUEUEING, JobState.DONE):
            assert past_reads(pairs_at(history, row.commit_ts)) == ()
