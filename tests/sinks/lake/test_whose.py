"""A lake has one changefeed, and that one driver at a time: others are refused, late ones change nothing."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from tests.sinks.halves import LakeHalves, lake_sink
from tests.sinks.lake.replay import KINDS, Replay, open_sink, options_of, uri_of
from tests.sinks.lake.test_crashes import contents
from tests.sinks.moments import at
from tidemill.errors import SinkError, SupersededError
from tidemill.model.ts import Ts
from tidemill.sinks.lake.reader import Lake

TRANSACTIONAL = ("iceberg", "delta")


NAMES = ("ints", "txn")


def begun(kind: str, root: Path) -> Replay:
    """A lake with two tables and no rows yet."""
    replay = Replay("types", kind, root)
    for to_ts in replay.stops():
        for event in replay.events(to_ts):
            if event.table in NAMES:
                replay.sink.ddl(event)
    return replay


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changefeed", "cluster_id", "said"),
    [
        ("other", 7, "belongs to changefeed 'feed' of cluster 7, and this is changefeed 'other' of cluster 7"),
        ("feed", 8, "belongs to changefeed 'feed' of cluster 7, and this is changefeed 'feed' of cluster 8"),
    ],
)
def test_a_lake_of_another_changefeed_or_cluster_is_refused_by_name(
    kind: str, changefeed: str, cluster_id: int, said: str, tmp_path: Path
) -> None:
    replay = begun(kind, tmp_path / "lake")
    replay.sink.close()
    before = sorted(str(p) for p in (tmp_path / "lake").rglob("*"))
    with pytest.raises(SinkError, match=said):
        open_sink(options_of(uri_of(kind, tmp_path / "lake"), changefeed, cluster_id), None, replay.history)
    assert sorted(str(p) for p in (tmp_path / "lake").rglob("*")) == before


@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_a_table_of_another_changefeed_is_refused_by_name_where_the_lake_forgot_whose_it_is(
    kind: str, tmp_path: Path
) -> None:
    """Two lakes of one catalog, or a folder whose own notes were removed: the tables themselves say it."""
    replay = begun(kind, tmp_path / "lake")
    replay.sink.close()
    rmtree(tmp_path / "lake" / "_tidemill")
    (tmp_path / "lake" / ".generation").unlink()
    other = Replay("types", kind, tmp_path / "lake")
    other.options = options_of(uri_of(kind, tmp_path / "lake"), "other", 8)
    other.sink = open_sink(other.options, None, other.history)
    table, physical_id = next((t, i) for t, i in other.tables() if t.name == "ints")
    with pytest.raises(SinkError, match=r"table \S*.* belongs to changefeed 'feed' of cluster 7") as raised:
        other.sink.target(table, physical_id, (Ts(0), Ts(other.history.end_ts)))
    assert not raised.value.retryable
    assert table.name in str(raised.value)


def test_a_delta_table_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "lake/kinds/ints"), pa.table({"id": [1]}))
    replay = Replay("types", "delta", tmp_path / "lake")
    table, physical_id = next((t, i) for t, i in replay.tables() if t.name == "ints")
    with pytest.raises(SinkError, match=r"kinds/ints in .* is not one of Tidemill's"):
        replay.sink.target(table, physical_id, (Ts(0), Ts(replay.history.end_ts)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("distance", "harm"), [(-1, "there twice"), (1, "would be missing")])
def test_a_new_changefeed_has_to_start_where_the_lake_ends(kind: str, distance: int, harm: str, tmp_path: Path) -> None:
    """It may continue the lake of another one, by giving itself that one's name in the sink URI."""
    uri = uri_of(kind, tmp_path / "lake")
    uri += f"{'&' if '?' in uri else '?'}changefeed=orders"
    replay = Replay("types", kind, tmp_path / "lake", uri)
    end = replay.history.end_ts
    replay.commit(end, [])
    sink_of, options = lake_sink, options_of(uri, "of a new data-dir")
    with pytest.raises(SinkError, match=rf"already holds changes up to .* {harm}"):
        sink_of(options, None, start_ts=Ts(end + distance))
    sink_of(options, None, start_ts=Ts(end)).recover(at(end))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_tables", [True, False])
def test_another_changefeed_is_told_whose_lake_it_is_rather_than_where_to_start(
    kind: str, has_tables: bool, tmp_path: Path
) -> None:
    """The checkpoint of a lake in use moves on, so a start-ts that fits now never fits when it is tried."""
    replay = begun(kind, tmp_path / "lake") if has_tables else Replay("types", kind, tmp_path / "lake")
    replay.sink.recover(at(replay.from_ts))
    end = replay.history.end_ts
    replay.sink.publish(Ts(end))
    for start_ts in (end - 1, end, end + 1):
        with pytest.raises(SinkError, match="belongs to changefeed 'feed' of cluster 7"):
            lake_sink(options_of(uri_of(kind, tmp_path / "lake"), "other"), None, start_ts=Ts(start_ts))


def test_a_changefeed_without_rows_yet_continues_behind_the_checkpoint_that_it_has_told(tmp_path: Path) -> None:
    """It has no state of its sink, and was killed after it had saved its checkpoint and before it told it."""
    replay = Replay("types", "delta", tmp_path / "lake")
    told = replay.history.end_ts - 1
    replay.sink.publish(Ts(told))
    lake_sink(replay.options, None, start_ts=Ts(told + 1), is_resumed=True).recover(at(told + 1))


# Drivers.


