"""What a message protocol is: one module with its options, its rows, its DDLs and its resolved-ts.

    sink URI, file ── options ──► protocol ─┬─ encoder ── rows ──► Encoded (all messages in one buffer)
                                            ├─ ddl ──────────────► Message
                                            └─ resolved ─────────► Message

A message has a destination, perhaps a key, a value and a commit-ts. Its destination is a place, a topic or a folder,
and in a topic a partition. All messages of a unit go to one place, which its target knows; so ``Encoded`` carries
partitions at most, and files, which have neither partitions nor keys, pay for none.

Files and queues want different things of a protocol, and a protocol may serve both. A protocol is a frozen dataclass of
its options: small and picklable, since it travels to executors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from tidemill.columnar.encoded import Encoded
from tidemill.model.ddl import DdlEvent
from tidemill.model.event import AdminSeen
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

Partitions = npt.NDArray[np.int32]  # of a topic, one per change
Store = Callable[[str, bytes], None]  # keeps a file of this name; it is durable when the call returns


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a protocol: a parameter of the sink URI and, under ``key``, of a changefeed's file."""

    field: str  # of the protocol
    read: Callable[[str], Any]  # raises ValueError with what it wants
    default: str  # like ``help`` for people: the reference page is made of them
    help: str
    key: str = ""  # "": it is the URI's alone
    is_number: bool = False  # in a file, where numbers have no quotes


@dataclass(frozen=True, slots=True)
class Message:
    """A message by itself, that of a DDL or a resolved-ts. Those of rows come in bulk, as ``Encoded``."""

    value: bytes | None  # None: the message is its key, with null behind it
    commit_ts: Ts  # when the DDL finished; or the resolved-ts
    key: bytes | None = None
    partition: int | None = None  # the only one that gets it; None: every partition of its topic does


class Encoder(Protocol):
    """Remembers what is fixed for the table it met last. Runs on executors."""

    def encode(self, rows: RowBatch) -> Encoded:
        """The messages of all changes, in order."""


class QueueEncoder(Encoder, Protocol):
    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        """The messages of all changes, in order within each partition. None: there is one partition."""


class MessageProtocol(Protocol):
    name: ClassVar[str]  # TiCDC's
    options: ClassVar[Mapping[str, Option]]  # by the URI's names


class FileProtocol(MessageProtocol, Protocol):
    """One message per change, each ended by a terminator. DDLs are told by schema files, resolved-ts by metadata."""

    extension: ClassVar[str]  # of data files
    is_positional: ClassVar[bool]  # values go by their place: schema files list what is there, in this order

    @property
    def has_commit_ts(self) -> bool:
        """Whether messages carry it."""

    def header(self, table: TableInfo, terminator: bytes) -> bytes:
        """What opens each file."""

    def encoder(self, built_ms: int, terminator: bytes) -> Encoder:
        """``built_ms`` is the build time that messages carry, where the protocol has one."""


class QueueProtocol(MessageProtocol, Protocol):
    """Messages that travel one by one, in the partitions of topics."""

    def encoder(self, built_ms: int) -> QueueEncoder: ...

    def ddl(self, event: DdlEvent, built_ms: int) -> Message | None:
        """None: the protocol does not tell of DDLs."""

    def resolved(self, ts: Ts, built_ms: int) -> Message | None:
        """That all up to ``ts`` has been sent. None: the protocol, or its options, have no such message."""


# What some protocols want of the sink, or can do beside. A sink asks with ``isinstance``.


@runtime_checkable
class ChangefeedProtocol(Protocol):
    """Its messages say what only the changefeed knows. The sink takes what ``of_changefeed`` returns instead of it."""

    def of_changefeed(self, zone: str) -> Self:
        """``zone`` is the name of the time zone in which the changefeed's rows give TIMESTAMPs."""


@runtime_checkable
class ClaimCheckProtocol(Protocol):
    """It may keep large messages aside, as files. The sink opens ``claim_check_storage_uri`` on executors and gives
    the encoder a ``Store`` there."""

    @property
    def has_claim_checks(self) -> bool: ...

    @property
    def claim_check_storage_uri(self) -> str:
        """As the user wrote it; it may hold secrets."""

    def encoder(self, built_ms: int, store: Store | None = None) -> QueueEncoder: ...


@dataclass(frozen=True, slots=True)
class Bootstraps:
    """When to send the schemas of tables that rows are sent of: with a table's first row, then whenever so many
    seconds have passed, or so many of its rows, since the last time."""

    interval_seconds: int
    rows: int
    to_all_partitions: bool  # False: to the first one only
    all_at_start: bool  # those of all tables, when the changefeed starts


@runtime_checkable
class BootstrapProtocol(Protocol):
    """Its rows do not describe themselves: consumers learn schemas from messages of their own, which the sink sends."""

    @property
    def bootstraps(self) -> Bootstraps | None:
        """None: switched off."""

    def bootstrap(self, table: TableInfo, built_ms: int) -> Message: ...


@runtime_checkable
class AdminProtocol(Protocol):
    """It can tell consumers that the number of partitions changes."""

    def admin(self, event: AdminSeen) -> Message:
        """For every partition that is or was in use."""


@runtime_checkable
class MeetProtocol(Protocol):
    """It can tell consumers to wait for each other."""

    def meet(self, ts: Ts, schema: str, table: str) -> Message:
        """For every partition of a topic: nobody goes on above ``ts`` before all are there, for this table's rows."""


@runtime_checkable
class TopicProtocol(Protocol):
    """A queue's protocol whose messages of rows depend on their topic: ``for_topic`` comes before ``encoder``."""

    def for_topic(self, topic: str) -> Self: ...
