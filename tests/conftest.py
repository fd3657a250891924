"""What all tests share. Where skips are forbidden (``TIDEMILL_NO_SKIPS=1``), a skip is a failure."""

import os
from collections.abc import Generator

import pytest

from tidemill.store.warm import warm_up


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("TIDEMILL_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped where nothing may be: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """On a new machine compiling takes longer than a test, or a client under test, waits for an answer."""
    warm_up()
