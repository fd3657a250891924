"""Tables whose rows no change has reported: they are read as of the DDL that brings them into the lake."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.sinks.lake.replay import KINDS, Replay, rows_of
from tests.sinks.lake.test_crashes import Died, make_fragile
from tidemill.flow.mounter import mount
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.lake import write_rows
from tidemill.sinks.lake.reader import Lake

NAME = "ints"


def keyless(table: TableInfo) -> TableInfo:
    found = replace(table, pk_is_handle=False, is_common_handle=False, indexes=())
    assert not found.is_eligible
    return found


def event_of(kind: ActionType, table: TableInfo, before: TableInfo | None, ts: int) -> DdlEvent:
    info = replace(table, version_ts=Ts(ts))
    return DdlEvent(Ts(ts), Ts(ts), 0, kind, kind, "", table.schema, table.name, info, pre_table_info=before)


def ids(rows: Any) -> list[Any]:
    return sorted(rows["id"].to_pylist())


EVENTS = {
    "gets its key": (ActionType.ADD_PRIMARY_KEY, True),
    "gets its key as an index": (ActionType.ADD_INDEX, True),
    "comes back, dropped before the changefeed began": (ActionType.RECOVER_TABLE, False),
}


def settings(tmp_path: Path, kind: str, name: str) -> tuple[Replay, DdlEvent, TableInfo, int]:
    replay = Replay("types", kind, tmp_path / "lake")
    table, physical_id = next((t, i) for t, i in replay.tables() if t.name == NAME)
    action, was_there = EVENTS[name]
    stamps = sorted(set(replay.history.row_changes(physical_id).column("commit_ts").to_pylist()))
    at = int(stamps[len(stamps) // 2])  # some changes before it, some after
    return replay, event_of(action, table, keyless(table) if was_there else None, at), table, physical_id


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVENTS)
def test_a_table_is_whole_from_the_ddl_on_with_which_it(name: str, kind: str, tmp_path: Path) -> None:
    replay, event, table, physical_id = settings(tmp_path, kind, name)
    at, end = int(event.finished_ts), replay.history.end_ts
    replay.commit(at, [])
    replay.sink.ddl(event)
    lake = published(replay, at)
    expected = ids(rows_of(replay.history, table, physical_id, at).new)
    assert ids(lake.rows_at(table.schema, table.name, at)) == expected
    assert expected
    assert event.table_info is not None
    changes = replay.history.row_changes(physical_id)
    behind = changes.filter(pc.greater(changes["commit_ts"], pa.scalar(at, pa.uint64())))
    rows = mount(event.table_info, physical_id, behind)
    replay.commit(end, [write_rows(replay.sink.target(event.table_info, physical_id, (Ts(0), Ts(end))), iter([rows]))])
    lake = published(replay, end)
    assert ids(lake.rows_at(table.schema, table.name, end)) == ids(rows_of(replay.history, table, physical_id, end).new)
    assert ids(lake.rows_at(table.schema, table.name, at)) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("calls", "is_after"), [(1, False), (1, True), (2, False), (2, True)])
def test_a_crash_while_its_rows_are_read_leaves_each_row_once(
    calls: int, is_after: bool, kind: str, tmp_path: Path
) -> None:
    replay, event, table, physical_id = settings(tmp_path, kind, "gets its key")
    at = int(event.finished_ts)
    replay.commit(at, [])
    make_fragile(replay.sink, calls, is_after)
    with pytest.raises(Died):
        replay.sink.ddl(event)
    replay.crash()
    replay.sink.ddl(event)
    lake = published(replay, at)
    found = lake.changes(lake.table(table.schema, table.name, at))
    rows = [row for row in found.to_pylist() if row["_op"] == "I"]
    assert sorted(row["id"] for row in rows) == ids(rows_of(replay.history, table, physical_id, at).new)


def test_a_table_that_loses_its_key_and_gets_another_is_read_anew(tmp_path: Path) -> None:
    replay, event, table, physical_id = settings(tmp_path, "delta", "gets its key")
    at, end = int(event.finished_ts), replay.history.end_ts
    replay.commit(at - 1, replay.write(at - 1, [NAME]))
    lost = event_of(ActionType.DROP_PRIMARY_KEY, keyless(table), table, at - 1)
    replay.sink.ddl(lost)
    replay.sink.ddl(event)
    lake = published(replay, at)
    assert ids(lake.rows_at(table.schema, table.name, at)) == ids(rows_of(replay.history, table, physical_id, at).new)
    assert end > at


def published(replay: Replay, ts: int) -> Lake:
    replay.sink.publish(Ts(ts))
    return Lake(replay.options)
