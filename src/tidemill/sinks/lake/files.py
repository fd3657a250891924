"""Data files of lake tables: what an executor writes for one unit, and what it tells its writer about it.

    {location}/data/{to-ts}-{physical id}-{number}-{mark}.parquet       units that share a table share the numbers

A file counts once the table's own transaction names it, so one that is left over harms nobody. The mark is that of
the generation that asked for it: a task that is left behind writes under other names than its successor. Plain
Parquet has no transactions: there a file that comes again replaces the first, and a task of an older generation cannot
publish any. Runs on executors, and in the owner where a DDL makes rows.
"""

import base64
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.sinks.files.storage import Files, StorageOptions, open_files
from tidemill.sinks.lake.changes import FileColumn, Numbering, change_tables, file_schema

_NAME = re.compile(r"(\d{20})-(\d+)-(\d{5})(?:-[0-9a-f]+)?\.parquet")
_MOST_PENDING_BYTES = 64 << 20
_FILES_A_SHARE = 1000


@dataclass(frozen=True)
class LakeTarget:
    """Where one unit's rows go. Small and picklable: it is sent to an executor."""

    storage: StorageOptions
    table: str  # LakeTable.id
    folder: str  # relative to the root
    stem: str  # begins the names of files
    suffix: str
    columns: tuple[FileColumn, ...]
    generation: str  # files are published only while it has not ended
    above_ts: int = 0  # rows up to here are in the table already
    file_size: int = 128 << 20
    row_group_rows: int = 1 << 18
    compression: str = "zstd"
    physical_id: int = 0
    to_ts: int = 0  # where the batch ends
    share_number: int = 0  # of several units that have the table's rows of the batch

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors."""
        return write_rows(self, flat(rows))

    def share(self, number: int) -> "LakeTarget":
        return replace(self, share_number=number)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file that is durable and not yet part of its table."""

    path: str  # relative to the root
    rows: int
    size: int
    footer: bytes = field(repr=False)  # Parquet's own metadata

    def to_dict(self) -> dict[str, Any]:
        footer = base64.b64encode(self.footer).decode()
        return {"path": self.path, "rows": self.rows, "bytes": self.size, "footer": footer}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "DataFile":
        return cls(fields["path"], fields["rows"], fields["bytes"], base64.b64decode(fields["footer"]))

    @property
    def metadata(self) -> pq.FileMetaData:
        return pq.read_metadata(io.BytesIO(self.footer))


def batch_stem(to_ts: int, physical_id: int) -> str:
    return f"{to_ts:020d}-{physical_id}"


def batch_of(name: str) -> tuple[int, int] | None:
    """Where the batch ends that a file belongs to, and of which physical id it is; None for files of DDLs and of
    others."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def write_rows(target: LakeTarget, rows: Iterator[RowBatch], files: Files | None = None) -> Receipt:
    """Runs on executors: write all rows as Parquet and return once the files are durable."""
    numbering = Numbering(target.share_number)
    tables = (
        table
        for batch in rows
        for table in change_tables(batch, target.columns, above_ts=target.above_ts, numbering=numbering)
    )
    written = write_tables(target, tables, files)
    return Receipt(
        target.folder,
        0,
        len(written),
        sum(file.rows for file in written),
        sum(file.size for file in written),
        {
            "table": target.table,
            "physical_id": target.physical_id,
            "to_ts": target.to_ts,
            "files": [file.to_dict() for file in written],
        },
    )


def write_tables(target: LakeTarget, tables: Iterable[pa.Table], files: Files | None = None) -> list[DataFile]:
    files = files or open_files(target.storage)
    writer = _Writer(target, files)
    for table in tables:
        writer.add(table)
    return writer.finish()


class _Writer:
    """Gathers rows into row groups and row groups into files."""

    def __init__(self, target: LakeTarget, files: Files) -> None:
        self._target = target
        self._files = files
        self._schema = file_schema(target.columns)
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._buffer: pa.BufferOutputStream | None = None
        self._parquet: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []
        self._done: list[DataFile] = []

    def add(self, table: pa.Table) -> None:
        self._pending.append(table)
        self._pending_rows += len(table)
        self._pending_bytes += table.nbytes
        if self._pending_rows >= self._target.row_group_rows or self._pending_bytes >= _MOST_PENDING_BYTES:
            self._write_group()

    def finish(self) -> list[DataFile]:
        self._write_group()
        self._end_file()
        if self._done:
            self._files.sync_folder(self._target.folder)
        return self._done

    def _write_group(self) -> None:
        if not self._pending:
            return
        if self._parquet is None or self._buffer is None:
            self._buffer, self._footers = pa.BufferOutputStream(), []
            self._parquet = pq.ParquetWriter(
                self._buffer,
                self._schema,
                compression=self._target.compression,
                compression_level=1 if self._target.compression == "zstd" else None,
                metadata_collector=self._footers,
                store_schema=False,
            )
        self._parquet.write_table(pa.concat_tables(self._pending), row_group_size=max(self._pending_rows, 1))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        if self._buffer.tell() >= self._target.file_size:
            self._end_file()

    def _end_file(self) -> None:
        if self._parquet is None or self._buffer is None:
            return
        self._parquet.close()
        content = self._buffer.getvalue()
        target = self._target
        number = target.share_number * _FILES_A_SHARE + len(self._done)
        path = f"{target.folder}/{target.stem}-{number:05d}{target.suffix}.parquet"
        if not self._done:
            self._files.make_folder(target.folder)
        size = self._files.publish_file(target.generation, path, [content])
        footer = io.BytesIO()
        self._footers[0].write_metadata_file(footer)
        self._done.append(DataFile(path, self._footers[0].num_rows, size, footer.getvalue()))
        self._parquet = self._buffer = None
