"""Arrow arrays whose buffers end where memory ends: who reads a byte behind one dies of it.

Loops that go by addresses are not checked by Numba.
"""

import ctypes
import mmap
from typing import Any

import pyarrow as pa

_libc = ctypes.CDLL(None, use_errno=True)
_NO_RIGHTS = 0


class _Pages:
    """Some bytes right before a page that nobody may touch."""

    def __init__(self, data: bytes) -> None:
        size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._pages = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._pages[size - len(data) : size] = data
        self._view = ctypes.c_char.from_buffer(self._pages)
        begin = ctypes.addressof(self._view)
        if _libc.mprotect(ctypes.c_void_p(begin + size), mmap.PAGESIZE, _NO_RIGHTS):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.buffer = pa.foreign_buffer(begin + size - len(data), len(data), self)


def guarded(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_array(column) for column in batch.columns], schema=batch.schema)


def _array(values: pa.Array) -> pa.Array:
    buffers: list[Any] = []
    for at, buffer in enumerate(values.buffers()):
        if buffer is None:
            buffers.append(None)
            continue
        data = buffer.to_pybytes()
        if at == 0:
            data = data[: -(-(values.offset + len(values)) // 8)]
        elif at == 1 and len(values.buffers()) == 3:
            data = data[: 4 * (values.offset + len(values) + 1)]
        elif at == 1:
            data = data[: values.type.bit_width // 8 * (values.offset + len(values))]
        buffers.append(_Pages(data).buffer)
    return pa.Array.from_buffers(values.type, len(values), buffers, values.null_count, values.offset)
