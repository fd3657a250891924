"""Rows of several shapes put together, in the order of their messages: inserts, updates and deletes of one table.

Only the places of values are moved; each column is then decoded at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Longs
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.documents import Found
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnInfo, TableInfo

Decode = Callable[[ColumnInfo, Cells], pa.Array]
"""The values of a column as ``model.row`` holds them."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one shape. ``new`` and ``old`` give the hole of each column of the table; empty: rows have no such image.
    Where a hole is -1 the message leaves the value out, since it is the same in the other image."""

    op: RowOp
    rows: Longs  # their numbers, by which they are put in order
    from_: Longs  # by hole and row, as in Found
    to: Longs
    tokens: Bytes
    new: Longs
    old: Longs


def part_of(table: TableInfo, found: Found[Any], op: RowOp, new: Mapping[str, int], old: Mapping[str, int]) -> Part:
    """``new`` and ``old`` give holes by column; what they leave out is the same in the other image."""
    names = [column.name for column in table.stored_columns]
    none = np.empty(0, np.int64)
    return Part(
        op,
        found.rows,
        found.from_,
        found.to,
        found.tokens,
        none if op is RowOp.DELETE else np.array([new.get(name, -1) for name in names], np.int64),
        none if op is RowOp.INSERT else np.array([old.get(name, -1) for name in names], np.int64),
    )


@dataclass(frozen=True, slots=True)
class Woven:
    batch: RowBatch
    rows: Longs  # the number of each
    bad: list[int]  # the numbers of rows with values that make no sense; they are left out


def weave(
    table: TableInfo,
    physical_id: int,
    data: Bytes,
    parts: Sequence[Part],
    commit_ts: npt.NDArray[np.uint64],
    decode: Decode,
) -> Woven:
    """``commit_ts`` is by number of a row."""
    rows = np.concatenate([part.rows for part in parts])
    ops = np.repeat(np.array([part.op for part in parts], np.uint8), [len(part.rows) for part in parts])
    order = np.argsort(rows, kind="stable")
    rows, ops = rows[order], ops[order]
    place = np.empty(len(order), np.int64)  # of each row of the parts, among all
    place[order] = np.arange(len(order))
    is_bad = np.zeros(len(rows), np.bool_)
    images = []
    for is_new, without in ((True, RowOp.DELETE), (False, RowOp.INSERT)):
        has = ops != without
        at = np.cumsum(has) - 1
        image_bad = np.zeros(int(has.sum()), np.bool_)
        images.append(_image(table, data, parts, place, at, image_bad, decode, is_new=is_new))
        is_bad[has] |= image_bad
    new, old = images
    bad: list[int] = []
    if is_bad.any():
        bad = rows[is_bad].tolist()
        new = new.filter(pa.array(~is_bad[ops != RowOp.DELETE]))
        old = old.filter(pa.array(~is_bad[ops != RowOp.INSERT]))
        rows, ops = rows[~is_bad], ops[~is_bad]
    stamps = commit_ts[rows]
    return Woven(RowBatch(table, physical_id, ops, np.zeros(len(rows), np.uint64), stamps, new, old), rows, bad)


def _image(
    table: TableInfo,
    data: Bytes,
    parts: Sequence[Part],
    place: Longs,
    at: Longs,
    is_bad: Bytes,
    decode: Decode,
    *,
    is_new: bool,
) -> pa.RecordBatch:
    columns = len(table.stored_columns)
    spans = _spans(parts, place, at, columns, len(is_bad), is_new=is_new)
    from_, to, tokens = spans
    arrays = [
        decode(column, Cells(data, from_[n], to[n], tokens[n], is_bad)) for n, column in enumerate(table.stored_columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table))


def _spans(
    parts: Sequence[Part], place: Longs, at: Longs, columns: int, count: int, *, is_new: bool
) -> tuple[Longs, Longs, Bytes]:
    """Places of an image's values, by column and row."""
    without = RowOp.DELETE if is_new else RowOp.INSERT
    having = [part for part in parts if part.op != without]
    if len(parts) == 1 and having and _is_sorted(parts[0].rows):
        holes = _holes(having[0], is_new=is_new)
        return having[0].from_[holes], having[0].to[holes], having[0].tokens[holes]
    from_, to = np.empty((columns, count), np.int64), np.empty((columns, count), np.int64)
    tokens = np.empty((columns, count), np.uint8)
    first = 0
    for part in parts:
        targets = at[place[first : first + len(part.rows)]]
        first += len(part.rows)
        if part.op == without:
            continue
        for column, hole in enumerate(_holes(part, is_new=is_new).tolist()):
            from_[column, targets], to[column, targets] = part.from_[hole], part.to[hole]
            tokens[column, targets] = part.tokens[hole]
    return from_, to, tokens


def _holes(part: Part, *, is_new: bool) -> Longs:
    mine, other = (part.new, part.old) if is_new else (part.old, part.new)
    return np.where(mine >= 0, mine, other) if len(other) else mine


def _is_sorted(rows: Longs) -> bool:
    return bool((rows[1:] >= rows[:-1]).all())
