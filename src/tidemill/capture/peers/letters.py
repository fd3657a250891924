"""What captures say to each other about a changefeed. Values: they travel.

    owner ── Heartbeat, Dispatch, OrdersAre, Admitted, SinkStateIs ─────────────────► agent
    owner ◄── HeartbeatResponse, DispatchResponse, Said, Admit, AskSinkState, Failed, HeldBack ── agent

The first two of each side are the scheduler's (``model.schedule``); the others are what a processor and its owner say
on one machine by calls (``capture.link``). The header tells of which term and epoch a letter is; one of another has no
effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.model.cluster import Held
from tidemill.model.orders import Assignment, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import (
    CaptureId,
    ChangefeedKey,
    Dispatch,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Message,
)
from tidemill.model.ts import Ts


@dataclass(frozen=True, slots=True)
class Admit:
    """A processor's lane begins with these tables: see ``OwnerLink.admit``. ``number`` is for the answer."""

    number: int
    lane: str
    assignment: Assignment
    at: Checkpoints
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    number: int
    orders: Orders


@dataclass(frozen=True, slots=True)
class AskSinkState:
    number: int


@dataclass(frozen=True, slots=True)
class SinkStateIs:
    number: int
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class OrdersAre:
    """``forget_ts``: nobody looks at the schema at or below it any more."""

    orders: Orders
    forget_ts: Ts


@dataclass(frozen=True, slots=True)
class Said:
    report: Report


@dataclass(frozen=True, slots=True)
class Failed:
    """What has ended the processor of a capture, for the owner to decide what comes of the changefeed."""

    code: str
    message: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What holds back the lanes of a capture at the moment, for people. It takes the place of what was said before."""

    by: tuple[Held, ...]


Body = (
    Dispatch
    | DispatchResponse
    | Heartbeat
    | HeartbeatResponse
    | Admit
    | Admitted
    | AskSinkState
    | SinkStateIs
    | OrdersAre
    | Said
    | Failed
    | HeldBack
)


@dataclass(frozen=True, slots=True)
class Letter:
    header: Header
    changefeed: ChangefeedKey
    sender: CaptureId
    receiver: CaptureId
    body: Body

    @property
    def message(self) -> Message | None:
        """What of it concerns the scheduler."""
        match self.body:
            case Dispatch() | DispatchResponse() | Heartbeat() | HeartbeatResponse():
                return Message(self.header, self.changefeed, self.sender, self.receiver, self.body)
        return None

    @property
    def is_said_again(self) -> bool:
        """Whether nothing is lost where it is not sent, since it is said again before long."""
        return isinstance(self.body, Dispatch | DispatchResponse | Heartbeat | HeartbeatResponse | HeldBack)


def letter_of(message: Message) -> Letter:
    return Letter(message.header, message.changefeed, message.sender, message.receiver, message.body)
