"""The file sink: each change once, in TiCDC's storage layout, whatever happens in between. Locally or in a bucket.

    writer:    FileWriter.target(table) ─► FileTarget ──┐               ┌─► commit ─► delta ──┐
    executor:                     write_files(target, encoded) ─► Receipt                     ▼
    owner:                                                              publish ◄── saved ◄── take

A batch goes in five steps. Executors write its data files, under their final names, numbered on from what is committed.
The writer's ``commit`` turns the receipts into what is new, by folder; the owner takes it into its state, which the
caller makes durable: that is the moment at which the batch counts. ``publish`` then tells readers: the index file of
each folder, and the checkpoint. If somebody dies before the state is durable, ``recover`` removes the files that no
state and no index covers, and the batch is written again under the same names; if the owner dies after, the next one
finishes what ``publish`` had to do. So readers that go by index or metadata never see a file that is taken back.

Committed is, per folder, what the last state says, else what its index file says. The state therefore holds only the
folders not yet published and stays small however long the sink runs.

A worker or a process that was killed may leave a task behind that still writes. Each ``recover`` of a writer therefore
begins a new generation, which targets carry; a task of an older one cannot publish its files any more (``generation``,
``durable``). The owner's own files are written in its term, by the same means.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

import orjson

from tidemill.errors import InvariantError, SinkError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms, show
from tidemill.sinks.files import layout
from tidemill.sinks.files.generation import Identity, Terms, WriterGenerations, check_saved, check_start
from tidemill.sinks.files.place import Committed, Place
from tidemill.sinks.files.schema_file import SchemaFile, schema_of_database
from tidemill.sinks.files.storage import Files, StorageOptions, open_files, open_place
from tidemill.sinks.files.target import FileTarget, write_files
from tidemill.sinks.files.uri import SinkConfig
from tidemill.sinks.port import AnyTable, NoSyncPoints, Rescan

_STATE_FORMAT = 1


class FileOwner(AnyTable, NoSyncPoints):
    """The owner's half: schema files, index files, the checkpoint."""

    def __init__(
        self,
        config: SinkConfig,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        files: Files | None = None,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> None:
        """``zone`` names date folders. Without ``rescan`` rows that were there before a table got its key are left
        out."""
        self._rescan = rescan
        self._refilled = (state or {}).get("refilled")  # the last DDL that brought rows: its ts and number
        opened = open_place(_storage(config), is_new=state is None)
        self._files = files or opened
        self._place = Place(config, self._files, zone)
        self._unpublished = _read_state(state)  # folder → index
        self._terms = Terms(self._files, Identity(config.cluster_id, config.changefeed))
        if start_ts is not None:
            # Our own, perhaps without rows yet: a checkpoint is saved before it is published, so it may lie above.
            is_ours = state is not None or (is_resumed and self._terms.was_ours)
            self._check_checkpoint(start_ts, is_ours)

    @property
    def term(self) -> str:
        return self._terms.generation

    def begin(self) -> None:
        """Also finishes what an earlier owner had to tell readers of the state that it had saved."""
        self._terms.begin()
        self._publish_indexes()

    def fence(self, writers: Collection[str] | None = None) -> None:
        self._terms.fence(writers)

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        for folder, index in _read_state(commit).items():
            self._unpublished[folder] = max(self._unpublished.get(folder, 0), index)
        return self._state()

    def publish(self, checkpoint_ts: Ts) -> None:
        """Tell readers: all up to ``checkpoint_ts`` is there."""
        self._terms.check()
        self._publish_indexes()
        content = orjson.dumps({"checkpoint-ts": checkpoint_ts})
        self._place.replace(self._terms.generation, layout.METADATA, content)

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Write the schema file or files of a DDL, and the rows of a table that has just got its key: no change tells
        of them. May be called again for the same one."""
        self._describe([event])
        if self._rescan is None or event.table_info is None or not event.gives_key:
            return None
        at = [int(event.finished_ts), event.seq]
        if self._refilled != at:
            self._refill(event.table_info, event.finished_ts, self._rescan)
            self._refilled = at
        return self._state()

    def ddls(self, events: Sequence[DdlEvent], passed: Callable[[int], None]) -> None:
        """None of them takes long enough to tell of it."""
        self._describe(events)

    def _describe(self, events: Sequence[DdlEvent]) -> None:
        """Write the schema files of several DDLs."""
        self._terms.check()
        files = [file for event in events for file in self._schema_files(event)]
        contents = {f"{layout.schema_folder(file.schema, file.table)}/{file.name}": file.content for file in files}
        self._place.replace_all(self._terms.generation, contents)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _refill(self, table: TableInfo, ts: Ts, rescan: Rescan) -> None:
        """Write all rows as of ``ts`` as inserts. Runs in the owner."""
        term = self._terms.generation
        self._place.forget([table])
        for physical_id in table.physical_ids:
            folder = self._place.folder(term, table, physical_id, ts)
            committed = max(self._unpublished.get(folder, 0), self._place.published_index(folder))
            self._place.reduce(term, folder, self._files.names(folder), committed)
            encoder = self._place.config.messages.encoder(physical_ms(ts))
            encoded = (encoder.encode(rows) for rows in rescan(table, [physical_id], ts))
            target = self._place.target(term, table, folder, committed + 1)
            written = write_files(target, encoded, self._files)
            if written.files:
                self._unpublished[folder] = committed + written.files

    def _state(self) -> dict[str, Any]:
        folders = dict(sorted(self._unpublished.items()))
        return {"format": _STATE_FORMAT, "folders": folders, **({"refilled": self._refilled} if self._refilled else {})}

    def _schema_files(self, event: DdlEvent) -> list[SchemaFile]:
        if event.table_info is None or not event.table:
            return [schema_of_database(event.schema, event.finished_ts, event.query, event.type)]
        files = [self._place.describe(event.table_info, event.finished_ts, event.query, event.type)]
        if event.type == ActionType.EXCHANGE_PARTITION and event.pre_table_info is not None:
            files.append(self._place.describe(event.pre_table_info, event.finished_ts))
        return files

    def _publish_indexes(self) -> None:
        config, told = self._place.config, {}
        for folder, index in sorted(self._unpublished.items()):
            if self._place.published_index(folder) < index:  # what is taken a second time tells nobody less
                name = layout.data_file(index, config.file_index_digits, config.extension)
                told[layout.index_file(folder)] = name.encode() + b"\n"
        self._place.replace_all(self._terms.generation, told)
        self._unpublished.clear()

    def _check_checkpoint(self, start_ts: Ts, is_ours: bool) -> None:
        """That the checkpoint which readers have been told goes together with ours."""
        content, place = self._files.read(layout.METADATA), str(self._files.root)
        try:
            told = int(orjson.loads(content)["checkpoint-ts"]) if content is not None else 0
        except (ValueError, KeyError, TypeError) as error:
            if is_ours:
                return  # it is told again
            raise SinkError(
                f"cannot tell how far the changes in {place} go: its file {layout.METADATA} names no checkpoint-ts. "
                "Restore it, or choose an empty folder."
            ) from error
        (check_saved if is_ours else check_start)(place, told, start_ts)


class FileWriter:
    """The writer's half: data files, and the schema files of tables that no DDL has told of."""

    def __init__(self, config: SinkConfig, name: str, *, zone: tzinfo = UTC, files: Files | None = None) -> None:
        self._files = files or open_files(_storage(config))
        self._place = Place(config, self._files, zone)
        self._committed = Committed(self._place)
        self._generations = WriterGenerations(self._files, Identity(config.cluster_id, config.changefeed), name)

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """Begin a new generation, and reduce the folders of the tables to what was committed."""
        generation = self._generations.begin_in(term)
        self._place.forget(tables)
        self._committed.learn(_read_state(state), tables)
        below = [layout.table_folder(table.schema, table.name) for table in tables] if tables is not None else [""]
        for top in dict.fromkeys(below):
            for folder, names in self._files.walk(top):
                has_data = any(layout.data_file_index(name) is not None for name in names)
                self._place.reduce(generation, folder, names, self._committed[folder] if has_data else 0)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> FileTarget:
        """A function of its arguments and of what is committed, so that a replay names the same files."""
        generation = self._generations.generation
        folder = self._place.folder(generation, table, physical_id, window[1])
        return self._place.target(generation, table, folder, self._committed[folder] + 1)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._generations.check()
        folders: dict[str, int] = {}
        for receipt in receipts:
            if not receipt.files:
                continue
            expected = self._committed[receipt.directory] + 1
            if receipt.first_index != expected:
                raise InvariantError(
                    f"the batch up to {show(to_ts)} wrote {receipt.directory} from file {receipt.first_index} on, "
                    f"where {expected} was due. Two writers share the folder, or a receipt came twice; report it."
                )
            folders[receipt.directory] = receipt.first_index + receipt.files - 1
            self._committed[receipt.directory] = folders[receipt.directory]
        return {"format": _STATE_FORMAT, "folders": folders}

    def close(self) -> None:
        """Nothing is open between calls."""


def _storage(config: SinkConfig) -> StorageOptions:
    return config.storage or StorageOptions(config.path)


def _read_state(state: Mapping[str, Any] | None) -> dict[str, int]:
    if state is None:
        return {}
    if state.get("format") != _STATE_FORMAT:
        raise SinkError(
            f"the state of the file sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )
    return {str(folder): int(index) for folder, index in state["folders"].items()}
