"""All tables that a changefeed's owner follows by name, indexed by what it asks for. Pure.

A table that has no replica is one of the rest. With a hundred thousand tables no message and no tick looks at them all.
"""

from collections.abc import Iterator, Mapping

from tidemill.control.scheduler.replica import ABSENT, Command, Event, Replica, ReplicaState, step
from tidemill.model.schedule import CaptureId, TableId

_NONE: Mapping[TableId, None] = {}


class Replicas:
    def __init__(self) -> None:
        self._by_table: dict[TableId, Replica] = {}
        self._held: dict[CaptureId, dict[TableId, None]] = {}  # where a capture has any role
        self._primaries: dict[CaptureId, dict[TableId, None]] = {}
        self._unsettled: dict[TableId, None] = {}  # all that are not simply written by somebody
        self._absent: dict[TableId, None] = {}

    def __len__(self) -> int:
        return len(self._by_table)

    def __contains__(self, table: TableId) -> bool:
        return table in self._by_table

    def __iter__(self) -> Iterator[tuple[TableId, Replica]]:
        return iter(self._by_table.items())

    def get(self, table: TableId) -> Replica | None:
        return self._by_table.get(table)

    def primary_of(self, table: TableId) -> CaptureId | None:
        replica = self._by_table.get(table)
        return replica.primary if replica is not None else None

    @property
    def unsettled(self) -> Mapping[TableId, None]:
        return self._unsettled

    @property
    def absent(self) -> Mapping[TableId, None]:
        return self._absent

    def held_by(self, capture: CaptureId) -> Mapping[TableId, None]:
        return self._held.get(capture, _NONE)

    def written_by(self, capture: CaptureId) -> Mapping[TableId, None]:
        """Of which it is the primary."""
        return self._primaries.get(capture, _NONE)

    def is_replicating(self, table: TableId) -> bool:
        replica = self._by_table.get(table)
        return replica is not None and replica.state is ReplicaState.REPLICATING

    def apply(self, table: TableId, event: Event) -> tuple[Command, ...]:
        """One that nobody holds any more stays, as an absent one: whoever asked for its removal forgets it."""
        before = self._by_table.get(table)
        if before is None:
            return ()
        after, commands = step(before, event)
        self.put(table, ABSENT if after is None else after)
        return commands

    def put(self, table: TableId, replica: Replica) -> None:
        before = self._by_table.get(table)
        if before is not None and before == replica:
            return
        if before is not None:
            self._unindex(table, before)
        self._by_table[table] = replica
        for capture in replica.holders:
            self._held.setdefault(capture, {})[table] = None
        if replica.primary is not None:
            self._primaries.setdefault(replica.primary, {})[table] = None
        if replica.state is ReplicaState.ABSENT:
            self._absent[table] = None
        if replica.state is not ReplicaState.REPLICATING or replica.undetermined:
            self._unsettled[table] = None

    def forget(self, table: TableId) -> None:
        replica = self._by_table.pop(table, None)
        if replica is not None:
            self._unindex(table, replica)

    def _unindex(self, table: TableId, replica: Replica) -> None:
        for capture in replica.holders:
            self._held[capture].pop(table, None)
        if replica.primary is not None:
            self._primaries[replica.primary].pop(table, None)
        self._absent.pop(table, None)
        self._unsettled.pop(table, None)
