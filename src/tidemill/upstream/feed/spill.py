"""Arrays that may outgrow memory: from some size on they lie in a file of a given folder.

A transaction's first halves have to wait for their COMMIT, however many there are. In a mapped file they are pages that
the kernel writes out when memory is wanted, instead of pages that must stay. The file has no name, so nothing is left
of it when the process ends. Its space is taken at once, since a page that finds no room later would kill the process;
on a full disk memory serves as before.
"""

import mmap
import os
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.log import get_logger

log = get_logger("feed")

_LEAST_BYTES = 16 << 20


class Spill:
    """``folder`` None: all in memory."""

    def __init__(self, folder: Path | None = None, least_bytes: int = _LEAST_BYTES) -> None:
        self._folder = folder
        self._least_bytes = least_bytes

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._folder is None or size < self._least_bytes:
            return np.zeros(shape, dtype)
        try:
            with TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                area = mmap.mmap(file.fileno(), size)
        except OSError as error:
            log.warning("no room for open transactions on disk; they stay in memory", reason=error.strerror, bytes=size)
            return np.zeros(shape, dtype)
        return np.frombuffer(area, dtype).reshape(shape)
