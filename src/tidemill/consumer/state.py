"""What a consumer remembers across restarts: one small file in a folder of its own.

DATA_DIR/
├── consumer.json   the state: saved behind every batch, before its messages may be forgotten
├── id              written first: under which the sink knows this consumer
├── lock            held while running
└── staged/         rows that wait for their turn; of no use to the next run, which reads them again

A consumer that is one of a group has its state where the others see it (``group_state``), and here the rest.
"""

import fcntl
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import orjson

from tidemill.consumer.alignment import NEVER, Position
from tidemill.consumer.catalog import document_of, table_of
from tidemill.consumer.tables import Place
from tidemill.errors import DataDirError
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.private import make_private, open_private, replace_private, strangers

_FORMAT = 1
_BEFORE_A_STATE = ("id", "staged", "scratch", "spark.log")  # that a start which was killed may have left
_REMEDY = "Restore it from a copy, or start anew with another --data-dir."


@dataclass(frozen=True, slots=True)
class ConsumerState:
    topic: str  # and the cluster that it is in: what this state belongs to
    sink: str  # the sink URI without secrets, likewise
    position: Position = field(default_factory=Position)
    offsets: dict[int, int] = field(default_factory=dict)  # by partition: what is read first after a restart
    ids: dict[str, int] = field(default_factory=dict)  # of tables and columns
    rows: int = 0
    sink_state: dict[str, Any] | None = None
    catalog: dict[str, Any] | None = None  # tables as DDLs have made them
    schemas: tuple[TableInfo, ...] = ()  # that messages have told of, where rows need them
    meeting: frozenset[Place] = frozenset()  # tables of whose meetings they have told
    begun_ts: Ts = NEVER  # up to here whole transactions may have been written, and seen, that are not noted yet


class StateHome(Protocol):
    """Where a consumer's state is. Methods block until it answers."""

    @property
    def shown(self) -> str:
        """For messages: which one it is."""

    @property
    def another(self) -> str:
        """For messages: the flag that names another one."""

    def consumer_id(self) -> str:
        """Random, and durable before the sink hears of it."""

    def load(self) -> ConsumerState | None:
        """The state of the last run; None if there was none."""

    def save(self, state: ConsumerState) -> None:
        """Durable when it returns."""


class ConsumerDir:
    """The consumer's folder. One process at a time has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIO | None = None

    @property
    def staged(self) -> Path:
        return self.path / "staged"

    @property
    def shown(self) -> str:
        return f"data-dir {self.path}"

    @property
    def another(self) -> str:
        return "--data-dir"

    @property
    def has_state(self) -> bool:
        return (self.path / "consumer.json").exists()

    def acquire(self) -> None:
        """Make the folder and lock it for this process. Raises DataDirError where that cannot be."""
        try:
            self._refuse_others_files()
            make_private(self.path)
            self._lock = open_private(self.path / "lock", "w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise DataDirError(
                f"data-dir {self.path} is in use by another tidemill. Stop that one, or choose another --data-dir."
            ) from error
        except OSError as error:
            raise DataDirError(
                f"cannot use data-dir {self.path}: {error.strerror}. Choose a folder that you may write to."
            ) from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _refuse_others_files(self) -> None:
        if (self.path / "changefeed.json").exists():
            raise DataDirError(f"data-dir {self.path} is a changefeed's. Choose another for a consumer.")
        if not self.path.is_dir() or self.has_state:
            return
        strange = strangers(self.path, _BEFORE_A_STATE)
        if strange:
            raise DataDirError(
                f"cannot use data-dir {self.path}: it holds {strange[0]!r}, which is not a consumer's. Choose a folder "
                "that is empty or does not exist yet."
            )

    def consumer_id(self) -> str:
        """Random, and durable before the sink hears of it."""
        path = self.path / "id"
        try:
            found = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            found = ""
        if not found:
            found = "tidemill-consumer-" + secrets.token_hex(8)
            self._write(path, found.encode())
        return found

    def load(self) -> ConsumerState | None:
        """The state of the last run; None if there was none."""
        path = self.path / "consumer.json"
        try:
            document = orjson.loads(path.read_bytes())
            return state_of(document)
        except FileNotFoundError:
            return None
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataDirError(f"cannot understand {path}: {error}. {_REMEDY}") from error

    def save(self, state: ConsumerState) -> None:
        """Durable when it returns."""
        self._write(self.path / "consumer.json", orjson.dumps(document_of_state(state)))

    def _write(self, path: Path, content: bytes) -> None:
        try:
            replace_private(path, content)
        except OSError as error:
            raise DataDirError(
                f"cannot save the consumer's state to {path}: {error.strerror}. Nothing is lost: free space or fix "
                "the folder, then start again."
            ) from error


def document_of_state(state: ConsumerState) -> dict[str, Any]:
    at = state.position
    return {
        "format": _FORMAT,
        "topic": state.topic,
        "sink": state.sink,
        "applied": {str(p): ts for p, ts in at.applied.items()},
        "ddl_ts": at.ddl_ts,
        "ddls_done": at.done,
        "epoch": at.epoch,
        "offsets": {str(p): offset for p, offset in state.offsets.items()},
        "ids": state.ids,
        "rows": state.rows,
        "sink_state": state.sink_state,
        "catalog": state.catalog,
        "schemas": [document_of(table) for table in state.schemas],
        "meeting": sorted(state.meeting),
        "begun_ts": state.begun_ts,
    }


def state_of(document: dict[str, Any]) -> ConsumerState:
    """Raises one of AttributeError, KeyError, TypeError and ValueError for what is none."""
    if document["format"] != _FORMAT:
        raise ValueError("it was written by another version of tidemill")
    position = Position(
        {int(p): Ts(int(ts)) for p, ts in document["applied"].items()},
        Ts(int(document["ddl_ts"] or NEVER)),
        tuple(str(each) for each in document["ddls_done"]),
        int(document["epoch"]),
    )
    return ConsumerState(
        str(document["topic"]),
        str(document["sink"]),
        position,
        {int(p): int(offset) for p, offset in document["offsets"].items()},
        {str(name): int(number) for name, number in document["ids"].items()},
        int(document["rows"]),
        document["sink_state"],
        document.get("catalog"),
        tuple(map(table_of, document.get("schemas", ()))),
        frozenset((str(schema), str(table)) for schema, table in document.get("meeting", ())),
        Ts(int(document.get("begun_ts", NEVER))),
    )
