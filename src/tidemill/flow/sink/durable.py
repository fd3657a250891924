"""Files that are either whole or not there, also after a power cut.

Every step that changes the folder goes through ``DurableFiles``, so that a test can stop the world
after any of them, and every refusal of the operating system becomes a SinkError that says what to do.
"""

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tidemill.errors import SinkError

TEMPORARY = ".tmp"  # ends the name of a file that is being written; readers look for .json and .csv


class DurableFiles:
    """A folder ``root``, which must exist, and the steps that change it. Paths are relative to it."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def write(self, path: str, chunks: Iterable[Any], before_rename: Callable[[], None] | None = None) -> int:
        """Write bytes under a temporary name, force them to the disk, then give them their name.

        Returns the bytes written. The new name itself is durable after ``sync_folder``.
        ``before_rename`` may still raise to stop it.
        """
        target = self.root / path
        temporary = _temporary(path)
        size = 0
        with _explained("write", target):
            file = self.step_open(temporary)
        with file:
            for chunk in chunks:  # what goes wrong in making them is not ours to explain
                with _explained("write", target):
                    self.step_append(file, chunk)
                size += len(chunk)
            with _explained("write", target):
                self.step_sync(file)
        if before_rename is not None:
            before_rename()
        with _explained("write", target):
            self.step_rename(temporary, path)
        return size

    def make_folder(self, path: str) -> None:
        """Create ``path`` and its parents below the root; each new one is made durable in its parent."""
        folder = self.root / path
        if folder.is_dir():
            return
        with _explained("create folder", folder):
            missing = []
            while folder != self.root and not folder.is_dir():
                missing.append(folder)
                folder = folder.parent
            for new in reversed(missing):
                self.step_make_folder(str(new.relative_to(self.root)))
                self.step_sync_folder(str(new.parent.relative_to(self.root)))

    def sync_folder(self, path: str) -> None:
        with _explained("sync folder", self.root / path):
            self.step_sync_folder(path)

    def remove(self, path: str) -> None:
        with _explained("remove", self.root / path):
            self.step_remove(path)

    def read(self, path: str) -> bytes | None:
        """The content; None if there is no such file."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _translate("read", self.root / path, error) from error

    def names(self, path: str) -> list[str]:
        """What a folder holds; nothing if there is no such folder."""
        try:
            return os.listdir(self.root / path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _translate("list", self.root / path, error) from error

    def walk(self) -> Iterator[tuple[str, list[str]]]:
        """(folder, its files) of the whole tree. Raises where a folder cannot be read."""
        for folder, _, files in os.walk(self.root, onerror=_raise_walk_error):
            yield os.path.relpath(folder, self.root), files

    # The steps. A test overrides them to stop after any one.

    def step_open(self, path: str) -> BinaryIO:
        return open(self.root / path, "wb", buffering=0)

    def step_append(self, file: BinaryIO, chunk: Any) -> None:
        left = memoryview(chunk).cast("B")
        while len(left):
            left = left[file.write(left) :]

    def step_sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())

    def step_rename(self, source: str, target: str) -> None:
        os.replace(self.root / source, self.root / target)

    def step_make_folder(self, path: str) -> None:
        try:
            os.mkdir(self.root / path)
        except FileExistsError:
            if not (self.root / path).is_dir():
                raise

    def step_sync_folder(self, path: str) -> None:
        handle = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def step_remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)


def _temporary(path: str) -> str:
    """A name of its own for each attempt: a task that was given up may still be writing."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}{TEMPORARY}")


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY)


def open_root(root: str, *, is_new: bool) -> None:
    """Make sure that ``root`` is a folder that we may write to; it is created if the changefeed ``is_new``."""
    path = Path(root)
    with _explained("use", path):
        if is_new:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise FileNotFoundError(errno.ENOENT, "No such directory")
        probe = path / f".probe{TEMPORARY}"
        probe.write_bytes(b"")
        probe.unlink()


@contextmanager
def _explained(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translate(what, path, error) from error


def _raise_walk_error(error: OSError) -> None:
    raise _translate("list", Path(error.filename or ""), error) from error


_REMEDIES = {
    errno.ENOSPC: "The disk is full: free some space",
    errno.EDQUOT: "The disk quota is used up: raise it or free some space",
    errno.EACCES: "We have no right to: give this user write access",
    errno.EPERM: "We have no right to: give this user write access",
    errno.EROFS: "The file system is read-only: mount it for writing",
    errno.ENOENT: "The folder has vanished: bring it back (is its disk still mounted?)",
    errno.ENOTDIR: "A file stands where a folder should be: move it away or choose another folder",
    errno.EEXIST: "A file stands where a folder should be: move it away or choose another folder",
    errno.EISDIR: "A folder stands where a file should be: move it away or choose another folder",
    errno.ENAMETOOLONG: "The name is too long for this file system: choose another one",
    errno.EIO: "The disk reports a failure: check it",
}


def _translate(what: str, path: Path, error: OSError) -> SinkError:
    remedy = _REMEDIES.get(error.errno or 0, "See what the system says of it")
    return SinkError(
        f"cannot {what} {path}: {error.strerror or error}. {remedy}, then start again; "
        "the changefeed goes on from its checkpoint and nothing is lost."
    )
