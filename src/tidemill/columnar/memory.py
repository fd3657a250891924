"""Memory that was freed and that the allocators keep: given back to the system after a peak.

A catch-up fills hundreds of megabytes with changes on their way to disk. Once they are there, the process no longer
needs that much, but allocators keep freed memory for the next request, for as long as the process lives.
"""

import ctypes
from functools import cache
from typing import Any

import pyarrow as pa


def give_back() -> None:
    """Takes milliseconds, so it is for the end of something large."""
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    """Of glibc; None where there is another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
