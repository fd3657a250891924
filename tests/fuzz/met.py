"""A plugin of the checked run: which compiled loops nothing has called, to the file that ``TIDEMILL_UNMET`` names.

Loops that only other loops call are compiled into those, and met with them.
"""

import importlib
import os
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from tidemill import kernelcache

VARIABLE = "TIDEMILL_UNMET"
SOURCE = Path(kernelcache.__file__).parent.parent


def loops() -> dict[str, Dispatcher]:
    """All of ours, by name."""
    found = {}
    for path in sorted(path for package in kernelcache.PACKAGES for path in (SOURCE / package).rglob("*.py")):
        if path.stem != "kernelcache" and any(mark in path.read_bytes() for mark in kernelcache.MARKS):
            module = importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
            for value in vars(module).values():
                if isinstance(value, Dispatcher):
                    found[f"{value.py_func.__module__}.{value.py_func.__name__}"] = value
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    known = loops()
    inner = {
        id(value)
        for loop in known.values()
        for name in loop.py_func.__code__.co_names
        if isinstance(value := loop.py_func.__globals__.get(name), Dispatcher)
    }
    unmet = [name for name, loop in known.items() if id(loop) not in inner and not loop.signatures]
    Path(os.environ[VARIABLE]).write_text("\n".join(unmet))
