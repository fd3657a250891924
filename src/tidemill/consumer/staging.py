"""Rows on disk until their turn comes: read from a partition, but not yet due.

    listener ── rows of one table, of some messages ──► a file each ──► StagedRows, a part of a unit ──► executors

A file holds what some messages of one partition said of one table, in their order. Only when it was written, and
between which ts its rows lie, is kept in memory, with the commit-ts of each row. After a crash the files are of no use:
their messages are read again.

Rows of a table come in any order from several partitions, and some come twice. Executors sort them by commit-ts, with
deletes before updates before inserts, and drop copies: changes with the same ts, kind and handle key.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import CorruptDataError, InvariantError, SinkError
from tidemill.flow.reader import RowsSeen
from tidemill.model.progress import Window
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import TableInfo
from tidemill.model.ts import MAX_TS, Ts, show
from tidemill.private import make_private, open_private

_ROWS_A_STEP = 65_536
_MOST_BYTES = 64 << 20  # of a batch: its rows are put in order in a task's memory
_RANK = np.array([0, 2, 1, 0], np.int8)  # by RowOp: deletes, then updates, then inserts
_HEAD = pa.schema([("op", pa.uint8()), ("start_ts", pa.uint64()), ("commit_ts", pa.uint64())])

TableName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Staged:
    """One file."""

    partition: int
    first_offset: int  # of the messages
    path: Path
    table: TableInfo
    commit_ts: npt.NDArray[np.uint64]
    bytes: int
    first_ts: int  # the lowest of them
    last_ts: int  # the highest

    def rows_in(self, window: Window) -> npt.NDArray[np.uint64]:
        low, high = window
        if self.first_ts > high or self.last_ts <= low:
            return self.commit_ts[:0]
        if self.first_ts > low and self.last_ts <= high:
            return self.commit_ts
        return self.commit_ts[(self.commit_ts > low) & (self.commit_ts <= high)]


class _Partition:
    """The files of one partition, in two orders: one that is far behind leaves many of the others', and neither a batch
    nor a save looks at all of them."""

    def __init__(self) -> None:
        self.by_ts: list[_Staged] = []  # by the lowest ts of each
        self._by_offset: dict[Path, _Staged] = {}  # in the order of their messages

    def add(self, file: _Staged) -> None:
        insort(self.by_ts, file, key=_first_ts)
        self._by_offset[file.path] = file

    def up_to(self, ts: int) -> list[_Staged]:
        """Those with a row at or below the ts."""
        return self.by_ts[: bisect_right(self.by_ts, ts, key=_first_ts)]

    def take_up_to(self, ts: int) -> list[_Staged]:
        """Those with rows at or below the ts alone; they are not here any more."""
        end = bisect_right(self.by_ts, ts, key=_first_ts)
        taken = [file for file in self.by_ts[:end] if file.last_ts <= ts]
        if taken:
            self.by_ts[:end] = [file for file in self.by_ts[:end] if file.last_ts > ts]
            for file in taken:
                del self._by_offset[file.path]
        return taken

    def oldest_offset(self, above_ts: int) -> int | None:
        return next((file.first_offset for file in self._by_offset.values() if file.last_ts > above_ts), None)

    def replace(self, files: Iterable[_Staged]) -> None:
        files = list(files)
        self.by_ts = sorted(files, key=_first_ts)
        self._by_offset = {file.path: file for file in sorted(files, key=lambda file: file.first_offset)}


def _first_ts(file: _Staged) -> int:
    return file.first_ts


def _staged(partition: int, first_offset: int, path: Path, rows: RowBatch) -> _Staged:
    """Writes it."""
    ts = rows.commit_ts
    return _Staged(partition, first_offset, path, rows.table, ts, _write(path, rows), int(ts.min()), int(ts.max()))


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of one table in files, each with the window of its partition. Small and picklable."""

    table: TableInfo  # as the messages say
    files: tuple[tuple[str, Window], ...]
    first_ts: Ts  # of its rows
    form: TableInfo | None = None  # what the sink knows the table as; None: the same

    @property
    def written_as(self) -> TableInfo:
        return self.form or self.table

    def read(self, aside: list[Undecodable] | None = None) -> Iterator[RowBatch]:
        """Runs on executors: in commit order, each change once."""
        found = [_read(Path(path), self.table, window) for path, window in self.files]
        whole = in_order(joined([rows for rows in found if len(rows)], self.table))
        if self.form is not None:
            whole = conformed(whole, self.form)
        first = 0
        while first < len(whole):  # steps end with a transaction: whoever splits its updates has to see all of it
            last_ts = whole.commit_ts[min(first + _ROWS_A_STEP, len(whole)) - 1]
            end = int(np.searchsorted(whole.commit_ts, last_ts, "right"))
            yield taken(whole, np.arange(first, end))
            first = end


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write next: every row of ``parts``, up to ``to`` in each partition."""

    to: Mapping[int, Ts]
    parts: tuple[StagedRows, ...]
    rows: int


@dataclass(slots=True)
class Staging:
    """The files of all partitions. Runs in the consumer; blocks for the disk."""

    folder: Path
    rows: int = 0
    bytes: int = 0
    _parts: dict[int, _Partition] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _replaced: list[Path] = field(default_factory=list)  # by others; a batch may still read them

    def __post_init__(self) -> None:
        make_private(self.folder)
        for path in self.folder.glob("*.rows"):
            path.unlink()

    def add(self, partition: int, first_offset: int, seen: Iterable[RowsSeen], above_ts: Ts) -> int:
        """Rows of messages whose first has this offset. What is at or below ``above_ts`` has been written before.
        Returns how many are staged."""
        staged = 0
        for each in seen:
            rows = each.rows
            new = np.flatnonzero(rows.commit_ts > above_ts)
            if not len(new):
                continue
            rows = rows if len(new) == len(rows) else taken(rows, new)
            file = _staged(partition, first_offset, self._path(partition), rows)
            self._part(partition).add(file)
            staged += len(rows)
            self.rows, self.bytes = self.rows + len(rows), self.bytes + file.bytes
        return staged

    def _part(self, partition: int) -> _Partition:
        return self._parts.setdefault(partition, _Partition())

    def _forget(self, file: _Staged) -> None:
        self.rows, self.bytes = self.rows - len(file.commit_ts), self.bytes - file.bytes

    def _path(self, partition: int) -> Path:
        return self.folder / f"{partition}-{next(self._numbers)}.rows"

    def plan(
        self, from_to: Mapping[int, Window], most_rows: int, *, is_whole: bool, most_bytes: int = _MOST_BYTES
    ) -> Plan:
        """Rows in these windows, one per partition, about ``most_rows`` or ``most_bytes`` of them, and at least one
        transaction. ``is_whole``: all windows end alike, so that no transaction is torn. A table's rows have one
        schema: where that changes, the windows end before."""
        windows = dict(from_to)
        for end_ts in self._ends(windows, most_rows, most_bytes):
            windows = {p: (low, max(low, min(high, end_ts))) for p, (low, high) in windows.items()}
        tables: dict[TableName, list[_Staged]] = {}
        first: dict[TableName, int] = {}
        rows = 0
        for each in self._within(windows):
            found = each.rows_in(windows[each.partition])
            if len(found):
                place = each.table.schema, each.table.name
                tables.setdefault(place, []).append(each)
                first[place] = min(first.get(place, MAX_TS), int(found.min()))
                rows += len(found)
        for (schema, name), files in tables.items():
            if len({each.table for each in files}) > 1:
                end_ts = max(high for _, high in windows.values())
                raise SinkError(
                    f"messages of one transaction, at {show(end_ts)}, tell of table {schema}.{name} in two forms. They "
                    "are not of one changefeed: give each a topic of its own, or begin behind them."
                )
        parts = tuple(
            StagedRows(files[0].table, tuple((str(f.path), windows[f.partition]) for f in files), Ts(first[place]))
            for place, files in tables.items()
        )
        if is_whole and len({high for low, high in windows.values() if high > low}) > 1:
            raise InvariantError(f"transactions would be torn: {windows}. Report it.")
        return Plan({p: high for p, (low, high) in windows.items() if high > low}, parts, rows)

    def _ends(self, windows: Mapping[int, Window], most_rows: int, most_bytes: int) -> Iterator[Ts]:
        """Where windows have to end: behind enough rows, and before a table's schema changes."""
        end_ts = self._enough(windows, most_rows, most_bytes)
        if end_ts is not None:
            yield end_ts
            windows = {p: (low, max(low, min(high, end_ts))) for p, (low, high) in windows.items()}
        due = self._within(windows)
        within = [(f, f.rows_in(windows[f.partition])) for f in due]
        within = [(f, ts) for f, ts in within if len(ts)]
        all_ts = np.concatenate([ts for _, ts in within]) if within else np.zeros(0, np.uint64)
        held = sum(f.bytes * len(ts) // len(f.commit_ts) for f, ts in within)
        if held > most_bytes:
            most_rows = max(1, min(most_rows, len(all_ts) * most_bytes // held))
        if len(all_ts) > most_rows:
            yield Ts(int(np.partition(all_ts, most_rows - 1)[most_rows - 1]))
        first: dict[TableName, dict[TableInfo, int]] = {}
        for each, ts in within:
            known = first.setdefault((each.table.schema, each.table.name), {})
            known[each.table] = min(known.get(each.table, int(ts.max())), int(ts.min()))
        for versions in first.values():
            if len(versions) > 1:
                begins = sorted(versions.values())
                yield Ts(max(begins[0], begins[1] - 1))

    def _within(self, windows: Mapping[int, Window]) -> list[_Staged]:
        """The files that may have rows there."""
        return [
            file
            for partition, (low, high) in windows.items()
            if partition in self._parts
            for file in self._parts[partition].up_to(high)
            if file.last_ts > low
        ]

    def _enough(self, windows: Mapping[int, Window], most_rows: int, most_bytes: int) -> Ts | None:
        """A ts up to which there is enough for a batch: not all that is staged is looked at for each. None: there is
        no more than that. Files that begin early hold rows enough; those that begin later and end before them are a
        part of the batch as well."""
        rows = size = 0
        taken: list[_Staged] = []
        parts = [self._parts[p].up_to(high) for p, (_, high) in windows.items() if p in self._parts]
        for each in merge(*parts, key=_first_ts):
            if each.last_ts <= windows[each.partition][0]:
                continue
            taken.append(each)
            rows, size = rows + len(each.commit_ts), size + each.bytes
            if rows > 2 * most_rows or size > 2 * most_bytes:
                return Ts(max(file.last_ts for file in taken))
        return None

    def oldest_offset(self, partition: int, above_ts: Ts) -> int | None:
        """Of the first message of a partition with a row above the ts; None: there is none."""
        return self._part(partition).oldest_offset(above_ts)

    def release(self, applied: Mapping[int, Ts]) -> None:
        """Rows up to here have been written, for good. No batch is under way."""
        while self._replaced:
            self._replaced.pop().unlink(missing_ok=True)
        for partition, ts in applied.items():
            for file in self._part(partition).take_up_to(ts):
                file.path.unlink(missing_ok=True)
                self._forget(file)

    def drop_above(self, partition: int, ts: Ts) -> None:
        """Rows of a partition above the ts do not count: they come again, perhaps elsewhere."""
        part = self._part(partition)
        kept = []
        for each in part.by_ts:
            above = each.commit_ts > ts
            if not above.any():
                kept.append(each)
                continue
            self._forget(each)
            if above.all():
                each.path.unlink(missing_ok=True)
            else:
                rows = _read(each.path, each.table, (Ts(0), ts))
                file = _staged(partition, each.first_offset, self._path(partition), rows)
                self.rows, self.bytes = self.rows + len(file.commit_ts), self.bytes + file.bytes
                kept.append(file)
                self._replaced.append(each.path)
        part.replace(kept)


def cut(seen: RowsSeen, before: int, ts: Ts) -> RowsSeen:
    """Without rows of messages before this one that are above the ts."""
    kept = np.flatnonzero((seen.message >= before) | (seen.rows.commit_ts <= ts))
    if len(kept) == len(seen.rows):
        return seen
    order = None if seen.order is None else seen.order[kept]
    return replace(seen, rows=taken(seen.rows, kept), message=seen.message[kept], order=order)


def taken(rows: RowBatch, order: npt.NDArray[np.int64]) -> RowBatch:
    """These changes, in this order."""
    has_new, has_old = rows.op != RowOp.DELETE, rows.op != RowOp.INSERT
    new, old = np.cumsum(has_new) - 1, np.cumsum(has_old) - 1
    return replace(
        rows,
        op=rows.op[order],
        start_ts=rows.start_ts[order],
        commit_ts=rows.commit_ts[order],
        new=rows.new.take(pa.array(new[order[has_new[order]]])),
        old=rows.old.take(pa.array(old[order[has_old[order]]])),
    )


def conformed(rows: RowBatch, form: TableInfo) -> RowBatch:
    """As rows of ``form``, column by column by its name. What a row lacks is null: a column that is on its way out."""
    new, old = (_conformed(image, rows.table, form) for image in (rows.new, rows.old))
    return replace(rows, table=form, physical_id=form.id, new=new, old=old)


def _conformed(image: pa.RecordBatch, table: TableInfo, form: TableInfo) -> pa.RecordBatch:
    places = {column.name.lower(): place for place, column in enumerate(table.stored_columns)}
    schema, columns = arrow_schema(form), []
    for column, field_ in zip(form.stored_columns, schema, strict=True):
        place = places.get(column.name.lower())
        if place is None:
            columns.append(pa.nulls(len(image), field_.type))
            continue
        try:
            columns.append(image.column(place).cast(field_.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CorruptDataError(
                f"column {column.name!r} of table {form.full_name} has values in the topic that are not of the type "
                "which the topic's DDLs give it. Check that all of it was written by one changefeed."
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def joined(batches: Sequence[RowBatch], table: TableInfo) -> RowBatch:
    if not batches:
        schema = arrow_schema(table)
        empty = pa.RecordBatch.from_pylist([], schema)
        return RowBatch(
            table, table.id, np.zeros(0, np.uint8), np.zeros(0, np.uint64), np.zeros(0, np.uint64), empty, empty
        )
    return replace(
        batches[0],
        op=np.concatenate([b.op for b in batches]),
        start_ts=np.concatenate([b.start_ts for b in batches]),
        commit_ts=np.concatenate([b.commit_ts for b in batches]),
        new=pa.concat_batches([b.new for b in batches]),
        old=pa.concat_batches([b.old for b in batches]),
    )


def in_order(rows: RowBatch) -> RowBatch:
    """By commit-ts, deletes before updates before inserts; of copies the first."""
    order = np.lexsort((_RANK[rows.op], rows.commit_ts))
    rows = taken(rows, order)
    is_copy = _copies(rows)
    return taken(rows, np.flatnonzero(~is_copy)) if is_copy.any() else rows


def _copies(rows: RowBatch) -> npt.NDArray[np.bool_]:
    """Changes that stand there already: the same ts, kind and key. A row changes once in a transaction, unless its key
    is given to another; then one is a delete."""
    is_copy = np.zeros(len(rows), np.bool_)
    places = [rows.table.stored_columns.index(column) for column in rows.table.handle_key]
    if len(np.unique(rows.commit_ts)) == len(rows) or not places:
        return is_copy
    has_old = rows.op != RowOp.INSERT
    old, new = np.cumsum(has_old) - 1, np.cumsum(rows.op != RowOp.DELETE) - 1
    image = np.where(has_old, old, len(rows.old) + new)  # an update is known by the key it had
    columns = {"ts": pa.array(rows.commit_ts), "op": pa.array(rows.op), "place": pa.array(np.arange(len(rows)))}
    for place in places:
        both = pa.concat_arrays([rows.old.column(place), rows.new.column(place)])
        columns[f"k{place}"] = both.take(pa.array(image))
    keys = [name for name in columns if name != "place"]
    firsts = pa.table(columns).group_by(keys).aggregate([("place", "min")])["place_min"].to_numpy()
    is_copy[:] = True
    is_copy[firsts] = False
    return is_copy


def _write(path: Path, rows: RowBatch) -> int:
    head = pa.record_batch([rows.op, rows.start_ts, rows.commit_ts], schema=_HEAD)
    with open_private(path, "wb") as file:
        for batch in (head, rows.new, rows.old):
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
        return file.tell()


def _read(path: Path, table: TableInfo, window: Window) -> RowBatch:
    with path.open("rb") as file:
        head, new, old = (_one(pa.ipc.open_stream(file)) for _ in range(3))
    op, start_ts, commit_ts = (head.column(place).to_numpy() for place in range(3))
    rows = RowBatch(table, table.id, op, start_ts, commit_ts, new, old)
    low, high = window
    within = np.flatnonzero((commit_ts > low) & (commit_ts <= high))
    return rows if len(within) == len(rows) else taken(rows, within)


def _one(stream: pa.RecordBatchStreamReader) -> pa.RecordBatch:
    found = list(stream)
    return found[0] if found else pa.RecordBatch.from_pylist([], stream.schema)
