"""Message files as the side that is checked: the rows that a consumer would have who applied them all up to a ts.

    {schema}/{table}/{version}/…/CDC*.csv|json  ─► columns of texts ─► typed ─► the last message of each key ─► rows

The last message of a key is the last by commit-ts where messages carry it (``enable-tidb-extension``,
``include-commit-ts``), else the last in the order of files. A table that a DDL changed in ways which no message tells
(a rename, a changed type, partitions moved) cannot be made of files alone, and that is said instead.
"""

import binascii
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from tidemill.errors import SinkError, UsageError
from tidemill.flow.encoder import BinaryEncoding, Csv
from tidemill.flow.mounter.defaults import fill_of
from tidemill.model.ddl import ActionType
from tidemill.model.row import arrow_type
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts, compose, physical_ms, show
from tidemill.sinks.files import layout
from tidemill.sinks.files.schema_file import parse_name
from tidemill.sinks.files.storage import Files, StorageOptions, open_files
from tidemill.sinks.files.uri import SinkConfig
from tidemill.verify.forms import Comparison
from tidemill.verify.sides import Survey, Surveyed
from tidemill.verify.sources import Source

_BATCH_ROWS = 65536
_BEGINS = frozenset(
    {ActionType.CREATE_TABLE, ActionType.TRUNCATE_TABLE, ActionType.DROP_TABLE, ActionType.CREATE_TABLES}
)
_UNTOLD: Mapping[int, str] = {
    ActionType.RENAME_TABLE: "it was renamed, and its rows up to then lie under the old name",
    ActionType.RENAME_TABLES: "it was renamed, and its rows up to then lie under the old name",
    ActionType.RECOVER_TABLE: "it was brought back with rows that no message holds",
    ActionType.EXCHANGE_PARTITION: "a partition was exchanged, whose rows no message holds",
    ActionType.DROP_TABLE_PARTITION: "partitions were dropped, and no message tells of their rows",
    ActionType.TRUNCATE_TABLE_PARTITION: "partitions were truncated, and no message tells of their rows",
    ActionType.REORGANIZE_PARTITION: "partitions were reorganized, and no message tells of the rows that moved",
    ActionType.ALTER_TABLE_PARTITIONING: "it was partitioned anew, and no message tells of the rows that moved",
    ActionType.REMOVE_PARTITIONING: "its partitions were joined, and no message tells of the rows that moved",
}
_RANK = {"DELETE": 0, "D": 0, "UPDATE": 1, "U": 1, "INSERT": 2, "I": 2}


@dataclass(frozen=True, slots=True)
class Version:
    """A schema file: the table's columns as (name, type), and the DDL that made them so."""

    ts: int
    columns: tuple[tuple[str, str], ...]
    ddl: int


@dataclass(frozen=True, slots=True)
class FileSource:
    """The rows of one table at ``ts``, from what lies in the folders of ``versions``."""

    config: SinkConfig
    comparison: Comparison
    ts: Ts
    versions: tuple[Version, ...]
    zone: str

    def read(self) -> Iterator[pa.RecordBatch]:
        files = files_of(self.config)
        self._check_here(files)
        reader = _Reader(self.config, self.comparison.table, self.zone)
        found = [reader.read(files, version) for version in self.versions]
        self._check_still(files)
        whole = pa.concat_tables([reader.schema.empty_table(), *(t for tables in found for t in tables)])
        rows = _folded(whole, self.comparison, self.ts, by_ts=has_commit_ts(self.config))
        for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
            yield self.comparison.settled(batch.columns)

    def _check_here(self, files: Files) -> None:
        """A folder that this machine does not see would look like one without rows."""
        if (checkpoint_of(files) or 0) < self.ts:
            raise SinkError(
                f"{files.root} on {socket.gethostname()} is not the folder that is checked: it holds no changes up to "
                f"{show(self.ts)}. Where Spark's workers are on other machines, each of them has to see it under this "
                "path. Share it with them, or check with --spark-master 'local[2]'."
            )

    def _check_still(self, files: Files) -> None:
        if isinstance(self.config.protocol, Csv) and not has_commit_ts(self.config) and checkpoint_of(files) != self.ts:
            raise SinkError(
                f"{files.root} was written to while it was read, and its records carry no commit-ts that would tell "
                "which came later. Stop the changefeed for the check, or write with include-commit-ts=true."
            )


