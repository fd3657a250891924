"""Row checksums: CRC-32 over a row's values, column by column in the order of their ids, nulls left out.

whole numbers, years, bits, elements    64 bits, little-endian
FLOAT, DOUBLE                           those of the double; 0 where it is no number
texts, bytes and all that is a text     32 bits of length, little-endian, then the bytes
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, Longs, Words, helper, kernel, u64
from tidemill.flow.mounter.checksums import crc_table
from tidemill.flow.reader.cells import parts_of
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnType, TableInfo

_START = 0xFFFFFFFF


def can_be_checked(table: TableInfo) -> bool:
    """Whether messages tell what the checksum is over: of a VECTOR they have a text."""
    return all(column.type is not ColumnType.VECTOR for column in table.stored_columns)


def wrong_sums(rows: RowBatch, places: Longs, sums: Words) -> Iterator[tuple[int, str]]:
    """Which messages have a row that is not what was written, and why. ``places`` are those of the messages; ``sums``,
    by message, those of the new rows and of the old ones, 0 for none."""
    if not sums.any() or not can_be_checked(rows.table):
        return
    for image, without, told, which in (
        (rows.new, RowOp.DELETE, sums[0], "new"),
        (rows.old, RowOp.INSERT, sums[1], "old"),
    ):
        of = places[rows.op != without]
        found = row_checksums(image)
        for wrong in np.flatnonzero((told[of] != 0) & (told[of] != found)).tolist():
            yield (
                int(of[wrong]),
                (
                    f"the {which} row of table {rows.table.full_name} has the checksum {int(found[wrong])}, where "
                    f"{int(told[of[wrong]])} was told: it was damaged on its way"
                ),
            )


def row_checksums(image: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Of each row, with columns in the order of their ids, and TIMESTAMPs in UTC."""
    found = np.full(len(image), _START, np.uint64)
    for values in image.columns:
        valid = values.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            offsets, data = parts_of(values if not values.offset else pa.concat_arrays([values]))
            _fold_texts(found, data, offsets, valid, crc_table())
        else:
            _fold_words(found, _words(values), valid, crc_table())
    return found ^ np.uint64(_START)


def _words(values: pa.Array) -> Words:
    if pa.types.is_floating(values.type):
        doubles = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        return np.where(np.isfinite(doubles), doubles, 0.0).view(np.uint64)
    found: Words = values.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64).copy()
    return found


@kernel
def _fold_words(found: Words, words: Words, valid: Bytes, table: Words) -> None:
    for n in range(len(found)):
        if valid[n]:
            found[n] = _with_number(found[n], words[n], 8, table)


@kernel
def _fold_texts(found: Words, data: Bytes, offsets: Ints, valid: Bytes, table: Words) -> None:
    for n in range(len(found)):
        if not valid[n]:
            continue
        begin, end = offsets[n], offsets[n + 1]
        crc = _with_number(found[n], u64(end - begin), 4, table)
        for at in range(begin, end):
            crc = table[(crc ^ u64(data[at])) & u64(0xFF)] ^ (crc >> u64(8))
        found[n] = crc


@helper
def _with_number(crc: int, number: int, size: int, table: Words) -> int:
    for _ in range(size):
        crc = table[(crc ^ number) & u64(0xFF)] ^ (crc >> u64(8))
        number >>= u64(8)
    return crc
