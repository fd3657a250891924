"""What all tests share. Where skips are forbidden (``TIDEMILL_NO_SKIPS=1``), a skip is a failure.

All tests of a process share one Spark session, which is started when one first asks for it.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import rounds
from tidebox.warm import warm_up

# Properties are about results, not about how busy the machine is.
settings.register_profile("tidemill", max_examples=rounds.examples(100), deadline=None)
settings.load_profile("tidemill")


@pytest.hookimpl(trylast=True)  # after the plugin that marks properties
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A soak runs what scales or takes long, everything else runs without."""

    def is_wanted(item: pytest.Item) -> bool:
        if rounds.is_soak():
            return any(item.get_closest_marker(name) for name in ("soak", "rounds", "hypothesis"))
        return item.get_closest_marker("soak") is None

    left = [item for item in items if not is_wanted(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if is_wanted(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("TIDEMILL_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped where nothing may be: {report.longrepr}"
    if report.failed and rounds.used:
        repeated = rounds.rounds(0) or None
        again = [rounds.replay_command(item.nodeid, seed, repeated) for seed in dict.fromkeys(rounds.used)]
        report.sections.append(("to see it again", "\n".join(again)))
    return report


@pytest.fixture(autouse=True)
def _fresh_seeds() -> None:
    rounds.used.clear()


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> Iterator[None]:
    """On a new machine compiling takes longer than a test, or a client under test, waits for an answer."""
    warm_up()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _left_out_of_garbage(_compiled: None) -> None:
    """Stores that are closed look for garbage, so as to let go of their folders. That goes through everything there is:
    a third of a second each time with all tests collected, unless what stays, as between two modules, is left out."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from tidemill.spark.session import close_session

    yield tmp_path_factory.mktemp("spark")
    close_session()


@pytest.fixture(scope="module")
def spark(_spark_folder: Path) -> Any:
    """The Spark session of this process: a new one where tests of another module have killed its JVM."""
    from tidemill.spark import register
    from tidemill.spark.session import open_session

    session = open_session(scratch=_spark_folder)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    register(session)
    return session
