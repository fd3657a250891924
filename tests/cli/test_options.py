"""Files that flags name, and what is told meanwhile."""

import os
from pathlib import Path

import pytest

from tidemill.capture.batches import Totals
from tidemill.capture.options import Status
from tidemill.cli.fault import _show
from tidemill.cli.options import Output, ReadyFile
from tidemill.cli.run import ProgressLine
from tidemill.errors import UsageError
from tidemill.model.ts import Ts


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_ready_file_takes_the_place_of_files_alone(tmp_path: Path, through_a_link: bool) -> None:
    device = tmp_path / "device"
    os.mkfifo(device)  # as /dev/null, which root could remove
    given = tmp_path / "link" if through_a_link else device
    if through_a_link:
        given.symlink_to(device)
    with pytest.raises(UsageError, match="is no file, and is not replaced"):
        ReadyFile(given)
    assert device.is_fifo()
    assert given.exists()


def test_a_ready_file_of_an_earlier_run_is_gone_until_the_next_one_serves(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("old")
    ready = ReadyFile(path)
    assert not path.exists()
    ready.write({"pid": 7})
    assert path.read_text() == '{"pid":7}\n'
    assert list(tmp_path.iterdir()) == [path]


STRANGE = "[/data]/[fe80::1]/[red]:key:"  # a path, an address and a name that mean something to Rich


def test_a_progress_line_shows_what_it_quotes_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    stage = f"waiting for the sink (cannot write {STRANGE}: the disk is full)"
    now = Status(stage, Ts(1 << 60), 1.0, None, None, None, Totals(), 0, 0, 0, 0, 0, 0, 0, left_out=())
    line = ProgressLine()
    line._last = (float("-inf"), 0)  # the next one is due
    line.show(now)
    assert stage in capsys.readouterr().err


def test_keys_of_regions_are_shown_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    region = {"id": 4, "conf_ver": 1, "version": 1, "leader": 1, "stores": [1], "is_held": False}
    _show({"regions": [{**region, "start": STRANGE.encode().hex(), "end": ""}]}, Output.text)
    assert STRANGE in capsys.readouterr().out
