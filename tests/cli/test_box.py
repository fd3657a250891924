"""Tidemill without its extra ``box``: the commands that need it say how to get it, the others work."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


def run_without(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | env)


@pytest.mark.parametrize("command", ["upstream", "demo"])
def test_what_needs_the_box_says_how_to_get_it(command: str) -> None:
    done = run_without(command)
    assert done.returncode == 2
    assert f"'tidemill {command}' needs the cluster in a box" in done.stderr
    assert "pip install 'tidemill[box]'" in done.stderr


def test_the_rest_works_without_it() -> None:
    done = run_without("run", "--pd", "127.0.0.1:1", "--sink-uri", "nowhere://")
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_warm_says_without_it_what_is_not_compiled(tmp_path: Path) -> None:
    done = run_without("warm", SPARK_HOME=str(tmp_path), NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "No archive was made" in done.stdout
    assert "Nothing was compiled for rows" in done.stdout
    assert "pip install 'tidemill[box]'" in done.stdout


@pytest.mark.soak  # starts a JVM that writes its archive
def test_warm_prepares_spark_without_it(tmp_path: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    assert "Warm now" in run_without("warm", **own).stdout
    answer = json.loads(run_without("warm", "--output", "json", **own).stdout)
    assert (answer["warm"], answer["was_warm"], answer["compiled"]) == (True, True, False)
