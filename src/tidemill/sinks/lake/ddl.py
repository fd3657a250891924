"""Carries out what a DDL does to lake tables; ``tables`` decides what that is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, show
from tidemill.sinks.lake.book import Book
from tidemill.sinks.lake.changes import change_tables, marker_table
from tidemill.sinks.lake.files import LakeTarget, write_tables
from tidemill.sinks.lake.tables import LakeTable, evolve
from tidemill.sinks.port import Rescan

log = get_logger("lake")

_COPYING = frozenset(
    {ActionType.REORGANIZE_PARTITION, ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING}
)
_ADDING = frozenset({ActionType.ADD_COLUMN, ActionType.ADD_COLUMNS})


class LakeDdl:
    """``rescan`` is needed for DDLs that change rows unseen; without it those are refused."""

    def __init__(self, book: Book, rescan: Rescan | None) -> None:
        self._book, self._rescan = book, rescan

    def carry_out(self, event: DdlEvent, at: tuple[int, int]) -> list[LakeTable]:
        """Do it, and return the lake tables as they are then."""
        info = event.table_info
        if event.type == ActionType.DROP_SCHEMA:
            doomed = [t for t in self._book.journal.tables if t.schema == event.schema and t.dropped_ts is None]
            return [self._drop(lake, at) for lake in doomed]
        if info is None or not event.table or info.is_view or info.is_sequence:
            return []
        if event.type == ActionType.EXCHANGE_PARTITION:
            return self._exchange(event, info, at)
        before = event.pre_table_info
        if event.type == ActionType.DROP_TABLE:
            found = self._book.journal.by_table_id(info.id)
            return [self._drop(found, at)] if found else []
        lake = self._book.journal.by_table_id(before.id if before else info.id)
        if lake is None:
            return self._begin(event, info, at)
        return [self._alter(lake, event, info, at)]

    def _begin(self, event: DdlEvent, info: TableInfo, at: tuple[int, int]) -> list[LakeTable]:
        """A table that the lake does not have, or had once."""
        if not info.is_eligible:
            return []
        dropped = self._book.journal.by_table_id(info.id, is_dropped=True)
        if dropped is not None and event.type == ActionType.RECOVER_TABLE:
            # Nothing has touched its rows in between. It is there again from here on.
            lake = evolve(replace(dropped, dropped_ts=None), info, self._book.backend.naming, is_added=False).table
            self._book.backend.put(lake)
            return [lake]
        lake = self._book.new(info, event.finished_ts)
        self._book.backend.put(lake)
        if event.type != ActionType.CREATE_TABLE:
            self._rewrite(lake, info, (), info.physical_ids, at, "it could not be replicated before")
        return [lake]

    def _alter(self, lake: LakeTable, event: DdlEvent, info: TableInfo, at: tuple[int, int]) -> LakeTable:
        left = tuple(sorted(set(lake.physical_ids) - set(info.physical_ids)))
        is_added = event.type in _ADDING or (
            event.type == ActionType.MULTI_SCHEMA_CHANGE and not _loses_columns(lake, info)
        )
        change = evolve(lake, info, self._book.backend.naming, is_added=is_added)
        after = change.table
        self._book.backend.put(after)
        if event.type == ActionType.TRUNCATE_TABLE:
            self._mark_gone(after, info, (), at)
            return replace(after, mixed_ids=())
        if event.type in _COPYING:
            after = replace(
                after, mixed_ids=tuple(sorted(set(lake.mixed_ids) | set(info.physical_ids) - set(lake.physical_ids)))
            )
            left = ()
        if change.rescan and info.is_eligible:
            return self._rewrite(after, info, (), info.physical_ids, at, change.rescan)
        if set(left) & set(lake.mixed_ids):
            return self._rewrite(after, info, (), info.physical_ids, at, "a reorganized table partition is gone")
        if left:
            self._mark_gone(after, info, left, at)
        return after

    def _exchange(self, event: DdlEvent, info: TableInfo, at: tuple[int, int]) -> list[LakeTable]:
        """A table partition and a plain table have swapped their rows."""
        plain, lake = event.pre_table_info, self._book.journal.by_table_id(info.id)
        if plain is None or lake is None:
            return []
        left = tuple(sorted(set(lake.physical_ids) - set(info.physical_ids)))
        came = tuple(sorted(set(info.physical_ids) - set(lake.physical_ids)))
        after = evolve(lake, info, self._book.backend.naming, is_added=False).table
        self._book.backend.put(after)
        is_mixed = bool(set(left) & set(lake.mixed_ids))
        ids = info.physical_ids if is_mixed else came
        changed = [self._rewrite(after, info, () if is_mixed else left, ids, at, "a table partition was exchanged")]
        other = self._book.journal.by_table_id(plain.id)
        if other is not None and left:
            swapped = replace(plain, id=left[0], version_ts=event.finished_ts)
            other = evolve(other, swapped, self._book.backend.naming, is_added=False).table
            self._book.backend.put(other)
            changed.append(
                self._rewrite(other, swapped, (), swapped.physical_ids, at, "a table partition was exchanged")
            )
        return changed

    def _drop(self, lake: LakeTable, at: tuple[int, int]) -> LakeTable:
        """The lake keeps it, under a name that leaves its own free."""
        dropped = replace(lake, dropped_ts=at[0])
        self._book.backend.put(dropped)
        return dropped

    def _mark_gone(self, lake: LakeTable, info: TableInfo, physical_ids: tuple[int, ...], at: tuple[int, int]) -> None:
        self._append_once(lake, info, at, lambda target: [marker_table(target.columns, at[0], physical_ids, at[0])])

    def _rewrite(
        self,
        lake: LakeTable,
        info: TableInfo,
        gone: tuple[int, ...],
        physical_ids: Sequence[int],
        at: tuple[int, int],
        why: str,
    ) -> LakeTable:
        """End the rows of ``gone``, all if it is empty, and write those of ``physical_ids`` as of the DDL."""
        rescan = self._rescan
        if rescan is None:
            raise SinkError(
                f"table {info.full_name} must be read anew as of {show(at[0])}, since {why}, and this sink "
                "has no way to. "
                "Create a changefeed with an initial scan of the table from that ts on."
            )
        log.info("reading a table anew", table=info.full_name, ts=at[0], reason=why)

        def tables(target: LakeTarget) -> Iterator[pa.Table]:
            yield marker_table(target.columns, at[0], gone, at[0])
            count = 0
            for rows in rescan(info, physical_ids, Ts(at[0])):
                yield from change_tables(rows, target.columns, rescan_ts=at[0], first=count)
                count += len(rows)

        self._append_once(lake, info, at, tables)
        return lake if gone else replace(lake, mixed_ids=())

    def _append_once(
        self, lake: LakeTable, info: TableInfo, at: tuple[int, int], tables: Callable[[LakeTarget], Any]
    ) -> None:
        stamps = self._book.stamps_of(lake)
        if stamps.ddl >= at:
            return
        options = self._book.options
        folder = self._book.backend.data_folder(lake, info, info.physical_ids[0], Ts(at[0]))
        stem = f"ddl-{at[0]:020d}-{at[1]}-{lake.id}"
        for left in self._book.files.names(folder):
            if left.startswith(f"{stem}-"):
                self._book.files.remove(self._book.generation, f"{folder}/{left}")  # of an attempt in vain
        target = LakeTarget(
            options.storage,
            lake.id,
            folder,
            stem,
            self._book.suffix,
            lake.file_columns(info),
            self._book.generation,
            file_size=options.file_size,
            row_group_rows=options.row_group_rows,
            compression=options.compression,
        )
        written = write_tables(target, tables(target), self._book.files)
        self._book.append(lake, written, replace(stamps, ddl=at))


def _loses_columns(lake: LakeTable, info: TableInfo) -> bool:
    before = {c.id for c in lake.version_at(1 << 63).columns}
    after = {c.id for c in info.stored_columns}
    return bool(before - after) and bool(after - before)