class Interruption:
    def __init__(self, sink: LakeHalves, step: int, event: Callable[[], None]) -> None:
        """``event`` comes between all checks of the driver and a table's own commit, the ``step``-th time."""
        self._left, self._event = step, event
        self.has_happened = False
        backend: Any = sink.writer._book.backend
        self._commit = backend._commit
        backend._commit = self._commit_interrupted

    def _commit_interrupted(self, *words: Any) -> None:
        place = next(place for place, word in enumerate(words) if callable(word) and not hasattr(word, "schema"))
        self._commit(*words[:place], self._before(words[place]), *words[place + 1 :])

    def _before(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.has_happened = True
                self._event()
            return change(*words)

        return call


def successor(replay: Replay) -> Replay:
    """Another process with the same changefeed, which knows what was saved."""
    found = copy(replay)
    found.sink = open_sink(replay.options, replay.state, replay.history)
    found.sink.recover(at(found.from_ts))
    return found


def run_to_end(replay: Replay, end: int) -> None:
    replay.commit(end, replay.write(end, NAMES))


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_was_superseded_can_do_nothing_more(kind: str, tmp_path: Path) -> None:
    old = begun(kind, tmp_path / "lake")
    end = old.history.end_ts
    receipts = old.write(end, NAMES)
    new = successor(old)
    late: list[Callable[[], Any]] = [
        lambda: old.sink.commit(Ts(end), receipts),
        lambda: old.sink.publish(Ts(end)),
        lambda: old.sink.recover(at(old.from_ts)),
    ]
    for act in late:
        with pytest.raises(SupersededError, match="Nothing is lost"):
            act()
    run_to_end(new, end)
    for act in late:
        with pytest.raises(SupersededError):
            act()
    calm = begun(kind, tmp_path / "calm")
    run_to_end(calm, end)
    assert contents(Lake(new.options)) == contents(Lake(calm.options))


@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_a_driver_that_is_superseded_within_its_commit_adds_nothing(kind: str, tmp_path: Path) -> None:
    """It was stopped behind its last check, before some table's own commit."""
    calm = begun(kind, tmp_path / "calm")
    end = calm.history.end_ts
    calm.commit(end, calm.write(end, NAMES))
    for step in range(1, len(NAMES) + 1):
        old = begun(kind, tmp_path / f"lake-{step}")
        receipts = old.write(end, NAMES)
        found: list[Replay] = []
        calls = Interruption(old.sink, step, lambda old=old, found=found: found.append(successor(old)))
        with pytest.raises(SupersededError):
            old.sink.commit(Ts(end), receipts)
        assert calls.has_happened
        new = found[0]
        new.commit(end, new.write(end, NAMES))
        assert contents(Lake(new.options)) == contents(Lake(calm.options)), step


@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_a_late_change_of_columns_is_refused(kind: str, tmp_path: Path) -> None:
    old = begun(kind, tmp_path / "lake")
    table, physical_id = next((t, i) for t, i in old.tables() if t.name == "ints")
    old.sink.target(table, physical_id, (Ts(0), Ts(old.history.end_ts)))
    lake = old.sink.writer.journal.by_table_id(table.id)
    assert lake is not None
    new = successor(old)
    new.sink.target(table, physical_id, (Ts(0), Ts(old.history.end_ts)))
    wider = replace(lake, columns=(*lake.columns, replace(lake.columns[-1], id=lake.columns[-1].id + 1, name="late")))
    with pytest.raises(SupersededError):
        old.sink.writer._book.backend.put(wider)
    assert "late" not in Lake(_published(new)).changes(lake).column_names


def _published(replay: Replay) -> Any:
    replay.sink.publish(Ts(replay.history.end_ts))
    return replay.options


@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_commits_of_others_between_ours_are_no_hindrance(kind: str, tmp_path: Path) -> None:
    """Maintenance, as users run it."""
    replay = begun(kind, tmp_path / "lake")
    end = replay.history.end_ts
    receipts = replay.write(end, {"ints"})

    def maintain() -> None:
        lake = replay.sink.writer.journal.live("kinds", "ints")
        assert lake is not None
        if kind == "iceberg":
            from tidemill.sinks.lake.iceberg import identifier, open_catalog

            table = open_catalog(replay.options).load_table(identifier(replay.options, lake))
            with table.transaction() as transaction, transaction.update_snapshot().fast_append():
                pass
        else:
            from tidemill.sinks.lake.delta import open_table

            open_table(replay.options, lake).alter.set_table_description("kept well")

    calls = Interruption(replay.sink, 1, maintain)
    replay.commit(end, receipts)
    assert calls.has_happened
    lake = Lake(replay.options)
    assert len(lake.changes(lake.table("kinds", "ints"))) == sum(r.rows for r in receipts) > 0


@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_a_commit_whose_answer_was_lost_is_not_made_twice(kind: str, tmp_path: Path) -> None:
    replay = begun(kind, tmp_path / "lake")
    end = replay.history.end_ts
    receipts = replay.write(end, NAMES)
    for action in lose_answers(replay.sink, 2):
        with pytest.raises(ConnectionResetError):
            action(lambda: replay.sink.commit(Ts(end), receipts))
    replay.commit(end, receipts)
    lake = Lake(replay.options)
    assert sum(len(lake.changes(t)) for t in lake.journal.tables) == sum(r.rows for r in receipts)


def lose_answers(sink: LakeHalves, times: int) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    backend: Any = sink.writer._book.backend
    real = backend.append

    def append(*words: Any) -> None:
        real(*words)
        raise ConnectionResetError

    for _ in range(times):

        def act(call: Callable[[], Any]) -> Any:
            backend.append = append
            try:
                return call()
            finally:
                backend.append = real

        yield act
