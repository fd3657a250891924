"""What every sink offers to the driver. The concrete ones are chosen in this package's ``open_sink``."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tidemill.flow.sink.receipt import Receipt
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

# Reads the rows of a table as of a ts, by physical ids: where a DDL changed or brought rows that no change tells of.
Rescan = Callable[[TableInfo, Sequence[int], Ts], Iterator[RowBatch]]


class Sink(Protocol):
    """Methods may block; they are called one at a time, but for ``close``, which ends what is under way. They
    raise SinkError. Batches come one after the other, DDLs between them; after a crash the same batch comes again.

    A *generation* reaches from one ``recover`` to the next. Its targets carry it to the executors, where a task may
    outlive its batch: a sibling of a worker that was killed, or one of a process that is gone. So ``recover`` ends
    every earlier generation first, also those of other processes, and cleans up when nothing of them can land any more.

    A call that raised a ``retryable`` error is made again, on the same object, once ``recover`` has succeeded (``ddl``
    and ``publish``: at once), so what is kept in memory of the downstream must still be true by then."""

    def recover(self) -> None:
        """At the start, and when a batch was lost: begin a new generation, then make harmless what unfinished batches
        left downstream. Targets made before are dead: tasks that have one get SupersededError, or have no effect."""

    def target(self, table: TableInfo, physical_id: int, to_ts: Ts) -> Any:
        """Where the rows of one unit go, in this generation. Small and picklable: it travels to the executor."""

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Run it downstream, where all rows up to it are durable. The same one may come again. Where it brought rows
        that count once the caller has saved them, as those of ``commit`` do, returns what to save now; else None."""

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """The batch counts once the caller has saved what this returns, which is JSON."""

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """Where above the checkpoint a batch has to end, and ``commit`` to be called even if it has no rows; None:
        anywhere. Does not block."""

    def publish(self, checkpoint_ts: Ts) -> None:
        """The caller has saved it: tell readers. Again and again the same does no harm."""

    def close(self) -> None:
        """Let go of connections, from any thread."""
