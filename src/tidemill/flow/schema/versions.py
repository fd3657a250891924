"""Tables by physical id and ts."""

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

from tidemill.errors import SchemaError
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts


class Absent(Enum):
    """Why a physical id has no rows for the changefeed at some commit-ts."""

    UNKNOWN = "unknown"  # never seen: no table of a user schema, or not yet one
    DROPPED = "dropped"  # dropped, truncated or left behind by a new physical id: late rows are skipped
    INELIGIBLE = "ineligible"  # its rows cannot be told apart (no usable key), or it has none


@dataclass(frozen=True, slots=True)
class Rows:
    """Which tables have rows for the changefeed. ``is_for_every_table``: also those whose rows cannot be told apart."""

    is_for_every_table: bool = False

    def has_rows(self, table: TableInfo) -> bool:
        if table.is_view or table.is_sequence:
            return False
        return self.is_for_every_table or table.is_eligible

    def ids(self, table: TableInfo) -> tuple[int, ...]:
        return table.physical_ids if self.has_rows(table) else ()


class Versions:
    """A version is in force for commit-ts above its ts. ``base_ts`` is that of the changefeed's first snapshot."""

    def __init__(self, ts: Ts, rows: Rows) -> None:
        self.floor_ts = ts  # lookups must be above
        self.base_ts = ts
        self._rows = rows
        self._versions: dict[int, list[tuple[Ts, TableInfo | None]]] = {}  # by physical id; None: gone from there on
        self._changed: set[int] = set()  # physical ids with any version but the first snapshot's; the others are many
        self._swapped: dict[tuple[int, Ts], Ts] = {}  # (table id, version) with swapped columns → the one before

    def lookup(self, physical_id: int, commit_ts: int) -> TableInfo | Absent:
        """The table that explains a row of ``physical_id`` committed at ``commit_ts``."""
        if commit_ts <= self.floor_ts:
            raise SchemaError(
                f"cannot look up table {physical_id} at {commit_ts}: versions at and below {self.floor_ts} are gone. "
                "Rows up to there are durable and need no schema any more."
            )
        versions = self._versions.get(physical_id, ())
        at = bisect_left(versions, commit_ts, key=lambda version: version[0])
        if at == 0:
            return Absent.UNKNOWN
        table = versions[at - 1][1]
        if table is None:
            return Absent.DROPPED
        return table if self._rows.has_rows(table) else Absent.INELIGIBLE

    def forms(self, physical_id: int, from_ts: int, to_ts: int) -> list[tuple[Ts, TableInfo | Absent]]:
        """What explains the rows of ``physical_id`` with commit-ts in ``(from_ts, to_ts]``: pairs of the ts above which
        something is in force, and what; the first one is in force from ``from_ts`` on."""
        since = [Ts(from_ts), *(ts for ts, _ in self._versions.get(physical_id, ()) if from_ts < ts < to_ts)]
        return [(ts, self.lookup(physical_id, ts + 1)) for ts in since]

    def in_force(self, ts: int) -> dict[int, Ts]:
        """The version in force at ``ts`` of each table changed since the first snapshot, by logical id: to be kept
        with a checkpoint at ``ts`` and given to ``from_snapshot`` after a restart from it."""
        found: dict[int, Ts] = {}
        for physical_id in self._changed:
            versions = self._versions[physical_id]
            at = bisect_left(versions, ts + 1, key=lambda version: version[0])
            table = versions[at - 1][1] if at else None
            if table is None:
                continue
            version_ts = self._swapped.get((table.id, table.version_ts), table.version_ts)
            if version_ts != self.base_ts:
                found[table.id] = version_ts
        return found

    def add(self, physical_id: int, ts: Ts, table: TableInfo | None) -> None:
        versions = self._versions.setdefault(physical_id, [])
        if versions and versions[-1][0] >= ts:
            versions.pop()  # two at one ts: the later one counts
        versions.append((ts, table))
        if len(versions) > 1 or table is None or table.version_ts != self.base_ts:
            self._changed.add(physical_id)

    def add_swapped(self, before: TableInfo, after: TableInfo, ts: Ts) -> None:
        """``after`` has columns in place of others of ``before``, although the DDL is not done."""
        self._swapped[after.id, after.version_ts] = before.version_ts
        for physical_id in after.physical_ids:
            self.add(physical_id, ts, after)

    def physical_ids(self) -> list[int]:
        return sorted(self._versions)

    def gc(self, ts: Ts) -> None:
        """Forget what only rows with commit-ts ≤ ``ts`` need."""
        self.floor_ts = max(self.floor_ts, ts)
        for physical_id in list(self._changed):
            versions = self._versions[physical_id]
            at = bisect_left(versions, ts + 1, key=lambda version: version[0])
            kept = versions[max(at - 1, 0) :]
            if len(kept) == 1 and kept[0][1] is None and kept[0][0] <= ts:
                del self._versions[physical_id]
                self._changed.remove(physical_id)
            else:
                self._versions[physical_id] = kept
        kept_versions = {(t.id, t.version_ts) for i in self._changed for _, t in self._versions[i] if t}
        self._swapped = {v: before for v, before in self._swapped.items() if v in kept_versions}
