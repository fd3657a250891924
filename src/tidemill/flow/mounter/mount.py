"""Raw changes of one physical table and one schema → rows: the mounter's public functions.

Rows are decoded in blocks small enough to stay in the processor's cache: the headers of a block are
split at once, then each column reads its cells. Runs on executors, and wherever a snapshot is read.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, Longs
from tidemill.errors import InvariantError, RowUndecodableError
from tidemill.flow.mounter import checksums, handles, legacy, split
from tidemill.flow.mounter.columns import REASONS, ColumnBuilder, IntegerBuilder, builder_for
from tidemill.flow.mounter.outcomes import OK
from tidemill.flow.mounter.zones import Zone, zone_table
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.tidb.keys import record_prefix

_BLOCK_BYTES = 1 << 20
_MOST_BLOCK_ROWS = 4096
_LEAST_BLOCK_ROWS = 64
_ROW_STRIDE = 16  # keeps the columns of a block out of each other's cache lines
_ARROW_LIMIT = (1 << 31) - 1


def mount(
    table: TableInfo, physical_id: int, changes: pa.RecordBatch, zone: str = "UTC", *, verify: bool = False
) -> RowBatch:
    """Decode ``changes`` (RAW_CHANGE_SCHEMA, of ``physical_id`` only, sorted) with ``table``.

    A change with neither a value nor an old value is no row and is left out. TIMESTAMPs are given in
    ``zone``. With ``verify``, rows that carry a checksum of their bytes are compared with it. Raises
    RowUndecodableError for the first row that the schema does not explain.
    """
    keys, values, old_values = (_Cells.of(changes.column(name)) for name in ("key", "value", "old_value"))
    has_new = values.sizes > 0
    has_old = old_values.sizes > 0
    op = np.where(has_new, np.where(has_old, RowOp.UPDATE, RowOp.INSERT), RowOp.DELETE).astype(np.uint8)
    start_ts, commit_ts = (_numbers(changes.column(name)) for name in ("start_ts", "commit_ts"))
    if not (has_new | has_old).all():
        kept = has_new | has_old
        op, start_ts, commit_ts = op[kept], start_ts[kept], commit_ts[kept]
    plan = _Plan(table, physical_id, verify)
    table_zone = zone_table(zone)
    return RowBatch(
        table=table,
        physical_id=physical_id,
        op=op,
        start_ts=start_ts,
        commit_ts=commit_ts,
        new=_decode(plan, keys, values, np.flatnonzero(has_new), table_zone),
        old=_decode(plan, keys, old_values, np.flatnonzero(has_old), table_zone),
    )


def mount_values(
    table: TableInfo, physical_id: int, keys: pa.Array, values: pa.Array, zone: str = "UTC", *, verify: bool = False
) -> pa.RecordBatch:
    """Decode the rows of a snapshot: binary arrays of record keys and of their values, none of them empty."""
    cells = _Cells.of(values)
    rows = np.arange(len(values))
    return _decode(_Plan(table, physical_id, verify), _Cells.of(keys), cells, rows, zone_table(zone))


@dataclass(frozen=True, slots=True)
class _Cells:
    """A binary Arrow array as its offsets and bytes."""

    data: Bytes
    offsets: Ints

    @classmethod
    def of(cls, array: pa.Array) -> "_Cells":
        _, offsets, data = array.buffers()
        found = np.frombuffer(offsets, np.int32) if offsets else np.zeros(1, np.int32)
        raw = np.frombuffer(data, np.uint8) if data and data.size else np.empty(0, np.uint8)
        return cls(raw, found[array.offset : array.offset + len(array) + 1])

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


def _numbers(array: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.frombuffer(array.buffers()[1], np.uint64)[array.offset : array.offset + len(array)]


class _Plan:
    """What decoding takes from a table's schema, in the form that the kernels want."""

    def __init__(self, table: TableInfo, physical_id: int, verify: bool) -> None:
        self.table = table
        self.verify = verify
        self.columns = table.stored_columns
        self.prefix = np.frombuffer(record_prefix(physical_id), np.uint8)
        self.column_of = np.full(256, -1, np.int32)
        big = sorted((c.id, i) for i, c in enumerate(self.columns) if c.id > 255)
        for i, column in enumerate(self.columns):
            if column.id < 256:
                self.column_of[column.id] = i
        self.big_ids = np.array([id_ for id_, _ in big], np.int64)
        self.big_columns = np.array([i for _, i in big], np.int32)
        self.handle_columns = _handle_columns(table)
        self.is_common = table.is_common_handle
        self.handle_flags = np.array([_key_flag(self.columns[c]) for c, _ in self.handle_columns], np.int32)
        self.schema = arrow_schema(table)

    @cached_property
    def old_kinds(self) -> Longs:
        return np.array([_old_kinds(c) for c in self.columns], np.int64)

    def undecodable(self, key: bytes, column: ColumnInfo | None, reason: int) -> RowUndecodableError:
        return RowUndecodableError(self.table.full_name, key, column.name if column else None, REASONS[reason])


