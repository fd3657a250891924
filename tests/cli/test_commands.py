"""A command loads what it needs and nothing of the others."""

import os
import subprocess
import sys

import pytest

from tidemill.cli.commands import COMMANDS
from tidemill.cli.options import sink_uri_of

SCRIPT = """
import sys
from contextlib import suppress
from tidemill.cli import main
with suppress(SystemExit):
    main()
print(*sorted({"numba", "pyarrow", "pyspark"} & set(sys.modules)))
"""


def run(*words: str) -> list[str]:
    """The lines of its output; the last one names the heavy packages that it has loaded."""
    command = [sys.executable, "-c", SCRIPT, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("-h",),
        ("tso", "-15m"),
        ("tso", "-h"),
        ("fault", "--help"),
        ("upstream", "--help"),
        ("changefeed", "create", "--help"),
        ("capture", "--help"),
        ("unsafe", "--help"),
    ],
    ids=" ".join,
)
def test_what_needs_no_engine_loads_none(words: tuple[str, ...]) -> None:
    *said, loaded = run(*words)
    assert said
    assert loaded == ""


def test_the_help_names_every_command() -> None:
    said = "\n".join(run("--help"))
    for command in COMMANDS:
        assert f" {command} " in said


def test_a_misspelt_command_is_not_taken_for_another() -> None:
    done = subprocess.run([sys.executable, "-m", "tidemill", "verfy"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "No such command 'verfy'" in done.stderr
    assert "'verify'" in done.stderr


@pytest.mark.parametrize("words", [("464613566054400000",), ("convert", "2026-03-01T10:15:00Z")], ids=" ".join)
def test_a_ts_is_converted_without_a_cluster(words: tuple[str, ...]) -> None:
    assert run("tso", *words)[0] == "2026-03-01 10:15:00.000 UTC (ts 464613566054400000)"


def test_a_misspelt_option_is_not_taken_for_a_moment() -> None:
    words = [sys.executable, "-m", "tidemill", "tso", "--outptu", "json", "now"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no option --outptu" in done.stderr


@pytest.mark.parametrize("words", [("--help",), ("fault", "--help"), ("metrics", "--help")], ids=" ".join)
def test_a_list_of_commands_cuts_no_sentence_off(words: tuple[str, ...]) -> None:
    listed = "\n".join(run(*words)).split("Commands:\n")[1]
    assert "..." not in listed
    assert listed.count(".\n") >= 3


def test_options_that_are_not_given_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_OUTPUT", "json")
    assert '"time": "2026-03-01 10:15:00.000 UTC",' in "".join(run("tso", "464613566054400000"))
    assert run("tso", "464613566054400000", "--output", "text")[0].startswith("2026-03-01")


def test_a_sink_uri_of_the_environment_goes_to_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDEMILL_SINK_URI", "TIDEMILL_TO"):
        monkeypatch.setenv(name, "mysql://root:secret@127.0.0.1/")
    sink_uri_of("blackhole://")
    assert "secret" not in str(os.environ)


def test_a_shell_is_told_what_there_is() -> None:
    words = {"_TIDEMILL_COMPLETE": "complete_bash", "COMP_WORDS": "tidemill ver", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tidemill"], env=os.environ | words, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["verify"]