def files_of(config: SinkConfig) -> Files:
    return open_files(config.storage or StorageOptions(config.path))


def has_commit_ts(config: SinkConfig) -> bool:
    return config.protocol is not None and config.protocol.has_commit_ts


def checkpoint_of(files: Files) -> int | None:
    try:
        return int(orjson.loads(files.read(layout.METADATA) or b"")["checkpoint-ts"])
    except (ValueError, KeyError, TypeError):
        return None


class FileSide:
    has_sql = False
    is_live = False

    def __init__(self, config: SinkConfig, zone: str = "UTC") -> None:
        self._config = config
        self._zone = zone
        self._files = files_of(config)
        checkpoint_ts = checkpoint_of(self._files)
        if checkpoint_ts is None:
            raise UsageError(
                f"{self._files.root} holds no files of a changefeed: it has no readable {layout.METADATA}. Check the "
                "folder, or wait for the changefeed's first checkpoint."
            )
        self.checkpoint_ts = Ts(checkpoint_ts)
        self._check_readable()

    def at(self, ts: Ts) -> Ts:
        """``ts``, if the files can tell what was there then."""
        if ts < self.checkpoint_ts and isinstance(self._config.protocol, Csv) and not has_commit_ts(self._config):
            raise UsageError(
                "these records carry no commit-ts, so they can be checked at their checkpoint only. Leave --at out, or "
                "write with include-commit-ts=true."
            )
        return ts

    def survey(self, wanted: Sequence[Survey], ts: Ts) -> Mapping[int, Surveyed]:
        return {one.table.id: self._survey(one, ts) for one in wanted}

    def sources(self, comparison: Comparison, ts: Ts) -> list[Source]:
        return [FileSource(self._config, comparison, ts, tuple(self._versions(comparison.table, ts)), self._zone)]

    def _survey(self, wanted: Survey, ts: Ts) -> Surveyed:
        table = wanted.table
        versions = self._versions(table, ts)
        if not versions:
            return Surveyed(None, ["there are no files of this table"])
        if table.is_partitioned and not has_commit_ts(self._config):
            return Surveyed(None, [
                "it is partitioned, and without a commit-ts in messages nobody can tell which of two partitions has a "
                "row: write with enable-tidb-extension=true or include-commit-ts=true"
            ])  # fmt: skip
        pairs = zip([None, *versions], versions, strict=False)
        reason = next((why for before, after in pairs if (why := untold(before, after))), "")
        if reason:
            return Surveyed(None, [f"it cannot be made of files alone: {reason}"])
        newest = {name for name, _ in versions[-1].columns}
        stored = {column.name for column in table.stored_columns}
        problems = [f"column {c.name!r} is missing in the files" for c in table.stored_columns if c.name not in newest]
        virtual = {column.name for column in table.columns if column.is_virtual}
        others = sorted(name for name in newest - stored - virtual if name.lower() not in wanted.left_out)
        problems += [f"column {name!r} is there in the files only" for name in others]
        kept = [column for column in table.columns if column.is_virtual or column.name in newest]
        reduced = table if len(kept) == len(table.columns) else table.with_columns(kept)
        if not reduced.handle_key:
            return Surveyed(None, [*problems, "its rows were not compared: their key is not in the files"])
        return Surveyed(Comparison(reduced), problems)

    def _versions(self, table: TableInfo, ts: Ts) -> list[Version]:
        """Those up to ``ts``, from the one with which the table began as it is."""
        folder = layout.schema_folder(table.schema, table.name)
        found: dict[int, Version] = {}
        for name in sorted(self._files.names(folder)):
            parsed = parse_name(name)
            if parsed is None or parsed[0] > ts:
                continue
            document = orjson.loads(self._files.read(f"{folder}/{name}") or b"{}")
            columns = tuple((c["ColumnName"], c["ColumnType"]) for c in document.get("TableColumns") or ())
            version = Version(parsed[0], columns, int(document.get("Type", 0)))
            if version.ts not in found or version.ddl:
                found[version.ts] = version
        versions = sorted(found.values(), key=lambda v: v.ts)
        begins = [place for place, version in enumerate(versions) if version.ddl in _BEGINS]
        return versions[begins[-1] :] if begins else versions

    def _check_readable(self) -> None:
        config = self._config
        csv = config.protocol if isinstance(config.protocol, Csv) else None
        reason = ""
        if config.output_raw_change_event:
            reason = "output-raw-change-event=true leaves the old key of an update untold"
        elif config.terminator not in (b"\r\n", b"\n"):
            reason = "messages that do not end with a line cannot be told apart here"
        elif csv and (not csv.quote or len(csv.delimiter) != 1):
            reason = "records without quotes, or with a delimiter of several characters, cannot be read here"
        if reason:
            raise UsageError(
                f"cannot check {self._files.root}: {reason}. Write it with the defaults of these parameters."
            )


