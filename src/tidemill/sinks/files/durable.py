"""Files that are either whole or not there, also after a power cut.

Every step that changes the folder goes through ``DurableFiles``, so that a test can stop the world
after any of them, and every refusal of the operating system becomes a SinkError that says what to do.

Everybody who writes has a generation, named ``{holder}/{mark}``: the owner's term, or that of a writer. What it writes
goes below ``.tidemill/{holder}/{mark}/`` first and is renamed from there, and what it removes is renamed to there,
which is what fences it: to end a generation is to move its folder away, in one step of the file system, and from then
on a late rename finds nothing to rename, or nowhere to go. Tasks create no such folder, so one that starts late cannot
bring it back.
"""

import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tidemill.errors import SinkError, SinkUnavailableError, SupersededError
from tidemill.private import sync_folder

TEMPORARY = ".tmp"  # ends the name of a file that is being written; readers look for .json and .csv
STAGING = ".tidemill"  # below the root: for what is being written, a folder per holder and generation
MARK = ".generation"  # at the root: whose folder it is (``generation``)
_GONE = ".gone"  # ends the name of the folder of what has ended; no holder's name ends so


class _Steps:
    """What changes the folder ``root``, one at a time. A test overrides them to stop after any one."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

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
        sync_folder(self.root / path)

    def step_remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def step_clear(self, path: str) -> None:
        """Remove a folder and what is in it. A file that somebody still has open may stay, as on NFS: it is in nobody's
        way there, and the next generation tries again."""
        shutil.rmtree(self.root / path, ignore_errors=True)


class DurableFiles(_Steps):
    """A folder ``root``, which must exist. Paths are relative to it."""

    # Generations.

    def begin_generation(self, generation: str, after: Sequence[str] = ()) -> None:
        """From now on this is the only generation of its holder: what others of it still do has no effect.

        What they have published before this returns is there to be found; nothing follows it. With ``after``, only
        where one of those is the holder's newest so far; otherwise raises SupersededError.
        """
        holder = generation.partition("/")[0]
        with self._ending(generation), _explained("take over", self.root):
            if after:
                self._rename_generation(generation, after)
            else:
                for folder in (STAGING, f"{STAGING}/{holder}", f"{STAGING}/{generation}"):
                    self.step_make_folder(folder)
            for name in sorted(os.listdir(self.root / STAGING / holder)):
                if f"{holder}/{name}" != generation:
                    self._move_away(f"{holder}/{name}")
            self._clear()

    def end_generations(self, holder: str) -> None:
        """Whatever generations the holder has; also where it has none."""
        with _explained("take over", self.root):
            self._move_away(holder)
            self._clear()

    def holders(self) -> list[str]:
        """All that have generations, or had some."""
        return [name for name in self.names(STAGING) if not name.endswith(_GONE)]

    def is_current(self, generation: str) -> bool:
        """Whether it has not ended yet."""
        with _explained("look at", self.root):
            return (self.root / STAGING / generation).is_dir()

    def shut_out(self, term: str, holder: str) -> None:
        """This holder is not to begin anything in the term of an owner. What says so is in the term's own folder, and
        goes with that. Raises SupersededError if the term has ended."""
        with self._ending(term), _explained("take over", self.root):
            self.step_make_folder(f"{STAGING}/{term}/{holder}")
            self.step_sync_folder(f"{STAGING}/{term}")

    def forget_shut_out(self, term: str) -> None:
        """Those of terms before went with their folders."""

    def admits(self, term: str, holder: str) -> bool:
        """Whether the term has not ended, and this holder may begin in it."""
        return self.is_current(term) and holder not in self.names(f"{STAGING}/{term}")

    def _rename_generation(self, generation: str, after: Sequence[str]) -> None:
        """The folder of the last generation becomes that of the next: nobody can have moved it away before."""
        for last in reversed(after):
            with suppress(FileNotFoundError):
                self.step_rename(f"{STAGING}/{last}", f"{STAGING}/{generation}")
                break
        else:
            raise superseded(str(self.root))
        for name in os.listdir(self.root / STAGING / generation):
            if name.endswith(TEMPORARY):
                with suppress(OSError):  # of a task that still has it open, as on NFS
                    self.step_remove(f"{STAGING}/{generation}/{name}")

    def _move_away(self, path: str) -> None:
        """What is in there is to be removed before anybody relies on it: a rename that the kernel has begun may still
        find it."""
        with suppress(FileNotFoundError):
            gone = f"{path.replace('/', '-')}-{secrets.token_hex(4)}{_GONE}"
            self.step_rename(f"{STAGING}/{path}", f"{STAGING}/{gone}")

    def _clear(self) -> None:
        for name in sorted(self.names(STAGING)):
            if name.endswith(_GONE):
                self.step_clear(f"{STAGING}/{name}")

    # Files.

    def publish_file(self, generation: str, path: str, chunks: Iterable[Any]) -> int:
        """Write bytes aside, force them to the disk, then give them their name. Returns how many. The new name itself
        is durable after ``sync_folder``. Raises SupersededError, and changes nothing, if the generation has ended."""
        with self._ending(generation):
            return self._write(_staged(generation), path, chunks)

    def replace(self, generation: str, path: str, content: bytes) -> None:
        """The same for small files of an owner or a writer itself."""
        self.publish_file(generation, path, [content])

    def remove(self, generation: str, path: str) -> None:
        """A file, if it is there. Raises SupersededError, and changes nothing, if the generation has ended."""
        staged = _staged(generation)
        with self._ending(generation), _explained("remove", self.root / path):
            try:
                self.step_rename(path, staged)
            except FileNotFoundError:
                if self.is_current(generation):
                    return
                raise
            self.step_remove(staged)

    @contextmanager
    def _ending(self, generation: str) -> Iterator[None]:
        """Only to say why. Without any staging at all it is rather the disk that is not mounted any more."""
        try:
            yield
        except SinkError as error:
            has_ended = (self.root / STAGING).is_dir() and not self.is_current(generation)
            if isinstance(error.__cause__, FileNotFoundError) and has_ended:
                raise superseded(str(self.root)) from error
            raise

    def _write(self, temporary: str, path: str, chunks: Iterable[Any]) -> int:
        target = self.root / path
        size = 0
        try:
            with _explained("write", target):
                file = self.step_open(temporary)
            with file:
                for chunk in chunks:  # what goes wrong in making them is not ours to explain
                    with _explained("write", target):
                        self.step_append(file, chunk)
                    size += len(chunk)
                with _explained("write", target):
                    self.step_sync(file)
            with _explained("write", target):
                self.step_rename(temporary, path)
        except SinkError:
            with suppress(OSError):  # it may be what fills the disk
                (self.root / temporary).unlink(missing_ok=True)
            raise
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

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str]]]:
        """(folder, its files) of the whole tree, or of a folder of it that may not be there, without ``STAGING``, and
        without folders below that have a ``MARK`` of their own. Raises where a folder cannot be read."""
        if below and not (self.root / below).is_dir():
            return
        for folder, folders, files in os.walk(self.root / below, onerror=_raise_walk_error):
            if folder == str(self.root):
                folders[:] = [name for name in folders if name != STAGING]
            elif MARK in files:
                folders.clear()
                continue
            yield os.path.relpath(folder, self.root), files

    def around(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Of each folder that the root lies in, and that has a file of this name: the folder, and what the file says.
        One that we may not read is nobody's, as far as we can tell."""
        for folder in self.root.resolve().parents:
            with suppress(OSError):
                yield str(folder), (folder / name).read_bytes()


