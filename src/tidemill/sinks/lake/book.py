"""What one half of a lake sink knows of the lake: the journal of its tables, and how far each of them is."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import layout
from tidemill.sinks.files.storage import Files
from tidemill.sinks.lake.backend import Backend, Stamps
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.journal import JournalFiles
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import Evolution, Journal, LakeTable, evolve, new_table


class Book:
    """Of one generation at a time, be it a writer's or the owner's term; there is none before the first ``begin``."""

    def __init__(self, options: LakeOptions, files: Files, backend: Backend) -> None:
        self.options, self.files, self.backend = options, files, backend
        self.documents = JournalFiles(options, files)
        self.generation = ""
        self._stamps: dict[str, Stamps] = {}

    def begin(self, generation: str, check: Callable[[], None], tables: Collection[TableInfo] | None = None) -> None:
        """``tables`` may have been in other hands: what is known of them, or of all (None), may be wrong."""
        is_first = not self.generation
        self.generation = generation
        self.backend.begin(generation, check)
        if tables is None or is_first:
            self._stamps.clear()
            self.backend.forget(None)
            self.documents.load()  # ours may be that of a DDL which was not finished
            return
        self.look(is_forced=True)
        ids = {table.id for table in tables}
        for lake in [lake for lake in self.journal.tables if lake.table_id in ids]:
            self.documents.read_again(lake)
            self.forget(lake)

    @property
    def journal(self) -> Journal:
        return self.documents.journal

    @property
    def suffix(self) -> str:
        """Ends the names of files that count only when they are committed: nobody else writes under the same."""
        return f"-{self.generation.rpartition('/')[2][:8]}" if self.backend.is_transactional else ""

    def look(self, *, is_forced: bool = False) -> None:
        """For tables that are new. One that has got a new id, by TRUNCATE or a new partitioning, may have got columns
        before that, of which we know nothing yet."""
        for lake in self.documents.look(is_forced=is_forced):
            self._stamps.pop(lake.id, None)
            self.backend.reload(lake)

    def find(self, table: TableInfo) -> LakeTable | None:
        """The lake table of ``table``, for its writer. A DDL may have made or changed it since."""
        lake = self.journal.by_table_id(table.id)
        if lake is None:
            self.look()
            dropped = self.journal.by_table_id(table.id, is_dropped=True)
            if dropped is not None:
                self.reload(dropped)
            lake = self.journal.by_table_id(table.id)
        if lake is not None and lake.version(table.version_ts) is None:
            lake = self.reload(lake)
        return lake

    def ensure(self, table: TableInfo) -> LakeTable:
        """The same, with a version for it."""
        lake = self.find(table)
        if lake is None:
            lake = self._begun(table)
        elif lake.version(table.version_ts) is not None:
            return lake
        else:
            lake = self._unannounced(lake, table)
        self.backend.put(lake)
        self.documents.save(self.generation, lake)
        return lake

    def _begun(self, table: TableInfo) -> LakeTable:
        dropped = self.journal.by_table_id(table.id, is_dropped=True)
        if dropped is None:
            return self.new(table, table.version_ts)
        # Of a schema that was recovered as a whole, of which no DDL tells.
        back = dataclasses.replace(dropped, dropped_ts=None)
        return evolve(back, table, self.backend.naming, is_added=False).table

    def _unannounced(self, lake: LakeTable, table: TableInfo) -> LakeTable:
        """A version that no DDL announced: one that changes no column, or one of an online DDL that is under way."""
        known = lake.version_at(table.version_ts)
        is_same = [c.id for c in known.columns] == [c.id for c in table.stored_columns]
        change: Evolution = evolve(lake, table, self.backend.naming, is_added=False, is_interim=not is_same)
        return change.table

    def new(self, table: TableInfo, ts: Ts) -> LakeTable:
        id = self.journal.free_id(table.id, ts)
        location = self.journal.free_location(layout.table_folder(table.schema, table.name), id)
        return new_table(table, id, location, self.backend.naming, created_ts=int(ts))

    def append(self, lake: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        try:
            self.backend.append(lake, files, stamps)
        except BaseException:  # it may have been carried out all the same
            self.forget(lake)
            raise
        self._stamps[lake.id] = stamps

    def stamps_of(self, lake: LakeTable) -> Stamps:
        if lake.id not in self._stamps:
            self._stamps[lake.id] = self.backend.stamps(lake)
        return self._stamps[lake.id]

    def forget(self, lake: LakeTable) -> None:
        self._stamps.pop(lake.id, None)
        self.backend.forget(lake)

    def reload(self, lake: LakeTable) -> LakeTable:
        """Others have changed it, or may have, and its document: the owner at a DDL, or its writer."""
        self._stamps.pop(lake.id, None)
        found = self.documents.read_again(lake)
        self.backend.reload(found)
        return found

    def kept_ts(self, folder: str) -> int:
        """Files of batches up to here belong to the table whose data lie in ``folder``, as its transactions say."""
        inside = [t for t in self.journal.tables if folder == t.location or folder.startswith(t.location + "/")]
        return max((self.stamps_of(t).resolved_ts for t in inside), default=0)
