"""A processor's own half of the sink. It may take its time, so it has a thread of its own, for one call at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tidemill.capture.batches import Admission, wait_out
from tidemill.capture.trouble import SinkTrouble
from tidemill.clock import Clock
from tidemill.control.retries import pause_seconds
from tidemill.errors import SinkError
from tidemill.flow.deadletter import forget_after, quarantine
from tidemill.flow.filter import ColumnSelector
from tidemill.flow.pipeline import Part, Unit, make_units
from tidemill.flow.skew import share_skewed
from tidemill.model.orders import Committed
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt, SinkWriter, Traits
from tidemill.source.port import TABLES, Source

T = TypeVar("T")
P = ParamSpec("P")


class Writing:
    """Runs on the processor's loop."""

    def __init__(
        self,
        writer: SinkWriter,
        undecodable: Path,
        selector: ColumnSelector,
        traits: Traits,
        admission: Admission,
        clock: Clock,
        source: Source = TABLES,
    ) -> None:
        """``undecodable``: the folder of rows that are put aside."""
        self._writer = writer
        self._undecodable = undecodable
        self._selector = selector
        self._traits = traits
        self._admission = admission
        self._clock = clock
        self._source = source
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self._attempts = 0  # to write a batch that the sink was away for, since the last that was committed
        self._is_closing = False
        self.away = SinkTrouble("writing", clock)

    async def recover(
        self,
        at: Checkpoints,
        ids: Collection[int],
        tables: Sequence[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """Begin a generation of the sink for the owner of ``term``, and take back what was written of ``tables`` above
        the checkpoints (None: of all). ``ids`` are theirs."""
        await self._in_thread(self._writer.recover, at, tables, state, written_ts, term)
        forget_after(self._undecodable, at, None if tables is None else ids)

    async def units(self, parts: Sequence[Part], extent: Extent) -> list[Unit]:
        """What a batch consists of, with targets of the sink's generation."""
        return await self._in_thread(self._make_units, parts, extent)

    def _make_units(self, parts: Sequence[Part], extent: Extent) -> list[Unit]:
        """In the thread: targets may take their time, and so may picking keys."""
        units = make_units(
            parts,
            lambda table, physical_id: self._writer.target(
                self._selector.table(table), physical_id, extent.of(physical_id)
            ),
            self._source.decoder,
            joins_partitions=self._traits.joins_partitions,
        )
        tasks = self._admission.tasks()
        allows = self._traits.sharing_among(tasks).allows
        return share_skewed(units, tasks, allows, self._admission.least_shared)

    @property
    def ends_never_earlier(self) -> bool:
        return self._traits.ends_never_earlier

    @property
    def trouble(self) -> str | None:
        """Why the sink is waited for; nothing is taken in beyond the bounds meanwhile. None: it is there."""
        return self.away.reason

    async def commit(self, extent: Extent, receipts: Sequence[Receipt]) -> Committed:
        """All of the batch is durable downstream. It counts once the owner has saved what this returns."""
        aside = [row for receipt in receipts for row in receipt.aside]
        if aside:
            await self._in_thread(quarantine, self._undecodable, lambda table: extent.of(table)[1], aside)
        said = await self._in_thread(self._writer.commit, extent.to_ts, receipts)
        self.away.clear()
        self._attempts = 0
        return Committed(sum(receipt.rows for receipt in receipts), said)

    async def pause(self, trouble: SinkError) -> None:
        """Before a batch that the sink could not take is begun again."""
        self.away.note(trouble)
        self._attempts += 1
        await self._clock.sleep(pause_seconds(self._attempts))

    async def wait_out(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it; while the sink is away, again and again."""
        await wait_out(work, self.away.note, lambda: self._is_closing, self._clock)

    def begin_to_close(self) -> None:
        """Nothing is waited for any more that may take long."""
        self._is_closing = True

    async def close(self) -> None:
        self._is_closing = True
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._thread.shutdown)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
