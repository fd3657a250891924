"""The stages of one micro-batch, fused: everything a unit of work needs, in one executor task.

    slices ─► sort ─► decode ─► filter ─► split ─► select columns ─► encode ─► write ─► receipt
    parts of a scan ──► mount ──┘

A ``Unit`` is the changes of one table or table partition in ``(from, to]``, with a decoder that has its schema, or
rows of it as of one ts; it is small and picklable, and it names the segment slices to map, or the key ranges to scan,
rather than carrying rows. Only receipts go back. Rows go through in batches of bounded size, large transactions too.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK
from tidemill.flow.decoder import Decoder, Reading, TableDecoder, has_images
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.filter import ColumnSelector, RowFilter
from tidemill.flow.filter.rows import without
from tidemill.flow.sorter import BATCH_ROWS, LargeTransaction, SpanSlices, Supply, read_portions
from tidemill.model.changefeed import ChangefeedConfig, OnUndecodable
from tidemill.model.receipt import Receipt, Undecodable
from tidemill.model.row import LargeRows, RowBatch, RowOp
from tidemill.model.table import TableInfo

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
    decoder: Decoder
    slices: SpanSlices | None  # None: the rows are those of ``parts``
    target: Target
    parts: tuple[Rows, ...] = ()  # of an initial copy
    shares: int = 1  # so many units have these slices, each a range of their keys

    @property
    def weight(self) -> int:
        """To share units among tasks by."""
        if self.slices is None:
            return len(self.parts)
        return self.slices.bytes // self.shares


def make_units(
    parts: Iterable[Part],
    target: Callable[[TableInfo, int], Target],
    decoder: Callable[[TableInfo, int, bool], Decoder] = TableDecoder,
    *,
    joins_partitions: bool = False,
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
        Unit(decoder(table, physical_id, place in mixed), slices, target(table, physical_id))
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
        aside = tuple(dict.fromkeys((*seen.aside, *receipt.aside)))
        return replace(receipt, seconds=seconds, first_ts=seen.first_ts, aside=aside)

    def _rows(self, unit: Unit, seen: "_Seen") -> Iterator[RowBatch | LargeRows]:
        """Those that go out. What cannot be decoded is put aside, where the changefeed wants that."""
        finish = _Finish(RowFilter(self.config), ColumnSelector(self.config), self.splits_updates)
        finish_large = replace(finish, splits=self.splits_updates or self.splits_large)
        if unit.slices is None:
            for part in unit.parts:
                for rows in part.read(seen.aside if self._reading.sets_aside else None):
                    seen.note(rows)
                    yield finish(rows)
            return
        for portion in read_portions(unit.slices, self.batch_rows, supply=self.supply):
            if isinstance(portion, LargeTransaction):
                seen.first_ts = seen.first_ts or portion.commit_ts
                yield LargeRows(partial(self._large_rows, unit.decoder, portion, finish_large, seen))
            else:
                for changes in unit.decoder.pieces(portion):
                    rows = unit.decoder.decode(changes, self._reading, seen.aside)
                    seen.note(rows)
                    yield finish(rows)

    def _large_rows(
        self, decoder: Decoder, transaction: LargeTransaction, finish: "_Finish", seen: "_Seen"
    ) -> Iterator[RowBatch]:
        """The rows of a transaction too large to be held, in pieces.

        Where rows of it may take each other's place, all deletes go first, then updates, then inserts, as they do
        within a batch. Nothing can be put in order that is not held, so it is read once for each.
        """
        deletes, updates, inserts = transaction.kinds()
        decode = partial(decoder.decode, reading=self._reading, aside=seen.aside)
        if not (finish.splits or decoder.is_mixed) or not (updates or (deletes and inserts)):
            yield from (finish(decode(changes)) for changes in _pieces(decoder, transaction))
            return
        is_split = finish.splits and updates  # as far as is known
        for op, is_there in ((RowOp.DELETE, deletes), (RowOp.UPDATE, updates), (RowOp.INSERT, inserts)):
            found_split = False
            for changes in _pieces(decoder, transaction) if is_there or is_split else ():
                changes = _that_may_become(op, changes, with_updates=is_split)
                if not len(changes):
                    continue
                rows = finish(decode(changes))
                found_split |= op is RowOp.DELETE and bool((rows.op == RowOp.INSERT).any())
                if (rows.op == op).any():
                    yield without(rows, rows.op != op)
            if op is RowOp.DELETE:
                is_split = found_split

    @property
    def _reading(self) -> Reading:
        sets_aside = self.config.on_undecodable is OnUndecodable.QUARANTINE
        return Reading(self.zone, self.config.verifies_checksums, sets_aside)


@dataclass(frozen=True, slots=True)
class _Finish:
    """What is done to rows once they are decoded."""

    row_filter: RowFilter
    selector: ColumnSelector
    splits: bool

    def __call__(self, rows: RowBatch) -> RowBatch:
        rows = self.row_filter.apply(rows)
        return self.selector.apply(split_key_updates(rows) if self.splits else rows)


def _pieces(decoder: Decoder, transaction: LargeTransaction) -> Iterator[pa.RecordBatch]:
    for changes in transaction.read():
        yield from decoder.pieces(changes)


def _that_may_become(op: RowOp, changes: pa.RecordBatch, *, with_updates: bool) -> pa.RecordBatch:
    """The changes that are of a kind, or, with updates, may have a half of that kind."""
    has_new, has_old = has_images(changes)
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