def _staged(generation: str) -> str:
    """A name of its own for each attempt: a task that was given up may still be writing."""
    return f"{STAGING}/{generation}/{secrets.token_hex(8)}{TEMPORARY}"


def is_temporary(name: str) -> bool:
    """Of a file that was being written beside its place, as earlier versions did."""
    return name.startswith(".") and name.endswith(TEMPORARY)


def superseded(root: str) -> SupersededError:
    return SupersededError(
        f"stopped writing to {root}: a newer generation of the changefeed, or another process, writes there now. "
        "Nothing is lost: what this one had not committed is written again. Give each changefeed a folder of its own."
    )


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
    errno.ENOENT: "The folder has vanished: bring it back (is its disk still mounted? Where Spark has workers on other "
    "machines, each of them, and so {host}, has to see it under this path, on a file system that they share)",
    errno.ENOTDIR: "A file stands where a folder should be: move it away or choose another folder",
    errno.EEXIST: "A file stands where a folder should be: move it away or choose another folder",
    errno.EISDIR: "A folder stands where a file should be: move it away or choose another folder",
    errno.ENAMETOOLONG: "The name is too long for this file system: choose another one",
    errno.EIO: "The disk reports a failure: check it",
    errno.ESTALE: "The file server has lost track of the folder: see that it exports it as before",
}
# What passes without a new start: space is freed, a file server comes back. The changefeed waits for it and says so.
# Rights, names and file systems that were taken away are somebody's decision; waiting for those would hide it.
_PASSING = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.ENOLCK,
        errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET,
        errno.ECONNABORTED, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
    }
)  # fmt: skip


def _translate(what: str, path: Path, error: OSError) -> SinkError:
    remedy = _REMEDIES.get(error.errno or 0, "See what the system says of it")
    found = f"cannot {what} {path}: {error.strerror or error}. {remedy.replace('{host}', socket.gethostname())}"
    if error.errno in _PASSING:
        return SinkUnavailableError(f"{found}. Nothing is lost: the changefeed continues from its checkpoint.")
    return SinkError(f"{found}, then start again; the changefeed continues from its checkpoint and nothing is lost.")
