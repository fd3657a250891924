"""What a consumer remembers, and whose folder it takes."""

from pathlib import Path

import pytest

from tests.flow.encoder.samples import KEY, column, table_of
from tidemill.consumer.alignment import Position
from tidemill.consumer.state import ConsumerDir, ConsumerState
from tidemill.consumer.tables import Tables
from tidemill.errors import DataDirError
from tidemill.model.table import ColumnFlag, ColumnType
from tidemill.model.ts import Ts


def test_a_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    position = Position({0: Ts(7), 1: Ts(9)}, Ts(5), ("shop\x00t\x00drop table t",), 3)
    state = ConsumerState("cluster/topic", "mysql://host/", position, {0: 12, 1: 0}, {"shop.t": 1}, 42, {"format": 1})
    ConsumerDir(tmp_path).save(state)
    assert ConsumerDir(tmp_path).load() == state
    assert ConsumerDir(tmp_path / "none").load() is None


def test_a_consumer_has_one_name_for_good(tmp_path: Path) -> None:
    assert ConsumerDir(tmp_path).consumer_id() == ConsumerDir(tmp_path).consumer_id()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 9}', b'{"format": 1, "topic": 3}', b"\xff"])
def test_a_state_that_cannot_be_understood_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "consumer.json").write_bytes(content)
    with pytest.raises(DataDirError, match=r"cannot understand .*consumer\.json"):
        ConsumerDir(tmp_path).load()


@pytest.mark.parametrize("name", ["changefeed.json", "letters.txt"])
def test_somebody_elses_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataDirError, match="Choose"):
        ConsumerDir(tmp_path).acquire()


@pytest.mark.parametrize("known", ["id", "lock"])
def test_a_folder_is_not_ours_for_a_file_with_a_common_name(tmp_path: Path, known: str) -> None:
    for name in (known, "letters.txt"):
        (tmp_path / name).touch()
    tmp_path.chmod(0o755)
    with pytest.raises(DataDirError, match="which is not a consumer's"):
        ConsumerDir(tmp_path).acquire()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_start_that_was_killed_before_it_had_a_state_is_continued(tmp_path: Path) -> None:
    first = ConsumerDir(tmp_path / "data")
    first.acquire()
    known = first.consumer_id()
    first.staged.mkdir()
    first.release()
    second = ConsumerDir(tmp_path / "data")
    second.acquire()
    assert second.consumer_id() == known
    second.release()


def test_a_folder_has_one_consumer_at_a_time(tmp_path: Path) -> None:
    first = ConsumerDir(tmp_path / "data")
    first.acquire()
    with pytest.raises(DataDirError, match="in use by another"):
        ConsumerDir(tmp_path / "data").acquire()
    first.release()
    second = ConsumerDir(tmp_path / "data")
    second.acquire()
    second.release()


def test_tables_and_columns_keep_their_ids_and_columns_of_unknown_unique_indexes_count_each() -> None:
    unique = int(ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY)
    seen = table_of(
        column("id", ColumnType.LONGLONG, KEY),
        column("a", ColumnType.LONG, unique),
        column("b", ColumnType.LONG, unique),
        table_id=0,
    )
    tables = Tables({"shop.other": 1})
    found = tables.known(seen)
    assert tables.known(seen) is found
    assert found.id not in (0, 1)
    assert Tables(tables.ids).known(seen) == found
    assert [[found.columns[p.offset].name for p in i.columns] for i in found.indexes] == [["a"], ["b"]]
    assert [c.name for c in found.handle_key] == ["id"]
