"""An archive of the classes that Spark loads, which takes three of the eight seconds from a start.

Most of what a JVM does until Spark plans its first batch is to find, check and link some ten thousand classes. A JVM
can write what came of that into a file when it ends, and a later one maps the file into its memory. Making it takes
longer than a start, so nobody is made to wait for it: ``tidemill warm`` makes it. A JVM passes over an archive that
does not fit it, be it of another Java or of another Spark.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

_SILENT = "-Xlog:disable -Xlog:all=error:stderr"  # a JVM says on stdout, which is ours, why it passes over an archive
# Mapped at the address that it was made for, it is used as it is. At a random one, which recent JVMs prefer, pointers
# in it are rewritten at each start: 55 MB more that each JVM has for itself.
_IN_PLACE = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
_recorded: Path | None = None


def java_options(home: Path | None) -> str:
    """What a JVM on Spark's ``home`` is told: to use the archive, to make it, or nothing."""
    archive = _archive(home) if home else None
    if archive is None:
        return ""
    if _recorded is not None:
        return f"-XX:ArchiveClassesAtExit={_recorded} {_SILENT}"
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto {_IN_PLACE} {_SILENT}" if archive.exists() else ""


def has_archive(home: Path) -> bool:
    archive = _archive(home)
    return archive is not None and archive.exists()


@contextmanager
def recording(home: Path) -> Iterator[None]:
    """Classes that are loaded by a JVM of this process go into the archive, if that JVM starts and ends herein."""
    global _recorded
    archive = _archive(home)
    if archive is None:
        yield
        return
    _recorded = archive.with_suffix(f".{os.getpid()}.new")
    try:
        yield
        with suppress(FileNotFoundError):  # a JVM without this feature makes none
            _recorded.replace(archive)
    finally:
        discard()
        _recorded = None


def discard() -> None:
    """Remove what was recorded so far, of an archive that will not be completed."""
    if _recorded is not None:
        _recorded.unlink(missing_ok=True)


def _archive(home: Path) -> Path | None:
    """Where the archive for the Java at hand is; None without one."""
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(java_home, "bin") if java_home else None)
    if java is None:
        return None
    real = os.path.realpath(java)
    mark = sha256(f"{real} {os.stat(real).st_mtime_ns}".encode()).hexdigest()[:8]
    return home / f"classes-{mark}.jsa"
