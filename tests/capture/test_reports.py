"""What a lane hears of its reports."""

import asyncio

import pytest

from tests.control.test_progress import at
from tidemill.capture.reports import Reports
from tidemill.errors import SupersededError
from tidemill.model.orders import EVERYTHING, Obeyed, Report


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[Report] = []

    def report(self, report: Report) -> None:
        self.heard.append(report)


def test_who_waits_hears_when_the_report_or_a_later_one_is_durable() -> None:
    async def story() -> None:
        reports = Reports("a/0", Owner())  # type: ignore[arg-type]
        first = asyncio.create_task(reports.durable(reports.make(EVERYTHING, at(10), frozenset(), Obeyed())))
        reports.make(EVERYTHING, at(20), frozenset(), Obeyed())
        await asyncio.sleep(0)
        assert reports.saved(0) is None
        assert not first.done()
        assert reports.saved(2) == at(20)
        await first
        assert reports.saved(2) is None

    asyncio.run(story())


def test_nobody_waits_for_an_owner_that_saves_nothing_any_more() -> None:
    """Neither who waited when it stopped, nor who comes later: a commit that was under way then has to end."""

    async def story() -> None:
        reports = Reports("a/0", Owner())  # type: ignore[arg-type]
        waiting = asyncio.create_task(reports.durable(reports.make(EVERYTHING, at(10), frozenset(), Obeyed())))
        await asyncio.sleep(0)
        reports.give_up()
        for late in (waiting, reports.durable(reports.make(EVERYTHING, at(20), frozenset(), Obeyed()))):
            with pytest.raises(SupersededError, match="the owner has stopped"):
                await late

    asyncio.run(story())
