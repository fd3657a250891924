"""What both halves of the file sink do in its folder, each in a generation of its own: tables and where their rows
go.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import tzinfo

from tidemill.errors import SinkError
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import layout
from tidemill.sinks.files.durable import is_temporary
from tidemill.sinks.files.schema_file import SchemaFile, parse_name, schema_of_table
from tidemill.sinks.files.storage import Files
from tidemill.sinks.files.target import FileTarget
from tidemill.sinks.files.uri import SinkConfig

_AT_ONCE = 8
_Key = tuple[str, str, Ts]  # schema, table, version


class Place:
    def __init__(self, config: SinkConfig, files: Files, zone: tzinfo) -> None:
        self.config, self.files, self._zone = config, files, zone
        self._versions: dict[_Key, Ts] = {}

    def folder(self, generation: str, table: TableInfo, physical_id: int, to_ts: Ts) -> str:
        """Where the rows of a batch go; the table's schema file is there when this returns."""
        date = layout.date_of(to_ts, self.config.date_separator, self._zone)
        return layout.data_folder(table, physical_id, self._version(generation, table), date)

    def target(self, generation: str, table: TableInfo, folder: str, first_index: int) -> FileTarget:
        config = self.config
        return FileTarget(
            str(self.files.root),
            folder,
            first_index,
            config.extension,
            config.file_index_digits,
            config.file_size,
            generation,
            config.header(table),
            config.storage,
            config.messages,
        )

    def describe(self, table: TableInfo, version: Ts, query: str = "", type: int = 0) -> SchemaFile:
        config = self.config
        with_virtual = config.protocol is None or not config.protocol.is_positional
        return schema_of_table(
            table, version, query=query, type=type, with_ids=config.output_column_id, with_virtual=with_virtual
        )

    def forget(self, tables: Collection[TableInfo] | None = None) -> None:
        """Others may have written schema files of these tables meanwhile; None: of all."""
        meant = {(table.schema, table.name) for table in tables or ()}
        is_all = tables is None
        self._versions = {key: found for key, found in self._versions.items() if not is_all and key[:2] not in meant}

    def published_index(self, folder: str) -> int:
        """The number of the newest file that readers have been told of."""
        named = (self.files.read(layout.index_file(folder)) or b"").decode("utf-8", "replace").strip()
        index = layout.data_file_index(named) if named else 0
        if index is None:
            place = f"{self.files.root}/{folder}"
            raise SinkError(
                f"cannot go on in {place}: its index file names no data file. Restore {place}/meta/CDC.index (one "
                "line with the name of the newest committed data file), then start again."
            )
        return index

    def replace(self, generation: str, path: str, content: bytes) -> None:
        """A small file, unless it is there already."""
        if self.files.read(path) == content:
            return
        folder = path.rpartition("/")[0] or "."
        self.files.make_folder(folder)
        self.files.replace(generation, path, content)
        self.files.sync_folder(folder)

    def replace_all(self, generation: str, contents: Mapping[str, bytes]) -> None:
        """Several, at the same time: each costs little but waiting, for a disk or for a bucket."""
        if len(contents) < 2:
            for path, content in contents.items():
                self.replace(generation, path, content)
            return
        with ThreadPoolExecutor(min(len(contents), _AT_ONCE), thread_name_prefix="small-files") as threads:
            for written in [threads.submit(self.replace, generation, *each) for each in contents.items()]:
                written.result()

    def reduce(self, generation: str, folder: str, names: list[str], committed: int) -> None:
        """Remove what of a folder's files is not committed."""
        doomed = [n for n in names if is_temporary(n) or (layout.data_file_index(n) or 0) > committed]
        for name in doomed:
            self.files.remove(generation, f"{folder}/{name}")
        if doomed:
            self.files.sync_folder(folder)

    def _version(self, generation: str, table: TableInfo) -> Ts:
        """The version under which a table's rows are kept.

        Its own, if a schema file says so; else the newest with the same columns, so that a restart
        opens no new folder; else its own, for which a schema file is written.
        """
        key = (table.schema, table.name, table.version_ts)
        if key not in self._versions:
            file = self.describe(table, table.version_ts)
            folder = layout.schema_folder(table.schema, table.name)
            known = [found for name in self.files.names(folder) if (found := parse_name(name)) is not None]
            same = [version for version, checksum in known if checksum == file.checksum]
            if not same:
                self.replace(generation, f"{folder}/{file.name}", file.content)
            self._versions[key] = table.version_ts if table.version_ts in same or not same else max(same)
        return self._versions[key]


class Committed:
    """Per folder, the number of the newest file that counts: what the owner's state said last, else what the index file
    says. Kept for the folders of the tables that one writer has."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._indexes: dict[str, int] = {}
        self._saved: dict[str, int] = {}

    def __getitem__(self, folder: str) -> int:
        if folder not in self._indexes:
            self._indexes[folder] = max(self._saved.get(folder, 0), self._place.published_index(folder))
        return self._indexes[folder]

    def __setitem__(self, folder: str, index: int) -> None:
        self._indexes[folder] = index

    def learn(self, saved: Mapping[str, int], tables: Collection[TableInfo] | None) -> None:
        """Forget what is known of these tables' folders, since others may have written there, and go by ``saved``;
        None: of all."""
        meant = {layout.table_folder(table.schema, table.name) for table in tables or ()}

        def is_meant(folder: str) -> bool:
            return tables is None or "/".join(folder.split("/")[:2]) in meant

        self._indexes = {folder: index for folder, index in self._indexes.items() if not is_meant(folder)}
        kept = {folder: index for folder, index in self._saved.items() if not is_meant(folder)}
        self._saved = kept | {folder: index for folder, index in saved.items() if is_meant(folder)}
