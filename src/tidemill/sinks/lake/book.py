"""What one driver knows of its lake: the journal of its tables, and how far each of them is."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from tidemill.errors import SinkError
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import layout
from tidemill.sinks.files.storage import Files
from tidemill.sinks.lake.backend import Backend, Stamps
from tidemill.sinks.lake.files import DataFile
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import Evolution, Journal, LakeTable, evolve, new_table

TABLES: Final = "_tidemill/tables.json"
CHECKPOINT: Final = "_tidemill/checkpoint.json"


class Book:
    """Of one generation at a time; there is none before the first ``begin``."""

    def __init__(self, options: LakeOptions, files: Files, backend: Backend, journal: Journal) -> None:
        self.options, self.files, self.backend = options, files, backend
        self.journal = journal
        self.generation = ""
        self._stamps: dict[str, Stamps] = {}

    def begin(self, generation: str, check: Callable[[], None]) -> None:
        self.generation = generation
        self.journal = read_journal(self.options, self.files)  # ours may be that of a DDL which was not finished
        self._stamps.clear()
        self.backend.begin(generation, check)

    @property
    def suffix(self) -> str:
        """Ends the names of files that count only when they are committed: nobody else writes under the same."""
        return f"-{self.generation[:8]}" if self.backend.is_transactional else ""

    def ensure(self, table: TableInfo) -> LakeTable:
        """The lake table of ``table``, with a version for it."""
        lake = self.journal.by_table_id(table.id)
        if lake is None:
            dropped = self.journal.by_table_id(table.id, is_dropped=True)
            if dropped is not None:  # of a schema that was recovered as a whole, of which no DDL tells
                lake = evolve(
                    dataclasses.replace(dropped, dropped_ts=None), table, self.backend.naming, is_added=False
                ).table
            else:
                lake = self.new(table, table.version_ts)
        elif lake.version(table.version_ts) is not None:
            return lake
        else:
            lake = self._unannounced(lake, table)
        self.backend.put(lake)
        self.save(self.journal.put(lake))
        return lake

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
            self._stamps.pop(lake.id, None)
            self.backend.forget(lake)
            raise
        self._stamps[lake.id] = stamps

    def stamps_of(self, lake: LakeTable) -> Stamps:
        if lake.id not in self._stamps:
            self._stamps[lake.id] = self.backend.stamps(lake)
        return self._stamps[lake.id]

    def kept_ts(self, folder: str) -> int:
        """Files of batches up to here belong to the table whose data lie in ``folder``, as its transactions say."""
        inside = [t for t in self.journal.tables if folder == t.location or folder.startswith(t.location + "/")]
        return max((self.stamps_of(t).resolved_ts for t in inside), default=0)

    def save(self, journal: Journal) -> None:
        self.replace(TABLES, orjson.dumps(journal.to_dict(), option=orjson.OPT_INDENT_2))
        self.journal = journal

    def replace(self, path: str, content: bytes) -> None:
        folder = path.rpartition("/")[0] or "."
        self.files.make_folder(folder)
        self.files.write(path, [content])
        self.files.sync_folder(folder)


def read_journal(options: LakeOptions, files: Files) -> Journal:
    content = files.read(TABLES)
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
