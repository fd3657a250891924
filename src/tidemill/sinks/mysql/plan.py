"""From a window of changes to the transactions that write it, and in which order.

    rows ─► net effect ─► phases ─► lanes ─► transactions ─► statements (slices of one text)

Phases run one after the other; the lanes of a phase side by side; the transactions of a lane in order.

With ``transaction-atomicity=none`` a window becomes three phases: deletes; updates that change a unique key; then
inserts and updates in place. After the first two no row is left that holds a unique value which the third needs, so
its rows are in nobody's way. Entries of the first two phases that share a unique value, or were one update, stand in
one transaction, deletes first, so that no reader sees a row vanish that only changed its key.

With ``table`` each downstream transaction holds whole transactions of the upstream. Transactions that share a unique
value go down one lane, in commit order; the others side by side.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.encoder import Encoded
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnType, TableInfo
from tidemill.sinks.mysql.conflicts import components
from tidemill.sinks.mysql.keycodes import conflict_codes
from tidemill.sinks.mysql.literals import Literals
from tidemill.sinks.mysql.net import NONE, Ints, Net, keys_changed, net_effect, transactions


class Form(Enum):
    """How rows are written. In safe mode INSERT and UPDATE become REPLACE."""

    DELETE = 0
    REPLACE = 1
    INSERT = 2
    UPDATE = 3  # in place: no unique key changes


@dataclass(frozen=True, slots=True)
class Limits:
    rows: int  # of a transaction that may be cut
    update_rows: int  # of a statement that updates in place
    bytes: int  # of a statement
    lanes: int


@dataclass(frozen=True, slots=True)
class Statement:
    """The rows ``first`` to ``last`` (not included) of the plan's text."""

    form: Form
    first: int
    last: int


Transaction = tuple[Statement, ...]
Lane = list[Transaction]


@dataclass(frozen=True, slots=True)
class Plan:
    table: TableInfo
    text: Encoded
    deletes: pa.RecordBatch  # the rows behind the first part of the text
    upserts: pa.RecordBatch  # and behind the rest
    phases: list[list[Lane]]
    has_zero: npt.NDArray[np.bool_] | None = None  # by row of the text: an ENUM of it is 0; None: none is

    def cut_at_zeros(self, statement: Statement) -> Iterator[tuple[Statement, bool]]:
        """The statement in pieces: those whose rows have an ENUM that is 0 (True), and the others."""
        if self.has_zero is None or not self.has_zero[statement.first : statement.last].any():
            yield statement, False
            return
        marks = self.has_zero[statement.first : statement.last].astype(np.int64)
        for first, last in _runs(marks):
            piece = Statement(statement.form, statement.first + first, statement.first + last)
            yield piece, bool(marks[first])

    def row(self, number: int) -> pa.RecordBatch:
        """The row behind row ``number`` of the text."""
        deletes = self.deletes.num_rows
        return self.deletes.slice(number, 1) if number < deletes else self.upserts.slice(number - deletes, 1)

    def slice(self, first: int, last: int) -> memoryview:
        """The text of some rows, without the comma behind the last."""
        begin = int(self.text.ends[first - 1]) if first else 0
        return memoryview(self.text.payload)[begin : int(self.text.ends[last - 1]) - 1]


def make_plan(rows: RowBatch, limits: Limits, literals: Literals, *, is_safe: bool, is_atomic: bool) -> Plan:
    """``is_safe``: the changes, or some of them, may have been written before."""
    lane_of_piece, piece = _pieces(rows, limits) if is_atomic else (_NO_LANES, None)
    net = net_effect(rows, piece)
    form = _forms(rows, net, is_safe)
    group = net.piece if is_atomic else _tangled(rows, net, form, limits)
    # The order in which rows are written: by group (piece), free entries last; within it by form, then by key.
    keep = np.flatnonzero(form != _NOTHING)
    order = keep[np.lexsort((keep, form[keep], group[keep]))]
    is_delete = form[order] == Form.DELETE.value
    deletes, upserts = order[is_delete], order[~is_delete]
    old = _take(rows.old, net.last_old[deletes])
    new = _take(rows.new, net.after[upserts])
    text = literals.write(new, old)
    place = np.empty(len(order), np.int64)  # of each written entry in the text
    place[is_delete] = np.arange(len(deletes))
    place[~is_delete] = len(deletes) + np.arange(len(upserts))
    arranged = _Arranged(form[order], group[order], place, text.ends, limits)
    phases = arranged.lanes_of_pieces(lane_of_piece) if is_atomic else arranged.phases()
    return Plan(rows.table, text, old, new, phases, _zeros(rows.table, len(deletes), new))


