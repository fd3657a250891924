"""What a sink is to those who feed it. Each kind is a folder beside this file, and a line in ``registry``.

registry.read_sink_uri(uri) ─► SinkOptions ── open ──► Sink ── target, one per unit ──► Target.write ─► Receipt
                                   │                 (driver)                             (executor)
                                 traits
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from enum import Enum
from typing import Any, Protocol, Self

from tidemill.errors import InvariantError
from tidemill.flow.pipeline import Target
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

# Reads the rows of a table as of a ts, by physical ids: where a DDL changed or brought rows that no change tells of.
Rescan = Callable[[TableInfo, Sequence[int], Ts], Iterator[RowBatch]]


class Sharing(Enum):
    """Whether the changes of a table in a batch may come in several units, each those of a range of row keys."""

    NEVER = "a table's changes have one order, which readers go by"
    ONE_KEY = "only where rows of different keys cannot stand in each other's way"
    ALWAYS = "readers go by commit-ts"

    def allows(self, table: TableInfo) -> bool:
        if self is Sharing.ONE_KEY:
            is_row_key = table.pk_is_handle or table.is_common_handle
            return is_row_key and all(index.is_primary for index in table.indexes if index.is_unique)
        return self is Sharing.ALWAYS


@dataclass(frozen=True, slots=True)
class Traits:
    """What a sink wants of those who feed it."""

    flush_interval_seconds: float = 0.0  # minimum time between the starts of two batches
    most_tasks: int = 16
    splits_updates: bool = False  # an update that changes a key is to come as a delete and an insert
    splits_large: bool = False  # in large transactions it is, which come in pieces, deletes first
    joins_partitions: bool = False  # the table partitions of a table are to come as one unit
    keeps_partitions: bool = False  # rows belong to a table partition by its id, not by their values
    zone: str | None = None  # of TIMESTAMP values; None: as the changefeed says
    needs_tables: bool = False  # before an initial copy
    copies_by_region: bool = False  # an initial copy may come in many units a table, at the same time
    copies_at_once: bool = False  # an initial copy of a table has to come in one unit
    sharing: Sharing = Sharing.NEVER
    least_sharers: int = 2  # tasks; each share reads all, so where reading is much of the work, few gain nothing

    def sharing_among(self, tasks: int) -> Sharing:
        return self.sharing if tasks >= self.least_sharers else Sharing.NEVER


class SinkOptions(Protocol):
    """A checked sink URI. Small and picklable; it may hold secrets, so only ``safe_uri`` is ever shown."""

    @property
    def safe_uri(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    def named(self, changefeed: str, cluster_id: int) -> Self:
        """With the names by which a downstream tells changefeeds apart: another one's target is refused."""

    def answers(self, seconds: float) -> bool:
        """Whether the downstream answers, as far as can be told in so many seconds. From any thread; may block as
        long. Sinks that cannot be asked say yes."""

    def open(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None,
        zone: tzinfo,
        rescan: Rescan | None,
        written_ts: Ts | None,
    ) -> "Sink":
        """See ``registry.open_sink``. Libraries that only this sink needs are imported here."""


class Sink(Protocol):
    """Methods may block; they are called one at a time, but for ``close``, which ends what is under way. They
    raise SinkError. Batches come one after the other, DDLs between them; after a crash the same batch comes again.

    A *generation* reaches from one ``recover`` to the next. Its targets carry it to the executors, where a task may
    outlive its batch: a sibling of a worker that was killed, or one of a process that is gone. So ``recover`` ends
    every earlier generation first, also those of other processes, and cleans up when nothing of them can land any more.

    A call that raised a ``retryable`` error is made again, on the same object, once ``recover`` has succeeded (``ddl``
    and ``publish``: at once), so what is kept in memory of the downstream must still be true by then."""

    def recover(self, at: Checkpoints) -> None:
        """At the start, and when a batch was lost: begin a new generation, then make harmless what unfinished batches
        left downstream, which is all of a table above where it is ``at``. Targets made before are dead: tasks that
        have one get SupersededError, or have no effect."""

    def target(self, table: TableInfo, physical_id: int, window: Window) -> Target:
        """Where the rows of one unit go, in this generation: the changes of a batch in ``window``, which begins at the
        table's checkpoint. Rows that had to wait for a DDL may be of before; an initial copy's window is empty."""

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Run it downstream, where all rows up to it are durable, of the tables that it touches. A batch of others may
        be under way. The same one may come again. Where it brought rows
        that count once the caller has saved them, as those of ``commit`` do, returns what to save now; else None."""

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """The batch counts once the caller has saved what this returns, which is JSON. ``to_ts`` is where most tables
        are then; a window may have ended before."""

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """Where above the checkpoint the next sync point is; None: nowhere. Does not block."""

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        """A sync point: all tables are exactly here, and so are all DDLs. Returns what to save, as ``commit`` does."""

    def publish(self, checkpoint_ts: Ts) -> None:
        """The caller has saved it: tell readers. Again and again the same does no harm."""

    def close(self) -> None:
        """Let go of connections, from any thread."""


class NoSyncPoints:
    """For sinks that keep versions, or nothing: their readers need no such moments."""

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """Batches may end anywhere."""
        return None

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        raise InvariantError("a sync point for a sink that asked for none")
