"""The stages of one micro-batch, fused: everything a unit of work needs, in one executor task.

    slices ─► sort ─► mount ─► filter ─► split ─► select columns ─► encode ─► write ─► receipt
    parts of a scan ──► mount ──┘

A ``Unit`` is the changes of one table or table partition in ``(from, to]`` under one schema, or rows of it as of
one ts; it is small and picklable, and it names the segment slices to map, or the key ranges to scan, rather than
carrying rows. Only receipts go back. Rows go through in batches of bounded size, large transactions too.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import RowUndecodableError
from tidemill.flow.deadletter import mount_or_set_aside
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.filter import ColumnSelector, RowFilter
from tidemill.flow.filter.rows import without
from tidemill.flow.mounter import fitting, mount
from tidemill.flow.sorter import BATCH_ROWS, LargeTransaction, SpanSlices, Supply, read_portions
from tidemill.model.change import RAW_CHANGE_SCHEMA
from tidemill.model.changefeed import ChangefeedConfig, OnUndecodable
from tidemill.model.receipt import Receipt, Undecodable
from tidemill.model.row import LargeRows, RowBatch, RowOp
from tidemill.model.table import TableInfo
from tidemill.tidb.keys import table_prefix

Part = tuple[TableInfo, int, SpanSlices]  # of one physical id


class Rows(Protocol):
    """Rows that are not in any segment: a part of a table as of one ts. Small and picklable."""

    def read(self, aside: list[Undecodable] | None = None) -> Iterator[RowBatch]:
        """Runs on executors. What cannot be decoded goes into ``aside``, or is raised where there is none."""


class Target(Protocol):
    """Where the rows of one unit go: a sink's own. Small and picklable, since it travels to the executor."""

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors: make all rows durable and say what was written."""

    def share(self, number: int) -> "Target":
        """Where the ``number``-th of several units goes that share a table."""


@dataclass(frozen=True, slots=True)
class Unit:
    table: TableInfo
    physical_id: int
    slices: SpanSlices | None  # None: the rows are those of ``parts``
    target: Target
    is_mixed: bool = False  # rows of other physical ids are among them, and count as rows of this one
    parts: tuple[Rows, ...] = ()  # of an initial copy
    shares: int = 1  # so many units have this table's changes, each those of a range of keys

    @property
    def weight(self) -> int:
        """To share units among tasks by."""
        if self.slices is None:
            return len(self.parts)
        return self.slices.bytes // self.shares


def make_units(
    parts: Iterable[Part], target: Callable[[TableInfo, int], Target], *, joins_partitions: bool = False
) -> list[Unit]:
    """Units that share nothing downstream, so that each can be written by itself.

    A table that is just being partitioned has several physical ids while downstream it is still one: those
    become one unit, in one commit order. With ``joins_partitions`` so do the table partitions of any table.
    """
    found: dict[tuple[int, int], Part] = {}
    mixed = set()
    for table, physical_id, slices in parts:
        place = (table.id, physical_id if table.is_partitioned and not joins_partitions else table.id)
        if place in found:
            mixed.add(place)
            _, physical_id, first = found[place]
            slices = first.joined(slices)
        found[place] = table, physical_id, slices
    return [
        Unit(table, physical_id, slices, target(table, physical_id), place in mixed)
        for place, (table, physical_id, slices) in found.items()
    ]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs on executors. Holds settings only; every file and connection is opened in the call."""

    zone: str
    config: ChangefeedConfig = field(default_factory=ChangefeedConfig)
    splits_updates: bool = False  # an update that changes a key goes out as a delete and an insert
    splits_large: bool = False  # at least those of transactions that are too large to be held
    batch_rows: int = BATCH_ROWS  # that go through the stages at once; a transaction of several times that is cut
    supply: Supply | None = None  # for executors that do not see the segments' files

    def process(self, unit: Unit) -> Receipt:
        """Make one unit durable downstream and say what was written. Running it again writes the same, but for
        the time of writing in messages that have one."""
        seen, began = _Seen(), SYSTEM_CLOCK.monotonic()
        receipt = unit.target.write(self._rows(unit, seen))
        seconds = SYSTEM_CLOCK.monotonic() - began
        return replace(receipt, seconds=seconds, first_ts=seen.first_ts, aside=tuple(dict.fromkeys(seen.aside)))

    def _rows(self, unit: Unit, seen: "_Seen") -> Iterator[RowBatch | LargeRows]:
        """Those that go out. What cannot be decoded is put aside, where the changefeed wants that."""
        finish = _Finish(RowFilter(self.config), ColumnSelector(self.config), self.splits_updates)
        finish_large = replace(finish, splits=self.splits_updates or self.splits_large)
        if unit.slices is None:
            sets_aside = self.config.on_undecodable is OnUndecodable.QUARANTINE
            for part in unit.parts:
                for rows in part.read(seen.aside if sets_aside else None):
                    seen.note(rows)
                    yield finish(rows)
            return
        for portion in read_portions(unit.slices, self.batch_rows, supply=self.supply):
            if isinstance(portion, LargeTransaction):
                seen.first_ts = seen.first_ts or portion.commit_ts
                yield LargeRows(partial(self._large_rows, unit, portion, finish_large, seen))
            else:
                for changes in fitting(unit.table, portion):
                    rows = self._mounted(unit, changes, seen)
                    seen.note(rows)
                    yield finish(rows)

    def _large_rows(
        self, unit: Unit, transaction: LargeTransaction, finish: "_Finish", seen: "_Seen"
    ) -> Iterator[RowBatch]:
        """The rows of a transaction too large to be held, in pieces.

        Where rows of it may take each other's place, all deletes go first, then updates, then inserts, as they do
        within a batch. Nothing can be put in order that is not held, so it is read once for each.
        """
        deletes, updates, inserts = transaction.kinds()
        if not (finish.splits or unit.is_mixed) or not (updates or (deletes and inserts)):
            yield from (finish(self._mounted(unit, changes, seen)) for changes in _pieces(unit, transaction))
            return
        is_split = finish.splits and updates  # as far as is known
        for op, is_there in ((RowOp.DELETE, deletes), (RowOp.UPDATE, updates), (RowOp.INSERT, inserts)):
            found_split = False
            for changes in _pieces(unit, transaction) if is_there or is_split else ():
                changes = _that_may_become(op, changes, with_updates=is_split)
                if not len(changes):
                    continue
                rows = finish(self._mounted(unit, changes, seen))
                found_split |= op is RowOp.DELETE and bool((rows.op == RowOp.INSERT).any())
                if (rows.op == op).any():
                    yield without(rows, rows.op != op)
            if op is RowOp.DELETE:
                is_split = found_split

    def _mounted(self, unit: Unit, changes: pa.RecordBatch, seen: "_Seen") -> RowBatch:
        verify = self.config.verifies_checksums
        if unit.is_mixed:
            changes = as_rows_of(unit.physical_id, changes)
        if self.config.on_undecodable is OnUndecodable.STOP:
            return mount_in_order(unit.table, unit.physical_id, changes, self.zone, verify=verify)
        rows, bad = mount_or_set_aside(unit.table, unit.physical_id, changes, self.zone, verify=verify)
        seen.aside.extend(bad)
        return rows


