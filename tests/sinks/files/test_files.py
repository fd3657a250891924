"""The file sink: TiCDC's layout, files cut between transactions, and each change once whatever breaks."""

import errno
import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, FIRST, ITEM, SECOND, column, rows_of, table_of
from tests.rounds import examples
from tests.sinks.folders import DAY, DIGITS, config_for, data, ddl, messages, tree, write_batch
from tests.sinks.halves import FileHalves, file_sink, opened
from tests.sinks.moments import START
from tidemill.errors import InvariantError, SinkError, SupersededError
from tidemill.flow.encoder import CanalJson, Csv, Encoded
from tidemill.model.ddl import ActionType
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, PartitionInfo, TableInfo
from tidemill.model.ts import Ts, compose
from tidemill.sinks import Receipt
from tidemill.sinks.blackhole import BlackholeOwner, drop_messages
from tidemill.sinks.files import FileTarget, FileWriter, parse_sink_uri, write_files
from tidemill.sinks.files.durable import DurableFiles
from tidemill.sinks.files.layout import folder_name
from tidemill.sinks.files.schema_file import schema_of_table

# The layout


def test_a_batch_lies_where_ticdc_would_put_it(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    encoder = CanalJson(enable_tidb_extension=True).encoder(0, b"\r\n")
    encoded = encoder.encode(rows_of(ITEM, (None, FIRST), (FIRST, SECOND)))
    write_batch(sink, COMMIT_TS, encoded)
    found = tree(tmp_path)
    schema_file = "shop/item/meta/" + schema_of_table(ITEM, ITEM.version_ts).name
    assert list(found) == ["metadata", f"{DAY}/CDC000001.json", f"{DAY}/meta/CDC.index", schema_file]
    assert found["metadata"] == '{"checkpoint-ts":445644800000000005}'
    assert found[f"{DAY}/meta/CDC.index"] == "CDC000001.json\n"
    lines = (tmp_path / DAY / "CDC000001.json").read_bytes()
    assert lines == encoded.payload.to_pybytes()
    assert [json.loads(line)["type"] for line in lines.split(b"\r\n") if line] == ["INSERT", "UPDATE"]
    schema = json.loads(found[schema_file])
    assert (schema["Query"], schema["Type"], schema["TableVersion"]) == ("", 0, 445600000000000001)


def test_files_are_numbered_on_within_a_folder(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path, ""), None)
    for number in range(3):
        write_batch(sink, COMMIT_TS + number, messages((COMMIT_TS + number, f"{number}\n")))
    assert data(tmp_path) == {f"{DAY}/CDC{n + 1:020d}.json": f"{n}\n" for n in range(3)}
    assert (tmp_path / DAY / "meta/CDC.index").read_text() == "CDC00000000000000000003.json\n"


@pytest.mark.parametrize(
    ("separator", "zone", "folder"),
    [
        ("none", "UTC", ""),
        ("year", "UTC", "/2023"),
        ("month", "UTC", "/2023-11"),
        ("day", "UTC", "/2023-11-14"),
        ("day", "Asia/Shanghai", "/2023-11-15"),
    ],
)
def test_dates_come_from_the_batch(tmp_path: Path, separator: str, zone: str, folder: str) -> None:
    sink = file_sink(config_for(tmp_path, f"&date-separator={separator}"), None, zone=ZoneInfo(zone))
    assert sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS))).directory == "shop/item/445600000000000001" + folder


