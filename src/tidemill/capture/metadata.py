"""What a changefeed remembers across restarts: one small file in a folder of its own.

Saving it is the commit point of every batch: it is written aside, flushed to disk and renamed over
the old one, so after any crash it is either the old or the new state, and everything that the new
state speaks of is already durable downstream.

    DATA_DIR/
    ├── changefeed.json   the state            ├── segments/   the sorter's; pulled again after a crash
    ├── id                written first        ├── undecodable/    rows that were put aside
    └── lock              held while running   └── taken-over      by which cluster, where one has it now

The folder holds copies of rows, so it is its owner's alone: 0700, and every file in it 0600, whatever the umask is.
"""

import asyncio
import fcntl
import re
import secrets
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TextIO

import orjson

from tidemill.errors import DataDirError, SupersededError
from tidemill.log import get_logger
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts
from tidemill.private import is_open_to_others, make_private, open_private, replace_private, strangers

_FORMAT = 1
_HEX = re.compile(r"([0-9a-f]{2})*")
DEFAULT_NAME = "default"
# What a start that was killed may have left before it had saved a state. The lock comes first.
_BEFORE_A_STATE = ("id", "segments", "undecodable", "scratch", "spark.log", "partitions", "partitions.refused")

_TAKEN = "taken-over"  # by whom; and, in a second line, that it is certain
_CERTAIN = "certain"

log = get_logger("state")


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
    changefeed_id: str = ""  # under which PD and downstreams know it; empty: written before there were ids
    base_ts: Ts | None = None  # where most tables are; None: at the checkpoint
    behind: dict[str, Ts] = field(default_factory=dict)  # and where others are, by physical id
    name: str = DEFAULT_NAME  # that its users gave it
    keys: str = ""  # which keys of a keyspace it captures; empty: tables
    key_parts: list[list[str]] | None = None  # how they are cut: the bounds of each part, in hex, from the first on
    term: int = 0  # of the owner that wrote this; each owner's is higher than those before

    @property
    def at(self) -> Checkpoints:
        base_ts = self.checkpoint_ts if self.base_ts is None else self.base_ts
        return Checkpoints(base_ts, {int(physical_id): ts for physical_id, ts in self.behind.items()})

    @property
    def schema_ts(self) -> Ts:
        """From where on the schema is needed again: by rows that are still to come, and by DDLs."""
        return min(self.ddl_ts, self.at.lowest_ts)


def new_changefeed_id() -> str:
    """Random: folders of the same path, in two containers say, are two changefeeds."""
    return "tidemill-" + secrets.token_hex(8)


class Metadata(Protocol):
    """Where the state of a changefeed is kept."""

    @property
    def saved(self) -> ChangefeedState | None:
        """What is known to be durable: a crash goes back to this."""

    def load(self) -> ChangefeedState | None:
        """The newest state; None if there is none."""

    def save(self, state: ChangefeedState) -> None:
        """Durable when it returns. Raises SupersededError where an owner of a later term has saved one. Blocks."""


class Home(Metadata, Protocol):
    """Where a changefeed is at home: its state, its name in the world, and a folder for rows that are put aside."""

    @property
    def path(self) -> Path: ...

    @property
    def undecodable(self) -> Path: ...

    @property
    def former_name(self) -> str:
        """The id of changefeeds whose state has none."""

    def changefeed_id(self) -> str:
        """The random id of a new changefeed; the same one however often its start is tried."""


class StateWriter:
    """The one writer of a changefeed's state, beside the loop: nothing there waits for a disk."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")

    @property
    def saved(self) -> ChangefeedState | None:
        return self._metadata.saved

    @property
    def checkpoint_ts(self) -> Ts:
        """That was saved last."""
        saved = self.saved
        return saved.checkpoint_ts if saved is not None else Ts(0)

    @property
    def passed_ts(self) -> Ts:
        """All tables have passed it, and all DDLs up to it have run, which is saved. Whoever owns next begins here."""
        saved = self.saved
        return min(saved.schema_ts, saved.checkpoint_ts) if saved is not None else Ts(0)

    async def save(self, state: ChangefeedState) -> None:
        """Durable when it returns. States are saved in the order in which this is called."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._metadata.save, state))

    def close(self) -> None:
        """What was asked for is saved when this returns. Blocks."""
        self._thread.shutdown()


