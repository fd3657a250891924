"""Both halves of a lake: tables that follow the upstream's, and each batch in each table exactly once.

    writer:     target ─► LakeTarget ─► write_rows (executor) ─► Receipt ─► commit ─► delta
    owner:      ddl, take ─► state (caller) ─► publish

Executors write data files; a writer's ``commit`` then makes them part of their tables, one transaction a table, which
carries (changefeed, resolved-ts). If it dies between two tables, the batch comes again: a table that has it already is
left alone, and of a longer batch takes only what is behind it. ``_tidemill/checkpoint.json``, which the owner writes,
then names the resolved-ts up to which all tables are complete.

A lake belongs to one changefeed of one cluster; the journal and each table say which. A table has one writer at a time:
whoever gets it puts a mark of its own into the table before it reads how far that is, and the table's own
transactions check it, so that one who is late changes nothing. The owner has a mark beside it, for DDLs.

What a DDL does to a lake table is decided in ``tables.py``. Some DDLs give rows new values, or move them to another
table, without a change of the row that anybody could see: a lossy MODIFY COLUMN, EXCHANGE PARTITION, a new handle key.
Then the table's rows are read anew as of the DDL (``rescan``) and written behind a marker that ends the old ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from tidemill.errors import SinkError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files.generation import Identity, Terms, WriterGenerations, check_start
from tidemill.sinks.files.storage import Files, open_files, open_place
from tidemill.sinks.lake.backend import OpenBackend
from tidemill.sinks.lake.book import Book
from tidemill.sinks.lake.ddl import LakeDdl
from tidemill.sinks.lake.files import DataFile, LakeTarget, batch_of, batch_stem
from tidemill.sinks.lake.journal import JournalFiles, write_document
from tidemill.sinks.lake.options import CHECKPOINT, LakeOptions
from tidemill.sinks.lake.tables import Journal
from tidemill.sinks.port import AnyTable, NoSyncPoints, Rescan

_STATE_FORMAT = 1


class LakeOwner(AnyTable, NoSyncPoints):
    """The owner's half: DDLs, and how far all tables are.

    Rows must be mounted in UTC. ``rescan`` is needed for DDLs that change rows unseen; without it those are refused.
    """

    def __init__(
        self,
        options: LakeOptions,
        state: Mapping[str, Any] | None,
        open_backend: OpenBackend,
        *,
        start_ts: Ts | None = None,
        rescan: Rescan | None = None,
        files: Files | None = None,
        is_resumed: bool = False,
    ) -> None:
        self._options = options
        self._files = open_place(options.storage, is_new=state is None) if files is None else files
        _check_state(state)
        self._state: dict[str, Any] = dict(state or {"format": _STATE_FORMAT, "resolved_ts": 0})
        self._terms = Terms(self._files, Identity(options.cluster_id, options.changefeed))
        JournalFiles(options, self._files).check()
        if state is None and start_ts is not None:
            self._check_unused(start_ts, is_resumed)  # after whose lake it is: no start-ts would fit another's
        self._book = Book(options, self._files, open_backend(self._files, is_owner=True))
        self._ddl = LakeDdl(self._book, rescan)

    @property
    def journal(self) -> Journal:
        return self._book.journal

    @property
    def term(self) -> str:
        return self._terms.generation

    def begin(self) -> None:
        term = self._terms.begin()
        self._book.begin(term, self._terms.check)
        self._book.documents.convert(term)

    def fence(self, writers: Collection[str] | None = None) -> None:
        self._terms.fence(writers)

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        _check_state(commit)
        self._state["resolved_ts"] = max(int(self._state["resolved_ts"]), int(commit["resolved_ts"]))
        return dict(self._state)

    def publish(self, checkpoint_ts: Ts) -> None:
        self._terms.check()
        self._book.backend.publish(checkpoint_ts)
        document = {
            "cluster": self._options.cluster_id,
            "changefeed": self._options.changefeed,
            "id": self._options.changefeed_id,
            "checkpoint-ts": int(checkpoint_ts),
        }
        write_document(self._files, self._terms.generation, CHECKPOINT, orjson.dumps(document))

    def ddl(self, event: DdlEvent) -> None:
        at = (int(event.finished_ts), event.seq + 1)
        if at <= self._book.journal.ddl:
            return
        self._terms.check()
        self._look(event)
        self._book.backend.describe(event)
        for lake in self._ddl.carry_out(event, at):
            self._book.documents.save(self._terms.generation, lake)
        self._book.documents.save_header(self._terms.generation, at)

    def close(self) -> None:
        self._book.backend.close()

    def _look(self, event: DdlEvent) -> None:
        """Writers have made tables meanwhile, and changed those that the DDL touches."""
        self._book.look(is_forced=True)
        ids = {info.id for info in (event.table_info, event.pre_table_info) if info is not None}
        is_schema = event.type == ActionType.DROP_SCHEMA
        for lake in self._book.journal.tables:
            if lake.table_id in ids or (is_schema and lake.schema == event.schema):
                self._book.reload(lake)

    def _check_unused(self, start_ts: Ts, is_resumed: bool) -> None:
        told = orjson.loads(self._files.read(CHECKPOINT) or b"{}")
        checkpoint = int(told.get("checkpoint-ts", 0))
        is_ours = told.get("id", "") == self._options.changefeed_id != ""
        if is_resumed and is_ours and checkpoint <= start_ts:
            return  # our own, which had no rows yet; its checkpoint is saved before it is told here
        check_start(self._options.storage.shown, checkpoint, start_ts)


class LakeWriter:
    """The writer's half: data files, and the transactions that make them part of their tables."""

    def __init__(
        self, options: LakeOptions, name: str, open_backend: OpenBackend, *, files: Files | None = None
    ) -> None:
        self._options = options
        self._files = open_files(options.storage) if files is None else files
        self._generations = WriterGenerations(self._files, Identity(options.cluster_id, options.changefeed), name)
        self._book = Book(options, self._files, open_backend(self._files, is_owner=False))

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """Begin a new generation, and remove the data files of batches that no table has."""
        generation = self._generations.begin_in(term)
        self._book.begin(generation, self._generations.check, tables)
        if tables is None:
            self._reduce("", at, None)
        for table in tables or ():
            lake = self._book.find(table)
            for folder in self._book.backend.data_folders(lake, table) if lake is not None else ():
                self._reduce(folder, at, table)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> LakeTarget:
        from_ts, to_ts = window
        lake = self._book.ensure(table)
        resolved_ts = self._book.stamps_of(lake).resolved_ts
        options = self._options
        return LakeTarget(
            options.storage,
            lake.id,
            self._book.backend.data_folder(lake, table, physical_id, to_ts),
            batch_stem(to_ts, physical_id),
            self._book.suffix,
            lake.file_columns(table),
            self._book.generation,
            # Ahead of what was saved: it has a batch that was not committed everywhere.
            above_ts=resolved_ts if resolved_ts > from_ts else 0,
            file_size=options.file_size,
            row_group_rows=options.row_group_rows,
            compression=options.compression,
            physical_id=physical_id,
            to_ts=int(to_ts),
        )

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._generations.check()
        by_table: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            if receipt.files:
                by_table.setdefault(receipt.detail["table"], []).append(receipt)
        # The others are not looked at: that would be a commit of its own in each new generation.
        for table in [table for table in self._book.journal.tables if table.id in by_table]:
            due = by_table[table.id]
            stamps, end_ts = self._book.stamps_of(table), max(int(r.detail["to_ts"]) for r in due)
            done = stamps.parts if stamps.resolved_ts == end_ts else frozenset()
            if stamps.resolved_ts > end_ts or all(r.detail["physical_id"] in done for r in due):
                continue
            files = [
                DataFile.from_dict(f) for r in due if r.detail["physical_id"] not in done for f in r.detail["files"]
            ]
            parts = done | {r.detail["physical_id"] for r in due}
            self._book.append(table, files, replace(stamps, resolved_ts=end_ts, parts=parts))
        return {"format": _STATE_FORMAT, "resolved_ts": int(to_ts)}

    def close(self) -> None:
        self._book.backend.close()

    @property
    def journal(self) -> Journal:
        return self._book.journal

    def _reduce(self, top: str, at: Checkpoints, table: TableInfo | None) -> None:
        """Remove what no table has, below a folder that is a table's, or everywhere."""
        own = {physical_id: at.of(physical_id) for physical_id in (table.physical_ids if table is not None else ())}
        # Rows of a DDL that is under way come under ids that the table has not got yet, those of others are long done.
        rest = max(own.values(), default=None)
        for folder, names in self._files.walk(top):
            batches = {name: batch for name in names if (batch := batch_of(name)) is not None}
            ahead = [
                name
                for name, (to_ts, id) in batches.items()
                if to_ts > (at.of(id) if rest is None else own.get(id, rest))
            ]
            kept_ts = self._book.kept_ts(folder) if ahead else 0
            doomed = [name for name in ahead if batches[name][0] > kept_ts]
            for name in doomed:
                self._files.remove(self._book.generation, f"{folder}/{name}")
            if doomed:
                self._files.sync_folder(folder)


def _check_state(state: Mapping[str, Any] | None) -> None:
    if state is not None and state.get("format") != _STATE_FORMAT:
        raise SinkError(
            f"the state of the lake sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )
