"""What the processors of one changefeed work with on a capture, under one owner after the other: PD, the schema as it
changes, the sink's options, Spark. It is opened when the first table comes, and closed with the changefeed."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

from tidemill.capture.batches import Totals
from tidemill.capture.cluster.guarding import Check, guarded
from tidemill.capture.downstream import Downstream
from tidemill.capture.engines import Engines
from tidemill.capture.etcd.home import EtcdHome
from tidemill.capture.lanes import LaneBuilder
from tidemill.capture.link import OwnerLink
from tidemill.capture.metadata import ChangefeedState
from tidemill.capture.opening import open_parts, schema_of_keys
from tidemill.capture.options import RunOptions
from tidemill.capture.schema_feed import SchemaFeed, StillFeed
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import InvariantError
from tidemill.flow.schema import SchemaStore
from tidemill.flow.schema.loader import load_schema, recovered_reader
from tidemill.model.ts import Ts
from tidemill.private import make_private
from tidemill.sinks import Traits
from tidemill.source.port import TABLES, Source
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

_LOOK_SECONDS = 0.2

MakeEngines = Callable[[RunOptions, str, Traits, Path], Engines]


class Workplace:
    """Runs on the capture's loop. ``close`` it in any case."""

    def __init__(
        self, options: RunOptions, home: EtcdHome, spark_log: Path, make_engines: MakeEngines = Engines
    ) -> None:
        """Raises a UsageError for a sink or a config that cannot be. ``make_engines``: others than Spark's, as tests
        bring them."""
        self.options, self._home = options, home
        downstream = Downstream.of(options)
        self._downstream = downstream
        self._pd = PdClient(options.pd, security=options.security or options.config.security)
        self._engines = make_engines(options, downstream.place, downstream.traits, spark_log)
        self._is_closing = threading.Event()
        self._source: Source = TABLES
        self._feed: SchemaFeed | None = None
        self._state: ChangefeedState | None = None
        self._following: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self.totals = Totals()

    @property
    def failure(self) -> BaseException | None:
        task = self._following
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    @property
    def ddl_ts(self) -> Ts:
        """Up to here all DDLs had run when the schema was read: what it was before is not known."""
        return self._state.ddl_ts if self._state is not None else Ts(0)

    def forget(self, ts: Ts) -> None:
        """Nobody needs the schema at or below it any more."""
        if self._feed is not None:
            self._feed.forget(Ts(min(ts, self._feed.resolved_ts)))

    async def builder(self, link: OwnerLink, check: Check) -> LaneBuilder:
        """For the lanes of one processor. ``check``: whether it may still write, for sinks that have no fence."""
        async with self._opening:
            if self._feed is None:
                await self._open()
        feed, state = self._feed, self._state
        if feed is None or state is None:
            raise InvariantError("a workplace without a schema. Report it.")
        options, config = self.options, self.options.config
        sink = self._downstream.sink.named(state.changefeed_id, self._pd.cluster_id)
        zone, traits = ZoneInfo(self._downstream.zone), self._downstream.traits
        open_writer = guarded(partial(sink.open_writer, zone=zone), traits, check)
        disk = config.disk_quota or shutil.disk_usage(options.data_dir).free // 2
        return LaneBuilder(
            self._pd, feed, link, open_writer, traits, config, options.data_dir, config.memory_quota,
            disk, self._engines.shelf,
            self._engines.admission, self._downstream.pipeline, self.totals, self._engines.open,
            source=self._source,
        )  # fmt: skip

    async def _open(self) -> None:
        for folder in (self.options.data_dir, self.options.data_dir / "scratch", self.options.data_dir / "segments"):
            make_private(folder)
        await self._pd.connect()
        self._state = state = await self._load_state()
        keys = self.options.keys
        if keys is None:
            schema = await self._load_schema(state)
        else:
            parts = await open_parts(self._pd, keys, state)
            self._source, schema = parts, schema_of_keys(parts, state)
        security = self.options.security or self.options.config.security
        schema.read_recovered_with(recovered_reader(lambda: PdClient(self.options.pd, security=security)))
        await asyncio.to_thread(self._engines.start, self._is_closing.is_set)
        self._feed = (SchemaFeed if keys is None else StillFeed)(self._pd, schema, state.schema_ts)
        self._following = asyncio.create_task(self._feed.run())

    async def _load_schema(self, state: ChangefeedState) -> SchemaStore:
        reader = SnapshotReader(self._pd, RegionCache(self._pd))
        versions = {int(table): Ts(ts) for table, ts in state.table_versions.items()}
        try:
            return await load_schema(reader, state.schema_ts, state.start_ts, versions)
        finally:
            await reader.close()

    async def _load_state(self) -> ChangefeedState:
        """What the owner has saved: it has, before it tells anybody to work."""
        while True:
            state = await asyncio.to_thread(self._home.load)
            if state is not None:
                return state
            await SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        self._is_closing.set()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._pd.close()
        await asyncio.to_thread(self._engines.close)
