"""The changefeed's folder: whose it is, and what it says of what is saved."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.capture.metadata import ChangefeedState, DataDir, new_changefeed_id
from tidemill.errors import DataDirError
from tidemill.model.ts import Ts

STATE = ChangefeedState(7, "blackhole://", Ts(10), Ts(20), Ts(20), 0, {}, None, changefeed_id="tidemill-1")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 0", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataDir]:
    """Not acquired yet."""
    folder = DataDir(tmp_path / "above" / "data")
    yield folder
    folder.release()


def rights(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


@pytest.mark.usefixtures("umask")
def test_nobody_else_may_look_into_the_folder(folder: DataDir) -> None:
    folder.acquire()
    folder.save(STATE)
    assert rights(folder.path) == "0o700"
    assert {rights(path) for path in folder.path.iterdir()} == {"0o600"}


def test_a_folder_that_was_open_to_others_is_closed(folder: DataDir) -> None:
    folder.path.mkdir(mode=0o755, parents=True)
    folder.save(STATE)
    for path in (folder.path, folder.path / "changefeed.json"):
        path.chmod(0o755)
    folder.acquire()
    assert rights(folder.path) == "0o700"
    assert rights(folder.path / "changefeed.json") == "0o600"
    assert folder.load() == STATE


def test_a_file_is_no_data_dir(folder: DataDir) -> None:
    folder.path.parent.mkdir()
    folder.path.touch()
    with pytest.raises(DataDirError, match="it is not a folder"):
        folder.acquire()


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(folder: DataDir) -> None:
    theirs = folder.path / "scratch" / "thesis.tex"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of work")
    folder.path.chmod(0o755)
    with pytest.raises(
        DataDirError, match=r"holds 'scratch', which is not a changefeed's. Choose a folder that is emp"
    ):
        folder.acquire()
    assert theirs.exists()
    assert rights(folder.path) == "0o755"
    assert [path.name for path in folder.path.iterdir()] == ["scratch"]


@pytest.mark.parametrize(
    ("lock", "beside"),
    [
        pytest.param("", "thesis.tex", id="another program's lock, and a file"),
        pytest.param("4711", "scratch", id="a lock with a number, and a folder with a name like ours"),
        pytest.param(None, "run", id="a folder that is called lock, as in /var"),
    ],
)
def test_a_folder_that_another_program_locks_is_refused_and_left_as_it_is(
    folder: DataDir, lock: str | None, beside: str
) -> None:
    (folder.path / beside).mkdir(parents=True)
    place = folder.path / "lock"
    place.mkdir() if lock is None else place.write_text(lock)
    folder.path.chmod(0o755)
    with pytest.raises(DataDirError, match="which is not a changefeed's"):
        folder.acquire()
    assert rights(folder.path) == "0o755"
    assert lock is None or place.read_text() == lock


@pytest.mark.parametrize("there", ["lost+found/", ".snapshot/", "lock", "changefeed.json"])
def test_a_new_volume_and_a_folder_of_ours_are_taken(folder: DataDir, there: str) -> None:
    place = folder.path / there
    (place if there.endswith("/") else folder.path).mkdir(parents=True)
    if not there.endswith("/"):
        place.touch()
        (folder.path / "segments").mkdir()
    folder.acquire()


def test_what_is_saved_is_what_is_on_disk(folder: DataDir) -> None:
    folder.acquire()
    assert folder.saved is None
    folder.save(STATE)
    assert folder.saved == STATE
    again = DataDir(folder.path)
    again.load()
    assert again.saved == STATE


def test_a_state_that_could_not_be_written_is_not_taken_for_saved(folder: DataDir) -> None:
    folder.acquire()
    folder.save(STATE)
    (folder.path / ".changefeed.json.tmp").mkdir()  # in the way of the next one
    with pytest.raises(DataDirError, match="cannot save"):
        folder.save(ChangefeedState(7, "blackhole://", Ts(10), Ts(30), Ts(30), 0, {}, None))
    assert folder.saved == STATE


def test_two_changefeeds_never_share_an_id() -> None:
    assert len({new_changefeed_id() for _ in range(1000)}) == 1000
