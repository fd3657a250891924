"""What makes a process of ours start quickly and stay small: importing less, and collecting nothing meanwhile.

Arrow looks for pandas when it converts its first Python value, and imports it where it is installed: a quarter of a
CPU-second and some 25 MB in every process, for a library that we never hand anything to. PySpark wants pandas to be
installed, so it always is.

Thousands of modules are objects that live as long as the process. Python's collector would walk over all of them
several times while they are imported, then again with each full collection, and in forked workers, where Spark asks for
one after each task, it would also write to the pages that they share with their parent. So it rests meanwhile, and
leaves alone afterwards what was there then.
"""

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_PANDAS = "pandas"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Modules that are imported herein, and all objects made by then, are never looked at by the collector."""
    gc.disable()
    try:
        _hide_pandas_from_arrow()
        yield
    finally:
        gc.freeze()
        gc.enable()


def _hide_pandas_from_arrow() -> None:
    """Let Arrow find a pandas that is too old for it, once. Others import the real one as ever."""
    if _PANDAS in sys.modules:
        return
    import pyarrow as pa

    old = ModuleType(_PANDAS)
    vars(old)["__version__"] = "0"
    sys.modules[_PANDAS] = old
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pa.array([None])
    finally:
        del sys.modules[_PANDAS]
