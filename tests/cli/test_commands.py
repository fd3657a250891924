"""A command loads what it needs and nothing of the others."""

import subprocess
import sys

import pytest

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
        ("fault", "--help"),
        ("upstream", "--help"),
        ("metrics", "--help"),
    ],
    ids=" ".join,
)
def test_what_needs_no_engine_loads_none(words: tuple[str, ...]) -> None:
    *said, loaded = run(*words)
    assert said
    assert loaded == ""


def test_the_help_names_every_command() -> None:
    said = "\n".join(run("--help"))
    for command in ("upstream", "run", "metrics", "verify", "demo", "warm", "fault"):
        assert f" {command} " in said


@pytest.mark.parametrize("words", [("--help",), ("fault", "--help"), ("metrics", "--help")], ids=" ".join)
def test_a_list_of_commands_cuts_no_sentence_off(words: tuple[str, ...]) -> None:
    listed = "\n".join(run(*words)).split("Commands:\n")[1]
    assert "..." not in listed
    assert listed.count(".\n") >= 3
