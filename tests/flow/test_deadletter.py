"""Rows that cannot be decoded are put aside, each once, and nothing else changes."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.mounter.tables import ID, column, primary, table
from tests.reference.encode import int_cell, record_key, row_v2
from tidemill.errors import DataDirError
from tidemill.flow.deadletter import forget_after, mount_or_set_aside, quarantine, read_quarantine
from tidemill.flow.mounter import mount
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.progress import Checkpoints
from tidemill.model.receipt import Undecodable
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

TABLE = table(primary(), column(2, ColumnType.LONG), pk_is_handle=True)
BAD = b"\x80\x00\x01\x00\x00\x00\x02"  # a row that ends in the middle of its header


def changes(kinds: list[str]) -> pa.RecordBatch:
    """A change for each kind: good, bad, or with a bad old value."""
    values = {"good": (row_v2({2: int_cell(5)}), b""), "bad": (BAD, b""), "old": (row_v2({2: int_cell(6)}), BAD)}
    return pa.RecordBatch.from_pylist(
        [
            {
                "start_ts": 2 * at,
                "commit_ts": 2 * at + 1,
                "op": Op.PUT,
                "key": record_key(ID, at),
                "value": values[kind][0],
                "old_value": values[kind][1],
            }
            for at, kind in enumerate(kinds)
        ],
        RAW_CHANGE_SCHEMA,
    )


@given(st.lists(st.sampled_from(["good", "good", "good", "bad", "old"]), max_size=200))
def test_the_bad_are_set_aside_and_the_good_go_on(kinds: list[str]) -> None:
    rows, aside = mount_or_set_aside(TABLE, ID, changes(kinds), "UTC")
    assert rows.commit_ts.tolist() == [2 * at + 1 for at, kind in enumerate(kinds) if kind == "good"]
    assert [entry.commit_ts for entry in aside] == [2 * at + 1 for at, kind in enumerate(kinds) if kind != "good"]
    assert rows.new.num_rows == kinds.count("good")


def test_what_is_set_aside_is_the_change_as_it_came() -> None:
    _, (entry,) = mount_or_set_aside(TABLE, ID, changes(["good", "old"]), "UTC")
    assert (entry.table, entry.physical_id, entry.key) == (TABLE.full_name, ID, record_key(ID, 1))
    assert (entry.start_ts, entry.commit_ts) == (2, 3)
    assert (entry.value, entry.old_value) == (row_v2({2: int_cell(6)}), BAD)
    assert entry.reason
    assert pickle.loads(pickle.dumps(entry)) == entry


def test_where_all_is_good_it_is_what_mount_gives() -> None:
    raw = changes(["good"] * 5)
    rows, aside = mount_or_set_aside(TABLE, ID, raw, "UTC")
    assert rows.new.equals(mount(TABLE, ID, raw, "UTC").new)
    assert aside == []


def at(ts: int) -> Callable[[int], Ts]:
    """Where a batch ends, whichever table it is."""
    return lambda _: Ts(ts)


def entries(*commit_ts: int) -> list[Undecodable]:
    return [
        Undecodable("shop.item", 108, b"k%d" % ts, ts - 1, ts, b"\x80", b"", "qty", "too short") for ts in commit_ts
    ]


def test_entries_are_lines_of_json_in_commit_order(tmp_path: Path) -> None:
    folder = tmp_path / "aside"
    quarantine(folder, at(20), entries(12, 11))
    (path,) = folder.iterdir()
    assert path.name == "rows-00000000000000000020-108.jsonl"
    assert path.read_text().splitlines()[0] == (
        '{"table":"shop.item","physical_id":108,"key":"6b3131","start_ts":10,"commit_ts":11,"value":"80","old_value":"",'
        '"column":"qty","reason":"too short"}'
    )
    assert list(read_quarantine(folder)) == entries(11, 12)


def test_a_batch_that_comes_again_replaces_what_it_had_put_aside(tmp_path: Path) -> None:
    quarantine(tmp_path, at(20), entries(11, 12))
    quarantine(tmp_path, at(20), entries(11, 12, 12))
    assert list(read_quarantine(tmp_path)) == entries(11, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["rows-00000000000000000020-108.jsonl"]


def test_a_longer_batch_after_a_crash_leaves_each_row_once(tmp_path: Path) -> None:
    quarantine(tmp_path, at(10), entries(5))
    quarantine(tmp_path, at(20), entries(11))  # the checkpoint did not come to 20
    (tmp_path / ".rows-x.jsonl.1.tmp").write_bytes(b"half")
    forget_after(tmp_path, Checkpoints(Ts(10)))
    quarantine(tmp_path, at(30), entries(11, 25))
    assert list(read_quarantine(tmp_path)) == entries(5, 11, 25)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_batch_without_entries_leaves_no_file(tmp_path: Path) -> None:
    quarantine(tmp_path / "aside", at(20), [])
    assert not (tmp_path / "aside").exists()
    forget_after(tmp_path / "aside", Checkpoints(Ts(20)))


def test_what_a_table_that_is_behind_has_put_aside_is_its_own(tmp_path: Path) -> None:
    """Two batches may end at the same ts for most tables."""
    of_others = [replace(entry, physical_id=109) for entry in entries(3, 4)]
    quarantine(tmp_path, {108: Ts(20), 109: Ts(10)}.__getitem__, entries(11) + of_others)
    quarantine(tmp_path, {108: Ts(20), 109: Ts(15)}.__getitem__, [replace(e, physical_id=109) for e in entries(12)])
    forget_after(tmp_path, Checkpoints(Ts(20), {109: Ts(10)}))
    assert read_quarantine(tmp_path) == of_others + entries(11)


def test_a_folder_that_cannot_be_written_stops_the_changefeed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirError, match=r"cannot put undecodable rows aside in .*nothing is lost"):
        quarantine(tmp_path / "file" / "aside", at(20), entries(11))
