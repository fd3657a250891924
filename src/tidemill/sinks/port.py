"""What a sink is to those who feed it. Each kind is a folder beside this file, and a line in ``registry``.

    registry.read_sink_uri(uri) ─► SinkOptions ── open_owner ──► OwnerSink     begin, fence, ddl, take, sync, publish
                                       │                             ▲ deltas
                                       └── open_writer, several ─► SinkWriter ── target, one per unit ──► Target.write
                                                                     ▲─────────── receipts ◄── Receipt ─── (executor)

A sink comes in two halves. A changefeed has one *owner*: it runs DDLs, tells readers how far the downstream is, and
keeps the sink's state. It has one or more *writers*, each with some of its tables, in the same process or on other
machines. All of them use one downstream at the same time, and share nothing but that and what is said here.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import Enum
from typing import Any, Protocol, Self, runtime_checkable

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


class SharingRule(Protocol):
    """Says of which tables the changes in a batch may come in several units, each those of a range of row keys."""

    def allows(self, table: TableInfo) -> bool: ...


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
    joins_transactions: bool = False  # its writer is a JointWriter
    zone: str | None = None  # of TIMESTAMP values; None: as the changefeed says
    needs_tables: bool = False  # before an initial copy
    copies_by_region: bool = False  # an initial copy may come in many units a table, at the same time
    copies_at_once: bool = False  # an initial copy of a table has to come in one unit
    sharing: SharingRule = Sharing.NEVER
    orders_ddls: bool = False  # no row of any table may come for the first time behind a later DDL
    is_together: bool = False  # no row goes out that other processors may still have to resolve a lower ts for
    publish_interval_seconds: float = 0.0  # minimum time between two checkpoints that readers are told of
    ends_never_earlier: bool = False  # a batch that comes again must end no earlier: what was written is not taken back
    has_fence: bool = True  # False: targets end by themselves, and none may be made by who is gone
    does_small: bool = False  # a batch of a few rows is written faster than Spark's tasks begin, and from any process
    least_sharers: int = 2  # tasks; each share reads all, so where reading is much of the work, few gain nothing

    def sharing_among(self, tasks: int) -> SharingRule:
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

    def open_owner(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> "OwnerSink":
        """``state`` is what the owner's half said last is to be saved; None if that was never so. ``rescan`` reads a
        table anew where a DDL has changed rows, or brought them back, unseen. ``is_resumed``: the changefeed has run
        before, and ``start_ts`` is the checkpoint that it saved; otherwise the place must be empty, or end exactly at
        ``start_ts``. Refuses what does not fit, and changes nothing yet. Libraries that only this sink needs are
        imported here."""

    def open_writer(self, name: str, *, zone: tzinfo = UTC) -> "SinkWriter":
        """A writer by a name that no other writer of the changefeed has at the same time, nor had in another process,
        nor had when it was fenced in this term: the first ``recover`` of a writer ends whoever had its name before.
        Changes nothing yet."""


class OwnerSink(Protocol):
    """The owner's half: what concerns the downstream as a whole. Methods may block; they are called one at a time, but
    for ``close``, which ends what is under way. They raise SinkError. Writers are at work meanwhile.

    A *term* reaches from ``begin`` to that of the next owner. A call that raised a ``retryable`` error is made again,
    on the same object, so what is kept in memory of the downstream must still be true by then."""

    @property
    def term(self) -> str:
        """Of the present term, for ``SinkWriter.recover``; empty before ``begin``."""

    def begin(self) -> None:
        """Begin a term: what an earlier owner of this changefeed still does (ddl, sync, publish) has no effect from
        here on; it gets SupersededError. May be called again in the term. Refuses another changefeed's target by
        name."""

    def know(self, tables: Iterable[TableInfo]) -> dict[str, Any] | None:
        """At the start, after ``begin``: all tables that are captured, with the columns that go out. Raises a
        UsageError for one that the sink was asked to write in a way that does not fit it. Of later ones DDLs tell.
        Where it decides something by what it finds, returns the whole state, to be saved before anything is written."""

    def fence(self, writers: Collection[str] | None = None) -> None:
        """End every generation of these writers; None: of all writers of this changefeed that have begun, also those
        that nobody remembers. When it returns, nothing that they or their tasks still do has an effect, and ``recover``
        raises SupersededError, also for one of these that has yet to begin: its name is not used again in this term."""

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Run it downstream, where all rows up to it are durable, of the tables that it touches. Nobody writes these
        meanwhile; others may be written. The same one may come again. Where it brought rows that count once they are
        saved, returns the whole state, to be saved and published before writers go on with these tables; else None."""

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        """Count what a writer's ``commit`` returned; returns the sink's whole state, which is JSON, to be saved. Pure
        memory: it never blocks, and may be repeated."""

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """Where above the checkpoint the next sync point is; None: nowhere. Does not block."""

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        """A sync point: all tables are exactly here, and so are all DDLs. Returns the state to save, as ``take``."""

    def publish(self, checkpoint_ts: Ts) -> None:
        """All that was taken has been saved: tell readers. Again and again the same does no harm."""

    def close(self) -> None:
        """Let go of connections, from any thread."""