def _handle_columns(table: TableInfo) -> list[tuple[int, bool]]:
    """Places among the stored columns of those that the key holds, in the key's order; and whether in full."""
    place = {c.offset: i for i, c in enumerate(table.stored_columns)}
    if table.is_common_handle:
        for index in table.indexes:
            if index.is_primary:
                return [(place[c.offset], c.length < 0) for c in index.columns]
    elif table.pk_is_handle:
        return [(place[c.offset], True) for c in table.columns if c.flag & ColumnFlag.PRI_KEY][:1]
    return []


def _key_flag(column: ColumnInfo) -> int:
    kind = column.type
    if kind in STRING_TYPES:
        return handles.FLAG_BYTES
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return handles.FLAG_FLOAT
    if kind is ColumnType.NEWDECIMAL:
        return handles.FLAG_DECIMAL
    if kind is ColumnType.DURATION:
        return handles.FLAG_DURATION
    is_signed = kind is ColumnType.YEAR or (kind in INTEGER_TYPES and not column.is_unsigned)
    return handles.FLAG_INT if is_signed else handles.FLAG_UINT


def _old_kinds(column: ColumnInfo) -> int:
    """The flags under which format v1 may hold a value of the column, as bits."""
    kind = column.type
    if kind in STRING_TYPES:
        return 1 << legacy.FLAG_BYTES
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return 1 << legacy.FLAG_FLOAT
    if kind is ColumnType.NEWDECIMAL:
        return 1 << legacy.FLAG_DECIMAL
    if kind is ColumnType.JSON:
        return 1 << legacy.FLAG_JSON
    if kind is ColumnType.VECTOR:
        return 1 << legacy.FLAG_VECTOR
    return 1 << legacy.FLAG_INT | 1 << legacy.FLAG_UINT


def _decode(plan: _Plan, keys: _Cells, values: _Cells, rows: Longs, zone: Zone) -> pa.RecordBatch:
    if not len(rows):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in plan.schema], schema=plan.schema)
    values = _without_old_format(plan, keys, values, rows)
    builders = [builder_for(column, len(rows), zone) for column in plan.columns]
    block_rows = _block_rows(values, rows)
    block = _Block(plan, keys, values, rows, block_rows)
    for first in range(0, len(rows), block_rows):
        block.decode(first, min(block_rows, len(rows) - first), builders)
    arrays = [builder.finish(field.type) for builder, field in zip(builders, plan.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.schema)


def _block_rows(values: _Cells, rows: Longs) -> int:
    size = int(values.offsets[rows[-1] + 1]) - int(values.offsets[rows[0]])
    fitting = _BLOCK_BYTES * len(rows) // max(size, 1)
    return min(max(fitting, _LEAST_BLOCK_ROWS), _MOST_BLOCK_ROWS, len(rows))


def _without_old_format(plan: _Plan, keys: _Cells, values: _Cells, rows: Longs) -> _Cells:
    """The same values with rows of format v1 rewritten as v2."""
    old_rows, old_bytes = legacy.count_old(values.data, values.offsets, rows)
    if not old_rows:
        return values
    size = int(values.offsets[-1] - values.offsets[0]) + 7 * int(old_bytes) + 32 * int(old_rows)
    if size > _ARROW_LIMIT:
        raise InvariantError("rows of format v1 need more than 2 GiB as v2; take fewer changes into a batch")
    upgraded = _Cells(np.empty(size, np.uint8), np.empty(len(values.offsets), np.int32))
    failed = legacy.upgrade_rows(
        values.data,
        values.offsets,
        rows,
        plan.column_of,
        plan.big_ids,
        plan.big_columns,
        plan.old_kinds,
        upgraded.data,
        upgraded.offsets,
    )
    if failed != OK:
        raise plan.undecodable(keys[int(rows[failed // 256])], None, failed % 256)
    return upgraded


class _Block:
    """The cells of some rows, taken apart; used again for the next rows."""

    def __init__(self, plan: _Plan, keys: _Cells, values: _Cells, rows: Longs, most_rows: int) -> None:
        self._plan = plan
        self._keys = keys
        self._values = values
        self._rows = rows
        shape = (len(plan.columns), most_rows + _ROW_STRIDE)
        self._starts = np.zeros(shape, np.int32)
        self._lengths = np.empty(shape, np.int32)
        self._slots = np.empty(split.MOST_IDS, np.int32)
        self._sums = np.empty((len(plan.columns), 3), np.int64)

    def decode(self, first: int, count: int, builders: list[ColumnBuilder]) -> None:
        """Rows ``first`` on into the builders."""
        plan, keys, values = self._plan, self._keys, self._values
        self._check(
            handles.check_keys(keys.data, keys.offsets, self._rows, first, count, plan.prefix, plan.is_common), first
        )
        failed = split.split_rows(
            values.data,
            values.offsets,
            self._rows,
            first,
            count,
            plan.column_of,
            plan.big_ids,
            plan.big_columns,
            self._slots,
            self._starts,
            self._lengths,
        )
        self._check(failed, first)
        if plan.verify:
            failed = checksums.check_rows(
                values.data, values.offsets, keys.data, keys.offsets, self._rows, first, count, checksums.crc_table()
            )
            self._check(failed, first)
        split.measure(self._lengths, count, self._sums)
        of_handle = self._from_handles(first, count, builders) if plan.handle_columns else set()
        sums = self._sums.tolist()
        for c, builder in enumerate(builders):
            if c not in of_handle:
                failed = builder.add(values.data, self._starts[c], self._lengths[c], first, count, *sums[c])
                self._check(failed, first, builder.column)

    def _from_handles(self, first: int, count: int, builders: list[ColumnBuilder]) -> set[int]:
        """Decode those columns of the handle that the rows leave out; return which."""
        places = enumerate(self._plan.handle_columns)
        wanted = [k for k, (c, _) in places if self._absent(c)]
        if self._plan.is_common:
            return self._from_common_handles(first, count, builders, wanted)
        return self._from_integer_handles(first, count, builders) if wanted else set()

    def _absent(self, column: int) -> int:
        """How many rows of the block leave the column to the handle, which wins over null and missing."""
        return int(self._sums[column, 1] + self._sums[column, 2])

    def _from_integer_handles(self, first: int, count: int, builders: list[ColumnBuilder]) -> set[int]:
        column = self._plan.handle_columns[0][0]
        found = np.empty(count, np.uint64)
        handles.integer_handles(self._keys.data, self._keys.offsets, self._rows, first, count, found)
        builder = builders[column]
        if isinstance(builder, IntegerBuilder) and self._absent(column) == count:
            builder.take(found, first)
        else:
            starts = np.arange(0, 8 * count, 8, dtype=np.int32)
            self._mix(first, count, builder, column, found.view(np.uint8), starts, np.full(count, 8, np.int32))
        return {column}

    def _from_common_handles(
        self, first: int, count: int, builders: list[ColumnBuilder], wanted: list[int]
    ) -> set[int]:
        """Handles are read also where nothing is wanted of them: a bad one is refused whatever its neighbours need."""
        keys, plan = self._keys, self._plan
        rows = self._rows[first : first + count]
        cells = np.empty(int((keys.offsets[rows + 1] - keys.offsets[rows]).sum()), np.uint8)
        starts = np.empty((len(plan.handle_columns), count), np.int32)
        lengths = np.empty((len(plan.handle_columns), count), np.int32)
        failed = handles.common_handles(
            keys.data, keys.offsets, self._rows, first, count, plan.handle_flags, cells, starts, lengths
        )
        self._check(failed, first)
        for k in wanted:
            column, is_whole = plan.handle_columns[k]
            if not is_whole:
                lacking = np.flatnonzero(self._lengths[column, :count] < 0)
                key = keys[int(rows[lacking[0]])]
                reason = "the key holds only a prefix of it, and the row does not hold the rest"
                raise RowUndecodableError(plan.table.full_name, key, builders[column].column.name, reason)
            self._mix(first, count, builders[column], column, cells, starts[k], lengths[k])
        return {plan.handle_columns[k][0] for k in wanted}

    def _mix(
        self, first: int, count: int, builder: ColumnBuilder, column: int, cells: Bytes, starts: Ints, lengths: Ints
    ) -> None:
        """Decode a column whose cells come from the handle wherever the row does not have one."""
        in_row = self._lengths[column, :count] >= 0
        data = cells
        if in_row.any():
            rows = self._rows[first : first + count]
            low, high = int(self._values.offsets[rows[0]]), int(self._values.offsets[rows[-1] + 1])
            data = np.concatenate([cells, self._values.data[low:high]])
            starts = np.where(in_row, self._starts[column, :count] - low + len(cells), starts).astype(np.int32)
            lengths = np.where(in_row, self._lengths[column, :count], lengths).astype(np.int32)
        failed = builder.add(data, starts, lengths, first, count, int(lengths.sum()), 0, 0)
        self._check(failed, first, builder.column)

    def _check(self, failed: int, first: int, column: ColumnInfo | None = None) -> None:
        if failed != OK:
            raise self._plan.undecodable(self._keys[int(self._rows[first + failed // 256])], column, failed % 256)
