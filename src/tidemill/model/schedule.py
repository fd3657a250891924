"""What the owner of a cluster and the agents of its captures tell each other about tables. Values: they travel.

    owner ── Heartbeat, Dispatch(AddTable | RemoveTable) ──► agent
    owner ◄── HeartbeatResponse, DispatchResponse ────────── agent

A message may be lost, come late, come twice or come from somebody who has been replaced; the tokens of its ``Header``
tell. Everything is said again with the next heartbeat, so nothing depends on a single message. What comes late or
twice is dropped by its number, so the newest word is always the last one that was obeyed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from tidemill.model.orders import Assignment, Handover
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

CaptureId = NewType("CaptureId", str)
TableId = NewType("TableId", int)  # of a logical table, which is assigned as a whole

NO_TS = Ts(0)
REST = TableId(0)  # every table that nobody was given by name: one capture has it, so a new table is never missed


@dataclass(frozen=True, slots=True, order=True)
class ChangefeedKey:
    namespace: str
    id: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.id}"


class TableState(Enum):
    """Of a table on one capture, as its agent reports it. The numbers are TiCDC's."""

    ABSENT = 1
    PREPARING = 2  # pulling and sorting, writing nothing
    PREPARED = 3
    REPLICATING = 4
    STOPPING = 5
    STOPPED = 6


class Liveness(Enum):
    ALIVE = 0
    STOPPING = 1


@dataclass(frozen=True, slots=True)
class TableStatus:
    """``checkpoint_ts`` and ``resolved_ts`` never move back; 0 where nothing is known. ``written_ts``, of a table that
    is stopped: up to here its changes may have been written without being committed; None: nothing was.
    ``is_of_rest``: the capture has it as one of the rest, not by its name."""

    table: TableId
    state: TableState
    checkpoint_ts: Ts = NO_TS
    resolved_ts: Ts = NO_TS
    written_ts: Ts | None = None
    rows_per_second: float = 0.0
    is_of_rest: bool = False


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a processor had that is gone and fenced, to be continued as a whole: see ``Handover`` for ``written_ts``."""

    replaces: str
    assignment: Assignment
    at: Checkpoints
    written_ts: Ts | None = None


@dataclass(frozen=True, slots=True)
class AddTable:
    """``is_secondary``: prepare it, write nothing. Otherwise write, from where ``handover`` says that it is; for the
    ``REST`` that is ``takeover``."""

    table: TableId
    is_secondary: bool
    checkpoint_ts: Ts
    handover: Handover | None = None
    takeover: Takeover | None = None


@dataclass(frozen=True, slots=True)
class RemoveTable:
    table: TableId


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Many at once: tables that move together are handed over together."""

    requests: tuple[AddTable | RemoveTable, ...]


@dataclass(frozen=True, slots=True)
class DispatchResponse:
    tables: tuple[TableStatus, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``tables``: those of which the owner wants to know in any case. The capture answers with these, and with all that
    have changed since the response that the owner has ``seen``; 0: with all it has."""

    tables: tuple[TableId, ...] = ()
    is_stopping: bool = False
    seen: int = 0  # the number of the newest response that was taken in together with all that it builds on


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """``since``: what is not named here is as it was in the response of that number; 0: it is absent."""

    tables: tuple[TableStatus, ...]
    liveness: Liveness = Liveness.ALIVE
    since: int = 0


Body = Dispatch | DispatchResponse | Heartbeat | HeartbeatResponse


@dataclass(frozen=True, slots=True)
class Header:
    """``owner_revision``: of the owner's election, each later owner's is higher. ``processor_epoch``: made anew by an
    agent whenever it starts or follows another owner; empty where it is not known yet. ``changefeed_epoch``: changes
    whenever the changefeed is stopped. ``number`` ascends with each message of a sender to a receiver, from 1."""

    owner_revision: int
    changefeed_epoch: int
    processor_epoch: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    header: Header
    changefeed: ChangefeedKey
    sender: CaptureId
    receiver: CaptureId
    body: Body