def _zeros(table: TableInfo, deletes: int, new: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Which rows have an ENUM of index 0: TiDB keeps the empty string that stands for a value it did not know."""
    enums = [place for place, column in enumerate(table.stored_columns) if column.type is ColumnType.ENUM]
    found = np.zeros(deletes + new.num_rows, np.bool_)
    for place in enums:
        is_zero = pc.fill_null(pc.equal(new.column(place), 0), False)
        found[deletes:] |= is_zero.to_numpy(zero_copy_only=False)
    return found if found.any() else None


_NOTHING = 9
_FREE = np.iinfo(np.int64).max
_NO_LANES = np.zeros(0, np.int64)


def _forms(rows: RowBatch, net: Net, is_safe: bool) -> Ints:
    form = np.full(len(net), Form.INSERT.value, np.int64)
    existed, remains = net.before != NONE, net.after != NONE
    form[~remains] = Form.DELETE.value
    if not is_safe:
        form[~remains & ~existed] = _NOTHING
    both = np.flatnonzero(existed & remains)
    if len(both):
        old, new = _take(rows.old, net.before[both]), _take(rows.new, net.after[both])
        changed = keys_changed(rows.table, old, new)
        form[both] = np.where(changed, Form.REPLACE.value, Form.UPDATE.value)
    return form


def _tangled(rows: RowBatch, net: Net, form: Ints, limits: Limits) -> Ints:
    """For each entry the group with which it must be written; _FREE where it is in nobody's way."""
    group = np.full(len(net), _FREE, np.int64)
    leaves = np.isin(form, (Form.DELETE.value, Form.REPLACE.value))
    comes = np.isin(form, (Form.INSERT.value, Form.REPLACE.value))
    if not leaves.any() or not comes.any():
        return group
    entries = np.flatnonzero(leaves | comes)
    has_old, has_new = entries[net.before[entries] != NONE], entries[comes[entries]]
    old, new = _take(rows.old, net.before[has_old]), _take(rows.new, net.after[has_new])
    items = np.concatenate((has_old, has_new))
    sharing = [(items, np.concatenate(pair)) for pair in conflict_codes(rows.table, old, new)]
    found = components(len(net), sharing, [net.links])
    sizes = np.bincount(found[entries], minlength=len(net))
    tied = entries[(sizes[found[entries]] > 1) | (form[entries] == Form.REPLACE.value)]
    group[tied] = _packed(found[tied], limits.rows)
    return group


def _packed(component: Ints, rows: int) -> Ints:
    """The number of the transaction for each entry: components whole, several in one as long as it stays small."""
    roots, inverse = np.unique(component, return_inverse=True)
    size = np.bincount(inverse, minlength=len(roots))
    return np.asarray(((np.cumsum(size) - size) // rows)[inverse], np.int64)


def _pieces(rows: RowBatch, limits: Limits) -> tuple[Ints, Ints]:
    """(the lane of each piece, the piece of each change): whole transactions, in commit order within a lane."""
    txn = transactions(rows)
    count = int(txn[-1]) + 1 if len(txn) else 0
    size = np.bincount(txn, minlength=count)
    has_old, has_new = rows.op != RowOp.INSERT, rows.op != RowOp.DELETE
    items = np.concatenate((txn[has_old], txn[has_new]))
    sharing = [(items, np.concatenate(pair)) for pair in conflict_codes(rows.table, rows.old, rows.new)]
    lane = _spread(components(count, sharing), size, limits.lanes)
    piece_of_txn = np.zeros(count, np.int64)
    lane_of_piece: list[int] = []
    for number in range(limits.lanes):
        members = np.flatnonzero(lane == number)
        if len(members):
            filled = (np.cumsum(size[members]) - size[members]) // limits.rows
            _, dense = np.unique(filled, return_inverse=True)
            piece_of_txn[members] = len(lane_of_piece) + dense
            lane_of_piece += [number] * (int(dense[-1]) + 1)
    return np.array(lane_of_piece, np.int64), piece_of_txn[txn]


def _spread(component: Ints, size: Ints, lanes: int) -> Ints:
    """A lane for each transaction: components whole, neighbours together, lanes about equally full."""
    roots, inverse = np.unique(component, return_inverse=True)
    weight = np.bincount(inverse, weights=size, minlength=len(roots))
    reached = np.cumsum(weight) - weight
    lane_of_root = np.minimum((reached * lanes / max(float(weight.sum()), 1.0)).astype(np.int64), lanes - 1)
    return np.asarray(lane_of_root[inverse], np.int64)


@dataclass(frozen=True, slots=True)
class _Arranged:
    """Entries in the order of writing, and how they are cut."""

    form: Ints
    group: Ints
    place: Ints
    ends: npt.NDArray[np.int64]
    limits: Limits

    def phases(self) -> list[list[Lane]]:
        tied = int(np.searchsorted(self.group, _FREE))
        free_forms = self.form[tied:]
        deletes = tied + int(np.searchsorted(free_forms, Form.DELETE.value, "right"))
        phases: list[list[Lane]] = [
            [[(statement,)] for statement in self._statements(tied, deletes)],
            [[self._transaction(first, last)] for first, last in _runs(self.group[:tied])],
            [[(statement,)] for statement in self._statements(deletes, len(self.form))],
        ]
        return [lanes for lanes in phases if lanes]

    def lanes_of_pieces(self, lane_of_piece: Ints) -> list[list[Lane]]:
        lanes: dict[int, Lane] = {}
        for first, last in _runs(self.group):
            lanes.setdefault(int(lane_of_piece[self.group[first]]), []).append(self._transaction(first, last))
        return [list(lanes.values())] if lanes else []

    def _transaction(self, first: int, last: int) -> Transaction:
        return tuple(self._statements(first, last))

    def _statements(self, first: int, last: int) -> Iterator[Statement]:
        """For entries of one group: those of one form lie side by side in the text, deletes first."""
        for begin, end in _runs(self.form[first:last]):
            form, place = Form(int(self.form[first + begin])), int(self.place[first + begin])
            yield from self._cut(form, place, place + end - begin)

    def _cut(self, form: Form, first: int, last: int) -> Iterator[Statement]:
        most = self.limits.update_rows if form is Form.UPDATE else self.limits.rows
        while first < last:
            begin = int(self.ends[first - 1]) if first else 0
            fits = int(np.searchsorted(self.ends, begin + self.limits.bytes, "right"))
            end = max(first + 1, min(last, first + most, fits))
            yield Statement(form, first, end)
            first = end


def _runs(values: Ints) -> Iterator[tuple[int, int]]:
    """The ranges of equal neighbours."""
    if len(values):
        starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1, [len(values)]))
        yield from zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)


def _take(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    if len(rows) == batch.num_rows and np.array_equal(rows, np.arange(len(rows))):
        return batch
    return batch.take(pa.array(rows))
