"""Clusters that the contract of ``api.operations`` is tried on: of at least two captures, with tables
``shop.orders`` and ``shop.items``, and ``shop.log``, which has no key."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemill.api.operations import Operations
from tidemill.model.schedule import CaptureId
from tidemill.model.ts import Ts
from tidemill.testing.operations import FakeCluster

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0


@dataclass
class Cluster:
    """``run`` waits for what a coroutine gives, on the loop on which the captures are at home."""

    operations: list[Operations]  # of each capture
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    collect: Callable[[Ts], None]  # the upstream's garbage up to there

    @property
    def owner(self) -> Operations:
        return next(each for each in self.operations if self.run(each.server.status()).is_owner)

    @property
    def other(self) -> Operations:
        return next(each for each in self.operations if not self.run(each.server.status()).is_owner)

    def id_of(self, operations: Operations) -> CaptureId:
        found: CaptureId = self.run(operations.server.status()).id
        return found

    def wait_for(self, what: Callable[[], Coroutine[Any, Any, T]], is_right: Callable[[T], bool]) -> T:
        """What is asked for until it is so."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            found: T = self.run(what())
            if is_right(found):
                return found
            assert time.monotonic() < deadline, f"still {found}"
            time.sleep(0.02)


def fake() -> Cluster:
    cluster = FakeCluster(captures=2)
    for name in ("orders", "items"):
        cluster.add_table("shop", name)
    cluster.add_table("shop", "log", has_key=False)

    def collect(ts: Ts) -> None:
        cluster.safepoint_ts = ts

    return Cluster([cluster.operations(0), cluster.operations(1)], asyncio.run, collect)