def test_numbers_begin_again_with_each_date(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    next_day = compose(1_700_000_000_000 + 86_400_000)
    write_batch(sink, COMMIT_TS, messages((COMMIT_TS, "a\n")))
    write_batch(sink, next_day, messages((next_day, "b\n")))
    assert list(data(tmp_path)) == [f"{DAY}/CDC000001.json", f"{DAY[:-2]}15/CDC000001.json"]


def test_partitions_have_folders_of_their_own(tmp_path: Path) -> None:
    parts = (PartitionInfo(201, "p0"), PartitionInfo(202, "p1"))
    table = table_of(column("a", ColumnType.LONG), partitions=parts, table_id=200)
    sink = file_sink(config_for(tmp_path), None)
    found = [sink.target(table, id, (Ts(0), Ts(COMMIT_TS))).directory for id in (201, 202)]
    assert found == [f"shop/item/445600000000000001/{id}/2023-11-14" for id in (201, 202)]


def test_csv_files_open_with_their_header(tmp_path: Path) -> None:
    config = config_for(tmp_path, DIGITS + "&output-field-header=true&file-size=1024", "csv")
    sink = file_sink(config, None)
    encoder = config.messages.encoder(0)
    rows = rows_of(ITEM, *[(None, {**FIRST, "id": i, "note": "x" * 600}) for i in range(4)])
    write_batch(sink, COMMIT_TS + 9, encoder.encode(rows))
    for text in data(tmp_path).values():
        head, first, second, end = text.split("\n")
        assert head.startswith("ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,id,sku")
        assert first[:4] == second[:4] == '"I",'
        assert not end
    assert list(data(tmp_path)) == [f"{DAY}/CDC00000{n}.csv" for n in (1, 2)]


def test_a_csv_schema_lists_only_columns_that_records_hold(tmp_path: Path) -> None:
    table = table_of(column("a", ColumnType.LONG), column("v", ColumnType.LONG, generated_expr="a * 2"))
    for protocol, names in (("csv", ["a"]), ("canal-json", ["a", "v"])):
        sink = file_sink(config_for(tmp_path / protocol, protocol=protocol), None)
        sink.target(table, 108, (Ts(0), Ts(COMMIT_TS)))
        (file,) = (tmp_path / protocol / "shop/item/meta").iterdir()
        assert [c["ColumnName"] for c in json.loads(file.read_text())["TableColumns"]] == names


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("we`ird name", "we`ird name"),
        ("数据", "数据"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("...", "..."),
    ],
)
def test_no_name_leaves_the_tree(name: str, folder: str) -> None:
    assert folder_name(name) == folder


@given(st.lists(st.text(alphabet="a./%2F5E\0", min_size=1, max_size=6), unique=True, max_size=10))
def test_no_two_names_share_a_folder(names: list[str]) -> None:
    assert len({folder_name(name) for name in names}) == len(names)
    assert not any("/" in folder_name(name) or folder_name(name) in (".", "..") for name in names)


# Cutting


def cut(root: Path, size: int, *batches: Encoded) -> list[str]:
    DurableFiles(str(root)).begin_generation("w/me")
    target = FileTarget(str(root), "t", 1, ".json", 6, size, "w/me")
    receipt = write_files(target, iter(batches))
    found = [(root / "t" / f"CDC{n + 1:06d}.json").read_text() for n in range(receipt.files)]
    assert receipt.rows == sum(len(b) for b in batches)
    assert receipt.bytes == sum(len(text) for text in found)
    assert not (root / "t" / f"CDC{receipt.files + 1:06d}.json").exists()
    return found


@pytest.mark.parametrize(
    ("batches", "files"),
    [
        pytest.param([[(1, "aaa"), (2, "bbb"), (3, "ccc")]], ["aaabbb", "ccc"], id="at the first end past the size"),
        pytest.param([[(1, "aaaa"), (2, "bbbb")]], ["aaaa", "bbbb"], id="exactly at the size"),
        pytest.param([[(1, "aaa"), (1, "bb"), (1, "cc"), (2, "d")]], ["aaabbcc", "d"], id="a transaction stays whole"),
        pytest.param([[(1, "aaaaa")], [(1, "bbb")], [(2, "c")]], ["aaaaabbb", "c"], id="also over two batches"),
        pytest.param([[(1, "aaaa")], [], [(2, "b")]], ["aaaa", "b"], id="full at the end of a batch"),
        pytest.param([[(1, "a")], [(2, "b")]], ["ab"], id="not full at all"),
        pytest.param([[], []], [], id="nothing came"),
    ],
)  # fmt: skip
def test_where_files_are_cut(tmp_path: Path, batches: Any, files: list[str]) -> None:
    assert cut(tmp_path, 4, *[messages(*batch) for batch in batches]) == files


