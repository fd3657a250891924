"""Log lines: where they go, and how they look to machines."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from tidemill import log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger("tidemill")
    handlers, level, propagates = root.handlers[:], root.level, root.propagate
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    root.propagate = propagates


def test_a_line_of_json_has_the_fields_by_their_names(tmp_path: Path) -> None:
    log.configure("info", tmp_path / "log", log.Format.json)
    line = log.get_logger("puller").bind(changefeed="orders")
    line.info("region relocated", region=7, key=b"\x01", reason=ValueError("not leader"), part="hidden?")
    line.debug("too quiet to be heard")
    (document,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert document.pop("time").endswith("+00:00")
    assert document == {
        "level": "info",
        "part": "tidemill.puller",
        "message": "region relocated",
        "changefeed": "orders",
        "region": 7,
        "key": "01",
        "reason": "not leader",
        "part_": "hidden?",
    }


def test_lines_are_appended_to_a_file_also_after_it_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of an earlier run\n")
    log.configure("info", path)
    line = log.get_logger("puller")
    line.info("first", region=1)
    path.rename(tmp_path / "log.1")
    line.info("second")
    earlier, first = (tmp_path / "log.1").read_text().splitlines()
    assert earlier == "of an earlier run"
    assert first.endswith("INFO    tidemill.puller: first region=1")
    assert path.read_text().endswith("tidemill.puller: second\n")


def test_a_warning_stands_above_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    log.configure("warning")
    console = Console(stderr=True, force_terminal=True, width=100)
    with Live("copying 3 of 12 tables", console=console, auto_refresh=False):
        assert sys.stderr is not terminal  # the live line has taken it over
        log.get_logger("sink").warning("the sink is away")
    assert terminal.getvalue().count("the sink is away") == 1
    before, after = terminal.getvalue().split("the sink is away")
    assert before.count("copying") == 1
    assert "copying" in after
