"""Keys as numbers: rows whose key is the same get the same number, exactly and for whole columns at once.

Two notions of the same. A row is found again by the bytes of its handle key (``codes``). Whether two rows could
stand in each other's way under a unique index is for the downstream's collation to say, so there text is brought
to a form that equal texts surely share (``loose``): where a collation may take unlike texts as equal in ways we
do not know, all of the column counts as equal. That costs concurrency, never correctness.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.table import ColumnInfo, IndexColumn, TableInfo

Codes = npt.NDArray[np.int64]
NO_KEY = -1  # of a row with a NULL in the key: it is in nobody's way

_PLAIN_COLLATIONS = ("_bin", "binary")


def codes(columns: Sequence[pa.Array]) -> Codes:
    """For rows of a key's ``columns``: equal numbers, from 0 on, for equal keys and for no others. A NULL: NO_KEY."""
    total, size = np.zeros(len(columns[0]) if columns else 0, np.int64), 1
    has_null = np.zeros(len(total), np.bool_)
    for column in columns:
        encoded = column.dictionary_encode()
        indices = pc.fill_null(encoded.indices, 0).to_numpy().astype(np.int64)
        if column.null_count:
            has_null |= column.is_null().to_numpy(zero_copy_only=False)
        values = max(len(encoded.dictionary), 1)
        if size > (1 << 62) // values:
            found, total = np.unique(total, return_inverse=True)
            size = len(found)
        total, size = total * values + indices, size * values
    if has_null.any():
        total[has_null] = NO_KEY
    return total


def loose(column: ColumnInfo, values: pa.Array, prefix: int = -1) -> pa.Array:
    """``values`` so that any two which the downstream may take as equal under a unique index are equal."""
    if pa.types.is_floating(values.type):
        return pc.add(values, pa.scalar(0.0, values.type))  # the two zeros are one
    if values.type == pa.binary():
        return pc.binary_slice(values, 0, prefix) if prefix >= 0 else values
    if values.type != pa.string() or column.charset == "binary" or not column.charset:
        return values
    if prefix >= 0:
        values = pc.utf8_slice_codeunits(values, 0, prefix)
    values = pc.utf8_rtrim(values, " ")  # most collations pad
    if column.collate.endswith(_PLAIN_COLLATIONS):
        return values
    is_plain = pc.all(pc.match_substring_regex(values, r"^[\x20-\x7e]*$")).as_py()
    if is_plain is False:
        return pc.if_else(pc.is_valid(values), pa.scalar(""), values)
    return pc.ascii_lower(values)


def unique_keys(table: TableInfo) -> list[tuple[IndexColumn, ...]]:
    """The columns of each unique index, the handle key among them, without virtual ones: those are in no row."""
    keys = [index.columns for index in table.indexes if index.is_unique or index.is_primary]
    if table.pk_is_handle and not any(index.is_primary for index in table.indexes):
        keys.insert(0, tuple(IndexColumn(column.offset, -1) for column in table.primary_key))
    return [tuple(part for part in key if not table.columns[part.offset].is_virtual) for key in keys]


def places(table: TableInfo) -> dict[int, int]:
    """From a column's offset to its place among the stored columns."""
    return {column.offset: place for place, column in enumerate(table.stored_columns)}


def conflict_codes(table: TableInfo, old: pa.RecordBatch, new: pa.RecordBatch) -> list[tuple[Codes, Codes]]:
    """For each unique index the numbers of the old and of the new rows' keys, loosely compared."""
    where = places(table)
    found = []
    for key in unique_keys(table):
        columns = [
            loose(
                table.columns[part.offset],
                pa.concat_arrays([old.column(where[part.offset]), new.column(where[part.offset])]),
                part.length,
            )
            for part in key
        ]
        both = codes(columns) if columns else np.zeros(old.num_rows + new.num_rows, np.int64)
        found.append((both[: old.num_rows], both[old.num_rows :]))
    return found


def handle_codes(table: TableInfo, old: pa.RecordBatch, new: pa.RecordBatch) -> tuple[Codes, Codes]:
    """The numbers of the handle keys of the old and of the new rows, by their bytes."""
    where = places(table)
    columns = [
        pa.concat_arrays([old.column(where[column.offset]), new.column(where[column.offset])])
        for column in table.handle_key
    ]
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        both = (
            columns[0].to_numpy().view(np.int64)
        )  # any number is as good as another, and these sort as the table does
    else:
        both = codes(columns)
    return both[: old.num_rows], both[old.num_rows :]
