"""Ten thousand tables over three captures: they start, are balanced, survive a loss, and their checkpoint advances."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.schema import write_history
from tests.capture.test_cluster import Story, create
from tests.e2e.processes import Command
from tests.etcd import running
from tidemill.capture.etcd.keys import Keys
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.schedule import CaptureId
from tidemill.model.ts import compose
from tidemill.upstream.pd import PdClient

TABLES = 10_000
PATIENCE_SECONDS = 300.0


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[str]:
    history = write_history(TABLES, tmp_path)
    with Command(tmp_path / "up", "upstream", is_serving=True, pd_port=0, load=history) as upstream:
        yield upstream.ready()["pd"]


def spread(story: Story) -> dict[CaptureId, int]:
    return dict(sorted(story.holders().items()))


def is_even(story: Story, captures: int) -> bool:
    found = spread(story)
    return len(found) == captures and sum(found.values()) == TABLES and max(found.values()) - min(found.values()) <= 2


async def until(story: Story, holds: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            story.look()
            await SYSTEM_CLOCK.sleep(0.5)
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)


async def play(pd: str, story: Story) -> None:
    async with PdClient(pd) as client:
        start_ts, cluster_id = await client.get_ts(), client.cluster_id

    async def advances() -> None:
        """Past what is the present now."""
        now_ts = compose(int(time.time() * 1000))
        await until(story, lambda: story.feed is not None and story.feed.checkpoint_ts > now_ts, "it is up to date")

    for _ in range(3):
        await story.start()
    create(story, "blackhole://", start_ts, {}, cluster_id)
    await until(story, lambda: story.feed is not None and len(story.feed.tables) == TABLES, "the owner knows all")
    await until(story, lambda: is_even(story, 3), "balanced over three captures")
    await advances()
    await story.kill(next(name for name, each in story.captures.items() if not each.is_owner))
    await until(story, lambda: is_even(story, 2), "a capture was killed, and two have all tables")
    await advances()
    await story.start()
    await until(story, lambda: is_even(story, 3), "another one has come, and has its share")
    await advances()
    assert story.checkpoints == sorted(story.checkpoints)


@pytest.mark.soak
def test_ten_thousand_tables_are_balanced_over_three_captures(pd: str, tmp_path: Path) -> None:
    async def run() -> None:
        upstream: Any = type("Upstream", (), {"pd_address": pd})
        story = Story(upstream, etcd, tmp_path, Keys("many"), random.Random(1))
        try:
            await play(pd, story)
        finally:
            await story.close()

    with running(tmp_path / "etcd") as etcd:
        asyncio.run(run())
