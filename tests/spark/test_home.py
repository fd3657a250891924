"""The home that Spark is shown: all of the installed one but the zip of PySpark."""

import os
from pathlib import Path

import pyspark
import pytest

from tidemill.spark.home import link_home, use_lean_home

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "")  # so that what is set in its place is undone
    monkeypatch.delenv("SPARK_HOME")
    return tmp_path


def test_it_leads_to_the_installed_one_but_has_no_python(cache: Path) -> None:
    use_lean_home("local[2]")
    home = Path(os.environ["SPARK_HOME"])
    assert cache in home.parents
    assert (home / "bin" / "spark-submit").samefile(INSTALLED / "bin" / "spark-submit")
    assert (home / "jars").samefile(INSTALLED / "jars")
    assert not (home / "python").exists()


def test_a_process_that_inherits_it_takes_it_for_ours(cache: Path) -> None:
    assert use_lean_home("local[2]") == use_lean_home("local[2]") == Path(os.environ["SPARK_HOME"])


def test_to_make_it_again_changes_nothing(cache: Path) -> None:
    for _ in range(2):
        link_home(INSTALLED, cache / "home")
        made = {path.name for path in (cache / "home").iterdir()}
    assert made == {path.name for path in INSTALLED.iterdir() if path.is_dir()} - {"python"}


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://127.0.0.1"])
def test_executors_elsewhere_get_the_zip(cache: Path, master: str) -> None:
    use_lean_home(master)
    assert "SPARK_HOME" not in os.environ


def test_the_users_own_home_is_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert use_lean_home("local[2]") is None
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_without_a_folder_to_write_to_spark_has_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    use_lean_home("local[2]")
    assert "SPARK_HOME" not in os.environ
