"""How loops are compiled here, and the two machine operations that NumPy and Numba do not offer.

Kernels trust their arguments: Numba checks no bounds. Whoever calls ``load_u64`` or ``copy`` has
made sure before that every byte lies inside its buffer. Under ``NUMBA_BOUNDSCHECK=1``, as in the
fuzz tests, every access is checked, also those of ``load_u64`` and ``copy``.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import config, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

# Kernels mix machine integers of all widths. To the type checker each is an int, and an element is Any.
Bytes = npt.NDArray[Any]  # uint8
Ints = npt.NDArray[Any]  # int32
Longs = npt.NDArray[Any]  # int64
Words = npt.NDArray[Any]  # uint64
i64 = cast(Callable[[Any], int], np.int64)
u64 = cast(Callable[[Any], int], np.uint64)
u8 = cast(Callable[[Any], int], np.uint8)
f64 = cast(Callable[[Any], float], np.float64)


def kernel(function: Function) -> Function:
    compiled: Function = njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def helper(function: Function) -> Function:
    """For what only kernels call: compiled into each of them, without an entry from the interpreter."""
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Function = njit(**options)(function)
    return compiled


@helper
def count_up_to(ordered: Longs, value: int) -> int:
    """How many of the ``ordered`` numbers are ≤ ``value``. (NumPy's searchsorted takes a second to compile.)"""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


def _byte_pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    struct = context.make_array(array_type)(context, builder, array)
    return builder.gep(struct.data, [at])


def _load_u64(typing_context: Any, data: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        position = context.cast(builder, args[1], signature.args[1], types.intp)
        pointer = _byte_pointer(context, builder, signature.args[0], args[0], position)
        word = context.get_value_type(types.uint64)
        return builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)

    return types.uint64(data, at), generate


def _copy(typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        to = context.cast(builder, args[1], kinds[1], types.intp)
        origin = context.cast(builder, args[3], kinds[3], types.intp)
        count = context.cast(builder, args[4], kinds[4], types.intp)
        target_pointer = _byte_pointer(context, builder, kinds[0], args[0], to)
        source_pointer = _byte_pointer(context, builder, kinds[2], args[2], origin)
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, count, 1)
        return context.get_dummy_value()

    return types.void(target, target_at, source, source_at, size), generate


load_u64: Callable[[Bytes, int], int] = intrinsic(_load_u64)
"""The eight bytes at a position as a little-endian word, aligned or not."""

copy: Callable[[Bytes, int, Bytes, int, int], None] = intrinsic(_copy)
"""``target[target_at:][:size] = source[source_at:][:size]``; the two do not overlap."""

if config.BOUNDSCHECK:
    _unchecked_load, _unchecked_copy = load_u64, copy

    @helper
    def load_u64(data: Bytes, at: int) -> int:
        if at < 0 or at + 8 > len(data):
            raise IndexError("a word outside of its buffer")
        return _unchecked_load(data, at)

    @helper
    def copy(target: Bytes, target_at: int, source: Bytes, source_at: int, size: int) -> None:
        if size < 0 or target_at < 0 or source_at < 0:
            raise IndexError("a copy from or to a negative position, or of a negative size")
        if target_at + size > len(target) or source_at + size > len(source):
            raise IndexError("a copy that reaches outside of its buffers")
        _unchecked_copy(target, target_at, source, source_at, size)
