"""A home for Spark whose Python processes start in a third of the time.

Spark puts ``python/lib/pyspark.zip`` of its home before everything else on the path of each Python process that it
starts: four for a query, and the daemon of the workers. A zip holds no compiled modules, so each of them compiles
PySpark anew, for about a second of CPU; on a busy machine the ten seconds that Spark gives a process to report are
then over. The same PySpark, compiled, is installed for the interpreter that those processes run. So we show Spark a
home that consists of links to all of its own but ``python``.
"""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pyspark

_LEFT_OUT = "python"


def use_lean_home(master: str) -> Path | None:
    """Set SPARK_HOME for a JVM that is started later, unless the user has, or the executors are elsewhere: those are
    sent the zip, or have a home of their own. Returns the home if it is ours."""
    installed = Path(pyspark.__file__).parent
    if not master.startswith("local") or not (installed / "jars").is_dir():
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = f"{pyspark.__version__}-{sha256(str(installed).encode()).hexdigest()[:8]}"
    home = Path(base) / "tidemill" / "spark" / name
    if os.environ.get("SPARK_HOME", str(home)) != str(home):
        return None
    with suppress(OSError):  # without a folder to write to, Spark starts as slowly as it does
        link_home(installed, home)
        os.environ["SPARK_HOME"] = str(home)
        return home
    return None


def link_home(installed: Path, home: Path) -> None:
    """Make ``home`` a folder of links to what ``installed`` holds. It stays: a JVM may open its jars at any time."""
    home.mkdir(parents=True, exist_ok=True)
    for each in installed.iterdir():
        if each.is_dir() and each.name != _LEFT_OUT and not (home / each.name).exists():
            with suppress(FileExistsError):  # another process was quicker
                (home / each.name).symlink_to(each)