def untold(before: Version | None, after: Version) -> str:
    """What the step from one version to the next did to rows without a message; empty: nothing."""
    if after.ddl in _UNTOLD:
        return _UNTOLD[after.ddl]  # also where it is the first: the folder is that of the new name
    if before is None:
        return ""
    old, new = dict(before.columns), dict(after.columns)
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            return f"the type of column {name!r} was changed, and no message tells of its values"
    is_modified = after.ddl in (ActionType.MODIFY_COLUMN, ActionType.MULTI_SCHEMA_CHANGE)
    is_renamed = is_modified and old.keys() - new.keys() and new.keys() - old.keys()
    return "a column was renamed, or replaced by another" if is_renamed else ""


class _Reader:
    """Messages of one table as rows: its columns, typed as mounted ones, and ``_op``, ``_ts``."""

    def __init__(self, config: SinkConfig, table: TableInfo, zone: str) -> None:
        self._config = config
        self._table = table
        self._zone = zone
        fields = [pa.field(column.name, arrow_type(column)) for column in table.stored_columns]
        self.schema = pa.schema([*fields, pa.field("_op", pa.int8()), pa.field("_ts", pa.int64())])

    def read(self, files: Files, version: Version) -> Iterator[pa.Table]:
        folder = f"{layout.table_folder(self._table.schema, self._table.name)}/{version.ts}"
        for path in sorted(_data_files(files, folder)):
            content = files.read(path)
            if content:
                csv = self._config.protocol
                read = partial(self._csv, csv) if isinstance(csv, Csv) else self._canal
                texts, ops, stamps = read(content, version)
                yield self._typed(texts, ops, stamps)

    def _csv(self, options: Csv, content: bytes, version: Version) -> tuple[Mapping[str, pa.Array], pa.Array, pa.Array]:
        columns = [name for name, _ in version.columns]
        extra = ["\0op", "\0table", "\0schema"]
        extra += ["\0ts"] if options.include_commit_ts else []
        extra += ["\0is_update"] if options.output_old_value else []
        names = [*extra, *columns]
        table = pacsv.read_csv(
            pa.BufferReader(content),
            pacsv.ReadOptions(
                column_names=names, skip_rows=int(options.output_field_header), block_size=len(content) + 1
            ),
            pacsv.ParseOptions(
                delimiter=options.delimiter, quote_char=options.quote, double_quote=True, newlines_in_values=True
            ),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[options.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ).combine_chunks()
        stamps = table["\0ts"].cast(pa.int64()) if options.include_commit_ts else pa.nulls(len(table), pa.int64())
        return {name: _one(table[name]) for name in columns}, _one(table["\0op"]), _one(stamps)

    def _canal(self, content: bytes, version: Version) -> tuple[Mapping[str, pa.Array], pa.Array, pa.Array]:
        virtual = {column.name for column in self._table.columns if column.is_virtual}
        columns = [name for name, _ in version.columns if name not in virtual]
        row = pa.struct([pa.field(name, pa.string()) for name in columns])
        fields = [
            pa.field("type", pa.string()),
            pa.field("es", pa.int64()),
            pa.field("data", pa.list_(row)),
            pa.field("_tidb", pa.struct([pa.field("commitTs", pa.int64())])),
        ]
        table = pajson.read_json(
            pa.BufferReader(content),
            pajson.ReadOptions(block_size=len(content) + 1),
            pajson.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
        )
        data = _one(pc.list_flatten(table["data"]))
        if has_commit_ts(self._config):
            stamps = pc.struct_field(_one(table["_tidb"]), "commitTs")
        else:  # the millisecond of the commit
            stamps = pc.shift_left(_one(table["es"]), pa.scalar(18, pa.int64()))
        return {name: pc.struct_field(data, name) for name in columns}, _one(table["type"]), stamps

    def _typed(self, texts: Mapping[str, pa.Array], ops: pa.Array, stamps: pa.Array) -> pa.Table:
        arrays = []
        for column in self._table.stored_columns:
            values = texts.get(column.name)
            arrays.append(
                _fill(column, len(ops), self._zone) if values is None else _from_text(column, values, self._config)
            )
        ranks = pa.array([_RANK[op] for op in ops.to_pylist()], pa.int8())
        return pa.Table.from_arrays([*arrays, ranks, stamps], schema=self.schema)


def _one(values: pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _data_files(files: Files, folder: str) -> Iterator[str]:
    """The committed ones below ``folder``: those that their index file covers."""
    for place, names in files.walk():
        if place != folder and not place.startswith(folder + "/"):
            continue
        named = (files.read(layout.index_file(place)) or b"").decode("utf-8", "replace").strip()
        last = layout.data_file_index(named) or 0
        for name in names:
            index = layout.data_file_index(name)
            if index is not None and index <= last:
                yield f"{place}/{name}"


def _fill(column: ColumnInfo, rows: int, zone: str) -> pa.Array:
    """What rows older than the column show in it upstream."""
    kind, fill = arrow_type(column), fill_of(column, zone)
    if fill is None:
        return pa.nulls(rows, kind)
    return pa.repeat(pa.scalar(fill.decode() if isinstance(fill, bytes) and kind == pa.string() else fill, kind), rows)


def _from_text(column: ColumnInfo, texts: pa.Array, config: SinkConfig) -> pa.Array:
    kind, is_csv = arrow_type(column), isinstance(config.protocol, Csv)
    if kind == pa.binary():
        return pa.array([None if text is None else _bytes(text, config) for text in texts.to_pylist()], kind)
    if is_csv and column.type in (ColumnType.ENUM, ColumnType.SET):
        encoded = texts.dictionary_encode()
        numbers = [_element(column, text) for text in encoded.dictionary.to_pylist()]
        return pa.array(numbers, kind).take(encoded.indices)
    if pa.types.is_floating(kind):
        return texts.cast(pa.float64()).cast(kind)
    return texts if kind == pa.string() else texts.cast(kind)


def _bytes(text: str, config: SinkConfig) -> bytes:
    if not isinstance(config.protocol, Csv):
        return text.encode("latin-1")
    is_hex = config.protocol.binary_encoding is BinaryEncoding.HEX
    return bytes.fromhex(text) if is_hex else binascii.a2b_base64(text)


def _element(column: ColumnInfo, text: str) -> int | None:
    places = {element: place for place, element in enumerate(column.elems)}
    if column.type is ColumnType.ENUM:
        return places[text] + 1 if text in places else 0
    return sum(1 << places[element] for element in text.split(",") if element in places)


def _folded(whole: pa.Table, comparison: Comparison, ts: Ts, *, by_ts: bool) -> pa.Table:
    """The last message of each key up to ``ts``, unless it is a delete."""
    bound = int(ts) if by_ts else compose(physical_ms(ts), (1 << 18) - 1)
    whole = whole.filter(pc.fill_null(pc.less_equal(whole["_ts"], pa.scalar(bound, pa.int64())), True))
    if by_ts:
        place = np.lexsort((np.arange(len(whole)), whole["_op"].to_numpy(), whole["_ts"].to_numpy()))
        whole = whole.take(pa.array(place))
    if not len(whole):
        return whole.select(comparison.schema.names)
    keys: list[Any] = [whole[name] for name in comparison.key_names]
    names = [f"k{n}" for n in range(len(keys))]
    frame = pa.table([*keys, pa.array(np.arange(len(whole)))], names=[*names, "place"])
    last = np.sort(frame.group_by(names).aggregate([("place", "max")])["place_max"].to_numpy())
    is_there = whole["_op"].to_numpy()[last] > 0
    return whole.take(pa.array(last[is_there])).select(comparison.schema.names).combine_chunks()