_stamped = st.lists(st.tuples(st.integers(0, 1), st.text("ab", min_size=1, max_size=5)), max_size=12)


@settings(max_examples=examples(50), deadline=None)
@given(_stamped, st.integers(1, 12), st.lists(st.integers(0, 12), max_size=3))
def test_no_cut_loses_a_byte_or_splits_a_transaction(
    tmp_path_factory: Any, steps: Any, size: int, borders: list[int]
) -> None:
    ts = np.cumsum([step for step, _ in steps]).tolist()
    stamped = [(t, f"{t}:{text};") for t, (_, text) in zip(ts, steps, strict=True)]
    edges = sorted({0, len(stamped), *[b for b in borders if b < len(stamped)]})
    batches = [messages(*stamped[a:b]) for a, b in pairwise(edges)]
    files = cut(tmp_path_factory.mktemp("cut"), size, *batches)
    assert "".join(files) == "".join(text for _, text in stamped)
    stamps = [{part.split(":")[0] for part in file.split(";") if part} for file in files]
    assert all(not (a & b) for a, b in pairwise(stamps))
    assert all(len(file) >= size for file in files[:-1])


# Versions and DDL


def test_a_ddl_writes_a_schema_file_and_rows_follow_into_its_version(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    wider = table_of(*ITEM.columns, column("c", ColumnType.LONG), version_ts=COMMIT_TS)
    sink.ddl(ddl(COMMIT_TS, wider))
    sink.ddl(ddl(COMMIT_TS, wider))
    (file,) = (tmp_path / "shop/item/meta").iterdir()
    document = json.loads(file.read_text())
    assert (document["Query"], document["Type"]) == ("alter table item add column c int", 5)
    assert (document["TableVersion"], document["TableColumnsTotal"]) == (COMMIT_TS, 7)
    assert sink.target(wider, 108, (Ts(0), Ts(COMMIT_TS + 1))).directory == f"shop/item/{COMMIT_TS}/2023-11-14"
    assert len(list((tmp_path / "shop/item/meta").iterdir())) == 1


def test_several_ddls_at_once_write_what_each_would(tmp_path: Path) -> None:
    tables = [table_of(*ITEM.columns, name=f"t{n}", table_id=200 + n, version_ts=COMMIT_TS + n) for n in range(20)]
    events = [ddl(COMMIT_TS + n, table, ActionType.CREATE_TABLE) for n, table in enumerate(tables)]
    events.append(ddl(COMMIT_TS + 20, None, ActionType.CREATE_SCHEMA, query="create database other"))
    one_by_one, together = file_sink(config_for(tmp_path / "1"), None), file_sink(config_for(tmp_path / "2"), None)
    for event in events:
        one_by_one.ddl(event)
    together.recover(START)
    for some in (events, events[3:5]):
        together.owner.ddls(some, lambda passed: None)
    assert tree(tmp_path / "1") == tree(tmp_path / "2")
    assert len(tree(tmp_path / "2")) == 21


def test_a_database_ddl_has_no_table(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    sink.ddl(ddl(COMMIT_TS, None, ActionType.CREATE_SCHEMA, query="create database shop"))
    document = json.loads((tmp_path / f"shop/meta/schema_{COMMIT_TS}_2805160324.json").read_text())
    assert (document["Table"], document["TableColumns"], document["Type"]) == ("", None, 1)


def test_a_table_that_gets_its_key_brings_the_rows_from_before_once(tmp_path: Path) -> None:
    before = replace(ITEM, indexes=(), pk_is_handle=False, is_common_handle=False)
    assert not before.is_eligible
    event = ddl(COMMIT_TS, ITEM, ActionType.ADD_PRIMARY_KEY, pre_table_info=before)
    asked: list[object] = []

    def rescan(table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        asked.append((table.name, list(physical_ids), ts))
        yield rows_of(table, (None, FIRST), (None, SECOND), ts=[ts, ts])

    def opened(state: Any) -> FileHalves:
        sink = file_sink(config_for(tmp_path), state, rescan=rescan)
        sink.recover(START)
        return sink

    opened(None).ddl(event)  # and dies before its state is saved
    sink = opened(None)
    assert data(tmp_path) == {}
    state = sink.ddl(event)
    assert sink.ddl(event) == state  # as when a DDL of the same moment is tried again
    again = opened(json.loads(json.dumps(state)))  # it died before the DDL was noted as done: it comes once more
    again.ddl(event)
    again.publish(Ts(COMMIT_TS))
    (lines,) = data(tmp_path).values()
    assert [json.loads(line)["type"] for line in lines.splitlines()] == ["INSERT", "INSERT"]
    assert asked == [("item", [ITEM.id], COMMIT_TS)] * 2


def test_exchange_partition_writes_both_tables(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    plain = table_of(column("a", ColumnType.LONG), name="plain")
    sink.ddl(ddl(COMMIT_TS, ITEM, ActionType.EXCHANGE_PARTITION, query="alter …", pre_table_info=plain))
    documents = {name: json.loads(text) for name, text in tree(tmp_path).items()}
    assert sorted((d["Table"], d["Query"], d["Type"]) for d in documents.values()) == [
        ("item", "alter …", 42),
        ("plain", "", 0),
    ]


def test_a_table_without_a_schema_file_of_its_version_takes_the_newest_with_the_same_columns(tmp_path: Path) -> None:
    first = file_sink(config_for(tmp_path), None)
    for version in (100, 300):
        first.ddl(ddl(version, table_of(*ITEM.columns, version_ts=version)))
    first.ddl(ddl(400, table_of(column("other", ColumnType.LONG), version_ts=400)))
    again = file_sink(config_for(tmp_path), {"format": 1, "folders": {}})
    later = table_of(*ITEM.columns, version_ts=500)
    assert again.target(later, 108, (Ts(0), Ts(COMMIT_TS))).directory.startswith("shop/item/300/")
    exact = table_of(*ITEM.columns, version_ts=100)
    assert again.target(exact, 108, (Ts(0), Ts(COMMIT_TS))).directory.startswith("shop/item/100/")
    assert len(list((tmp_path / "shop/item/meta").iterdir())) == 3


# Starting, and starting again


def test_a_restart_goes_on_where_the_state_says(tmp_path: Path) -> None:
    state = write_batch(file_sink(config_for(tmp_path), None), 10, messages((10, "a\n")))
    again = file_sink(config_for(tmp_path), state)
    again.recover(START)
    target = again.target(ITEM, 108, (Ts(0), Ts(10)))
    assert target.first_index == 2


def test_the_state_holds_only_what_is_not_published(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path, "&date-separator=none"), None)
    other = table_of(column("a", ColumnType.LONG), name="other", table_id=109)
    write_batch(sink, 10, messages((10, "a\n")))
    state = write_batch(sink, 11, messages((11, "b\n")), table=other, id=109)
    assert state == {"format": 1, "folders": {"shop/other/445600000000000001": 1}}
    again = file_sink(config_for(tmp_path, "&date-separator=none"), state)
    again.recover(START)
    assert again.target(ITEM, 108, (Ts(0), Ts(12))).first_index == 2


def test_recovery_removes_only_what_no_commit_covers(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    state = write_batch(sink, COMMIT_TS, messages((COMMIT_TS, "kept\n")))
    write_files(sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS))), iter([messages((COMMIT_TS + 1, "lost\n"))]))
    fresh = compose(1_700_000_000_000 + 86_400_000)
    write_files(sink.target(ITEM, 108, (Ts(0), fresh)), iter([messages((fresh, "lost\n"))]))
    (tmp_path / DAY / ".CDC000003.json.0a1b2c3d.tmp").write_text("half")
    (tmp_path / "notes.txt").write_text("not ours")
    again = file_sink(config_for(tmp_path), state)
    again.recover(START)
    assert data(tmp_path) == {f"{DAY}/CDC000001.json": "kept\n", "notes.txt": "not ours"}


def test_recovery_publishes_what_was_committed_and_not_published(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    receipt = write_files(sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS))), iter([messages((COMMIT_TS, "a\n"))]))
    state = sink.commit(Ts(COMMIT_TS), [receipt])
    again = file_sink(config_for(tmp_path), state)
    again.recover(START)
    assert data(tmp_path) == {f"{DAY}/CDC000001.json": "a\n"}
    assert (tmp_path / DAY / "meta/CDC.index").read_text() == "CDC000001.json\n"


