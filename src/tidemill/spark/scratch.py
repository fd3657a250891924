"""The folder for temporary files: one per process, whichever changefeeds, sessions or stores it runs.

It is removed when the process ends. A process that was killed leaves its folder behind; the next one that needs a
folder removes it. A folder is in use as long as its lock is held, and the kernel releases that with the process.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tidemill.errors import UsageError

_PREFIX = "tidemill-process-"
_LOCK = "process.lock"
_ATTEMPTS = 3
_folder: Path | None = None
_lock: TextIO | None = None  # open as long as the folder is ours


def process_folder() -> Path:
    """The folder of this process, made when first asked for."""
    global _folder, _lock
    if _folder is None or not _folder.is_dir():
        remove_leftovers(Path(tempfile.gettempdir()))
        try:
            _folder, _lock = _make()
        except OSError as error:
            raise UsageError(
                f"cannot make a folder for temporary files in {tempfile.gettempdir()}: {error.strerror}. "
                "Free some space there, or set TMPDIR to a folder that you may write to."
            ) from error
        atexit.register(remove_folder)
    return _folder


@contextmanager
def all_in_process_folder() -> Iterator[None]:
    """Whatever the body makes by ``tempfile`` goes into the process's folder, which is removed if it is new."""
    is_new, former = _folder is None, tempfile.tempdir
    tempfile.tempdir = str(process_folder())
    try:
        yield
    finally:
        tempfile.tempdir = former
        if is_new:
            remove_folder()


def remove_folder() -> None:
    """Remove this process's folder, if it has one. Somebody who is about to end may still write to it."""
    global _folder, _lock
    for _ in range(_ATTEMPTS):
        if _folder is not None and _folder.exists():
            shutil.rmtree(_folder, ignore_errors=True)
    if _lock is not None:
        _lock.close()
    _folder = _lock = None


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of processes that have ended without doing so."""
    for folder in parent.glob(_PREFIX + "*"):
        try:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, somebody else's, or not yet complete


def _make() -> tuple[Path, TextIO]:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # Locked before it has its name, so that nobody finds a lock that is not held.
    aside = folder / f"{_LOCK}.new"
    lock = aside.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(aside, folder / _LOCK)
    return folder, lock
