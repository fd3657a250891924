"""The file sink: each change once, in TiCDC's storage layout, whatever happens in between. Locally or in a bucket.

    driver:    FileSink.target(table) ─► FileTarget ──┐            ┌─► commit ─► state (caller) ─► publish
    executor:                    write_files(target, encoded) ─► Receipt

A batch goes in four steps. Executors write its data files, under their final names, numbered on
from what is committed. ``commit`` turns the receipts into the new state, which the caller makes
durable: that is the moment at which the batch counts. ``publish`` then tells readers: the index file of
each folder, and the checkpoint. If we die before the state is durable, ``recover`` removes the files
that no state and no index covers, and the batch is written again under the same names; if we die
after, it finishes what ``publish`` had to do. So readers that go by index or metadata never see a
file that is taken back.

Committed is, per folder, what the last state says, else what its index file says. The state
therefore holds only the folders not yet published and stays small however long the sink runs.

A worker or a process that was killed may leave a task behind that still writes. Each ``recover``
therefore begins a new generation, which targets carry; a task of an older one cannot publish its
files any more (``generation``, ``durable``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from itertools import chain
from typing import Any

import numpy as np
import orjson

from tidemill.errors import InvariantError, SinkError
from tidemill.flow.encoder import Encoded, MessageProtocol, Messages
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms, show
from tidemill.sinks.files import layout
from tidemill.sinks.files.durable import is_temporary
from tidemill.sinks.files.generation import Generations, Identity, check_saved, check_start
from tidemill.sinks.files.schema_file import SchemaFile, parse_name, schema_of_database, schema_of_table
from tidemill.sinks.files.storage import Files, StorageOptions, open_files, open_place
from tidemill.sinks.files.uri import SinkConfig
from tidemill.sinks.port import NoSyncPoints, Rescan

_STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where one unit's messages go. Small and picklable: it is sent to an executor."""

    root: str
    directory: str  # relative to root
    first_index: int
    extension: str
    index_digits: int
    file_size: int
    generation: str  # files are published only while it is the newest
    header: bytes = b""  # opens each file
    storage: StorageOptions | None = None  # None: the local folder root
    messages: Messages = field(default_factory=Messages)

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors."""
        return write_files(self, self.messages.encode(flat(rows)))

    def share(self, number: int) -> "FileTarget":
        raise InvariantError("the messages of a table have one order, so its rows in a batch are one unit's")


def write_files(target: FileTarget, encoded: Iterator[Encoded], files: Files | None = None) -> Receipt:
    """Runs on executors: write all messages and return once they are durable.

    A file is closed at the first end of a transaction at or past ``file_size``, so a transaction
    never spans two files. Files that an earlier attempt left under the same names are replaced.
    """
    files = files or open_files(target.storage or StorageOptions(target.root))
    messages = _Cutter(encoded, target.file_size)
    count = size = 0
    while messages.has_more():
        if not count:
            files.make_folder(target.directory)
        name = layout.data_file(target.first_index + count, target.index_digits, target.extension)
        content = chain([target.header], messages.until_full())
        size += files.publish_file(target.generation, f"{target.directory}/{name}", content)
        count += 1
    if count:
        files.sync_folder(target.directory)
    return Receipt(target.directory, target.first_index, count, messages.rows, size)


class FileSink(NoSyncPoints):
    """The driver's side, one generation at a time. Methods raise SinkError, after which ``recover`` is to be called."""

    def __init__(
        self,
        config: SinkConfig,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        storage: StorageOptions | None = None,
        files: Files | None = None,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> None:
        """``state`` is what ``commit`` returned last, None if there is none. ``storage`` is where the files go, if
        not to the local folder that ``config`` names. ``is_resumed``: the changefeed has run before, and ``start_ts``
        is the checkpoint that it saved.

        A new changefeed is refused another one's folder, and one whose metadata names another
        checkpoint than ``start_ts``. ``zone`` names date folders. Without ``rescan`` rows that were there
        before a table got its key are left out.
        """
        self._config = config
        self._zone = zone
        self._storage = storage
        self._rescan = rescan
        self._refilled = (state or {}).get("refilled")  # the last DDL that brought rows: its ts and number
        opened = open_place(storage or StorageOptions(config.path), is_new=state is None)
        self._files = files or opened
        self._committed = _read_state(state)  # folder → index; complete for those below
        self._unpublished = set(self._committed)
        self._versions: dict[tuple[str, str, Ts], Ts] = {}
        self._generations = Generations(self._files, Identity(config.cluster_id, config.changefeed))
        if start_ts is not None:
            # Our own, perhaps without rows yet: a checkpoint is saved before it is published, so it may lie above.
            is_ours = state is not None or (is_resumed and self._generations.was_ours)
            self._check_checkpoint(start_ts, is_ours)

    def recover(self, at: Checkpoints) -> None:
        """Begin a new generation, and reduce the folder to what was committed. Targets made before are dead."""
        self._generations.begin()
        for folder, names in self._files.walk():
            indexes = {name: index for name in names if (index := layout.data_file_index(name)) is not None}
            committed = self._committed_index(folder) if indexes else 0
            doomed = [name for name in names if is_temporary(name) or indexes.get(name, 0) > committed]
            for name in doomed:
                self._files.remove(f"{folder}/{name}")
            if doomed:
                self._files.sync_folder(folder)
        self._publish_indexes()

    def target(self, table: TableInfo, physical_id: int, window: Window) -> FileTarget:
        """Where the rows of a batch go; its schema file is there when this returns.

        A function of its arguments and of what is committed, so that a replay names the same files.
        """
        config = self._config
        date = layout.date_of(window[1], config.date_separator, self._zone)
        directory = layout.data_folder(table, physical_id, self._version(table), date)
        return FileTarget(
            str(self._files.root),
            directory,
            self._committed_index(directory) + 1,
            config.extension,
            config.file_index_digits,
            config.file_size,
            self._generations.generation,
            config.csv.header(table) if config.protocol is MessageProtocol.CSV else b"",
            self._storage,
            config.messages,
        )

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Take the batch up to ``to_ts`` as done; returns the state to be made durable before ``publish``."""
        self._generations.check()
        for receipt in receipts:
            if not receipt.files:
                continue
            expected = self._committed_index(receipt.directory) + 1
            if receipt.first_index != expected:
                raise InvariantError(
                    f"the batch up to {show(to_ts)} wrote {receipt.directory} from file {receipt.first_index} on, "
                    f"where {expected} was due. Two writers share the folder, or a receipt came twice; report it."
                )
            self._committed[receipt.directory] = receipt.first_index + receipt.files - 1
            self._unpublished.add(receipt.directory)
        return self._state()

    def close(self) -> None:
        """Nothing is open between calls."""

    def publish(self, checkpoint_ts: Ts) -> None:
        """Tell readers: all up to ``checkpoint_ts`` is there. To be called when the state is durable."""
        self._generations.check()
        self._publish_indexes()
        self._replace(layout.METADATA, orjson.dumps({"checkpoint-ts": checkpoint_ts}))

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Write the schema file or files of a DDL, and the rows of a table that has just got its key: no change tells
        of them. May be called again for the same one."""
        self._generations.check()
        for file in self._schema_files(event):
            folder = layout.schema_folder(file.schema, file.table)
            self._files.make_folder(folder)
            self._replace(f"{folder}/{file.name}", file.content)
        if self._rescan is None or event.table_info is None or not event.gives_key:
            return None
        at = [int(event.finished_ts), event.seq]
        if self._refilled != at:
            self.commit(event.finished_ts, self._refill(event.table_info, event.finished_ts, self._rescan))
            self._refilled = at
        return self._state()

    def _refill(self, table: TableInfo, ts: Ts, rescan: Rescan) -> list[Receipt]:
        """Write all rows as of ``ts`` as inserts. Runs on the driver."""
        receipts = []
        for physical_id in table.physical_ids:
            encoder = self._config.messages.encoder(physical_ms(ts))
            encoded = (encoder.encode(rows) for rows in rescan(table, [physical_id], ts))
            receipts.append(write_files(self.target(table, physical_id, (ts, ts)), encoded, self._files))
        return receipts

    def _state(self) -> dict[str, Any]:
        folders = {folder: self._committed[folder] for folder in sorted(self._unpublished)}
        return {"format": _STATE_FORMAT, "folders": folders, **({"refilled": self._refilled} if self._refilled else {})}

    def _schema_files(self, event: DdlEvent) -> list[SchemaFile]:
        if event.table_info is None or not event.table:
            return [schema_of_database(event.schema, event.finished_ts, event.query, event.type)]
        files = [self._describe(event.table_info, event.finished_ts, event.query, event.type)]
        if event.type == ActionType.EXCHANGE_PARTITION and event.pre_table_info is not None:
            files.append(self._describe(event.pre_table_info, event.finished_ts))
        return files

    def _describe(self, table: TableInfo, version: Ts, query: str = "", type: int = 0) -> SchemaFile:
        is_csv = self._config.protocol is MessageProtocol.CSV
        return schema_of_table(
            table, version, query=query, type=type, with_ids=self._config.output_column_id, with_virtual=not is_csv
        )

    def _version(self, table: TableInfo) -> Ts:
        """The version under which a table's rows are kept.

        Its own, if a schema file says so; else the newest with the same columns, so that a restart
        opens no new folder; else its own, for which a schema file is written.
        """
        key = (table.schema, table.name, table.version_ts)
        if key not in self._versions:
            file = self._describe(table, table.version_ts)
            folder = layout.schema_folder(table.schema, table.name)
            known = [found for name in self._files.names(folder) if (found := parse_name(name)) is not None]
            same = [version for version, checksum in known if checksum == file.checksum]
            if not same:
                self._files.make_folder(folder)
                self._replace(f"{folder}/{file.name}", file.content)
            self._versions[key] = table.version_ts if table.version_ts in same or not same else max(same)
        return self._versions[key]

    def _committed_index(self, folder: str) -> int:
        if folder not in self._committed:
            named = (self._files.read(layout.index_file(folder)) or b"").decode("utf-8", "replace").strip()
            index = layout.data_file_index(named) if named else 0
            if index is None:
                place = f"{self._files.root}/{folder}"
                raise SinkError(
                    f"cannot go on in {place}: its index file names no data file. Restore {place}/meta/CDC.index (one "
                    "line with the name of the newest committed data file), then start again."
                )
            self._committed[folder] = index
        return self._committed[folder]

    def _publish_indexes(self) -> None:
        for folder in sorted(self._unpublished):
            name = layout.data_file(self._committed[folder], self._config.file_index_digits, self._config.extension)
            path = layout.index_file(folder)
            self._files.make_folder(f"{folder}/meta")
            self._replace(path, name.encode() + b"\n")
            self._unpublished.discard(folder)

    def _replace(self, path: str, content: bytes) -> None:
        if self._files.read(path) == content:
            return
        self._files.write(path, [content])
        self._files.sync_folder(path.rpartition("/")[0] or ".")

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


class _Cutter:
    """Walks over batches of messages and stops at the transaction ends where a file is full."""

    def __init__(self, encoded: Iterator[Encoded], file_size: int) -> None:
        self.rows = 0
        self._encoded = iter(encoded)
        self._file_size = file_size
        self._batch: Encoded | None = None
        self._at = 0  # the next message of the batch
        self._last_ts = -1

    def has_more(self) -> bool:
        return self._more() is not None

    def until_full(self) -> Iterator[Any]:
        """The bytes of one file; to be read to its end before the next is asked for."""
        size = 0
        while (batch := self._more()) is not None:
            begin = int(batch.ends[self._at - 1]) if self._at else 0
            stop, is_full = self._stop(batch, begin, size)
            if stop > self._at:
                end = int(batch.ends[stop - 1])
                self.rows += stop - self._at
                self._at, self._last_ts = stop, int(batch.commit_ts[stop - 1])
                yield batch.payload.slice(begin, end - begin)
                size += end - begin
            if is_full:
                return

    def _more(self) -> Encoded | None:
        """The batch of the next message; None when all have been taken."""
        while self._batch is None or self._at >= len(self._batch):
            self._batch, self._at = next(self._encoded, None), 0
            if self._batch is None:
                return None
        return self._batch

    def _stop(self, batch: Encoded, begin: int, size: int) -> tuple[int, bool]:
        """(the message before which to stop, whether the file is full there)."""
        commit_ts = batch.commit_ts[self._at :]
        begins = np.ones(len(commit_ts), dtype=np.bool_)  # a transaction
        begins[0] = int(commit_ts[0]) != self._last_ts and size > 0
        begins[1:] = commit_ts[1:] != commit_ts[:-1]
        before = np.concatenate(([begin], batch.ends[self._at : -1])) - begin + size
        full = np.flatnonzero(begins & (before >= self._file_size))
        return (self._at + int(full[0]), True) if len(full) else (len(batch), False)


def _read_state(state: Mapping[str, Any] | None) -> dict[str, int]:
    if state is None:
        return {}
    if state.get("format") != _STATE_FORMAT:
        raise SinkError(
            f"the state of the file sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )
    return {str(folder): int(index) for folder, index in state["folders"].items()}
