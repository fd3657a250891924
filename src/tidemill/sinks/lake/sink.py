"""The driver's side of a lake: tables that follow the upstream's, and each batch in each table exactly once.

    target ─► LakeTarget ─► write_rows (executor) ─► Receipt ─► commit ─► state (caller) ─► publish

Executors write data files; ``commit`` then makes them part of their tables, one transaction a table, which carries
(changefeed, resolved-ts). If we die between two tables, the batch comes again: a table that has it already is left
alone, and of a longer batch takes only what is behind it. ``_tidemill/checkpoint.json`` then names the resolved-ts up
to which all tables are complete.

A lake belongs to one changefeed of one cluster; the journal and each table say which. One driver writes to it at a
time: each opening and each ``recover`` begins a generation, which the tables' own transactions check as
well, so that a driver or a task that is late changes nothing.

What a DDL does to a lake table is decided in ``tables.py``. Some DDLs give rows new values, or move them to another
table, without a change of the row that anybody could see: a lossy MODIFY COLUMN, EXCHANGE PARTITION, a new handle key.
Then the table's rows are read anew as of the DDL (``rescan``) and written behind a marker that ends the old ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any, Protocol

import orjson
import pyarrow as pa

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, show
from tidemill.sinks.files import layout
from tidemill.sinks.files.generation import Generations, Identity, check_start
from tidemill.sinks.files.storage import Files, open_place
from tidemill.sinks.lake.changes import change_tables, marker_table
from tidemill.sinks.lake.files import DataFile, LakeTarget, batch_of, batch_stem, write_tables
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import Evolution, Journal, LakeTable, Naming, evolve, new_table
from tidemill.sinks.port import NoSyncPoints, Rescan

log = get_logger("lake")

TABLES = "_tidemill/tables.json"
CHECKPOINT = "_tidemill/checkpoint.json"
_STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Stamps:
    """How far a lake table's own transactions say it is. ``parts`` are the physical ids whose rows came with
    ``resolved_ts``: those of an initial copy come one after the other, all at the same ts."""

    resolved_ts: int = 0
    ddl: tuple[int, int] = (0, 0)
    parts: frozenset[int] = frozenset()


class Backend(Protocol):
    """What kinds of lake do differently. Each call may come again after a crash, and then does what is left to do."""

    naming: Naming
    is_transactional: bool  # a file counts once a transaction of its table names it; otherwise as soon as it is there

    def begin(self, generation: str, check: Callable[[], None]) -> None:
        """Forget what is known of the tables, and let no older generation change one from its first use here on.
        ``check`` raises SupersededError if this generation is an older one itself."""

    def forget(self, table: LakeTable) -> None:
        """What became of the last call for it is not known: look again."""

    def put(self, table: LakeTable) -> None:
        """Make the lake's table what ``table`` says: there, under its name, with its columns."""

    def stamps(self, table: LakeTable) -> Stamps: ...

    def append(self, table: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        """Make files part of the table, and ``stamps`` with them, in one transaction."""

    def data_folder(self, table: LakeTable, info: TableInfo, physical_id: int, to_ts: Ts) -> str: ...

    def describe(self, event: DdlEvent) -> None:
        """Note a DDL beside the data, where the layout has a place for it."""

    def publish(self, checkpoint_ts: Ts) -> None: ...

    def close(self) -> None: ...


_COPYING = frozenset(
    {ActionType.REORGANIZE_PARTITION, ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING}
)
_ADDING = frozenset({ActionType.ADD_COLUMN, ActionType.ADD_COLUMNS})


class LakeSink(NoSyncPoints, ABC):
    """The driver's side; one a lake at a time. After a SinkError that is retryable the same call may come again.

    Rows must be mounted in UTC. ``rescan`` is needed for DDLs that change rows unseen; without it those are refused.
    """

    def __init__(
        self,
        options: LakeOptions,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        files: Files | None = None,
        is_resumed: bool = False,
    ) -> None:
        """``is_resumed``: the changefeed has run before, and ``start_ts`` is the checkpoint that it saved; there may
        be no ``state`` all the same, for want of rows."""
        self._options = options
        self._files = open_place(options.storage, is_new=state is None) if files is None else files
        self._rescan = rescan
        if state is not None:
            _check_state(state)
        self._journal = self._read_journal()
        self._generations = Generations(self._files, Identity(options.cluster_id, options.changefeed))
        if state is None and start_ts is not None:
            self._check_unused(start_ts, is_resumed)  # after whose lake it is: no start-ts would fit another's
        self._generation = ""
        self._backend = self.open_backend(zone)
        self._stamps: dict[str, Stamps] = {}

    @abstractmethod
    def open_backend(self, zone: tzinfo) -> Backend:
        """What knows the format. ``zone``: in which a ts has its date."""

    @property
    def journal(self) -> Journal:
        return self._journal

    def recover(self, at: Checkpoints) -> None:
        """Begin a new generation, and remove the data files of batches that no table has."""
        self._begin_generation()
        for folder, names in self._files.walk():
            batches = {name: batch for name in names if (batch := batch_of(name)) is not None}
            ahead = [name for name, (to_ts, physical_id) in batches.items() if to_ts > at.of(physical_id)]
            kept_ts = self._kept_ts(folder) if ahead else 0
            doomed = [name for name in ahead if batches[name][0] > kept_ts]
            for name in doomed:
                self._files.remove(f"{folder}/{name}")
            if doomed:
                self._files.sync_folder(folder)

    def _begin_generation(self) -> None:
        self._generation = self._generations.begin()
        self._journal = self._read_journal()  # ours may be that of a DDL which was not finished
        self._stamps.clear()
        self._backend.begin(self._generation, self._generations.check)

    def _check_generation(self) -> None:
        if not self._generation:
            self._begin_generation()
        self._generations.check()

    @property
    def _suffix(self) -> str:
        """Ends the names of files that count only when they are committed: nobody else writes under the same."""
        return f"-{self._generation[:8]}" if self._backend.is_transactional else ""

    def target(self, table: TableInfo, physical_id: int, window: Window) -> LakeTarget:
        from_ts, to_ts = window
        if not self._generation:
            self._begin_generation()
        lake = self._ensure(table)
        resolved_ts = self._stamps_of(lake).resolved_ts
        options = self._options
        return LakeTarget(
            options.storage,
            lake.id,
            self._backend.data_folder(lake, table, physical_id, to_ts),
            batch_stem(to_ts, physical_id),
            self._suffix,
            lake.file_columns(table),
            # Ahead of what was saved: it has a batch that was not committed everywhere.
            above_ts=resolved_ts if resolved_ts > from_ts else 0,
            file_size=options.file_size,
            row_group_rows=options.row_group_rows,
            compression=options.compression,
            physical_id=physical_id,
            to_ts=int(to_ts),
            generation=self._generation,
        )

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._check_generation()
        for table in self._journal.tables:
            due = [r for r in receipts if r.detail["table"] == table.id and r.files]
            if not due:
                continue  # nor looked at: that would be a commit of its own in each new generation
            stamps, end_ts = self._stamps_of(table), max(int(r.detail["to_ts"]) for r in due)
            done = stamps.parts if stamps.resolved_ts == end_ts else frozenset()
            if stamps.resolved_ts > end_ts or all(r.detail["physical_id"] in done for r in due):
                continue
            files = [
                DataFile.from_dict(f) for r in due if r.detail["physical_id"] not in done for f in r.detail["files"]
            ]
            parts = done | {r.detail["physical_id"] for r in due}
            self._append(table, files, replace(stamps, resolved_ts=end_ts, parts=parts))
        return {"format": _STATE_FORMAT, "resolved_ts": int(to_ts)}

    def publish(self, checkpoint_ts: Ts) -> None:
        self._check_generation()
        self._backend.publish(checkpoint_ts)
        document = {
            "cluster": self._options.cluster_id,
            "changefeed": self._options.changefeed,
            "id": self._options.changefeed_id,
            "checkpoint-ts": int(checkpoint_ts),
        }
        self._replace(CHECKPOINT, orjson.dumps(document))

    def close(self) -> None:
        self._backend.close()

    # DDL.

    def ddl(self, event: DdlEvent) -> None:
        at = (int(event.finished_ts), event.seq + 1)
        if at <= self._journal.ddl:
            return
        self._check_generation()
        self._backend.describe(event)
        journal = self._journal
        for lake in self._effect(event, at):
            journal = journal.put(lake)
        self._save(replace(journal, ddl=at))

    def _effect(self, event: DdlEvent, at: tuple[int, int]) -> list[LakeTable]:
        """Do it, and return the lake tables as they are then."""
        info = event.table_info
        if event.type == ActionType.DROP_SCHEMA:
            doomed = [t for t in self._journal.tables if t.schema == event.schema and t.dropped_ts is None]
            return [self._drop(lake, at) for lake in doomed]
        if info is None or not event.table or info.is_view or info.is_sequence:
            return []
        if event.type == ActionType.EXCHANGE_PARTITION:
            return self._exchange(event, info, at)
        before = event.pre_table_info
        if event.type == ActionType.DROP_TABLE:
            found = self._journal.by_table_id(info.id)
            return [self._drop(found, at)] if found else []
        lake = self._journal.by_table_id(before.id if before else info.id)
        if lake is None:
            return self._begin(event, info, at)
        return [self._alter(lake, event, info, at)]

    def _begin(self, event: DdlEvent, info: TableInfo, at: tuple[int, int]) -> list[LakeTable]:
        """A table that the lake does not have, or had once."""
        if not info.is_eligible:
            return []
        dropped = self._journal.by_table_id(info.id, is_dropped=True)
        if dropped is not None and event.type == ActionType.RECOVER_TABLE:
            # Nothing has touched its rows in between. It is there again from here on.
            lake = evolve(replace(dropped, dropped_ts=None), info, self._backend.naming, is_added=False).table
            self._put(lake)
            return [lake]
        lake = self._new(info, event.finished_ts)
        self._put(lake)
        if event.type != ActionType.CREATE_TABLE:
            self._rewrite(lake, info, (), info.physical_ids, at, "it could not be replicated before")
        return [lake]

    def _alter(self, lake: LakeTable, event: DdlEvent, info: TableInfo, at: tuple[int, int]) -> LakeTable:
        left = tuple(sorted(set(lake.physical_ids) - set(info.physical_ids)))
        is_added = event.type in _ADDING or (
            event.type == ActionType.MULTI_SCHEMA_CHANGE and not _loses_columns(lake, info)
        )
        change = evolve(lake, info, self._backend.naming, is_added=is_added)
        after = change.table
        self._put(after)
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
        plain, lake = event.pre_table_info, self._journal.by_table_id(info.id)
        if plain is None or lake is None:
            return []
        left = tuple(sorted(set(lake.physical_ids) - set(info.physical_ids)))
        came = tuple(sorted(set(info.physical_ids) - set(lake.physical_ids)))
        after = evolve(lake, info, self._backend.naming, is_added=False).table
        self._put(after)
        is_mixed = bool(set(left) & set(lake.mixed_ids))
        ids = info.physical_ids if is_mixed else came
        changed = [self._rewrite(after, info, () if is_mixed else left, ids, at, "a table partition was exchanged")]
        other = self._journal.by_table_id(plain.id)
        if other is not None and left:
            swapped = replace(plain, id=left[0], version_ts=event.finished_ts)
            other = evolve(other, swapped, self._backend.naming, is_added=False).table
            self._put(other)
            changed.append(
                self._rewrite(other, swapped, (), swapped.physical_ids, at, "a table partition was exchanged")
            )
        return changed

    def _drop(self, lake: LakeTable, at: tuple[int, int]) -> LakeTable:
        """The lake keeps it, under a name that leaves its own free."""
        dropped = replace(lake, dropped_ts=at[0])
        self._put(dropped)
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
        stamps = self._stamps_of(lake)
        if stamps.ddl >= at:
            return
        options = self._options
        folder = self._backend.data_folder(lake, info, info.physical_ids[0], Ts(at[0]))
        stem = f"ddl-{at[0]:020d}-{at[1]}-{lake.id}"
        for left in self._files.names(folder):
            if left.startswith(f"{stem}-"):
                self._files.remove(f"{folder}/{left}")  # of an attempt that was not committed
        target = LakeTarget(
            options.storage,
            lake.id,
            folder,
            stem,
            self._suffix,
            lake.file_columns(info),
            file_size=options.file_size,
            row_group_rows=options.row_group_rows,
            compression=options.compression,
        )
        written = write_tables(target, tables(target), self._files)
        self._append(lake, written, replace(stamps, ddl=at))

    # Tables.

    def _ensure(self, table: TableInfo) -> LakeTable:
        """The lake table of ``table``, with a version for it."""
        lake = self._journal.by_table_id(table.id)
        if lake is None:
            dropped = self._journal.by_table_id(table.id, is_dropped=True)
            if dropped is not None:  # of a schema that was recovered as a whole, of which no DDL tells
                lake = evolve(replace(dropped, dropped_ts=None), table, self._backend.naming, is_added=False).table
            else:
                lake = self._new(table, table.version_ts)
        elif lake.version(table.version_ts) is not None:
            return lake
        else:
            lake = self._unannounced(lake, table)
        self._put(lake)
        self._save(self._journal.put(lake))
        return lake

    def _unannounced(self, lake: LakeTable, table: TableInfo) -> LakeTable:
        """A version that no DDL announced: one that changes no column, or one of an online DDL that is under way."""
        known = lake.version_at(table.version_ts)
        is_same = [c.id for c in known.columns] == [c.id for c in table.stored_columns]
        change: Evolution = evolve(lake, table, self._backend.naming, is_added=False, is_interim=not is_same)
        return change.table

    def _new(self, table: TableInfo, ts: Ts) -> LakeTable:
        id = self._journal.free_id(table.id, ts)
        location = self._journal.free_location(layout.table_folder(table.schema, table.name), id)
        return new_table(table, id, location, self._backend.naming, created_ts=int(ts))

    def _put(self, lake: LakeTable) -> None:
        self._backend.put(lake)

    def _append(self, lake: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        try:
            self._backend.append(lake, files, stamps)
        except BaseException:  # it may have been carried out all the same
            self._stamps.pop(lake.id, None)
            self._backend.forget(lake)
            raise
        self._stamps[lake.id] = stamps

    def _stamps_of(self, lake: LakeTable) -> Stamps:
        if lake.id not in self._stamps:
            self._stamps[lake.id] = self._backend.stamps(lake)
        return self._stamps[lake.id]

    def _kept_ts(self, folder: str) -> int:
        """Files of batches up to here belong to the table whose data lie in ``folder``, as its transactions say."""
        inside = [t for t in self._journal.tables if folder == t.location or folder.startswith(t.location + "/")]
        return max((self._stamps_of(t).resolved_ts for t in inside), default=0)

    # What is kept beside the tables.

    def _read_journal(self) -> Journal:
        content = self._files.read(TABLES)
        options = self._options
        if content is None:
            return Journal(changefeed=options.changefeed, cluster=options.cluster_id)
        journal = Journal.from_dict(orjson.loads(content))
        if (journal.cluster, journal.changefeed) != (options.cluster_id, options.changefeed):
            raise SinkError(
                f"the lake {options.storage.shown} belongs to changefeed {journal.changefeed!r} of cluster "
                f"{journal.cluster}, and this is changefeed {options.changefeed!r} of cluster {options.cluster_id}: "
                "their rows would be mixed. Choose another folder or prefix in the sink URI."
            )
        return journal

    def _save(self, journal: Journal) -> None:
        self._replace(TABLES, orjson.dumps(journal.to_dict(), option=orjson.OPT_INDENT_2))
        self._journal = journal

    def _replace(self, path: str, content: bytes) -> None:
        folder = path.rpartition("/")[0] or "."
        self._files.make_folder(folder)
        self._files.write(path, [content])
        self._files.sync_folder(folder)

    def _check_unused(self, start_ts: Ts, is_resumed: bool) -> None:
        told = orjson.loads(self._files.read(CHECKPOINT) or b"{}")
        checkpoint = int(told.get("checkpoint-ts", 0))
        is_ours = told.get("id", "") == self._options.changefeed_id != ""
        if is_resumed and is_ours and checkpoint <= start_ts:
            return  # our own, which had no rows yet; its checkpoint is saved before it is told here
        check_start(self._options.storage.shown, checkpoint, start_ts)


def _loses_columns(lake: LakeTable, info: TableInfo) -> bool:
    before = {c.id for c in lake.version_at(1 << 63).columns}
    after = {c.id for c in info.stored_columns}
    return bool(before - after) and bool(after - before)


def _check_state(state: Mapping[str, Any]) -> None:
    if state.get("format") != _STATE_FORMAT:
        raise SinkError(
            f"the state of the lake sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )
