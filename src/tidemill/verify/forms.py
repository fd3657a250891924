"""Values in the one form in which both sides are compared: where two are the same to the type, they are the same bytes.

    MOUNTED   as the mounter gives them (``model/row.py``): for MySQL, TiDB and message files
    LAKE      as a lake table holds them (``sink/lake/columns.py``), and what does not fit there as text in ``_unfit``

What no downstream can tell apart is made equal on both sides: the two zeros of FLOAT and DOUBLE, what lies behind the
digits of a DOUBLE(15,4), which databases round in ways that differ in the last bit, the spaces behind a CHAR, the zero
bytes behind a BINARY, and how a JSON document is spelled. Nothing else is: not the last digit of a float, not trailing
spaces of a VARCHAR, not NULL and ''. Runs on executors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.row import arrow_type
from tidemill.model.table import STRING_TYPES, ColumnInfo, ColumnType, TableInfo
from tidemill.sinks.lake.columns import Unfit, lake_type, to_lake
from tidemill.verify.hashing import Hashes, row_hashes

UNFIT = "_unfit"  # the column beside those of a lake table


class Form(Enum):
    MOUNTED = "mounted"
    LAKE = "lake"


@dataclass(frozen=True)
class Comparison:
    """How rows of one table are compared. Small and picklable."""

    table: TableInfo  # with the columns that are compared
    form: Form = Form.MOUNTED
    spells_json: bool = False  # whether the downstream spells JSON in its own way

    @cached_property
    def schema(self) -> pa.Schema:
        kind = arrow_type if self.form is Form.MOUNTED else lake_type
        fields = [pa.field(c.name, kind(c)) for c in self.table.stored_columns]
        return pa.schema([*fields, pa.field(UNFIT, pa.string())] if self.form is Form.LAKE else fields)

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        places = {column.offset: place for place, column in enumerate(self.table.stored_columns)}
        return tuple(places[column.offset] for column in self.table.handle_key)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.handle_key)

    def of_upstream(self, new: pa.RecordBatch) -> pa.RecordBatch:
        """Mounted rows in the form of the comparison."""
        columns = self.table.stored_columns
        arrays = [new.column(column.name) for column in columns]
        if self.form is Form.MOUNTED:
            return self.settled(arrays)
        unfit: dict[str, Unfit] = {}
        held = []
        for column, values in zip(columns, arrays, strict=True):
            found, misfits = to_lake(column, values)
            held.append(found)
            if misfits:
                unfit[column.name] = misfits
        return self.settled([*held, unfit_texts(unfit, len(new))])

    def settled(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        """Columns of either side, typed as the schema says, in their settled form."""
        columns = self.table.stored_columns
        done = [self._settle(column, values) for column, values in zip(columns, arrays, strict=False)]
        return pa.RecordBatch.from_arrays([*done, *arrays[len(columns) :]], schema=self.schema)

    def hashes(self, rows: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        """The numbers of the keys and of the whole rows."""
        arrays = rows.columns
        keys = row_hashes([arrays[place] for place in self.key_places], len(rows))
        return keys, row_hashes(arrays, len(rows))

    def _settle(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        kind = values.type
        if pa.types.is_floating(kind):
            if column.decimal >= 0:
                values = pc.round(values, column.decimal)
            return pc.add(values, pa.scalar(0.0, kind))
        if column.type is ColumnType.STRING and column.type in STRING_TYPES:
            return _without_tail(values, b"\0" if column.is_binary else b" ")
        if column.type is ColumnType.JSON and self.spells_json:
            return pa.array([None if text is None else same_json(text) for text in values.to_pylist()], pa.string())
        return values


def unfit_texts(unfit: Mapping[str, Unfit], rows: int) -> pa.Array:
    if not unfit:
        return pa.nulls(rows, pa.string())
    by_row: dict[int, dict[str, str]] = {}
    for name, texts in unfit.items():
        for row, text in texts.items():
            by_row.setdefault(row, {})[name] = text
    found = [json.dumps(by_row[row], sort_keys=True) if row in by_row else None for row in range(rows)]
    return pa.array(found, pa.string())


def same_json(text: str) -> str:
    """One spelling for documents that are the same. Text that is none stays as it is."""
    try:
        return json.dumps(_plain(json.loads(text)), sort_keys=True)
    except ValueError:
        return text


def _plain(value: object) -> object:
    """A number is a number: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(held) for name, held in value.items()}
    return [_plain(held) for held in value] if isinstance(value, list) else value


def _without_tail(values: pa.Array, tail: bytes) -> pa.Array:
    """Arrow trims text only, byte by byte; which bytes they are does not matter to it."""
    trimmed = pc.ascii_rtrim(_as(values, pa.string()), characters=tail.decode())
    return _as(trimmed, values.type)


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    return pa.Array.from_buffers(kind, len(values), values.buffers(), values.null_count, values.offset)
