"""The bottom of the embedded upstream: RocksDB with TiKV's column families.

``default`` holds long values, ``lock`` locks, ``write`` commit records; ``raw`` and its like hold
keys without transactions, ``meta`` what PD and the regions keep. All stores of the process share one
engine: a region's peers are views of the same data. A write is in the operating system's hands when
``write`` returns, so it survives ``kill -9``.
"""

import contextlib
import gc
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    DBRecoveryMode,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
)

from tidemill.errors import CorruptDataError, DataDirError

Item = tuple[bytes, bytes]

_READ_AHEAD_BYTES = 2 << 20
_BLOCK_BYTES = 32 << 10  # TiKV's; a scan spends a third less time on these than on RocksDB's own 4 KiB
# What a process leaves that was killed before its first write.
_OF_A_NEW_FOLDER = re.compile(r"LOCK|LOG.*|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|\d+\.(log|dbtmp)|rocksdict-config\.json")


class Family(StrEnum):
    DEFAULT = "default"
    LOCK = "lock"
    WRITE = "write"
    META = "meta"
    RAW = "raw"  # RawKV of API V2: every version of a key
    RAW_DEFAULT = "raw-default"  # RawKV of API V1 knows three families of its own
    RAW_LOCK = "raw-lock"
    RAW_WRITE = "raw-write"


_TRANSACTIONAL = (Family.DEFAULT, Family.LOCK, Family.WRITE)


