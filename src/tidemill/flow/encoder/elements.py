"""ENUM and SET by the names of their elements. What TiDB let in though it is no element has the empty name."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def enum_names(elems: Sequence[str], values: pa.Array) -> pa.Array:
    """``elems`` may be escaped already: they are copied as they are."""
    names = pa.array(["", *elems], pa.string())
    known = pc.less_equal(values, pa.scalar(len(elems), pa.uint64()))
    return names.take(pc.if_else(known, values, pa.scalar(0, pa.uint64())))


def set_names(elems: Sequence[str], values: pa.Array) -> pa.Array:
    encoded = values.dictionary_encode()
    names = [
        "" if bitmap >> len(elems) else ",".join(elem for bit, elem in enumerate(elems) if bitmap >> bit & 1)
        for bitmap in encoded.dictionary.to_pylist()
    ]
    return pa.array(names, pa.string()).take(encoded.indices)
