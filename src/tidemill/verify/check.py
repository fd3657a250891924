"""The check of a downstream against the upstream: what is read, in which order, and what counts as a difference.

    checksums of every chunk, both sides ─► numbers of the rows in those that differ ─► the rows that differ
                                                                                           │ a live MySQL only
                                            read again at later checkpoints, until they settle ◄┘

Runs on the driver. ``run`` carries tasks to executors and brings back their results, in order; that is Spark, or in a
test a plain loop.

A live MySQL cannot be read as of a ts. Its rows are compared as they are with the upstream at the checkpoint, and those
that differ are looked at again: a row counts as different only if it differs when the upstream has the same row at a
checkpoint before it was read and at a ts after, in two such looks. A row that always changed in between is *unsettled*.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK
from tidemill.flow.filter import ColumnSelector
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.table import INTEGER_TYPES, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.retry import Patience
from tidemill.source.scan import HandleBounds, ReadHold, ScanClient, ScanPart
from tidemill.tidb.lexer import quoted
from tidemill.verify.catalog import claim
from tidemill.verify.excuses import Excuses
from tidemill.verify.forms import Comparison
from tidemill.verify.hashing import Hashes, Sums, row_hashes
from tidemill.verify.report import Report, RowKey, TableReport, differences, keyed
from tidemill.verify.sides import MysqlSide, Side, Survey
from tidemill.verify.sources import Source, UpstreamSource
from tidemill.verify.tasks import (
    NOTHING,
    HashTask,
    Outcome,
    RangeTask,
    RowTask,
    SumTask,
    judge,
    put_together,
)

Task = SumTask | HashTask | RowTask | RangeTask
Run = Callable[[Sequence[Task]], list[Any]]
Rows = Mapping[RowKey, dict[str, Any]]

_BUCKETS_A_PART = 256
_MOST_BUCKETS = 1 << 16
_MOST_HASHES = 1 << 20  # rows of differing buckets that are looked into
_MOST_LIVE_ROWS = 20_000  # that differ at first sight in a table that is written to; most of them are under way
_LOOKS = 2  # that must agree on a difference
_ROUNDS = 10
_POLL_SECONDS = 0.2


class Progress(Protocol):
    """How far the changefeed is that writes a live downstream."""

    def checkpoint_ts(self) -> Ts: ...

    def is_running(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class CheckOptions:
    pd: str
    zone: str = "UTC"  # of TIMESTAMP values
    most_rows: int = 100  # that differ, looked into and shown, a table
    tasks: int = 8  # a side of a table is cut into at most so many
    patience_seconds: float = 60.0  # for a checkpoint to move
    config: ChangefeedConfig = field(default_factory=ChangefeedConfig)  # which columns went out, and which rows


@dataclass(slots=True)
class _Table:
    table: TableInfo  # with the columns that the changefeed selects
    comparison: Comparison
    parts: list[ScanPart]
    report: TableReport
    excuses: Excuses | None
    outcome: Outcome = field(default_factory=Outcome)
    sums: tuple[Sums, Sums] | None = None  # of both sides, where it is read by hash

    @property
    def buckets(self) -> int:
        return min(_MOST_BUCKETS, _BUCKETS_A_PART * max(1, len(self.parts)))


class Check:
    def __init__(
        self, client: ScanClient, side: Side, run: Run, options: CheckOptions, progress: Progress | None = None
    ) -> None:
        """``progress``: of the changefeed that writes, where the side is live and the ts is its checkpoint."""
        self._client = client
        self._side = side
        self._run = run
        self._options = options
        self._progress = progress

    def check(self, tables: Sequence[TableInfo], ts: Ts) -> Report:
        """``tables`` as they are at ``ts``. Raises ``StartTsCollectedError`` where the upstream keeps too little."""
        began = SYSTEM_CLOCK.monotonic()
        hold = claim(self._client, ts)
        reports, checked = [], []
        selector = ColumnSelector(self._options.config)
        surveyed = self._side.survey(
            [Survey(selector.table(table), _left_out(table, selector)) for table in tables], ts
        )
        for table in tables:
            found = surveyed[table.id]
            report = TableReport(table.full_name, schema=list(found.problems))
            reports.append(report)
            if found.comparison is not None:
                excuses = Excuses(self._options.config, table)
                selected = selector.table(table)
                read = table if excuses.is_needed else selected
                parts = self._client.plan_scan(read, ts, zone=self._options.zone, hold=hold)
                one = _Table(selected, found.comparison, parts, report, excuses if excuses.is_needed else None)
                checked.append(one)
        self._compare(checked, ts)
        for one in checked:
            self._judge(one, ts)
        return Report(ts, reports, SYSTEM_CLOCK.monotonic() - began)

    # Checksums, then what differs

    def _compare(self, tables: Sequence[_Table], ts: Ts) -> None:
        work: list[tuple[_Table, str, Task]] = []
        for one in tables:
            if self._is_ranged(one):
                work += [(one, "range", task) for task in self._range_tasks(one)]
            else:
                work += [(one, "up", SumTask(s, one.buckets)) for s in self._grouped(self._upstream(one))]
                down = self._side.sources(one.comparison, ts)
                work += [(one, "down", SumTask(s, one.buckets)) for s in self._grouped(down)]
        for (one, kind, _), result in zip(work, self._run([task for _, _, task in work]), strict=True):
            if kind == "range":
                one.outcome.merge(result)
                continue
            if one.sums is None:
                one.sums = Sums.empty(one.buckets), Sums.empty(one.buckets)
            one.sums[kind == "down"].merge(result)
        for one in tables:
            if one.sums is not None:
                self._descend(one, *one.sums, ts)

    def _descend(self, one: _Table, up: Sums, down: Sums, ts: Ts) -> None:
        used = int(np.count_nonzero((up.counts > 0) | (down.counts > 0)))
        differing = up.differing(down)
        one.outcome = Outcome(up.rows, down.rows, used, len(differing))
        if not len(differing):
            return
        reach = np.cumsum(up.counts[differing] + down.counts[differing])
        wanted = differing[: max(1, int(np.searchsorted(reach, _MOST_HASHES, "right")))]
        one.report.is_partial = len(wanted) < len(differing)
        sides = (self._upstream(one), self._side.sources(one.comparison, ts))
        groups = [(n, group) for n, sources in enumerate(sides) for group in self._grouped(sources)]
        found = self._run([HashTask(group, one.buckets, wanted, one.excuses) for _, group in groups])
        hashes: tuple[list[Any], list[Any]] = ([NOTHING], [NOTHING])
        for (n, _), result in zip(groups, found, strict=True):
            hashes[n].append(result)
        ours, theirs = map(put_together, hashes)
        verdicts, one.report.filtered = judge(ours[:2], theirs[:2]).without_explained(ours, theirs)
        one.outcome.missing, one.outcome.extra = len(verdicts.missing), len(verdicts.extra)
        one.outcome.changed = len(verdicts.changed)
        keys = verdicts.first(self._most_rows)
        rows = self._run([RowTask(group, keys) for _, group in groups])
        for (n, _), result in zip(groups, rows, strict=True):
            (one.outcome.down if n else one.outcome.up).append(result)

    def _judge(self, one: _Table, ts: Ts) -> None:
        outcome, report = one.outcome, one.report
        report.upstream_rows, report.downstream_rows = outcome.upstream_rows, outcome.downstream_rows
        report.chunks, report.differing_chunks = outcome.chunks, outcome.differing_chunks
        up, down = keyed(one.comparison, outcome.up), keyed(one.comparison, outcome.down)
        found = differences(one.comparison, up, down, with_sql=self._side.has_sql)
        # JSON that is only spelled differently has counted as changed so far.
        alike = len({*up, *down}) - len(found)
        report.missing, report.extra, report.changed = outcome.missing, outcome.extra, outcome.changed - alike
        report.differences = found[: self._options.most_rows]
        # A changefeed at rest has left the downstream as of its checkpoint: there is nothing to wait for.
        if found and self._progress is not None and self._side.is_live and self._progress.is_running():
            self._settle(one, up, down, ts)
            report.unsettled += max(0, outcome.differing - len(found) - alike)  # not looked at again

    # A live downstream

    def _settle(self, one: _Table, up: Rows, down: Rows, ts: Ts) -> None:
        """Look again at rows that differ, until each has turned out equal, or different for good."""
        open_keys = {*up, *down}
        looks = dict.fromkeys(open_keys, 0)
        for _ in range(_ROUNDS):
            if not open_keys or all(looks[key] >= _LOOKS for key in open_keys):
                break
            ts = self._next_checkpoint(ts)
            down = self._downstream_rows(one, open_keys)
            later_ts = self._client.now()
            up, later = (self._upstream_rows(one, open_keys, at) for at in (ts, later_ts))
            for key in tuple(open_keys):
                theirs = down.get(key)
                if _same(one, up.get(key), theirs) or _same(one, later.get(key), theirs):
                    open_keys.discard(key)
                elif up.get(key) == later.get(key):
                    looks[key] += 1
        settled = {key for key in open_keys if looks[key] >= _LOOKS}
        found = differences(
            one.comparison,
            {k: v for k, v in up.items() if k in settled},
            {k: v for k, v in down.items() if k in settled},
            with_sql=self._side.has_sql,
        )
        report = one.report
        report.differences, report.unsettled = found[: self._options.most_rows], len(open_keys) - len(settled)
        kinds = [difference.kind.value for difference in found]
        report.missing, report.extra, report.changed = (kinds.count(k) for k in ("missing", "extra", "changed"))

    def _next_checkpoint(self, ts: Ts) -> Ts:
        """A later one than ``ts``; the same one if nobody moves it, or not in time."""
        assert self._progress is not None
        for _ in Patience(self._options.patience_seconds).tries(_POLL_SECONDS, _POLL_SECONDS):
            found = self._progress.checkpoint_ts()
            if found > ts:
                return found
            if not self._progress.is_running():
                return ts
        return ts

    def _upstream_rows(self, one: _Table, keys: Iterable[RowKey], ts: Ts) -> Rows:
        bounds, _ = self._bounds(one, keys)
        parts = self._client.plan_scan(one.table, ts, bounds=bounds, zone=self._options.zone, hold=ReadHold.new(ts))
        sources: list[Source] = [UpstreamSource(part, one.comparison) for part in parts]
        return self._rows(one, sources, keys)

    def _downstream_rows(self, one: _Table, keys: Iterable[RowKey]) -> Rows:
        assert isinstance(self._side, MysqlSide)
        _, where = self._bounds(one, keys)
        return self._rows(one, self._side.sources(one.comparison, Ts(0), where), keys)

    def _rows(self, one: _Table, sources: list[Source], keys: Iterable[RowKey]) -> Rows:
        wanted = set(keys)
        hashes = _hashes_of(one.comparison, wanted)
        found = self._run([RowTask(group, hashes) for group in self._grouped(sources)])
        return {key: row for key, row in keyed(one.comparison, found).items() if key in wanted}

    def _bounds(self, one: _Table, keys: Iterable[RowKey]) -> tuple[HandleBounds, str]:
        """What confines the keys, for both sides, where the table is read by ranges."""
        if not self._is_ranged(one):
            return HandleBounds(), ""
        handles = sorted(key[0] for key in keys)
        where = f"{quoted(one.comparison.key_names[0])} IN ({','.join(map(str, handles))})"
        return HandleBounds().within(handles[0], handles[-1]), where

    # Sources and tasks

    def _is_ranged(self, one: _Table) -> bool:
        key = one.table.handle_key
        is_clustered = one.table.pk_is_handle and not one.table.is_partitioned and one.excuses is None
        return isinstance(self._side, MysqlSide) and is_clustered and len(key) == 1 and key[0].type in INTEGER_TYPES

    @property
    def _most_rows(self) -> int:
        """Of a table, that are brought to the driver because they differ."""
        is_settled_later = self._progress is not None and self._side.is_live
        return max(2 * self._options.most_rows, _MOST_LIVE_ROWS if is_settled_later else 0)

    def _range_tasks(self, one: _Table) -> list[RangeTask]:
        assert isinstance(self._side, MysqlSide)
        settings, snapshot_ts = self._side.downstream.settings, self._side.snapshot_ts
        return [RangeTask(part, one.comparison, settings, snapshot_ts, self._most_rows) for part in one.parts]

    def _upstream(self, one: _Table) -> list[Source]:
        return [UpstreamSource(part, one.comparison) for part in one.parts]

    def _grouped(self, sources: Sequence[Source]) -> list[tuple[Source, ...]]:
        count = min(len(sources), self._options.tasks)
        return [tuple(sources[first::count]) for first in range(count)]


def _same(one: _Table, ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    key = (0,)
    return not differences(one.comparison, {key: ours}, {key: theirs}, with_sql=False)


def _left_out(table: TableInfo, selector: ColumnSelector) -> frozenset[str]:
    """The names of columns that do not go out, in small letters."""
    kept = {column.name for column in selector.table(table).columns}
    return frozenset(column.name.lower() for column in table.columns if column.name not in kept)


def _hashes_of(comparison: Comparison, keys: Iterable[RowKey]) -> Hashes:
    held = list(keys)
    kinds = [comparison.schema.field(place).type for place in comparison.key_places]
    columns = [pa.array([key[n] for key in held], kind) for n, kind in enumerate(kinds)]
    return row_hashes(columns, len(held))
