"""The archive of classes: made by one JVM, used by the next, passed over by one that it does not fit."""

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from tidemill.spark.classes import has_archive, java_options, recording

JARS = Path(pyspark.__file__).parent / "jars"
LAUNCHER = "org.apache.spark.launcher.Main"  # the smallest program of Spark


def java(options: str, *more: str) -> subprocess.CompletedProcess[str]:
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    classpath = ":".join(map(str, JARS.glob("spark-*.jar")))
    words = [command, *options.split(), *more, "-cp", classpath, LAUNCHER, "org.apache.spark.deploy.SparkSubmit"]
    return subprocess.run(
        words, env={**os.environ, "SPARK_HOME": str(JARS.parent)}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """A home with an archive."""
    assert not has_archive(tmp_path)
    with recording(tmp_path):
        java(java_options(tmp_path))
    assert has_archive(tmp_path)
    return tmp_path


def test_classes_come_from_an_archive_that_an_earlier_jvm_has_made(archived: Path) -> None:
    said = java(java_options(archived), "-Xlog:class+load:stderr").stderr
    assert f"{LAUNCHER} source: shared objects file (top)" in said


def test_an_archive_that_does_not_fit_is_passed_over_in_silence(archived: Path) -> None:
    plain = java("")
    (archive,) = archived.glob("classes-*.jsa")
    archive.unlink()
    archive.write_bytes(b"not an archive")
    found = java(java_options(archived))
    assert (found.stdout, found.stderr, found.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_nothing_is_left_of_a_recording_that_failed(tmp_path: Path) -> None:
    def record() -> None:
        with recording(tmp_path):
            java(java_options(tmp_path))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        record()
    assert list(tmp_path.iterdir()) == []
    assert java_options(tmp_path) == ""


def test_a_home_that_is_not_ours_has_none() -> None:
    assert java_options(None) == ""


def test_without_java_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with recording(tmp_path):
        assert java_options(tmp_path) == ""
    assert not has_archive(tmp_path)