def test_a_task_that_was_left_behind_writes_nothing(tmp_path: Path) -> None:
    target = file_sink(config_for(tmp_path), None).target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    file_sink(config_for(tmp_path), None).recover(START)
    with pytest.raises(SupersededError, match=r"another process, writes there now\. Nothing is lost"):
        write_files(target, iter([messages((COMMIT_TS, "late\n"))]))
    assert not list(tmp_path.rglob("CDC*.json"))


def test_a_new_changefeed_continues_the_numbers_of_a_folder(tmp_path: Path) -> None:
    write_batch(file_sink(config_for(tmp_path), None, start_ts=Ts(5)), 10, messages((10, "a\n")))
    follower = file_sink(config_for(tmp_path), None, start_ts=Ts(10))
    follower.recover(START)
    assert follower.target(ITEM, 108, (Ts(0), Ts(10))).first_index == 2


def test_a_receipt_that_does_not_follow_is_a_bug(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    receipt = Receipt(DAY, 1, 1, 1, 2)
    sink.commit(Ts(10), [receipt])
    with pytest.raises(InvariantError, match=r"from file 1 on, where 2 was due"):
        sink.commit(Ts(11), [receipt])


def test_targets_and_receipts_travel(tmp_path: Path) -> None:
    target = file_sink(config_for(tmp_path), None).target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    assert pickle.loads(pickle.dumps(target)) == target
    receipt = Receipt("d", 1, 2, 3, 4)
    assert pickle.loads(pickle.dumps(receipt)) == receipt


def test_a_unit_without_rows_leaves_no_trace_in_the_state(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    assert write_batch(sink, 10) == {"format": 1, "folders": {}}
    assert data(tmp_path) == {}


# What can be wrong with a folder


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(SinkError, match=r"cannot use .*/out: .* A file stands where a folder should be"):
        file_sink(config_for(tmp_path / "out"), None)


def test_a_folder_without_rights() -> None:
    with pytest.raises(SinkError, match=r"cannot use /proc/self/out: "):
        file_sink(config_for(Path("/proc/self/out")), None)


def test_a_folder_that_vanished_between_runs(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"cannot use .*/out: .*The folder has vanished: bring it back"):
        file_sink(config_for(tmp_path / "out"), {"format": 1, "folders": {}})
    assert not (tmp_path / "out").exists()


def test_a_folder_that_vanishes_during_a_run_is_not_made_anew(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path / "out"), None)
    target = sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    (tmp_path / "out").rename(tmp_path / "away")
    with pytest.raises(SinkError, match=r"cannot create folder .*The folder has vanished"):
        write_files(target, iter([messages((COMMIT_TS, "a\n"))]))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "The disk is full: free some space. Nothing is lost"),
        (errno.EACCES, "We have no right to: give this user write access, then start again"),
        (errno.EROFS, "The file system is read-only"),
        (errno.ESTALE, "The file server has lost track of the folder"),
        (errno.ETIMEDOUT, "See what the system says of it. Nothing is lost"),
    ],
)
def test_what_the_system_refuses_is_explained_and_waited_out_where_it_passes(
    tmp_path: Path, number: int, remedy: str
) -> None:
    class Refusing(DurableFiles):
        def step_append(self, file: BinaryIO, chunk: Any) -> None:
            raise OSError(number, "so it says")

    target = file_sink(config_for(tmp_path), None).target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    with pytest.raises(SinkError, match=rf"cannot write .*CDC000001\.json: so it says\. {remedy}") as raised:
        write_files(target, iter([messages((COMMIT_TS, "a\n"))]), Refusing(str(tmp_path)))
    assert raised.value.retryable == (number not in (errno.EACCES, errno.EROFS))


