"""A case that fails tells the seed that made it."""

from collections.abc import Generator

import pytest

from tests.fuzz.mutate import SEED, last_seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and last_seed:
        report.sections.append(("to see it again", f"NUMBA_BOUNDSCHECK=1 {SEED}={last_seed[0]} pytest {item.nodeid}"))
    return report


@pytest.fixture(autouse=True)
def _no_seed_yet() -> None:
    last_seed.clear()