@runtime_checkable
class GroupingOwner(OwnerSink, Protocol):
    """Of a downstream where several DDLs cost little more than one."""

    def ddls(self, events: Sequence[DdlEvent], passed: Callable[[int], None]) -> None:
        """Like ``ddl`` for each, in any order. No two touch the same table, no row goes between them, and none of them
        brings rows. After a crash some may have run, and all come again. ``passed`` may be told meanwhile, from any
        thread, how many of the first have run for good: their tables need not wait for the others."""


@runtime_checkable
class PartitionedOwner(OwnerSink, Protocol):
    """Of a downstream whose rows are spread over partitions, which can become more or fewer: exactly at some ts, behind
    all rows up to it, and before all others.

    ``prepare`` says what is wanted. The next ``sync`` begins an *epoch*, in the state that it returns. When that is
    saved, every writer is to ``recover`` with it before it writes again; and ``publish`` tells readers, before any row
    of the new epoch is written. Where that was saved and readers were not told, ``begin`` tells them."""

    @property
    def epoch(self) -> int:
        """How often it has changed."""

    @property
    def partitions(self) -> int | None:
        """Over which rows are spread now; None: it differs from place to place, or is not known."""

    def prepare(self, partitions: int) -> None:
        """Make room for so many. Raises UsageError where that cannot be, SinkError where the downstream refuses it."""


class SinkWriter(Protocol):
    """The writer's half: one per processor. Methods may block; they are called one at a time, but for ``close``, which
    ends what is under way. They raise SinkError. A table has at most one writer at a time. Batches come one after the
    other; after a crash the same changes come again, perhaps in batches that end elsewhere.

    A *generation* of a writer reaches from one ``recover`` to the next. Its targets carry it to the executors, where a
    task may outlive its batch: a sibling of a worker that was killed, or one of a process that is gone. So ``recover``
    ends every earlier generation of this writer first, also those of other processes, and cleans up when nothing of
    them can land any more. Other writers are left alone; the owner ends those that are gone (``fence``).

    A call that raised a ``retryable`` error is made again, on the same object, once ``recover`` has succeeded, so what
    is kept in memory of the downstream must still be true by then."""

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """Begin a new generation of this writer, then make harmless what unfinished batches of any earlier writer left
        of ``tables``, which are given as of where they are ``at``: all of them above there. None: of every table; then
        this is the only writer. Called at the start, when a batch was lost, and when tables are handed to this writer;
        then ``tables`` are the new ones, and what is known of the others stays true. Targets made before are dead:
        tasks that have one get SupersededError, or have no effect. The owner has begun before.

        ``state`` is the owner's whole state as it was saved last. Changes of these tables up to ``written_ts`` may have
        been written by somebody who did not come to commit them; None: none above where they are ``at``.

        ``term`` is that of the owner who wants it (``OwnerSink.term``). A writer that has yet to begin, and does so
        when that term is over, or when it has been fenced in it, gets SupersededError: nobody knew that it was there,
        so nobody else could have ended it. A later ``recover`` goes by what the writer itself has begun."""

    def target(self, table: TableInfo, physical_id: int, window: Window) -> Target:
        """Where the rows of one unit go, in this generation: the changes of a batch in ``window``, which begins at the
        table's checkpoint. Rows that had to wait for a DDL may be of before; an initial copy's window is empty."""

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """The batch counts once the owner has taken and saved what this returns, which is JSON and tells of this batch
        alone. ``to_ts`` is where most tables are then; a window may have ended before. Raises SupersededError where
        this generation has ended."""

    def close(self) -> None:
        """Let go of connections, from any thread."""


class JointWriter(SinkWriter, Protocol):
    """A writer whose downstream shows rows as they are committed, and can commit those of several tables at once."""

    def joint_target(self, tables: Sequence[TableInfo]) -> Target:
        """Where the rows of one unit go that has rows of all these tables: whole transactions, each seen as a whole.
        They may have been written before."""


class AnyTable:
    """For sinks that write all tables alike."""

    def know(self, tables: Iterable[TableInfo]) -> None:
        """Each is met when its rows come."""


class NoSyncPoints:
    """For sinks that keep versions, or nothing: their readers need no such moments."""

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """Batches may end anywhere."""
        return None

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        raise InvariantError("a sync point for a sink that asked for none")
