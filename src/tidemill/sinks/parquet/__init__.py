"""Parquet files in TiCDC's layout, with the columns of lake tables: for readers that want neither catalog nor log.

    metadata                                                                     {"checkpoint-ts": …}
    {schema}/{table}/meta/schema_{version}_{checksum}.json                       a table's schema and its DDL
    {schema}/{table}/{version}/[{partition}/][{date}/]{to-ts}-….parquet          rows

There is no transaction here. A batch counts once the changefeed's state is saved, ``metadata`` follows, and what an
unfinished batch left is removed before the next; a task that is late cannot publish (``generation``). So a reader takes
rows with ``_commit_ts`` up to the checkpoint.
"""

from collections.abc import Callable, Sequence
from datetime import tzinfo

import orjson

from tidemill.model.ddl import DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import layout
from tidemill.sinks.files.schema_file import schema_of_database, schema_of_table
from tidemill.sinks.files.storage import Files
from tidemill.sinks.lake.backend import Stamps
from tidemill.sinks.lake.files import DataFile, LakeTarget, write_rows
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import LakeTable, Naming


class ParquetLayout:
    """The backend; see ``lake.backend``. Files are where they belong as soon as they are written."""

    naming = Naming(can_rename=False, can_widen=False)
    is_transactional = False

    def __init__(self, options: LakeOptions, zone: tzinfo, files: Files, *, is_owner: bool) -> None:
        self._options = options
        self._files = files
        self._zone = zone
        self._generation = ""

    def begin(self, generation: str, check: Callable[[], None]) -> None:
        self._generation = generation  # files carry it

    def forget(self, table: LakeTable | None) -> None:
        """Nothing is remembered."""

    def reload(self, table: LakeTable) -> None:
        """Nothing is remembered."""

    def put(self, table: LakeTable) -> None:
        """Folders come with their files."""

    def stamps(self, table: LakeTable) -> Stamps:
        return Stamps()  # nothing counts before the state does

    def append(self, table: LakeTable, files: Sequence[DataFile], stamps: Stamps) -> None:
        """They are there."""

    def data_folder(self, table: LakeTable, info: TableInfo, physical_id: int, to_ts: Ts) -> str:
        self._describe(info, info.version_ts)
        date = layout.date_of(to_ts, self._options.date_separator, self._zone)
        return layout.data_folder(info, physical_id, info.version_ts, date)

    def data_folders(self, table: LakeTable, info: TableInfo) -> list[str]:
        since = [version for version in table.versions if version.ts >= info.version_ts]
        return [f"{layout.table_folder(version.schema, version.table)}/{version.ts}" for version in since]

    def describe(self, event: DdlEvent) -> None:
        if event.table_info is not None and event.table:
            self._describe(event.table_info, event.finished_ts, event.query, event.type)
        else:
            file = schema_of_database(event.schema, event.finished_ts, event.query, event.type)
            self._write(layout.schema_folder(event.schema, ""), file.name, file.content)

    def publish(self, checkpoint_ts: Ts) -> None:
        self._write(".", layout.METADATA, orjson.dumps({"checkpoint-ts": int(checkpoint_ts)}))

    def close(self) -> None:
        """Nothing is open."""

    def _describe(self, table: TableInfo, version: Ts, query: str = "", type: int = 0) -> None:
        file = schema_of_table(table, version, query=query, type=type, with_ids=True)
        folder = layout.schema_folder(table.schema, table.name)
        if query or file.name not in self._files.names(folder):
            self._write(folder, file.name, file.content)

    def _write(self, folder: str, name: str, content: bytes) -> None:
        path = name if folder == "." else f"{folder}/{name}"
        if self._files.read(path) == content:
            return
        self._files.make_folder(folder)
        self._files.replace(self._generation, path, content)
        self._files.sync_folder(folder)


__all__ = ["LakeTarget", "ParquetLayout", "write_rows"]
