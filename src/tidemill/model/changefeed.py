"""What a changefeed was asked to do, beside where to write: filters, column selectors, sync points.

Read from its file by ``control/config.py``; frozen and picklable, since executors filter rows by it. Rules and
expressions are still text here: ``flow/filter`` reads them, and refuses those that mean nothing.
"""

from dataclasses import dataclass
from enum import Enum

from tidemill.model.keys import KeyRange
from tidemill.model.security import PLAIN, Security


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What to leave out of the tables that ``matcher`` matches. Every entry that matches a table is asked."""

    matcher: tuple[str, ...]
    ignore_event: tuple[str, ...] = ()
    ignore_sql: tuple[str, ...] = ()
    ignore_insert_value_expr: str = ""  # of each expression, empty: none
    ignore_update_old_value_expr: str = ""
    ignore_update_new_value_expr: str = ""
    ignore_delete_value_expr: str = ""


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The columns that go out for the tables that ``matcher`` matches. The first entry that matches counts."""

    matcher: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Which topic and partition of a message queue rows go to. The first entry that matches counts."""

    matcher: tuple[str, ...]
    partition: str = ""
    topic: str = ""
    index: str = ""
    columns: tuple[str, ...] = ()


class OnUndecodable(Enum):
    STOP = "stop"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class SinkSetting:
    """A setting of the file that is a parameter of sink URIs too; there it wins."""

    key: str  # its dotted path in the file
    parameter: str
    text: str
    schemes: tuple[str, ...]  # for which it means something; empty: all


@dataclass(frozen=True, slots=True)
class ChangefeedConfig:
    rules: tuple[str, ...] = ("*.*",)
    event_filters: tuple[EventFilter, ...] = ()
    ignore_txn_start_ts: frozenset[int] = frozenset()
    case_sensitive: bool = False
    force_replicate: bool = False
    ignore_ineligible_table: bool = True
    column_selectors: tuple[ColumnSelection, ...] = ()
    dispatchers: tuple[Dispatch, ...] = ()
    enable_sync_point: bool = False
    sync_point_interval_seconds: float = 600.0
    sync_point_retention_seconds: float = 86400.0
    on_undecodable: OnUndecodable = OnUndecodable.STOP
    verifies_checksums: bool = False
    sink_settings: tuple[SinkSetting, ...] = ()
    memory_quota: int = 256 << 20  # bytes of changes that may wait in memory
    security: Security = PLAIN  # to PD and TiKV
    keys: KeyRange | None = None  # that are captured in place of tables
    disk_quota: int | None = None  # bytes of changes that may wait on disk; None: half of what is free at the start
