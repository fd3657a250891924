"""Copies rows that lie scattered over many batches into one place, in one pass.

``pyarrow`` would first put the batches together and then pick the rows: two copies through fresh memory,
which cost more than all the rest of sorting. Here each value is known by its address and length, and
neighbours that stay neighbours are copied at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tidemill.columnar.jit import kernel
from tidemill.errors import InvariantError

_ARROW_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Scattered:
    """Where the values of a binary column lie, in the order in which they are wanted.

    Addresses are of buffers that ``arrays`` keep alive.
    """

    address: npt.NDArray[np.int64]
    length: npt.NDArray[np.int32]
    arrays: Sequence[pa.Array]

    @classmethod
    def of(cls, columns: Sequence[pa.Array], order: npt.NDArray[np.int64] | None) -> "Scattered":
        """The values of ``columns``, one after the other, or of their rows ``order``."""
        count = sum(len(column) for column in columns)
        address, length = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
        at = 0
        for column in columns:
            end = at + len(column)
            _find(column, address[at:end], length[at:end])
            at = end
        if order is not None:
            address, length = address[order], length[order]
        return cls(address, length, columns)

    @property
    def bytes(self) -> int:
        return int(self.length.sum(dtype=np.int64))

    def slice(self, low: int, high: int) -> "Scattered":
        return Scattered(self.address[low:high], self.length[low:high], self.arrays)

    def arrow_offsets(self) -> npt.NDArray[np.int32]:
        """The same in Arrow's 32 bits. Batches are cut long before those end."""
        if self.bytes > _ARROW_LIMIT:
            raise InvariantError(f"{self.bytes} bytes were to go into one column of a batch. This is a bug.")
        return self.offsets().astype(np.int32)

    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each value begins once they lie side by side, and where the last one ends."""
        offsets = np.zeros(len(self.length) + 1, dtype=np.int64)
        np.cumsum(self.length, out=offsets[1:])
        return offsets

    def copy_to(self, target: npt.NDArray[np.uint8], row: int = 0, skip: int = 0) -> tuple[int, int, int]:
        """Fill ``target`` from byte ``skip`` of value ``row`` on.

        Returns the bytes written, and the row and byte at which the next call has to go on.
        """
        written, row, skip = _copy_rows(target.ctypes.data, target.size, self.address, self.length, row, skip)
        return written, row, skip


def _find(column: pa.Array, address: npt.NDArray[np.int64], length: npt.NDArray[np.int32]) -> None:
    """Fill in where the values of one array lie."""
    _, offsets, data = column.buffers()
    if len(column):
        mine = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
        np.add(mine[:-1], np.int64(0 if data is None else data.address), out=address)
        np.subtract(mine[1:], mine[:-1], out=length)


@intrinsic  # type: ignore[untyped-decorator] # numba has no types
def _memcpy(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy ``count`` bytes between two addresses that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = cgutils.voidptr_t
        to, of = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, of, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def _copy_rows(target: Any, room: Any, address: Any, length: Any, row: Any, skip: Any) -> Any:
    written = 0
    rows = len(address)
    while row < rows and written < room:
        begin = address[row] + skip
        end = address[row] + length[row]
        after = row + 1
        while after < rows and address[after] == end and end - begin < room - written:
            end += length[after]
            after += 1
        count = min(end - begin, room - written)
        _memcpy(target + written, begin, count)
        written += count
        if count == end - begin:
            row, skip = after, 0
        else:  # the target is full; go on within the last of the neighbours
            row = after - 1
            skip = count - (address[row] - begin)
    return written, row, skip
