"""Which Java Spark would start, and what is said of one that will not do."""

import subprocess
from pathlib import Path

import pytest

from tidemill.spark.jvm import java_trouble

SET_UP = Path(__file__).parents[2] / ".ci/java"  # what make setup asks


def a_java(home: Path, said: str, code: int = 0) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin/java"
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("said", "code", "trouble"),
    [
        pytest.param('openjdk version "17.0.15" 2025-04-15', 0, None, id="17"),
        pytest.param('openjdk version "25" 2025-09-16', 0, None, id="newer"),
        pytest.param('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11", id="11"),
        pytest.param('java version "1.8.0_202"', 0, "is Java 8", id="8"),
        pytest.param("Unable to locate a Java Runtime.", 1, "does not run", id="a stub"),
    ],
)
def test_a_java_that_will_not_do_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, code: int, trouble: str | None
) -> None:
    java = a_java(tmp_path, said, code)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_trouble() == (trouble and f"{java} {trouble}")
    set_up = subprocess.run(["sh", str(SET_UP)], capture_output=True, text=True, check=False)
    assert set_up.returncode == (1 if trouble else 0)
    assert (f"JAVA_HOME ({tmp_path}) has" in set_up.stderr) == bool(trouble)


def test_a_folder_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_trouble() == f"no Java found in JAVA_HOME ({tmp_path})"