def test_errors_of_the_stages_before_pass_unchanged(tmp_path: Path) -> None:
    def broken() -> Iterator[Encoded]:
        yield messages((COMMIT_TS, "a\n"))
        raise FileNotFoundError("a segment")

    target = file_sink(config_for(tmp_path), None).target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    with pytest.raises(FileNotFoundError, match="a segment"):
        write_files(target, broken())


def test_an_index_file_that_names_nothing(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    (tmp_path / DAY / "meta").mkdir(parents=True)
    (tmp_path / DAY / "meta/CDC.index").write_text("garbage")
    with pytest.raises(SinkError, match=r"its index file names no data file\. Restore .*CDC\.index"):
        sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))


def test_a_state_of_another_format(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"has format 7; this version reads 1"):
        file_sink(config_for(tmp_path), {"format": 7})


# Blackhole


def test_a_blackhole_counts_and_keeps_nothing(tmp_path: Path) -> None:
    sink = opened(parse_sink_uri("blackhole://"))
    assert isinstance(sink.owner, BlackholeOwner)
    sink.recover(START)
    receipt = drop_messages(sink.target(ITEM, 108, (Ts(0), Ts(5))), iter([messages((1, "abc"), (2, "d"))]))
    assert (receipt.rows, receipt.bytes, receipt.files) == (2, 4, 0)
    state = sink.commit(Ts(5), [receipt])
    sink.publish(Ts(5))
    sink.ddl(ddl(5, ITEM))
    again = opened(parse_sink_uri("blackhole://"), state).commit(Ts(6), [receipt])
    assert (again["rows"], again["bytes"]) == (4, 8)