@dataclass(frozen=True, slots=True)
class _Finish:
    """What is done to rows once they are decoded."""

    row_filter: RowFilter
    selector: ColumnSelector
    splits: bool

    def __call__(self, rows: RowBatch) -> RowBatch:
        rows = self.row_filter.apply(rows)
        return self.selector.apply(split_key_updates(rows) if self.splits else rows)


def _pieces(unit: Unit, transaction: LargeTransaction) -> Iterator[pa.RecordBatch]:
    for changes in transaction.read():
        yield from fitting(unit.table, changes)


def _that_may_become(op: RowOp, changes: pa.RecordBatch, *, with_updates: bool) -> pa.RecordBatch:
    """The changes that are of a kind, or, with updates, may have a half of that kind."""
    has_new, has_old = (np.diff(_offsets(changes.column(name))) > 0 for name in ("value", "old_value"))
    if op is RowOp.UPDATE:
        wanted = has_new & has_old
    else:
        wanted = ~has_new if op is RowOp.DELETE else ~has_old
        if with_updates:
            wanted |= has_new & has_old
    return changes if wanted.all() else changes.filter(pa.array(wanted))


@dataclass(slots=True)
class _Seen:
    """What is noticed on the way."""

    first_ts: int = 0
    aside: list[Undecodable] = field(default_factory=list)  # some of a large transaction twice

    def note(self, rows: RowBatch) -> None:
        if len(rows) and not self.first_ts:
            self.first_ts = int(rows.commit_ts[0])


def mount_in_order(
    table: TableInfo, physical_id: int, changes: pa.RecordBatch, zone: str, *, verify: bool = False
) -> RowBatch:
    """As ``mount``, but a row that cannot be decoded is the first such one in commit order, named with its commit-ts.

    ``mount`` works column by column and stops at whichever bad row it meets first.
    """
    try:
        return mount(table, physical_id, changes, zone, verify=verify)
    except RowUndecodableError as error:
        found = error
    good, bad = 0, len(changes)  # so many rows from the start can be decoded, so many cannot
    while bad - good > 1:
        half = (good + bad) // 2
        try:
            mount(table, physical_id, changes.slice(0, half), zone, verify=verify)
            good = half
        except RowUndecodableError as error:
            found, bad = error, half
    commit_ts = changes.column("commit_ts")[bad - 1].as_py()
    raise RowUndecodableError(found.table, found.key, found.column, found.reason, commit_ts)


def as_rows_of(physical_id: int, changes: pa.RecordBatch) -> pa.RecordBatch:
    """The same changes with keys that name ``physical_id``, whichever table partition they are from.

    A row that moves from one table partition to another is a delete and an insert, and may keep its key. So
    within a transaction deletes come first, then updates, then inserts.
    """
    keys = changes.column("key")
    offsets = _offsets(keys)
    data = np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
    offsets = offsets - offsets[0]
    prefix = np.frombuffer(table_prefix(physical_id), np.uint8)
    data[offsets[:-1, None] + np.arange(len(prefix))] = prefix
    renamed = pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    columns = [renamed if name == "key" else changes.column(name) for name in RAW_CHANGE_SCHEMA.names]
    has_new, has_old = (np.diff(_offsets(changes.column(name))) > 0 for name in ("value", "old_value"))
    rank = np.where(has_new, np.where(has_old, 1, 2), 0)
    order = np.lexsort((rank, *(changes.column(name).to_numpy() for name in ("start_ts", "commit_ts"))))
    return pa.RecordBatch.from_arrays(columns, schema=RAW_CHANGE_SCHEMA).take(pa.array(order))


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
