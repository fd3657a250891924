"""What a lake says of itself, what it refuses, and its own time travel."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from tests.flow.encoder.samples import COMMIT_TS, ITEM, KEY, Row, column, rows_of, table_of
from tests.sinks.halves import LakeHalves, lake_sink
from tests.sinks.lake.replay import KINDS, Replay, calm_lake, options_of, uri_of
from tests.sinks.lake.test_crashes import contents, whole
from tests.sinks.moments import START
from tidemill.errors import SinkError, UsageError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.lake import parse_lake_uri, write_rows
from tidemill.sinks.lake.delta import open_table
from tidemill.sinks.lake.iceberg import identifier, open_catalog
from tidemill.sinks.lake.query import rows_at
from tidemill.sinks.lake.reader import Lake, open_lake


def test_an_iceberg_snapshot_carries_changefeed_and_resolved_ts() -> None:
    lake = calm_lake("online", "iceberg")
    table = open_catalog(lake.options).load_table(identifier(lake.options, lake.table("live", "acc")))
    stamped = [s.summary["tidemill.resolved-ts"] for s in table.snapshots() if s.summary]
    stamped = [ts for ts in stamped if ts is not None]  # some only say whose turn it is, or change columns
    assert stamped
    assert {s.summary["tidemill.changefeed"] for s in table.snapshots() if s.summary} == {"feed"}
    assert {s.summary["tidemill.cluster"] for s in table.snapshots() if s.summary} == {"7"}
    assert [int(str(ts)) for ts in stamped] == sorted(int(str(ts)) for ts in stamped)


def test_a_delta_commit_carries_changefeed_and_resolved_ts() -> None:
    lake = calm_lake("online", "delta")
    table = open_table(lake.options, lake.table("live", "acc"))
    said = [commit for commit in table.history() if "tidemill.resolved-ts" in commit]
    assert said
    assert all((commit["tidemill.changefeed"], commit["tidemill.cluster"]) == ("feed", "7") for commit in said)
    assert max(int(commit["tidemill.resolved-ts"]) for commit in said) == table.transaction_version("feed")


def test_an_iceberg_snapshot_is_found_by_ts_and_gives_the_same_rows() -> None:
    lake = calm_lake("online", "iceberg")
    table = lake.table("live", "acc")
    first = min(int(ts) for ts in lake.changes(table)["_commit_ts"].to_pylist())
    early = lake.changes(table, first)
    assert 0 < len(early) < len(lake.changes(table))
    assert max(early["_commit_ts"].to_pylist()) < lake.checkpoint_ts


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_snapshot_gives_the_rows_of_its_ts_also_where_a_ddl_came_exactly_then(kind: str) -> None:
    """The snapshot was taken before the DDL, whose columns the rows at that ts have."""
    lake = calm_lake("ddl", kind)
    compared = 0
    for table in lake.journal.tables:
        for version in table.versions:
            if version.ts <= lake.checkpoint_ts and not version.is_interim and version.key:
                then = rows_at(table, version.ts, lake.changes(table, version.ts))
                now = rows_at(table, version.ts, lake.changes(table))
                assert sorted(map(repr, then.to_pylist())) == sorted(map(repr, now.to_pylist()))
                compared += 1
    assert compared > len(lake.journal.tables)


def test_the_checkpoint_file_names_what_is_complete_in_all_tables() -> None:
    lake = calm_lake("types", "delta")
    told = json.loads((Path(lake.options.storage.root) / "_tidemill/checkpoint.json").read_text())
    assert told == {"cluster": "7", "changefeed": "feed", "id": "feed", "checkpoint-ts": lake.checkpoint_ts}


def test_a_table_that_was_dropped_is_still_there_as_of_before() -> None:
    lake = calm_lake("ddl", "iceberg")
    dropped = [table for table in lake.journal.tables if table.dropped_ts is not None]
    assert dropped
    names = open_catalog(lake.options).list_tables((dropped[0].schema,))
    assert (dropped[0].schema, dropped[0].lake_name) in names


def test_a_ts_behind_the_checkpoint_is_refused() -> None:
    lake = calm_lake("types", "delta")
    with pytest.raises(UsageError, match=r"is complete up to .* only"):
        lake.rows_at("kinds", "ints", lake.checkpoint_ts + 1)


def test_a_table_that_is_not_there_is_named_with_those_that_are() -> None:
    lake = calm_lake("types", "delta")
    with pytest.raises(UsageError, match=r"has no table kinds\.nothing .* kinds\.ints"):
        lake.rows_at("kinds", "nothing")


def test_a_folder_that_is_no_lake_is_refused_to_readers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no lake of ours"):
        open_lake(f"delta://{tmp_path}")


def test_a_state_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with pytest.raises(SinkError, match="has format 9; this version reads 1"):
        lake_sink(parse_lake_uri(f"delta://{tmp_path}/lake"), {"format": 9})


@pytest.mark.parametrize("kind", KINDS)
def test_a_lake_whose_journal_was_one_document_is_continued(kind: str, tmp_path: Path) -> None:
    replay = whole("types", kind, tmp_path / "lake")
    end = replay.history.end_ts
    half = (replay.from_ts + end) // 2
    replay.commit(half, replay.write(half, ["ints", "txn"]))
    folder = tmp_path / "lake/_tidemill"
    tables = [json.loads(path.read_text()) for path in sorted((folder / "tables").iterdir())]
    header = json.loads((folder / "tables.json").read_text())
    for table in tables:
        assert table.pop("format") == 3
    (folder / "tables.json").write_text(json.dumps({**header, "format": 2, "tables": tables}))
    rmtree(folder / "tables")
    before = Lake(replay.options)
    replay.crash()
    assert json.loads((folder / "tables.json").read_text()) == header
    assert Lake(replay.options).journal == before.journal
    replay.commit(end, replay.write(end, ["ints", "txn"]))
    calm = whole("types", kind, tmp_path / "calm")
    calm.commit(end, calm.write(end, ["ints", "txn"]))
    assert contents(Lake(replay.options)) == contents(Lake(calm.options))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_changes_hands_keeps_the_versions_that_no_ddl_told_of(kind: str, tmp_path: Path) -> None:
    options = options_of(uri_of(kind, tmp_path / "lake"))
    owner, first, second = options.open_owner(None), options.open_writer("1"), options.open_writer("2")
    owner.begin()
    for writer in (first, second):
        writer.recover(START, [], None, None, owner.term)
    versions = [replace(ITEM, version_ts=Ts(ITEM.version_ts + number)) for number in range(4)]
    for writer, table in zip((first, first, second, first), versions, strict=True):
        writer.recover(START, [table], None, None, owner.term)
        writer.target(table, ITEM.id, (Ts(0), Ts(COMMIT_TS)))
    owner.publish(Ts(COMMIT_TS))
    (found,) = Lake(options).journal.tables
    assert [version.ts for version in found.versions] == [table.version_ts for table in versions]


def test_a_ddl_that_changes_rows_unseen_is_refused_where_they_cannot_be_read_anew(tmp_path: Path) -> None:
    replay = Replay("ddl", "delta", tmp_path / "lake")
    replay.sink = lake_sink(replay.options, None)
    with pytest.raises(SinkError, match=r"table shop\.a must be read anew as of .*, since column 'n' has new values"):
        replay.run()


def test_old_snapshots_are_forgotten_and_no_change_is(tmp_path: Path) -> None:
    replay = whole("types", "iceberg", tmp_path / "lake")
    replay.options = options_of(f"iceberg://{tmp_path}/lake?keep-snapshots=2")
    replay.sink = lake_sink(replay.options, None)
    begin, end, rows = replay.from_ts, replay.history.end_ts, 0
    for step in range(1, 13):
        to_ts = begin + (end - begin) * step // 12
        receipts = replay.write(to_ts, ["ints", "txn"])
        rows += sum(receipt.rows for receipt in receipts)
        replay.commit(to_ts, receipts)
    lake = Lake(replay.options)
    tables = [lake.table("kinds", name) for name in ("ints", "txn")]
    assert sum(len(lake.changes(table)) for table in tables) == rows
    for table in tables:
        assert len(open_catalog(replay.options).load_table(identifier(replay.options, table)).snapshots()) <= 4


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_came_before_a_table_got_another_id_are_there_for_its_rows(kind: str, tmp_path: Path) -> None:
    """By TRUNCATE or a new partitioning, with no row between: the writer knew the table without those columns."""
    options = options_of(uri_of(kind, tmp_path / "lake"))
    sink = lake_sink(options)
    sink.recover(START)
    plain = (column("id", ColumnType.LONGLONG, KEY), column("v", ColumnType.LONG))
    before = table_of(*plain)
    wider = table_of(*plain, column("g", ColumnType.LONG), version_ts=COMMIT_TS + 10)
    emptied = replace(wider, id=before.id + 1, version_ts=Ts(COMMIT_TS + 20))
    write_row(sink, before, {"id": 1, "v": 1}, COMMIT_TS)
    for action, was, table in ((ActionType.ADD_COLUMN, before, wider), (ActionType.TRUNCATE_TABLE, wider, emptied)):
        ts = Ts(table.version_ts)
        sink.ddl(DdlEvent(ts, ts, 0, action, action, "", table.schema, table.name, table, pre_table_info=was))
    write_row(sink, emptied, {"id": 2, "v": 2, "g": 3}, COMMIT_TS + 30)
    sink.publish(Ts(COMMIT_TS + 30))
    found = Lake(options).rows_at("shop", "item", COMMIT_TS + 30)
    assert [(row["id"], row["v"], row["g"]) for row in found.to_pylist()] == [(2, 2, 3)]


def write_row(sink: LakeHalves, table: TableInfo, row: Row, ts: int) -> None:
    target = sink.target(table, table.id, (Ts(ts - 1), Ts(ts)))
    sink.commit(Ts(ts), [write_rows(target, iter([rows_of(table, (None, row), ts=[ts])]))])
