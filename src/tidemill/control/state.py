"""What a changefeed remembers across restarts: one small file in a folder of its own.

Saving it is the commit point of every batch: it is written aside, flushed to disk and renamed over
the old one, so after any crash it is either the old or the new state, and everything that the new
state speaks of is already durable downstream.

    DATA_DIR/
    ├── changefeed.json   the state            ├── segments/   the sorter's; pulled again after a crash
    ├── lock              held while running   └── spark/      Spark's offsets of this run; made anew by the next
    └── undecodable/      rows that were put aside
"""

import fcntl
import os
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

import orjson

from tidemill.errors import DataDirError
from tidemill.model.ts import Ts

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ChangefeedState:
    cluster_id: int
    sink: str  # the sink URI without secrets: what this state belongs to
    start_ts: Ts
    checkpoint_ts: Ts
    ddl_ts: Ts
    rows: int  # written so far, over all runs
    table_versions: dict[str, int]  # of tables changed since start_ts, by logical id: a restart cannot see when
    sink_state: dict[str, Any] | None
    copied: dict[str, str] | None = None  # while the initial copy goes on: how far it is, by physical id


class DataDir:
    """The changefeed's folder. One process at a time owns it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIO | None = None

    @property
    def changefeed(self) -> str:
        """The changefeed's name, under which PD and downstreams know it: the folder's."""
        return "tidemill-" + sha256(str(self.path.resolve()).encode()).hexdigest()[:16]

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def early_segments(self) -> Path:
        return self.path / "early-segments"

    @property
    def undecodable(self) -> Path:
        return self.path / "undecodable"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    @property
    def spark(self) -> Path:
        return self.path / "spark"

    def acquire(self) -> None:
        """Make the folder and lock it for this process. Raises DataDirError where that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("w")
        except OSError as error:
            raise DataDirError(
                f"cannot use data-dir {self.path}: {error.strerror}. Choose a folder that you may write to."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataDirError(
                f"data-dir {self.path} is in use by another tidemill. Stop that one, or choose another --data-dir."
            ) from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> ChangefeedState | None:
        """The state of the last run; None if there was none."""
        path = self.path / "changefeed.json"
        try:
            document = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError) as error:
            raise DataDirError(f"cannot read {path}: {error}. {_REMEDY}") from error
        try:
            if document.pop("format") != _FORMAT:
                raise ValueError("it was written by another version of tidemill")
            return _checked(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataDirError(f"cannot understand {path}: {error}. {_REMEDY}") from error

    def save(self, state: ChangefeedState) -> None:
        """Durable when it returns."""
        path = self.path / "changefeed.json"
        aside = path.with_suffix(".tmp")
        try:
            with aside.open("wb") as file:
                file.write(orjson.dumps({"format": _FORMAT, **asdict(state)}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            _sync_folder(self.path)
        except OSError as error:
            raise DataDirError(
                f"cannot save the changefeed's state to {path}: {error.strerror}. "
                "Nothing is lost: free space or mend the folder, then start again."
            ) from error


_REMEDY = "Restore it from a copy, or start anew with another --data-dir and a --start-ts."


def _checked(document: dict[str, Any]) -> ChangefeedState:
    """A state that someone has edited by hand must not be found out in the middle of a batch."""
    for name in (field.name for field in fields(ChangefeedState)):
        value = document.get(name)
        match name:
            case "sink":
                is_right = isinstance(value, str)
            case "table_versions":
                is_right = isinstance(value, dict) and all(isinstance(ts, int) for ts in value.values())
            case "sink_state" | "copied":
                is_right = value is None or isinstance(value, dict)
            case _:
                is_right = isinstance(value, int) and value >= 0
        if not is_right:
            raise ValueError(f"{name} is missing or is not what it should be")
    return ChangefeedState(**document)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