class Batch:
    """Writes that happen together or not at all."""

    def __init__(self, handles: dict[Family, Any]) -> None:
        self._handles = handles
        self.writes = WriteBatch(raw_mode=True)

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.writes.put(key, value, self._handles[family])

    def delete(self, family: Family, key: bytes) -> None:
        self.writes.delete(key, self._handles[family])

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Every key of ``[start, end)``; here an empty ``end`` means nothing."""
        self.writes.delete_range(start, end, self._handles[family])


class Snapshot:
    """The data as they were at one moment, whatever is written afterwards."""

    def __init__(self, views: dict[Family, Any]) -> None:
        self._views = views

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            value: bytes = self._views[family][key]
        except KeyError:
            return None
        except Exception as error:
            raise _unreadable(error) from error
        return value

    def items(self, family: Family, start: bytes, end: bytes) -> Iterator[Item]:
        """Pairs of ``[start, end)`` in key order; an empty ``end`` means to the last."""
        return _items(self._views[family], start, end)

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[Item]:
        """Like ``items``, for long ranges: reads ahead and leaves the cache to others."""
        return _items(self._views[family], start, end, is_long=True)

    def last_before(self, family: Family, key: bytes) -> Item | None:
        """The pair with the greatest key below ``key``; an empty ``key`` means the last of all."""
        pairs = self._views[family].items(backwards=True, from_key=key) if key else self._views[family].items(True)
        for pair in islice(pairs, 2):
            if not key or pair[0] < key:
                found: Item = pair
                return found
        return None


class Engine:
    def __init__(self, folder: Path) -> None:
        """Open ``folder``, or create it. ``DataDirError`` if it is in use or not ours."""
        options = _options()
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        families = {family.value: _options() for family in Family if family is not Family.DEFAULT}
        # A crash may cut the last record short, and then it was not acknowledged. Anything else is damage:
        # RocksDB's default would drop all that follows it, and say nothing.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_is_ours(folder)
            self.had_tables = any(folder.glob("*.sst"))  # somebody has been here before
            self._db = Rdict(str(folder), options, column_families=families)
        except DataDirError:
            raise
        except (FileExistsError, NotADirectoryError) as error:
            raise DataDirError(
                f"cannot open the upstream's data in {folder}: it is not a folder. Choose another --data-dir."
            ) from error
        except Exception as error:  # rocksdict raises bare Exception
            raise DataDirError(
                f"cannot open the upstream's data in {folder}: {error}. If another process uses this folder, stop it; "
                "otherwise choose another --data-dir."
            ) from error
        self._folder = folder
        self._views: dict[Family, Any] = {
            family: self._db if family is Family.DEFAULT else self._db.get_column_family(family.value)
            for family in Family
        }
        self._handles = {family: self._db.get_column_family_handle(family.value) for family in Family}

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._views[family].get(key)
        except Exception as error:
            raise _unreadable(error) from error
        return value

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        batch = self.batch()
        batch.put(family, key, value)
        self.write(batch)

    def batch(self) -> Batch:
        return Batch(self._handles)

    def write(self, batch: Batch) -> None:
        self._db.write(batch.writes)

    def items(self, family: Family, start: bytes = b"", end: bytes = b"") -> Iterator[Item]:
        return _items(self._views[family], start, end)

    def items_backwards(self, family: Family, start: bytes = b"", end: bytes = b"") -> Iterator[Item]:
        """Pairs of ``[start, end)`` from the last to the first."""
        # A lower bound would be the natural thing to set; rocksdict takes it for an upper one.
        view = self._views[family]
        pair = None
        for pair in view.items(True, end) if end else view.items(True):
            if pair[0] < start:
                return
            if not end or pair[0] < end:
                yield pair
        at = view.iter(ReadOptions())
        if pair is not None or end:
            at.seek_for_prev(pair[0] if pair is not None else end)
        else:
            at.seek_to_last()
        if pair is not None and at.valid():
            at.prev()
        _check_end(at)

    def snapshot(self, families: Sequence[Family] = _TRANSACTIONAL) -> Snapshot:
        """Consistent over the families only while no write runs: the caller sees to that."""
        return Snapshot({family: self._views[family].snapshot() for family in families})

    def live(self) -> Snapshot:
        """The data as they are whenever they are read: costs nothing, for whoever keeps writers away meanwhile."""
        return Snapshot({f: self._views[f] for f in _TRANSACTIONAL})

    def ingest(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Take in many pairs at once; keys strictly ascending. Durable on return."""
        if not keys:
            return
        path = self._folder / f"ingest-{family.value}.sst"
        writer = SstFileWriter(options=_options())
        writer.open(str(path))
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
        writer.finish()
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._views[family].ingest_external_file([str(path)], options)
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing may use the engine or its snapshots afterwards."""
        for family, view in self._views.items():
            if family is not Family.DEFAULT:
                view.close()
        self._views.clear()
        self._handles.clear()
        with contextlib.suppress(Exception):
            self._db.flush_wal()
        self._db.close()
        del self._db
        # RocksDB lets go of its folder only when the last iterator is gone.
        gc.collect()


def _check_is_ours(folder: Path) -> None:
    """RocksDB would make itself at home in any folder, and begin anew in one whose beginning is missing."""
    names = {path.name for path in folder.iterdir()}
    if "CURRENT" in names:
        return
    if any(name.endswith(".sst") for name in names):
        raise DataDirError(
            f"cannot open the upstream's data in {folder}: it is damaged, files are missing. "
            "Start from a copy of it, or choose another --data-dir."
        )
    strangers = sorted(name for name in names if not _OF_A_NEW_FOLDER.fullmatch(name))
    if strangers:
        raise DataDirError(
            f"cannot keep the upstream's data in {folder}: it holds other files, such as {strangers[0]}. "
            "Choose an empty folder, or one that does not exist yet, as --data-dir."
        )


def _options() -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(32 << 20)
    table = BlockBasedOptions()
    table.set_block_size(_BLOCK_BYTES)
    options.set_block_based_table_factory(table)
    return options


def _items(view: Any, start: bytes, end: bytes, *, is_long: bool = False) -> Iterator[Item]:
    options = ReadOptions()
    if is_long:
        options.fill_cache(False)
        options.set_readahead_size(_READ_AHEAD_BYTES)
    if end:
        # RocksDB reads the bound where these options keep it: they must live as long as the iterator.
        options.set_iterate_upper_bound(end)
    pair = None
    for pair in view.items(from_key=start, read_opt=options):
        yield pair
    at = view.iter(options)
    at.seek(pair[0] if pair is not None else start)
    if pair is not None and at.valid():
        at.next()
    _check_end(at)


def _check_end(at: Any) -> None:
    """Pairs end at a damaged block as if nothing followed; an iterator that stands there says what it found."""
    try:
        at.status()
    except Exception as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> CorruptDataError:
    """rocksdict raises bare exceptions."""
    return CorruptDataError(
        f"the upstream's data cannot be read: {error}. Start from a copy of its --data-dir, or with a new one."
    )
