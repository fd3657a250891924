"""What a message queue says beside rows: the one event model behind every protocol's own words.

Rows travel in bulk, as ``RowBatch``. Everything else is rare and comes one by one: a DDL, a resolved-ts, an admin event
that changes the number of partitions, and whatever could not be read.
"""

from dataclasses import dataclass

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts


@dataclass(frozen=True, slots=True)
class DdlSeen:
    """A DDL as a message tells of it: less than a ``DdlEvent`` knows. All rows up to ``ts`` go before it."""

    ts: Ts  # when it finished; 0 where the protocol does not say
    schema: str
    table: str  # "" for a database-level DDL
    query: str  # "": a schema by itself, which describes the table and is not to be run
    type: int | None = None  # ActionType; None: the protocol does not say
    table_info: TableInfo | None = None  # after it; None: the protocol does not say, or there is none
    pre_table_info: TableInfo | None = None


@dataclass(frozen=True, slots=True)
class ResolvedSeen:
    """Every row with commit-ts ≤ ``ts`` that goes to this partition stands before it."""

    ts: Ts


@dataclass(frozen=True, slots=True)
class AdminSeen:
    """From here on rows are dispatched over ``partitions`` partitions; ``epoch`` ascends with each such change.

    ``ts`` is the resolved-ts at which it was cut, where the protocol says it: rows behind it have a higher commit-ts,
    or are copies."""

    partitions: int
    epoch: int = 0
    ts: Ts | None = None


@dataclass(frozen=True, slots=True)
class MeetSeen:
    """No reader of any partition goes on above ``ts`` before all of them are there. It says nothing of what is still to
    come below. Whoever writes the table's rows tells of each such ts, from before the first of them on."""

    ts: Ts
    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes that are no message of the protocol. ``why`` names no value of a row."""

    why: str


Mark = DdlSeen | ResolvedSeen | AdminSeen | MeetSeen | Unreadable
