"""Files and folders that only the user who runs us may read, whatever the umask; and how they are made durable."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

_FOLDER, _FILE = 0o700, 0o600
_UMASK_VARIABLE = "TIDEMILL_UMASK"


@overload
def open_private(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO: ...
@overload
def open_private(path: Path, mode: Literal["w"]) -> TextIO: ...
def open_private(path: Path, mode: str) -> IO[Any]:
    """Open for writing; a file that is there already is closed to others first."""
    return open(path, mode, opener=_opened)


def replace_private(path: Path, content: bytes) -> None:
    """The file holds ``content`` when this returns, also after a power cut; before, it held the old content or none."""
    aside = path.with_name(f".{path.name}.tmp")  # always the same: a crash leaves one at most
    with open_private(aside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files the folder has."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_private(folder: Path) -> None:
    """The folder, made if it is missing; those above it have the usual rights."""
    folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    folder.chmod(_FOLDER)


def strangers(folder: Path, ours: Collection[str]) -> list[str]:
    """What of a folder is not of a start of ours that was killed. Such a one has left an empty lock; where there is
    none, nothing in the folder is ours, whatever its name is. Hidden files do not count."""
    names = {path.name for path in folder.iterdir() if path.name != "lost+found" and not path.name.startswith(".")}
    lock = folder / "lock"
    if lock.is_file() and not lock.is_symlink() and not lock.stat().st_size:
        names -= {lock.name, *ours}
    return sorted(names)


def is_open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o077)


@contextmanager
def private_children() -> Iterator[None]:
    """Processes started in here keep their files to themselves, but for descendants that ``take_umask``."""
    before = os.umask(0o077)
    os.environ[_UMASK_VARIABLE] = str(before)
    try:
        yield
    finally:
        os.umask(before)


def take_umask() -> None:
    """In a process whose files are not all private: the umask that the first of us was started with."""
    if _UMASK_VARIABLE in os.environ:
        os.umask(int(os.environ[_UMASK_VARIABLE]))


def _opened(path: str, flags: int) -> int:
    handle = os.open(path, flags, _FILE)
    os.fchmod(handle, _FILE)
    return handle
