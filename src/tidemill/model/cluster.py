"""What a cluster of captures is asked, and what it answers. Values: they travel between captures and to clients.

A changefeed's config travels as its *document*: nested tables in the spelling of its file, as TOML would give them
(``{"filter": {"rules": ["shop.*"]}}``). So it is what its user said, and no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any

from tidemill.model.schedule import NO_TS, CaptureId, ChangefeedKey, Liveness, TableId
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts

DEFAULT_NAMESPACE = "default"
NEVER = NO_TS  # a target-ts: none

Document = Mapping[str, Any]


class FeedState(StrEnum):
    """Of a changefeed, as it is stored."""

    NORMAL = "normal"
    WARNING = "warning"
    PENDING = "pending"  # waits before it is tried again
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"
    REMOVED = "removed"

    @property
    def is_running(self) -> bool:
        return self in (FeedState.NORMAL, FeedState.WARNING)


class AdminJob(Enum):
    """What was last asked of a changefeed. The numbers are TiCDC's."""

    NONE = 0
    STOP = 1
    RESUME = 2
    REMOVE = 3
    FINISH = 4


@dataclass(frozen=True, slots=True)
class RunningError:
    """``code`` as TiCDC has it: ``CDC:ErrGCTTLExceeded``."""

    time: datetime
    address: str  # of the capture that met it
    code: str
    message: str


class Cause(StrEnum):
    """Why a checkpoint stays where it is."""

    STATE = "state"  # the changefeed does not run
    CAPTURE = "capture"  # a table has none, or is on its way to another
    SPAN = "span"
    REGION = "region"  # not yet scanned, or without a leader
    LOCK = "lock"  # an open transaction
    DDL = "ddl"
    SYNC_POINT = "sync-point"
    SINK = "sink"
    SPARK = "spark"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Hindrance:
    """``subject``: what holds the checkpoint back, as table 'shop.orders' (112) or region 7. ``detail``: a sentence on
    what it waits for. ``ts``: where the subject is. ``since``: from when on it has been so, where that is known."""

    cause: Cause
    subject: str
    detail: str
    ts: Ts = NO_TS
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a capture says that holds one of its lanes back: it travels to the owner, who makes a hindrance of it.
    ``since``: Unix time."""

    cause: Cause
    subject: str
    detail: str
    ts: Ts
    since: float


@dataclass(frozen=True, slots=True)
class CaptureTables:
    """The tables that one capture has of a changefeed."""

    capture_id: CaptureId
    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class UpstreamAccess:
    """Where a changefeed's upstream is. Without addresses: it is the cluster that the captures were started for."""

    pd: tuple[str, ...] = ()
    security: Security = PLAIN


@dataclass(frozen=True, slots=True)
class ChangefeedInfo:
    """A changefeed as its cluster knows it. ``sink_uri`` is whole: it is masked where it is shown."""

    key: ChangefeedKey
    upstream_id: int
    sink_uri: str = field(repr=False)
    create_time: datetime
    start_ts: Ts
    target_ts: Ts
    config: Document
    state: FeedState
    admin_job: AdminJob
    creator_version: str
    epoch: int
    checkpoint_ts: Ts
    resolved_ts: Ts
    puller_resolved_ts: Ts = NO_TS
    last_synced_ts: Ts = NO_TS  # of the last change that was written downstream
    error: RunningError | None = None
    warning: RunningError | None = None
    initial_copy: bool = False  # it copies the rows as of its start-ts first
    tasks: tuple[CaptureTables, ...] = ()  # empty, unless the state is normal
    hindrances: tuple[Hindrance, ...] = ()  # the one that matters most first


@dataclass(frozen=True, slots=True)
class NewChangefeed:
    """``start_ts`` 0: now. The sink URI and the config have been checked, together and each by itself. ``state``: of a
    folder that it continues, as the folder's file says; its start is that one's."""

    key: ChangefeedKey
    sink_uri: str = field(repr=False)
    start_ts: Ts = NO_TS
    target_ts: Ts = NEVER
    config: Document = field(default_factory=dict)
    upstream: UpstreamAccess = UpstreamAccess()
    initial_copy: bool = False
    state: Document | None = None


@dataclass(frozen=True, slots=True)
class ChangefeedUpdate:
    """What is None stays as it is. A config replaces the whole one."""

    sink_uri: str | None = field(default=None, repr=False)
    target_ts: Ts | None = None
    config: Document | None = None
    upstream: UpstreamAccess | None = None


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    id: CaptureId
    address: str  # HOST:PORT under which others reach it
    is_owner: bool
    cluster_id: str
    version: str = ""
    start_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    version: str
    git_hash: str
    id: CaptureId
    cluster_id: str
    pid: int
    is_owner: bool
    liveness: Liveness


@dataclass(frozen=True, slots=True)
class ProcessorInfo:
    changefeed: ChangefeedKey
    capture_id: CaptureId


@dataclass(frozen=True, slots=True)
class TableName:
    schema: str
    table: str
    id: TableId
    is_partition: bool = False


@dataclass(frozen=True, slots=True)
class VerifyTables:
    """Which tables a changefeed with this config would capture from ``start_ts`` on."""

    config: Document
    start_ts: Ts = NO_TS
    upstream: UpstreamAccess = UpstreamAccess()


@dataclass(frozen=True, slots=True)
class TableEligibility:
    eligible: tuple[TableName, ...]
    ineligible: tuple[TableName, ...]  # they match the filter and have no key


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    key: str
    value: str
