"""What has to be there before a changefeed can begin: its state, the upstream's past, the schema, the sink's place."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from tidemill.capture.batches import wait_out
from tidemill.capture.metadata import ChangefeedState, Home
from tidemill.capture.options import RunOptions
from tidemill.capture.schema_feed import SchemaFeed, StillFeed
from tidemill.errors import SinkError, UsageError
from tidemill.flow.deadletter import forget_after
from tidemill.flow.filter import ColumnSelector, RowFilter, TableFilter
from tidemill.flow.schema import SchemaStore, store_of_tables
from tidemill.flow.schema.loader import load_schema, recovered_reader
from tidemill.log import get_logger
from tidemill.model.keys import KeyRange
from tidemill.model.security import Security
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, show
from tidemill.sinks import OwnerSink, Rescan, SinkOptions, differences
from tidemill.source.keyrange import KeySource, open_keys
from tidemill.source.port import TABLES, Source
from tidemill.upstream.gc import GcHold
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

log = get_logger("changefeed")

_STARTING_TTL_SECONDS = 600  # of a changefeed that nothing is written down of: nobody would come back for its hold


@dataclass(frozen=True, slots=True)
class Opened:
    state: ChangefeedState
    feed: SchemaFeed
    sink: OwnerSink
    source: Source
    sink_options: SinkOptions  # with the names by which the downstream knows the changefeed
    written_ts: Ts | None  # up to here an earlier run may have written changes
    target_ts: Ts | None  # where it ends


class Opening:
    """On the loop. ``is_begun``: something is written down that a later run would resume."""

    def __init__(
        self,
        options: RunOptions,
        home: Home,
        sink_options: SinkOptions,
        place: str,
        zone: str,
        security: Security,
        rescan: Rescan,
        opened: Callable[[OwnerSink], None],
    ) -> None:
        """``place``: the sink's, as the state names it. ``opened`` is told of the sink as soon as it is there: whoever
        gives up in between has to close it."""
        self._options, self._home, self._sink_options = options, home, sink_options
        self._place, self._zone, self._security = place, zone, security
        self._rescan, self._opened = rescan, opened
        self.is_begun = False
        self.doing = "connecting to PD"
        self.hold: GcHold | None = None
        self.holding: asyncio.Task[None] | None = None  # renews it

    async def run(self, pd: PdClient) -> Opened:
        """Raises a TidemillError that says what is wrong."""
        state = await self._resume(pd)
        target_ts = _end_of(state.start_ts if self._options.ends_at_start else self._options.target_ts, state)
        keys = self._options.keys
        parts = await open_parts(pd, keys, state) if keys is not None else None
        if parts is not None:
            state = replace(state, key_parts=[[start.hex(), end.hex()] for start, end in parts.parts])
        self.doing = "reading the schema"
        hold = await self._hold_gc(pd, state)
        schema = await _load_schema(pd, state) if parts is None else schema_of_keys(parts, state)
        captured = self._check_tables(schema, state)
        # The sink's own checkpoint is published after ours is saved, so it is never above it, unless it is another's.
        target = self._sink_options.named(state.changefeed_id, pd.cluster_id)
        was_begun = self.is_begun
        self.doing = "opening the sink"

        async def opened() -> tuple[OwnerSink, dict[str, Any] | None]:
            # Beside the loop: a bucket or a catalog that does not answer is waited for within the call.
            return await asyncio.to_thread(self._open_sink, target, state, captured)

        # A new changefeed whose sink does not answer is rather told so: the URI may be wrong.
        sink, sink_state = await (wait_out(opened, say_that_the_sink_is_away) if self.is_begun else opened())
        # From here on nobody else writes. While the sink was away, or somebody had still to be fenced, they may have.
        written_ts = await pd.get_ts() if was_begun else None
        forget_after(self._home.undecodable, state.at)
        if sink_state is not None:
            state = replace(state, sink_state=sink_state)
        self._home.save(state)
        self.is_begun = True
        hold.ttl_seconds = self._options.gc_ttl_seconds
        await hold.hold(state.checkpoint_ts)
        schema.read_recovered_with(recovered_reader(lambda: PdClient(self._options.pd, security=self._security)))
        feed = (SchemaFeed if keys is None else StillFeed)(pd, schema, state.schema_ts)
        self.doing = ""
        return Opened(state, feed, sink, parts or TABLES, target, written_ts, target_ts)

    def _open_sink(
        self, target: SinkOptions, state: ChangefeedState, captured: Sequence[TableInfo]
    ) -> tuple[OwnerSink, dict[str, Any] | None]:
        """What an earlier run of it still does has no effect when this returns."""
        sink = target.open_owner(
            state.sink_state,
            start_ts=state.checkpoint_ts,
            zone=ZoneInfo(self._zone),
            rescan=self._rescan,
            is_resumed=self.is_begun,
        )
        self._opened(sink)
        sink.begin()
        sink_state = sink.know(captured)
        sink.fence()
        return sink, sink_state

    async def _resume(self, pd: PdClient) -> ChangefeedState:
        """What an earlier run has written down, or a new changefeed that nothing is written down of yet."""
        state, options = self._home.load(), self._options
        if state is None:
            return await self._new_state(pd)
        remedy = f"Use another --data-dir for this one, or give what {self._home.path} was started with."
        if state.cluster_id != pd.cluster_id:
            raise UsageError(f"data-dir belongs to cluster {state.cluster_id}, PD says {pd.cluster_id}. {remedy}")
        if state.name != options.name:
            raise UsageError(f"data-dir belongs to changefeed {state.name!r}, not {options.name!r}. {remedy}")
        differing = differences(state.sink, self._place)
        if differing:
            raise UsageError(
                f"data-dir belongs to a changefeed into {state.sink}, not {self._place} ({differing}). {remedy}"
            )
        if options.start_ts not in (None, state.start_ts):
            raise UsageError(
                f"data-dir belongs to a changefeed from start-ts {state.start_ts}, not {options.start_ts}. {remedy}"
            )
        keys = options.keys.name if options.keys is not None else ""
        if state.keys != keys:
            raise UsageError(
                f"data-dir belongs to a changefeed of {state.keys or 'tables'}, not of {keys or 'tables'}. {remedy}"
            )
        self.is_begun = True
        log.info("resuming", checkpoint_ts=state.checkpoint_ts, rows=state.rows)
        return replace(
            state,
            sink=self._place,
            changefeed_id=state.changefeed_id or self._home.former_name,
            term=state.term + 1,
        )

    async def _new_state(self, pd: PdClient) -> ChangefeedState:
        now_ts = await pd.get_ts()
        start_ts = self._options.start_ts
        if start_ts is None:
            start_ts = now_ts if self._options.keys is None else self._options.keys.before(now_ts)
        if start_ts > now_ts:
            raise UsageError(
                f"start-ts {show(start_ts)} lies in the future: the upstream is at {show(now_ts)}. "
                "Leave --start-ts out to start now, or choose an earlier one."
            )
        return ChangefeedState(
            pd.cluster_id,
            self._place,
            start_ts=start_ts,
            checkpoint_ts=start_ts,
            ddl_ts=start_ts,
            rows=0,
            table_versions={},
            sink_state=None,
            copied={} if self._options.initial_copy else None,
            changefeed_id=self._home.changefeed_id(),
            name=self._options.name,
            keys=self._options.keys.name if self._options.keys is not None else "",
        )

    async def _hold_gc(self, pd: PdClient, state: ChangefeedState) -> GcHold:
        """Keep the upstream from collecting what we still need, from here to the end; refuse what it has collected
        already. What is claimed is what a crash would go back to: the checkpoint that was saved."""
        ttl = self._options.gc_ttl_seconds
        hold = self.hold = GcHold(pd, state.changefeed_id, ttl if self.is_begun else min(ttl, _STARTING_TTL_SECONDS))
        await hold.hold(state.checkpoint_ts)

        def needed() -> Ts:
            return (self._home.saved or state).checkpoint_ts

        self.holding = asyncio.create_task(hold.keep(needed))
        return hold

    def _check_tables(self, schema: SchemaStore, state: ChangefeedState) -> list[TableInfo]:
        """Refuse at the start what a filter says that cannot be done. Gives the tables as they go out."""
        config = self._options.config
        tables, wanted = schema.tables(), TableFilter(config)
        if state.checkpoint_ts == state.start_ts:
            wanted.check_eligible(tables)  # one that came later is left out, and must not keep us from going on
        row_filter, selector = RowFilter(config), ColumnSelector(config)
        captured = [table for table in tables if wanted.captures(table)]
        for table in captured:
            row_filter.check(table)
        return [selector.table(table) for table in captured]


def say_that_the_sink_is_away(error: SinkError) -> None:
    log.warning("the sink is away; waiting for it before the changefeed can start", reason=str(error))


async def open_parts(pd: PdClient, keys: KeyRange, state: ChangefeedState) -> KeySource:
    """The parts of a changefeed: those that its state names, or, of a new one, along the regions as they are now."""
    source = await open_keys(pd, keys)
    if state.key_parts is not None:
        parts = tuple((bytes.fromhex(start), bytes.fromhex(end)) for start, end in state.key_parts)
        return replace(source, parts=parts)
    is_new = state.at.lowest_ts == state.start_ts and not state.rows
    return await source.divided(pd) if is_new else source


def schema_of_keys(source: KeySource, state: ChangefeedState) -> SchemaStore:
    return store_of_tables(source.tables(state.start_ts), state.schema_ts)


async def _load_schema(pd: PdClient, state: ChangefeedState) -> SchemaStore:
    versions = {int(table): Ts(ts) for table, ts in state.table_versions.items()}
    reader = SnapshotReader(pd, RegionCache(pd))
    try:
        return await load_schema(reader, state.schema_ts, state.start_ts, versions)
    finally:
        await reader.close()


def _end_of(target_ts: Ts | None, state: ChangefeedState) -> Ts | None:
    """Where the changefeed ends: most tables may have passed its target already, and then the others follow them."""
    if target_ts is None or target_ts >= state.at.base_ts:
        return target_ts
    if target_ts < state.checkpoint_ts:
        raise UsageError(
            f"target-ts {show(target_ts)} lies before {show(state.checkpoint_ts)}, where this changefeed stands. "
            "Choose a later --target-ts."
        )
    log.info("most tables have passed the target: the others follow", target_ts=target_ts, ends_at=state.at.base_ts)
    return state.at.base_ts
