"""Which processors a changefeed has, which tables each of them has, and where these are.

A processor that is *gone* keeps its tables, where they were saved, until others have taken them over: one by one, or
as a whole. Tables that one has given up and no other has accepted are *adrift*.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tidemill.capture.lane_tables import holder_at, table_at
from tidemill.capture.link import Tell
from tidemill.control.ownership import Ownership, accepted, given_up, left, reported
from tidemill.errors import InvariantError
from tidemill.flow.schema import SchemaStore
from tidemill.model.orders import EVERYTHING, Assignment, Handover, Obeyed, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import Takeover
from tidemill.model.ts import MAX_TS, Ts

NOBODY = ""  # has the tables before the first processor comes


@dataclass(slots=True)
class Member:
    """What is known of a processor."""

    tell: Tell
    assignment: Assignment
    ids: frozenset[int] = frozenset()
    number: int = 0  # of its last report
    saved: int = 0  # of its last report that is durable
    is_gone: bool = False  # and nobody has taken its place yet; nothing that it still does counts
    is_leaving: bool = False  # it has no tables any more
    obeyed: Obeyed = field(default_factory=Obeyed)


class Members:
    """Belongs to the owner's loop. ``Ownership`` is passed through: it says where all tables are."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store
        self.by_name = {NOBODY: Member(_unheard, EVERYTHING, is_gone=True)}
        self._adrift: dict[int, str] = {}  # logical tables that no processor has, and who gave them up

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.by_name.values()))

    @property
    def adrift(self) -> frozenset[int]:
        return frozenset(self._adrift)

    @property
    def saved(self) -> dict[str, int]:
        return {name: member.saved for name, member in self.by_name.items()}

    def admit(
        self, owned: Ownership, name: str, assignment: Assignment, at: Checkpoints, tell: Tell, replaces: str | None
    ) -> Ownership:
        """A processor begins with these tables, where they are ``at``, perhaps in place of one that is gone."""
        if name in self.by_name:
            raise InvariantError(f"there is a processor {name!r} already. Report it.")
        ids = frozenset[int]()
        if replaces is not None:
            ids = self.by_name.pop(replaces).ids
            owned = left(owned, replaces)
        self.by_name[name] = Member(tell, assignment, ids)
        return accepted(owned, name, at)

    def hear(self, owned: Ownership, report: Report) -> Ownership | None:
        """Take a report down; None where nothing of that processor counts any more."""
        member = self.by_name.get(report.processor)
        if member is None or member.is_gone:
            return None
        changed = member.assignment.tables ^ report.assignment.tables  # what has left it, or come to it
        if report.gone is not None:
            self._adrift |= dict.fromkeys(changed, report.processor)
        elif report.came is not None:
            for table in changed or set(self._adrift):  # a new one has them from the start
                if table in report.assignment:
                    self._adrift.pop(table, None)
        member.number, member.assignment, member.ids = report.number, report.assignment, report.ids
        member.obeyed = report.obeyed
        name, at = report.processor, report.at
        if report.gone is not None:
            return given_up(owned, name, at, report.gone)
        if report.came is not None:
            return accepted(owned, name, at, report.came)
        if report.is_last:
            member.is_leaving = True
            return left(owned, name)
        return reported(owned, name, at)

    def note_saved(self, numbers: dict[str, int]) -> None:
        """Reports up to these are durable."""
        for name, number in numbers.items():
            if name in self.by_name:
                self.by_name[name].saved = number

    def forget_those_that_left(self) -> None:
        for name in [n for n, each in self.by_name.items() if each.is_leaving and each.saved == each.number]:
            del self.by_name[name]

    # Processors that are gone.

    def mute(self, names: Iterable[str]) -> None:
        """Nothing that these say counts any more, and nothing is said to them."""
        for name in names:
            self.by_name[name].is_gone, self.by_name[name].tell = True, _unheard

    def can_hand_over(self, table: int) -> bool:
        """Whether nobody has it who may still write it."""
        return table in self._adrift or any(each.is_gone and table in each.assignment for each in self.by_name.values())

    def hand_over(
        self, owned: Ownership, tables: Collection[int], written_ts: Ts | None
    ) -> tuple[Ownership, dict[int, Handover]]:
        """Tables that are adrift, or with processors that are gone: where each is, for one that is to have it."""
        for name in [name for name, member in self.by_name.items() if member.is_gone]:
            mine = frozenset(t for t in tables if t in self.by_name[name].assignment)
            if mine:
                owned = self._part(owned, name, mine)
        missing = [table for table in tables if table not in self._adrift]
        if missing:
            raise InvariantError(f"table {missing[0]} is to be handed over, and somebody has it. Report it.")
        at: dict[int, dict[int, Ts]] = {table: {} for table in tables}
        for physical_id, ts in owned.in_transit.items():
            for table in self._forms(owned, physical_id, ts) & at.keys():
                at[table][physical_id] = ts
        for table in [table for table, ids in at.items() if not ids]:
            # Nothing is to come of it, but by a DDL that has not run. One that has run may have dropped it: below that
            # its rows are written, and nobody would stop there again.
            at[table] = {table: Ts(max(owned.ddl_ts, owned.lowest_ts))}
            owned = replace(owned, in_transit={**owned.in_transit, **at[table]})
        return owned, {table: Handover(frozenset((table,)), ids, written_ts) for table, ids in at.items()}

    def rest_of_the_gone(self, owned: Ownership, written_ts: Ts | None) -> Takeover | None:
        """What a processor has that is gone and had the rest; None: one that is there has it."""
        for name, member in self.by_name.items():
            if member.is_gone and member.assignment.is_rest:
                return Takeover(name, member.assignment, owned.at[name], written_ts)
        return None

    def orphans(self, fenced: Collection[str]) -> frozenset[int]:
        """Tables that one of these has by name, or had given up, and that no other has taken over. Whoever else may
        have known of them, nobody does now."""
        given_up = {table for table, giver in self._adrift.items() if giver in fenced}
        gone = (member for name, member in self.by_name.items() if member.is_gone and name in fenced)
        return frozenset(given_up).union(*(each.assignment.tables for each in gone if not each.assignment.is_rest))

    def _part(self, owned: Ownership, name: str, tables: frozenset[int]) -> Ownership:
        """Take tables from a processor that is gone. The last one takes it along. One that it was admitted with, and
        never said that it came, is where whoever had it before has left it."""
        member, at = self.by_name[name], owned.at[name]
        ids = self._followed(at) if member.assignment.is_rest else member.ids
        gone = {i: at.of(i) for i in ids if self._forms(owned, i, at.of(i)) & (tables - self.adrift)}
        member.assignment = member.assignment.minus(tables)
        if not member.assignment.is_rest:
            member.ids = frozenset(i for i in member.ids if i not in gone)
        self._adrift |= dict.fromkeys(tables - self.adrift, name)
        owned = given_up(owned, name, at.without(gone), gone)
        if not (member.assignment.tables or member.assignment.is_rest):
            del self.by_name[name]
            owned = left(owned, name)
        return owned

    def _followed(self, at: Checkpoints) -> Iterator[int]:
        """Physical ids that somebody who has the rest reads."""
        for followed in self._store.followed():
            if followed.until_ts is None or followed.until_ts > at.of(followed.physical_id):
                yield followed.physical_id

    def _forms(self, owned: Ownership, physical_id: int, at_ts: Ts) -> set[int]:
        """The tables of a physical id: what it is, and whatever it will be."""
        now = table_at(self._store, physical_id, at_ts, owned.ddl_ts)
        later = {table.id for table in self._store.tables_above(physical_id, at_ts)}
        return later if now is None else later | {now.id}

    # Where tables are.

    def whereabouts(self, owned: Ownership) -> Checkpoints:
        """Of all tables: where the one is that has the rest, but for those that others have, or nobody."""
        rest = [name for name, member in self.by_name.items() if member.assignment.is_rest]
        if len(rest) != 1:
            raise InvariantError(f"{len(rest)} processors have the rest of the tables, where one should. Report it.")
        # Of one that was admitted, and has not said what it reads, nothing is known but where others have left it.
        in_transit, known = owned.in_transit.items(), [*self.by_name.values()]
        own = {i: ts for i, ts in in_transit if not any(self._reads(owned, each, i, ts) for each in known)}
        for name, at in owned.at.items():
            if name != rest[0]:
                own |= {i: at.of(i) for i in self.by_name[name].ids if self._is_of(owned, name, i)}
        return owned.at[rest[0]].having(own)

    def dismissed(self, owned: Ownership, names: Collection[str], saved: Checkpoints) -> Ownership:
        """With the tables of these where ``saved`` says: what they did beyond does not count. Those that have none are
        forgotten."""
        owned = replace(owned, at={**owned.at, **{name: self._saved_of(owned, name, saved) for name in names}})
        for name in [name for name in names if self.by_name[name].assignment == Assignment()]:
            del self.by_name[name]  # nobody will take its place
            owned = left(owned, name)
        return owned

    def _saved_of(self, owned: Ownership, name: str, saved: Checkpoints) -> Checkpoints:
        """Of one processor's tables. What is not its own yet, but will be by a DDL, waits for that where it is."""
        member, now = self.by_name[name], owned.at[name]
        if member.assignment.is_rest:
            others = (other for other in self.by_name if other != name)
            return saved.without(i for o in others for i in self.by_name[o].ids if self._is_of(owned, o, i))
        own = {i: saved.of(i) if self._is_of(owned, name, i) else now.of(i) for i in member.ids}
        return Checkpoints(Ts(min(own.values(), default=saved.base_ts))).having(own)

    def _is_of(self, owned: Ownership, name: str, physical_id: int) -> bool:
        at = owned.at.get(name)
        at_ts = at.of(physical_id) if at is not None else MAX_TS
        return self._has(owned, self.by_name[name].assignment, physical_id, at_ts)

    def _reads(self, owned: Ownership, member: Member, physical_id: int, at_ts: Ts) -> bool:
        is_known = member.assignment.is_rest or physical_id in member.ids
        return is_known and self._has(owned, member.assignment, physical_id, at_ts)

    def _has(self, owned: Ownership, assignment: Assignment, physical_id: int, at_ts: Ts) -> bool:
        table = holder_at(self._store, physical_id, at_ts, owned.ddl_ts)
        return table is not None and table.id in assignment


def _unheard(orders: Orders) -> None:
    """Nobody listens."""
