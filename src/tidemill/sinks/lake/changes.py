"""Rows as a lake table holds them: the table's columns, typed, and what happened to them.

    _op          I, U or D; a delete carries the row as it was. T: all before it is gone (of ``_table_id``, if given)
    _commit_ts   order of everything, with
    _seq         the order within a commit-ts: deletes, then updates, then inserts
    _start_ts    of the transaction
    _table_id    the physical table or partition upstream
    _version     the version of the table's schema that the row was written under
    _unfit       JSON object of texts that their columns' types cannot hold; mostly null

An update that changes a key is a delete and an insert. So the rows at a ts are the last of each key up to it.
Runs on executors, and on the driver where a DDL makes rows.
"""

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.flow.dispatcher import split_key_updates
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import TableInfo
from tidemill.sinks.lake.columns import Unfit, to_lake, type_named

SYSTEM_COLUMNS = {
    "_op": pa.string(),
    "_commit_ts": pa.int64(),
    "_seq": pa.int64(),
    "_start_ts": pa.int64(),
    "_table_id": pa.int64(),
    "_version": pa.int64(),
    "_unfit": pa.string(),
}
_RANK = np.array([0, 2, 1, 0], dtype=np.int64)  # by RowOp: delete < update < insert
_RANK_SHIFT, _SHARE_SHIFT = 48, 40
MARKER_SEQ = 1 << 62  # behind all rows of its commit-ts
RESCAN_SEQ = MARKER_SEQ + 1  # and behind the marker
_OPS = pa.array(["", "I", "U", "D"])


@dataclass(frozen=True, slots=True)
class FileColumn:
    """One column of a data file. ``source`` is its place among the table's stored columns; -1: a system column."""

    name: str
    type: str
    field_id: int
    source: int = -1


def file_schema(columns: tuple[FileColumn, ...]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(c.name, type_named(c.type), metadata={b"PARQUET:field_id": str(c.field_id).encode()})
            for c in columns
        ]
    )


def change_tables(
    rows: RowBatch,
    columns: tuple[FileColumn, ...],
    *,
    above_ts: int = 0,
    rescan_ts: int | None = None,
    first: int = 0,
    numbering: "Numbering | None" = None,
) -> list[pa.Table]:
    """The changes with commit-ts above ``above_ts``: first the rows that are there, then those deleted.

    With ``rescan_ts`` the rows are a copy of the table as of that ts, the ``first``-th of it on, and are ordered behind
    the marker at that ts. ``numbering`` remembers where the batch before has ended.
    """
    rows = split_key_updates(rows)
    commit_ts = rows.commit_ts.astype(np.int64)
    seq = (numbering or Numbering()).of(rows, commit_ts)
    if rescan_ts is not None:
        commit_ts, seq = np.full(len(rows), rescan_ts), np.arange(RESCAN_SEQ + first, RESCAN_SEQ + first + len(rows))
    is_deleted = rows.op == RowOp.DELETE
    old_is_deleted = is_deleted[rows.op != RowOp.INSERT]
    schema = file_schema(columns)
    found = []
    for image, of_image, wanted in (
        (rows.new, ~is_deleted, np.ones(len(rows.new), np.bool_)),
        (rows.old, is_deleted, old_is_deleted),
    ):
        kept = commit_ts[of_image] > above_ts
        if not kept.any():
            continue
        chosen = np.flatnonzero(wanted)[kept]
        if len(chosen) < len(image):
            image = image.take(pa.array(chosen))
        places = np.flatnonzero(of_image)[kept]
        system = {
            "_op": _OPS.take(pa.array(rows.op[places])),
            "_commit_ts": pa.array(commit_ts[places]),
            "_seq": pa.array(seq[places]),
            "_start_ts": pa.array(rows.start_ts[places].astype(np.int64)),
            "_table_id": pa.array(np.full(len(places), rows.physical_id)),
            "_version": pa.array(np.full(len(places), int(rows.table.version_ts))),
        }
        found.append(_table(rows.table, image, columns, system, schema))
    return found


def marker_table(columns: tuple[FileColumn, ...], ts: int, physical_ids: tuple[int, ...], version: int) -> pa.Table:
    """Rows that say: all before ``ts`` is gone, of these physical ids; of none named, altogether."""
    ids: tuple[int | None, ...] = physical_ids or (None,)
    cells = {
        "_op": pa.array(["T"] * len(ids)),
        "_commit_ts": pa.array([ts] * len(ids), pa.int64()),
        "_seq": pa.array([MARKER_SEQ] * len(ids), pa.int64()),
        "_start_ts": pa.array([ts] * len(ids), pa.int64()),
        "_table_id": pa.array(ids, pa.int64()),
        "_version": pa.array([version] * len(ids), pa.int64()),
    }
    schema = file_schema(columns)
    arrays = [
        cells[c.name] if c.source < 0 and c.name in cells else pa.nulls(len(ids), f.type)
        for c, f in _zip(columns, schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _zip(columns: tuple[FileColumn, ...], schema: pa.Schema) -> "zip[tuple[FileColumn, pa.Field]]":
    return zip(columns, schema, strict=True)


def _table(
    table: TableInfo,
    image: pa.RecordBatch,
    columns: tuple[FileColumn, ...],
    system: dict[str, pa.Array],
    schema: pa.Schema,
) -> pa.Table:
    unfit: dict[str, Unfit] = {}
    cells = dict(system)
    arrays = []
    for column, field in _zip(columns, schema):
        if column.source < 0:
            arrays.append(cells.get(column.name))
            continue
        info = table.stored_columns[column.source]
        values, misfits = to_lake(info, image.column(column.source))
        if misfits:
            unfit[info.name] = misfits
        arrays.append(values if values.type == field.type else values.cast(field.type))
    texts = _unfit_texts(unfit, len(image)) if unfit else pa.nulls(len(image), pa.string())
    return pa.Table.from_arrays([texts if a is None else a for a in arrays], schema=schema)


def _unfit_texts(unfit: dict[str, Unfit], rows: int) -> pa.Array:
    by_row: dict[int, dict[str, str]] = {}
    for name, texts in unfit.items():
        for row, text in texts.items():
            by_row.setdefault(row, {})[name] = text
    cells = [None] * rows
    whole: list[str | None] = list(cells)
    for row, named in by_row.items():
        whole[row] = json.dumps(named, ensure_ascii=False)
    return pa.array(whole, pa.string())


class Numbering:
    """``_seq`` of batch after batch: rank of the operation, then the unit's share, then the place within the commit-ts.
    The same however batches are cut, and no two rows of a table and a commit-ts have the same."""

    def __init__(self, share: int = 0) -> None:
        self._share = share
        self._last_ts = -1
        self._next = 0  # place of a row that goes on with the last commit-ts

    def of(self, rows: RowBatch, commit_ts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not len(rows):
            return np.empty(0, np.int64)
        places = np.arange(len(rows), dtype=np.int64)
        begins = np.ones(len(rows), dtype=np.bool_)
        begins[1:] = commit_ts[1:] != commit_ts[:-1]
        first = np.maximum.accumulate(np.where(begins, places, 0))
        places -= first
        if commit_ts[0] == self._last_ts:
            places[first == 0] += self._next
        self._last_ts, self._next = int(commit_ts[-1]), int(places[-1]) + 1
        return (_RANK[rows.op] << _RANK_SHIFT) + (self._share << _SHARE_SHIFT) + places
