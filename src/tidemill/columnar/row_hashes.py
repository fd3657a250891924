"""Rows as numbers: 64 bits a row, the same wherever the row was read.

Columns are mixed in one after the other, straight from Arrow's buffers. A null counts as a value of its own, so it is
told from zero and from the empty text. Runs on executors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import kernel

Hashes = npt.NDArray[np.uint64]

_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_PRIME = np.uint64(0x100000001B3)
_S31, _S29, _S32 = np.uint64(31), np.uint64(29), np.uint64(32)


def row_hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """A number for each row of ``columns``, which depends on their order and on nothing else but the values."""
    out = np.full(rows, 0x7469646D696C6C, np.uint64)
    for column in columns:
        _mix(out, column)
    return out


def _mix(out: Hashes, values: pa.Array) -> None:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not len(values):
        return
    if values.null_count:
        valid = values.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
    else:
        valid = np.ones(1, np.uint8)
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = values.buffers()
        found = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.frombuffer(b"\0", np.uint8)
        _mix_bytes(out, held, _frozen(found), _frozen(valid))
        return
    words = kind.bit_width // 64
    if words > 1:  # a decimal
        whole = np.frombuffer(values.buffers()[1], np.uint64)[
            values.offset * words : (values.offset + len(values)) * words
        ]
        for word in range(words):
            _mix_fixed(out, _frozen(np.ascontiguousarray(whole[word::words])), _frozen(valid))
        return
    plain = np.frombuffer(values.buffers()[1], f"u{kind.bit_width // 8}")[values.offset : values.offset + len(values)]
    _mix_fixed(out, _frozen(plain.astype(np.uint64, copy=False)), _frozen(valid))


def _frozen(values: Any) -> Any:
    """Arrow's buffers cannot be written to; if none can, one compilation serves all."""
    values = values.view()
    values.flags.writeable = False
    return values


@kernel
def _mixed(state: Any, value: Any) -> Any:
    mixed = (state ^ value) * _A + _C
    mixed ^= mixed >> _S32
    mixed *= _B
    mixed ^= mixed >> _S29
    mixed *= _C
    return mixed ^ (mixed >> _S31)


@kernel
def _mix_fixed(out: Any, values: Any, valid: Any) -> None:
    has_nulls = len(valid) == len(values)
    for row in range(len(out)):
        if has_nulls and valid[row] == 0:
            out[row] = _mixed(out[row] + _B, _C)
        else:
            out[row] = _mixed(out[row], values[row])


@kernel
def _mix_bytes(out: Any, data: Any, offsets: Any, valid: Any) -> None:
    has_nulls = len(valid) == len(offsets) - 1
    for row in range(len(out)):
        if has_nulls and valid[row] == 0:
            out[row] = _mixed(out[row] + _B, _C)
            continue
        first, last = offsets[row], offsets[row + 1]
        found = np.uint64(last - first) * _A
        for at in range(first, last):
            found = (found ^ np.uint64(data[at])) * _PRIME
            found ^= found >> _S29
        out[row] = _mixed(out[row], found)