class DataDir:
    """The changefeed's folder. One process at a time owns it."""

    def __init__(self, path: Path, of_capture: Collection[str] | None = None) -> None:
        """``of_capture``: it is no changefeed's, but that of a capture of a cluster, which keeps these there."""
        self.path, self._of_capture = path, of_capture
        self.saved: ChangefeedState | None = None  # what is known to be on disk: a crash goes back to this
        self._lock: TextIO | None = None

    @property
    def former_name(self) -> str:
        """The id of changefeeds whose state has none: it was made of the folder's path."""
        return "tidemill-" + sha256(str(self.path.resolve()).encode()).hexdigest()[:16]

    @property
    def segments(self) -> Path:
        """With a folder of its own for each sorter."""
        return self.path / "segments"

    @property
    def undecodable(self) -> Path:
        return self.path / "undecodable"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def acquire(self) -> None:
        """Make the folder and lock it for this process. Raises DataDirError where that cannot be."""
        try:
            self._refuse_others_files()
            self._close_to_others()
            self._lock = open_private(self.path / "lock", "w")
        except OSError as error:
            reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise DataDirError(
                f"cannot use data-dir {self.path}: {reason}. Choose a folder that you may write to."
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

    def _refuse_others_files(self) -> None:
        """A folder is closed to others and parts of it are removed: it has to be ours, or hold nothing yet."""
        is_capture = self._of_capture is not None
        if not self.path.is_dir() or (not is_capture and (self.path / "changefeed.json").exists()):
            return
        strange = strangers(self.path, _BEFORE_A_STATE if self._of_capture is None else self._of_capture)
        if strange:
            whose = "a capture's" if is_capture else "a changefeed's"
            raise DataDirError(
                f"cannot use data-dir {self.path}: it holds {strange[0]!r}{' and more' if len(strange) > 1 else ''}, "
                f"which is not {whose}. Choose a folder that is empty or does not exist yet."
            )

    def _close_to_others(self) -> None:
        if self.path.is_dir() and is_open_to_others(self.path):
            log.warning("data-dir was open to other users; its rights are now 0700", path=str(self.path))
        make_private(self.path)
        for path in (self.path / "changefeed.json", *self.undecodable.glob("*")):
            if path.is_file():
                path.chmod(0o600)  # of an earlier version

    def load(self) -> ChangefeedState | None:
        """The state of the last run; None if there was none. Raises DataDirError where a cluster has taken it over."""
        taker = self.taker
        if taker is not None:
            raise DataDirError(
                f"data-dir {self.path} has been taken over by {taker}, which continues it. Ask there for it, or start "
                "anew with another --data-dir."
            )
        return self._load()

    # How a cluster takes it over.

    @property
    def taker(self) -> str | None:
        """Who has it now; None: nobody has asked for it."""
        noted = self._noted()
        return noted[0] if noted else None

    @property
    def is_taken(self) -> bool:
        """Whether the taker is known to have it, and not only to have been asked."""
        return _CERTAIN in self._noted()[1:]

    def _noted(self) -> list[str]:
        try:
            return (self.path / _TAKEN).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def give(self, taker: str) -> dict[str, Any]:
        """The state as a document, for somebody who continues it. Durably, from here on nobody else does: it may be
        given to the same one again, until ``keep``."""
        if self.taker not in (None, taker):
            self.load()  # says who has it
        state = self._load()
        if state is None:
            raise DataDirError(f"{self.path} is the folder of no changefeed: it has no changefeed.json.")
        found: dict[str, Any] = orjson.loads(
            state_document(replace(state, changefeed_id=state.changefeed_id or self.former_name))
        )
        if not self.is_taken:
            self._write(self.path / _TAKEN, taker.encode())
        return found

    def let_go(self) -> None:
        """Whoever was to have it has it."""
        self._write(self.path / _TAKEN, f"{self.taker}\n{_CERTAIN}\n".encode())

    def keep(self) -> None:
        """Whoever was to have it has refused it."""
        (self.path / _TAKEN).unlink(missing_ok=True)

    def _load(self) -> ChangefeedState | None:
        path = self.path / "changefeed.json"
        try:
            document = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError) as error:
            raise DataDirError(f"cannot read {path}: {error}. {_REMEDY}") from error
        try:
            self.saved = _read(document)
            return self.saved
        except ValueError as error:
            raise DataDirError(f"cannot understand {path}: {error}. {_REMEDY}") from error

    def changefeed_id(self) -> str:
        """The id of a changefeed that begins here. It is durable before anything else is, also downstream: a start that
        is killed half way has put it into the target, where the next start has to be known again."""
        path = self.path / "id"
        try:
            found = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            found = ""
        if not found:
            found = new_changefeed_id()
            self._write(path, found.encode())
        return found

    def save(self, state: ChangefeedState) -> None:
        """Durable when it returns."""
        if self.saved is not None and state.term < self.saved.term:
            raise SupersededError(
                f"a state of term {state.term} comes too late: the changefeed has an owner of term {self.saved.term}."
            )
        self._write(self.path / "changefeed.json", state_document(state))
        self.saved = state

    def _write(self, path: Path, content: bytes) -> None:
        try:
            replace_private(path, content)
        except OSError as error:
            raise DataDirError(
                f"cannot save the changefeed's state to {path}: {error.strerror}. "
                "Nothing is lost: free space or fix the folder, then start again."
            ) from error