def test_a_batch_that_is_taken_twice_counts_once() -> None:
    sink = opened(parse_sink_uri("blackhole://"))
    commit = sink.writer.commit(Ts(5), [Receipt("", 0, 0, 3, 30)])
    for owner in (sink.owner, sink.owner, BlackholeOwner(sink.owner.take(commit))):
        assert owner.take(commit)["rows"] == 3


def test_rows_that_only_count_are_not_encoded() -> None:
    config = parse_sink_uri("blackhole://")
    rows = rows_of(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None))
    receipt = opened(config).target(ITEM, 108, (Ts(0), Ts(5))).write(iter([rows, rows]))
    assert (receipt.rows, receipt.bytes) == (6, 0)


def test_a_sink_is_opened_by_its_config(tmp_path: Path) -> None:
    sink = opened(config_for(tmp_path))
    assert isinstance(sink.writer, FileWriter)
    receipt = sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS))).write(iter([rows_of(ITEM, (None, FIRST), ts=[COMMIT_TS])]))
    (file,) = tmp_path.rglob("CDC*.json")
    assert receipt == Receipt(DAY, 1, 1, 1, file.stat().st_size)


def lines(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]


def test_options_reach_the_files(tmp_path: Path) -> None:
    config = config_for(tmp_path, DIGITS + "&terminator=%0A&output-column-id=true", "csv")
    assert (config.protocol, config.terminator) == (Csv(), b"\n")
    sink = file_sink(config, None)
    write_batch(sink, COMMIT_TS, config.messages.encoder(0).encode(rows_of(ITEM, (None, FIRST))))
    assert lines(data(tmp_path).values()) == ['"I","item","shop",7,"A-1",\\N,"AGH/","b","héllo"']
    (schema,) = (tmp_path / "shop/item/meta").iterdir()
    assert json.loads(schema.read_text())["TableColumns"][0]["ColumnId"] == "1"
