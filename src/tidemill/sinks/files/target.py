"""What an executor does for the file sink: one unit's messages into files that are whole or not there."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from tidemill.errors import InvariantError
from tidemill.flow.encoder import Encoded, Messages
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.sinks.files import layout
from tidemill.sinks.files.storage import Files, StorageOptions, open_files


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
