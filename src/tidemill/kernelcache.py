"""Where compiled kernels are kept between runs.

Numba keeps compiled code beside each source file and looks only at that file's own age. A kernel that calls a
helper of another module would go on with the helper's old code after an update. So the cache lies in a folder named
after the content of every module that has kernels: change one, and all are compiled anew.

With ``NUMBA_BOUNDSCHECK=1`` kernels check every index, which the fuzz tests rely on. Numba's cache does not tell those
from others, so they have a folder of their own.
"""

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

PACKAGES = ("tidemill", "tidebox")  # that have kernels; the second may not be there
_KEPT = 3  # folders of other versions that are left in place, however old
_KEPT_SECONDS = 7 * 86_400  # and each that was in use since: another version may be at work beside this one
MARKS = (b"njit", b"@kernel", b"@helper")  # of a module with kernels
_COMPLETE = "complete"


def use_own_folder() -> None:
    """Point Numba at our folder unless the user has chosen one. Must run before Numba is imported."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    name = _fingerprint() + ("-checked" if os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0") else "")
    for root in _roots():
        try:
            (root / name).mkdir(parents=True, exist_ok=True)
            os.utime(root / name)
        except OSError:
            continue
        os.environ["NUMBA_CACHE_DIR"] = str(root / name)
        _remove_unused(root, name)
        return
    # Nowhere to write to: Numba then compiles in memory or beside the source, as it can.


def _remove_unused(root: Path, own: str) -> None:
    """Folders of other versions that nobody has used for long."""
    used: dict[Path, float] = {}
    for folder in root.iterdir():
        with suppress(OSError):  # another process may remove it, too
            used[folder] = folder.stat().st_mtime
    oldest = used.pop(root / own, 0.0) - _KEPT_SECONDS
    for folder in sorted(used, key=lambda each: used[each], reverse=True)[_KEPT:]:
        if used[folder] < oldest:
            shutil.rmtree(folder, ignore_errors=True)


def _roots() -> list[Path]:
    """Where the folder may be: in the user's cache, or, for a worker of Spark without a home, where Spark lets it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    scratch = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each]
    return [Path(each) / "tidemill" / "kernels" for each in (base, *scratch)]


def is_complete() -> bool:
    """Has every kernel been compiled that a changefeed usually needs? As far as is known."""
    return (folder := _folder()) is not None and (folder / _COMPLETE).exists()


def set_complete() -> None:
    if (folder := _folder()) is not None and folder.is_dir():
        (folder / _COMPLETE).touch()


def _folder() -> Path | None:
    named = os.environ.get("NUMBA_CACHE_DIR")
    return Path(named) if named else None


def _fingerprint() -> str:
    digest = sha256()
    root = Path(__file__).parent.parent
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        source = path.read_bytes()
        if any(mark in source for mark in MARKS):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + source)
    return digest.hexdigest()[:16]
