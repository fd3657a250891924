"""What ``partitions`` says and refuses, without a changefeed that runs; and with one that refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.wishes import Wish, read_wish, refusal, refuse, wish_for
from tidemill.cli.commands import application
from tidemill.errors import DataDirError, TidemillError
from tidemill.model.ts import Ts

KAFKA = "kafka://127.0.0.1:9092/shop?protocol=open-protocol"
SINK_STATE: dict[str, Any] = {"format": 1, "epoch": 0, "topics": {"shop": 4}}


def changefeed(folder: Path, sink: str = KAFKA, state: dict[str, Any] | None = None) -> Path:
    data_dir = DataDir(folder / "data")
    data_dir.acquire()
    data_dir.save(ChangefeedState(7, sink, Ts(1), Ts(1), Ts(1), 0, {}, state or SINK_STATE))
    data_dir.release()
    return data_dir.path


def asked(*words: object) -> Any:
    return CliRunner().invoke(application(("partitions", "run")), ["partitions", *map(str, words)])


def test_without_a_count_it_tells_how_many_there_are(tmp_path: Path) -> None:
    done = asked("--data-dir", changefeed(tmp_path))
    assert (done.exit_code, done.output) == (0, "Topic shop: rows go to 4 partitions.\n")


def test_a_changefeed_that_does_not_run_does_it_later(tmp_path: Path) -> None:
    folder = changefeed(tmp_path)
    done = asked("--data-dir", folder, "--count", 9)
    assert (done.exit_code, done.output) == (
        0,
        "The changefeed does not run; it goes to 9 partitions as soon as it can.\n",
    )
    wish = read_wish(folder)
    assert wish is not None
    assert wish.partitions == 9
    done = asked("--data-dir", folder, "--count", 2, "--output", "json")
    assert json.loads(done.output) == {"wanted": 2, "pending": True}


@pytest.mark.parametrize("is_told", [False, True])
def test_a_changefeed_that_runs_is_waited_for_until_readers_know(tmp_path: Path, is_told: bool) -> None:
    change = {"partitions": 9, "cut_ts": 1 << 60, "former": {"shop": 4}, "is_told": is_told}
    folder = changefeed(tmp_path, state=SINK_STATE | {"topics": {"shop": 9}, "change": change})
    data_dir = DataDir(folder)
    data_dir.acquire()
    try:
        done = asked("--data-dir", folder, "--count", 9, "--wait", 0)
    finally:
        data_dir.release()
    said = "Topic shop: rows go to 9 partitions, since" if is_told else "The changefeed is still at it; it goes to 9"
    assert done.output.startswith(said)


@pytest.mark.parametrize(
    ("sink", "count", "said"),
    [
        (KAFKA, 0, "a topic cannot have 0 partitions. Choose 1 or more."),
        (KAFKA, -1, "a topic cannot have -1 partitions"),
        ("mysql://root@127.0.0.1:3306/", 3, "which has no partitions of topics"),
    ],
)
def test_what_cannot_be_is_refused_at_once(tmp_path: Path, sink: str, count: int, said: str) -> None:
    folder = changefeed(tmp_path, sink)
    done = asked("--data-dir", folder, "--count", count)
    assert isinstance(done.exception, TidemillError)
    assert said in str(done.exception)
    assert read_wish(folder) is None


def test_a_folder_without_a_changefeed_is_refused(tmp_path: Path) -> None:
    done = asked("--data-dir", tmp_path, "--count", 3)
    assert "holds no changefeed" in str(done.exception)


def test_a_refusal_is_of_one_wish(tmp_path: Path) -> None:
    wish = wish_for(tmp_path, 3)
    refuse(tmp_path, wish, "no rights")
    assert refusal(tmp_path, wish) == "no rights"
    assert refusal(tmp_path, wish_for(tmp_path, 3)) is None


@pytest.mark.parametrize(
    "content", [b"", b"9", b"{}", b'{"partitions": 0, "id": "x"}', b'{"partitions": "9"}', b"\xff"]
)
def test_a_wish_that_makes_no_sense_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "partitions").write_bytes(content)
    with pytest.raises(DataDirError, match=r"cannot understand .*partitions"):
        read_wish(tmp_path)


def test_a_wish_comes_back(tmp_path: Path) -> None:
    wish = wish_for(tmp_path, 12)
    assert read_wish(tmp_path) == Wish(12, wish.id)
