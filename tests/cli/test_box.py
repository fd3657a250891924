"""Tidemill without its extra ``box``: the commands that need it say how to get it, the others work."""

import subprocess
import sys

import pytest

# As if RocksDB were not installed: finders are asked in order, and this one says no first.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name == "rocksdict" else find(name, path, target)
)
sys.argv = ["tidemill", *sys.argv[1:]]
from tidemill.cli import main

main()
"""


def run_without(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", ["upstream", "demo", "warm"])
def test_what_needs_the_box_says_how_to_get_it(command: str) -> None:
    done = run_without(command)
    assert done.returncode == 2
    assert f"'tidemill {command}' needs the cluster in a box" in done.stderr
    assert "pip install 'tidemill[box]'" in done.stderr


def test_the_rest_works_without_it() -> None:
    done = run_without("run", "--pd", "127.0.0.1:1", "--sink-uri", "nowhere://")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
