"""Files that flags name."""

import os
from pathlib import Path

import pytest

from tidemill.cli.options import ReadyFile
from tidemill.errors import UsageError


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