def state_document(state: ChangefeedState) -> bytes:
    return orjson.dumps({"format": _FORMAT, **asdict(state)})


def read_state(document: bytes) -> ChangefeedState:
    """Raises ValueError with what is wrong with it."""
    return _read(orjson.loads(document))


def _read(document: Any) -> ChangefeedState:
    try:
        if document.pop("format") != _FORMAT:
            raise ValueError("it was written by another version of tidemill")
        return _checked(document)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


_REMEDY = "Restore it from a copy, or start anew with another --data-dir and a --start-ts."


def _checked(document: dict[str, Any]) -> ChangefeedState:
    """A state that someone has edited by hand must not be found out in the middle of a batch."""
    for name in (each.name for each in fields(ChangefeedState)):
        value = document.get(name)
        match name:
            case "sink":
                is_right = isinstance(value, str)
            case "changefeed_id" | "name" | "keys":
                is_right = value is None or isinstance(value, str)
            case "term":
                is_right = value is None or (isinstance(value, int) and value >= 0)
            case "key_parts":
                is_right = value is None or _is_of_bounds(value)
            case "table_versions":
                is_right = _is_of_ts(value)
            case "behind":
                is_right = value is None or _is_of_ts(value)
            case "base_ts":
                is_right = value is None or (isinstance(value, int) and value >= document["checkpoint_ts"])
            case "sink_state" | "copied":
                is_right = value is None or isinstance(value, dict)
            case _:
                is_right = isinstance(value, int) and value >= 0
        if not is_right:
            raise ValueError(f"{name} is missing or is not what it should be")
    return ChangefeedState(**document)


def _is_of_bounds(value: Any) -> bool:
    is_list = isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)
    return is_list and all(isinstance(key, str) and _HEX.fullmatch(key) for each in value for key in each)


def _is_of_ts(value: Any) -> bool:
    return isinstance(value, dict) and all(key.isdigit() and isinstance(ts, int) for key, ts in value.items())
