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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any

import orjson

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files.generation import Generations, Identity, check_start
from tidemill.sinks.files.storage import Files, open_place
from tidemill.sinks.lake.backend import Backend
from tidemill.sinks.lake.book import CHECKPOINT, Book, read_journal
from tidemill.sinks.lake.ddl import LakeDdl
from tidemill.sinks.lake.files import DataFile, LakeTarget, batch_of, batch_stem
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import Journal
from tidemill.sinks.port import NoSyncPoints, Rescan

log = get_logger("lake")

_STATE_FORMAT = 1


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
        if state is not None:
            _check_state(state)
        journal = read_journal(options, self._files)
        self._generations = Generations(self._files, Identity(options.cluster_id, options.changefeed))
        if state is None and start_ts is not None:
            self._check_unused(start_ts, is_resumed)  # after whose lake it is: no start-ts would fit another's
        self._book = Book(options, self._files, self.open_backend(zone), journal)
        self._ddl = LakeDdl(self._book, rescan)

    @abstractmethod
    def open_backend(self, zone: tzinfo) -> Backend:
        """What knows the format. ``zone``: in which a ts has its date."""

    @property
    def journal(self) -> Journal:
        return self._book.journal

    def recover(self, at: Checkpoints) -> None:
        """Begin a new generation, and remove the data files of batches that no table has."""
        self._begin_generation()
        for folder, names in self._files.walk():
            batches = {name: batch for name in names if (batch := batch_of(name)) is not None}
            ahead = [name for name, (to_ts, physical_id) in batches.items() if to_ts > at.of(physical_id)]
            kept_ts = self._book.kept_ts(folder) if ahead else 0
            doomed = [name for name in ahead if batches[name][0] > kept_ts]
            for name in doomed:
                self._files.remove(f"{folder}/{name}")
            if doomed:
                self._files.sync_folder(folder)

    def _begin_generation(self) -> None:
        self._book.begin(self._generations.begin(), self._generations.check)

    def _check_generation(self) -> None:
        if not self._book.generation:
            self._begin_generation()
        self._generations.check()

    def target(self, table: TableInfo, physical_id: int, window: Window) -> LakeTarget:
        from_ts, to_ts = window
        if not self._book.generation:
            self._begin_generation()
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
            # Ahead of what was saved: it has a batch that was not committed everywhere.
            above_ts=resolved_ts if resolved_ts > from_ts else 0,
            file_size=options.file_size,
            row_group_rows=options.row_group_rows,
            compression=options.compression,
            physical_id=physical_id,
            to_ts=int(to_ts),
            generation=self._book.generation,
        )

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._check_generation()
        for table in self._book.journal.tables:
            due = [r for r in receipts if r.detail["table"] == table.id and r.files]
            if not due:
                continue  # nor looked at: that would be a commit of its own in each new generation
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

    def publish(self, checkpoint_ts: Ts) -> None:
        self._check_generation()
        self._book.backend.publish(checkpoint_ts)
        document = {
            "cluster": self._options.cluster_id,
            "changefeed": self._options.changefeed,
            "id": self._options.changefeed_id,
            "checkpoint-ts": int(checkpoint_ts),
        }
        self._book.replace(CHECKPOINT, orjson.dumps(document))

    def close(self) -> None:
        self._book.backend.close()

    def ddl(self, event: DdlEvent) -> None:
        at = (int(event.finished_ts), event.seq + 1)
        if at <= self._book.journal.ddl:
            return
        self._check_generation()
        self._book.backend.describe(event)
        journal = self._book.journal
        for lake in self._ddl.carry_out(event, at):
            journal = journal.put(lake)
        self._book.save(replace(journal, ddl=at))

    def _check_unused(self, start_ts: Ts, is_resumed: bool) -> None:
        told = orjson.loads(self._files.read(CHECKPOINT) or b"{}")
        checkpoint = int(told.get("checkpoint-ts", 0))
        is_ours = told.get("id", "") == self._options.changefeed_id != ""
        if is_resumed and is_ours and checkpoint <= start_ts:
            return  # our own, which had no rows yet; its checkpoint is saved before it is told here
        check_start(self._options.storage.shown, checkpoint, start_ts)


def _check_state(state: Mapping[str, Any]) -> None:
    if state.get("format") != _STATE_FORMAT:
        raise SinkError(
            f"the state of the lake sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )
