"""Memory by its address, for compiled loops: plain numbers, so that one compilation serves every table.

Nothing is checked: whoever calls these has made sure that the addresses are valid.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it ships no types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(bits: int, *, is_signed: bool) -> Any:
    """``load(address)``: so many bits as an int64, or all 64 as a uint64."""

    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()))
            value.align = 1  # Arrow promises more, a slice of somebody's buffer does not
            if bits == 64:
                return value
            return (builder.sext if is_signed else builder.zext)(value, ir.IntType(64))

        result = types.uint64 if bits == 64 and not is_signed else types.int64
        return result(types.int64), generate

    return intrinsic(load)


def _storer(bits: int) -> Any:
    """``store(address, value)``: the low bits of a 64-bit value."""

    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            written = builder.store(value, builder.inttoptr(args[0], ir.IntType(bits).as_pointer()))
            written.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64 if bits == 64 else types.int64), generate

    return intrinsic(store)


def _copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, start = builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer)
        cgutils.raw_memcpy(builder, to, start, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


load_u8 = _loader(8, is_signed=False)
load_i32 = _loader(32, is_signed=True)
load_i64 = _loader(64, is_signed=True)
load_u64 = _loader(64, is_signed=False)
store_u8 = _storer(8)
store_u64 = _storer(64)
copy_bytes = intrinsic(_copy_bytes)
