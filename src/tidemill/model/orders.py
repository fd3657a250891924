"""What the owner of a changefeed and its processors tell each other. Values, so that they can travel.

    owner ── Orders ──► processor          what has run and where to stop; which reports are durable
    owner ◄── Report ── processor          how far its tables are, and what a batch has left in the sink

A table is assigned as a whole, with all its physical ids, to exactly one processor. One of them has *the rest*: every
table that no other one has. So there is neither a hole nor an overlap, whatever tables come and go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts


@dataclass(frozen=True, slots=True)
class Assignment:
    """Logical table ids: these ``tables``, or all but these."""

    tables: frozenset[int] = frozenset()
    is_rest: bool = False

    def __contains__(self, table_id: int) -> bool:
        return (table_id in self.tables) != self.is_rest

    @property
    def is_everything(self) -> bool:
        return self.is_rest and not self.tables

    def plus(self, tables: frozenset[int]) -> "Assignment":
        return Assignment(self.tables - tables if self.is_rest else self.tables | tables, self.is_rest)

    def minus(self, tables: frozenset[int]) -> "Assignment":
        return Assignment(self.tables | tables if self.is_rest else self.tables - tables, self.is_rest)


EVERYTHING = Assignment(is_rest=True)


@dataclass(frozen=True, slots=True)
class Orders:
    """``ddl_ts``: every DDL up to here has run downstream. Nothing may pass ``sync_ts`` or ``target_ts``.
    ``saved``: of each processor, the number of its last report that is durable. ``epoch``: of the sink; writers take it
    on before they write again. ``term``: the owner's in the sink, for writers that begin."""

    ddl_ts: Ts
    sync_ts: Ts | None = None
    target_ts: Ts | None = None
    is_stopping: bool = False  # begin no further batch
    is_over: bool = False  # nothing is saved any more: what is not durable yet comes again, with another owner
    saved: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0
    term: str = ""


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What a processor goes by when it reports. Above ``sync_ts`` it begins nothing; its writer is in the sink's
    ``epoch``; up to ``written_ts`` changes of its tables may have been written, by whomever."""

    sync_ts: Ts | None = None
    epoch: int = 0
    written_ts: Ts | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a batch was, and has left in the sink."""

    rows: int
    sink: Mapping[str, Any]  # what the sink's writer said of it, for the sink's owner


@dataclass(frozen=True, slots=True)
class Report:
    """How far a processor's tables are. ``ids`` are their physical ids, where it has not the rest; else none is named.

    Tables that have ``gone`` are on their way to another one until that one says that they ``came``: they count where
    they were. The last report of a processor ``is_last``: it has no tables any more."""

    processor: str
    number: int  # ascends; what is durable is told by it
    assignment: Assignment
    at: Checkpoints
    ids: frozenset[int] = frozenset()
    committed: Committed | None = None
    gone: Mapping[int, Ts] | None = None
    came: frozenset[int] | None = None
    is_last: bool = False
    obeyed: Obeyed = Obeyed()


@dataclass(frozen=True, slots=True)
class Handover:
    """Tables on their way from one processor to another, and where each of their physical ids is.

    ``written_ts``: up to here somebody may have written changes who did not come to commit them; None: nobody has."""

    tables: frozenset[int]
    at: Mapping[int, Ts]
    written_ts: Ts | None = None


def joined(handovers: Iterable[Handover]) -> Handover:
    """One for all."""
    tables, at, written = frozenset[int](), dict[int, Ts](), list[Ts]()
    for handover in handovers:
        tables |= handover.tables
        at |= handover.at
        written += [] if handover.written_ts is None else [handover.written_ts]
    return Handover(tables, at, max(written, default=None))
