"""The journal of a lake: a document per table, and one for the whole.

    _tidemill/tables.json                       whose lake it is, and the last DDL that its tables reflect: the owner's
    _tidemill/tables/{id}.{table id}.json       a table; written by whoever has it: its writer, or the owner at a DDL

So nobody writes what another one writes at the same time, and a table is found by its id without reading the others.
The document gets another name where a DDL gives the table another id; if somebody dies between the two, the newer
counts.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import orjson

from tidemill.errors import SinkError
from tidemill.sinks.files.storage import Files
from tidemill.sinks.lake.options import LakeOptions
from tidemill.sinks.lake.tables import (
    FORMAT,
    Journal,
    LakeTable,
    check_format,
    lake_table,
    read_table,
    table_document,
)

HEADER: Final = "_tidemill/tables.json"
_FOLDER: Final = "_tidemill/tables"
_ONE_DOCUMENT: Final = 2  # the format in which the header held all tables
_READERS: Final = 16  # of documents at a time: in a bucket each takes its time


class JournalFiles:
    """The journal as it was read last. Looks again where others may have changed it."""

    def __init__(self, options: LakeOptions, files: Files) -> None:
        self._options, self._files = options, files
        self.journal = Journal(changefeed=options.changefeed, cluster=options.cluster_id)
        self._names: dict[str, str] = {}  # by table: the name of the document that was read
        self._seen: bytes | None = None  # the header when all names were last listed

    def check(self) -> None:
        """Refuse another changefeed's lake by name."""
        self._check_ours(self._files.read(HEADER))

    def load(self) -> None:
        """Read everything anew."""
        self._names, self._seen = {}, None
        self.journal = replace(self.journal, tables=())
        self.look()

    def look(self, *, is_forced: bool = False) -> list[LakeTable]:
        """Find the tables that are new, or have a new id; returns those that were read. Without a DDL since, only
        writers have made any, each of its own; so a writer need not look for its tables then, unless they were
        another's before."""
        header = self._files.read(HEADER)
        if header is not None and header == self._seen and not is_forced:
            return []
        said = self._check_ours(header)
        names = [name for name in self._files.names(_FOLDER) if name.endswith(".json")]
        known = set(self._names.values())
        tables = {table.id: table for table in self.journal.tables}
        for old in said.get("tables", ()):
            table = lake_table(old)
            tables.setdefault(table.id, table)
        read = []
        for name, table in self._read([name for name in names if name not in known]):
            read.append(table)
            if table.id not in tables or _age(table) >= _age(tables[table.id]):
                tables[table.id], self._names[table.id] = table, name
        self._put(tables.values(), tuple(said.get("ddl", (0, 0))))
        self._seen = header
        return read

    def read_again(self, table: LakeTable) -> LakeTable:
        """As its document says now."""
        for _, found in self._read([self._names[table.id]] if table.id in self._names else []):
            self._put([t if t.id != found.id else found for t in self.journal.tables], self.journal.ddl)
            return found
        return table

    def convert(self, generation: str) -> None:
        """For the owner: have a header, and a document for each table of a journal that was one document."""
        header = self._files.read(HEADER)
        if header is not None and orjson.loads(header).get("format") == FORMAT:
            return
        self.load()
        for table in self.journal.tables:
            self.save(generation, table)
        self.save_header(generation, self.journal.ddl)

    def save(self, generation: str, table: LakeTable) -> None:
        before, name = self._names.get(table.id), f"{table.id}.{table.table_id}.json"
        self._write(generation, f"{_FOLDER}/{name}", table_document(table))
        if before is not None and before != name:
            self._files.remove(generation, f"{_FOLDER}/{before}")
        self._names[table.id] = name
        self.journal = self.journal.put(table)

    def save_header(self, generation: str, ddl: tuple[int, int]) -> None:
        who = {"changefeed": self._options.changefeed, "cluster": self._options.cluster_id}
        self._write(generation, HEADER, {"format": FORMAT, "ddl": list(ddl), **who})
        self.journal = replace(self.journal, ddl=ddl)

    def _put(self, tables: Iterable[LakeTable], ddl: tuple[int, ...]) -> None:
        ordered = sorted(tables, key=lambda table: (table.created_ts, table.id))
        self.journal = replace(self.journal, tables=tuple(ordered), ddl=(ddl[0], ddl[1]))

    def _read(self, names: list[str]) -> Iterator[tuple[str, LakeTable]]:
        if len(names) <= 1:
            contents = [self._files.read(f"{_FOLDER}/{name}") for name in names]
        else:
            with ThreadPoolExecutor(_READERS) as pool:
                contents = list(pool.map(lambda name: self._files.read(f"{_FOLDER}/{name}"), names))
        for name, content in zip(names, contents, strict=True):
            if content is not None:
                yield name, read_table(orjson.loads(content))

    def _write(self, generation: str, path: str, document: dict[str, Any]) -> None:
        write_document(self._files, generation, path, orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def _check_ours(self, header: bytes | None) -> dict[str, Any]:
        said: dict[str, Any] = orjson.loads(header) if header is not None else {}
        if not said:
            return {}
        check_format(said, also=(_ONE_DOCUMENT,))
        options = self._options
        if (said["cluster"], said["changefeed"]) != (options.cluster_id, options.changefeed):
            raise SinkError(
                f"the lake {options.storage.shown} belongs to changefeed {said['changefeed']!r} of cluster "
                f"{said['cluster']}, and this is changefeed {options.changefeed!r} of cluster {options.cluster_id}: "
                "their rows would be mixed. Choose another folder or prefix in the sink URI."
            )
        return said


def read_journal(options: LakeOptions, files: Files) -> Journal | None:
    """For readers, whoever's lake it is; None: it is none."""
    header = files.read(HEADER)
    if header is None:
        return None
    said = orjson.loads(header)
    check_format(said, also=(_ONE_DOCUMENT,))
    theirs = replace(options, changefeed=said["changefeed"], cluster_id=said["cluster"])
    found = JournalFiles(theirs, files)
    found.load()
    return found.journal


def write_document(files: Files, generation: str, path: str, content: bytes) -> None:
    folder = path.rpartition("/")[0] or "."
    files.make_folder(folder)
    files.replace(generation, path, content)
    files.sync_folder(folder)


def _age(table: LakeTable) -> tuple[int, int]:
    return max(version.ts for version in table.versions), table.dropped_ts or 0
