"""Compiled kernels never outlive the source of any helper that they were compiled with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import os, tidemill; print(os.environ.get('NUMBA_CACHE_DIR', ''))"


def cache_dir(**environment: str) -> str:
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | environment
    return subprocess.run(
        [sys.executable, "-c", CODE], env=given, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_folder_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    first, second = (cache_dir(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert first == second
    assert Path(first).parent == tmp_path / "tidemill" / "kernels"


@pytest.mark.parametrize("kernel", ["from numba import njit\n", "@kernel\n", "@helper\n"])
def test_another_source_gets_another_folder(tmp_path: Path, kernel: str) -> None:
    import shutil

    import tidemill

    copy = tmp_path / "tidemill"
    shutil.copytree(Path(tidemill.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "_pb"))
    before = cache_dir(XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=str(tmp_path))
    (copy / "flow" / "another.py").write_text(kernel)
    after = cache_dir(XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=str(tmp_path))
    assert before != after


def test_kernels_that_check_their_bounds_have_a_folder_of_their_own(tmp_path: Path) -> None:
    usual, unchecked, checked = (
        cache_dir(XDG_CACHE_HOME=str(tmp_path), NUMBA_BOUNDSCHECK=value) for value in ("", "0", "1")
    )
    assert usual == unchecked
    assert checked == usual + "-checked"


def test_a_choice_of_the_user_is_left_alone(tmp_path: Path) -> None:
    assert cache_dir(NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)


def test_a_worker_of_spark_without_a_home_has_a_folder_all_the_same(tmp_path: Path) -> None:
    given = {"XDG_CACHE_HOME": "/proc/nowhere", "SPARK_LOCAL_DIRS": f"/proc/neither,{tmp_path}"}
    assert Path(cache_dir(**given)).parent == tmp_path / "tidemill" / "kernels"
    assert cache_dir(XDG_CACHE_HOME="/proc/nowhere", SPARK_LOCAL_DIRS="") == ""


def test_versions_in_use_beside_each_other_keep_their_folders(tmp_path: Path) -> None:
    root = tmp_path / "tidemill" / "kernels"
    for number in range(6):
        (root / f"other-{number}").mkdir(parents=True)
    abandoned = [root / f"long-ago-{number}" for number in range(2)]
    for folder in abandoned:
        folder.mkdir()
        os.utime(folder, (1, 1))
    own = cache_dir(XDG_CACHE_HOME=str(tmp_path))
    left = {folder.name for folder in root.iterdir()}
    assert left == {Path(own).name, *(f"other-{number}" for number in range(6))}
