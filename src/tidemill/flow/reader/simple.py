"""The simple protocol read back: rows that name their schema, and messages that describe it. What is in Avro's binary
form rather than in JSON is left to ``simple_avro``.

Rows hold values only. Their types are in a schema that a DDL or a BOOTSTRAP brought, known by table and version; it may
come after the rows that need it. Within what is received at once that does not matter; rows whose schema is not there
at all are ``waiting``.

A row that comes with a checksum is held to it, but for one with TIMESTAMPs in a zone other than UTC, in which a moment
may have two names. Runs on executors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Longs
from tidemill.flow.reader import cells as c
from tidemill.flow.reader import simple_avro
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.compression import Compression, decompressed
from tidemill.flow.reader.documents import Found, Refused, Shapes, Texts
from tidemill.flow.reader.matching import Token
from tidemill.flow.reader.port import Events, Received, RowsSeen
from tidemill.flow.reader.row_checksums import wrong_sums
from tidemill.flow.reader.shape import Hole, Path, UnclearError, parse
from tidemill.flow.reader.simple_schema import SchemasSeen
from tidemill.flow.reader.weave import Part, part_of, weave
from tidemill.model.event import DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowOp, arrow_type
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

_MARKER = b'commitTs":'  # all that tells tables apart stands before it
_VERSION = 1
_SUMS = ("checksum", "current"), ("checksum", "previous")  # of the new row, and of the old one
_NUMBERS = frozenset({("commitTs",), ("buildTs",), ("schemaVersion",), ("tableID",), *_SUMS})
_TEXTS = frozenset({("sql",), ("tableSchema",), ("preTableSchema",)})
_NOT_OF_THE_PROTOCOL = "its members are not those of the protocol"


@dataclass(frozen=True, slots=True)
class _Message:
    """What messages of one shape are. ``op`` is None for all but rows."""

    word: str
    schema: str
    table: str
    op: RowOp | None
    ts_hole: int
    id_hole: int
    version_hole: int
    is_partial: bool
    claim: str
    names: frozenset[str]  # of columns
    new: dict[str, int]  # holes by column
    old: dict[str, int]
    sums: tuple[int, int]  # holes of the checksums of both rows; -1: there is none


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that become one batch."""

    table: TableInfo
    physical_id: int
    is_partial: bool
    claim: str


class SimpleReader:
    """Reads one partition."""

    def __init__(
        self,
        compression: Compression = Compression.NONE,
        schemas: SchemasSeen | None = None,
    ) -> None:
        """``schemas``: readers of the partitions of a topic may share them, since they may be sent to one alone."""
        self._compression = compression
        self._shapes = Shapes(_is_hole, _describe)
        self._stamps = Shapes(_is_stamp_hole, _describe_stamp)
        self._schemas = SchemasSeen() if schemas is None else schemas
        self._is_in_utc = True  # all TIMESTAMPs of the rows at hand

    def read(self, received: Received) -> Events:
        """JSON and Avro, by each message's first byte."""
        texts = decompressed(Texts.of(received.values), self._compression)
        is_avro = np.zeros(len(texts), np.bool_)
        has = texts.ends > texts.starts
        is_avro[has] = texts.data[texts.starts[has]] == simple_avro.FIRST_BYTE
        if not is_avro.any():
            return self._read_json(texts)
        parts = []
        for places, read in ((np.flatnonzero(is_avro), self._read_avro), (np.flatnonzero(~is_avro), self._read_json)):
            if len(places):
                parts.append(_moved(read(Texts(texts.data, texts.starts[places], texts.ends[places])), places))
        return Events(
            [seen for part in parts for seen in part.rows],
            sorted((mark for part in parts for mark in part.marks), key=lambda mark: mark[0]),
            tuple(sorted(place for part in parts for place in part.waiting)),
        )

    def _read_avro(self, texts: Texts) -> Events:
        marks: list[tuple[int, Mark]] = []
        seen, waiting = simple_avro.read(texts, self._schemas, marks)
        return Events(seen, sorted(marks, key=lambda mark: mark[0]), waiting)

    def _read_json(self, texts: Texts) -> Events:
        marks: list[tuple[int, Mark]] = []
        rows: list[Found[_Message]] = []
        commit_ts = np.zeros(len(texts), np.uint64)
        for signature, some in texts.groups(_MARKER):
            found, refused = self._shapes.find(texts, some, signature)
            for each in found:
                numbers, is_bad = c.hole_numbers(texts, each, each.meaning.ts_hole)
                refused += [Refused(row, "its commitTs is no whole number") for row in each.rows[is_bad].tolist()]
                each, numbers = each.pick(~is_bad), numbers[~is_bad]
                commit_ts[each.rows] = numbers
                if each.meaning.op is not None:
                    rows.append(each)
                    continue
                marks += [(row, self._notice(texts[row], each.meaning, Ts(int(commit_ts[row])))) for row in each.rows]
            marks += [(bad.row, _unreadable(bad.why)) for bad in refused]
        seen, waiting = self._rows(texts, rows, commit_ts, marks)
        return Events(seen, sorted(((int(place), mark) for place, mark in marks), key=lambda mark: mark[0]), waiting)

    def _notice(self, document: bytes, told: _Message, ts: Ts) -> Mark:
        """A DDL, a watermark or a schema by itself."""
        if told.word == "WATERMARK":
            return ResolvedSeen(ts)
        try:
            content = parse(document)
            query = content.get("sql", "")
            tables = [self._schemas.learn(content.get(member)) for member in ("tableSchema", "preTableSchema")]
        except UnclearError as unclear:
            return _unreadable(str(unclear))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
            return _unreadable(_NOT_OF_THE_PROTOCOL)
        if not isinstance(query, str) or (not query and tables[0] is None):
            return _unreadable("it has neither a query nor a schema")
        named = tables[0] or tables[1]
        schema, table = (named.schema, named.name) if named else ("", "")
        return DdlSeen(ts, schema, table, query, None, *tables)

    def _rows(
        self,
        texts: Texts,
        rows: list[Found[_Message]],
        commit_ts: Any,
        marks: list[tuple[int, Mark]],
    ) -> tuple[list[RowsSeen], tuple[int, ...]]:
        waiting: list[int] = []
        groups: dict[tuple[int, int, bool, str], tuple[_Group, list[Part]]] = {}
        sums = np.zeros((2, len(texts)), np.uint64)  # 0 stands for none
        for found in rows:
            told = found.meaning
            assert told.op is not None
            for kind, hole in enumerate(told.sums):
                if hole >= 0:
                    sums[kind, found.rows], _ = c.hole_numbers(texts, found, hole)
            for some, physical_id, version in _by_version(texts, found, marks):
                schema = self._schemas.get(told.schema, told.table, version)
                if schema is None:
                    waiting += some.rows.tolist()
                    continue
                try:
                    table = self._schemas.variant(schema, told.names, is_partial=told.is_partial)
                except UnclearError as unclear:
                    marks += [(row, _unreadable(str(unclear))) for row in some.rows.tolist()]
                    continue
                group = _Group(table, physical_id, told.is_partial, told.claim)
                key = (id(table), physical_id, told.is_partial, told.claim)
                part = part_of(table, some, told.op, told.new, told.old)
                groups.setdefault(key, (group, []))[1].append(part)
        seen = []
        for group, parts in groups.values():
            self._is_in_utc = True
            woven = weave(group.table, group.physical_id, texts.data, parts, commit_ts, self._decode)
            why = f"a value of table {group.table.full_name} is not of its column's type"
            marks += [(row, _unreadable(why)) for row in woven.bad]
            if self._is_in_utc and not group.is_partial:
                marks += [(row, _unreadable(why)) for row, why in wrong_sums(woven.batch, woven.rows, sums)]
            if len(woven.rows):
                seen.append(RowsSeen(woven.batch, woven.rows, group.is_partial, group.claim))
        return seen, tuple(sorted(waiting))

    def _decode(self, column: ColumnInfo, cells: Cells) -> pa.Array:
        kind = arrow_type(column)
        if pa.types.is_integer(kind):
            return c.integers(cells, is_unsigned=kind == pa.uint64())
        if pa.types.is_floating(kind):
            return c.floats(cells, kind)
        if kind == pa.binary():
            return c.base64_bytes(cells)
        return c.texts(self._stamp_cells(cells) if column.type is ColumnType.TIMESTAMP else cells)

    def _stamp_cells(self, cells: Cells) -> Cells:
        """TIMESTAMPs are objects with a zone: the cells of their values."""
        places = np.flatnonzero(cells.tokens == Token.OTHER)
        if not len(places):
            return cells
        texts = Texts(cells.data, cells.from_[places], cells.to[places])
        from_, to, tokens = cells.from_.copy(), cells.to.copy(), cells.tokens.copy()
        tokens[places] = Token.WRONG
        found, _ = self._stamps.find(texts, np.arange(len(places)), None)
        for each in found:
            at, (zone, hole) = places[each.rows], each.meaning
            self._is_in_utc &= zone >= 0 and _are_all_utc(texts, each, zone)
            from_[at], to[at], tokens[at] = each.from_[hole], each.to[hole], each.tokens[hole]
        return Cells(texts.data, from_, to, tokens, cells.is_bad)


def _moved(events: Events, places: Longs) -> Events:
    """What was read of the messages at ``places``."""
    return Events(
        [replace(seen, message=places[seen.message]) for seen in events.rows],
        [(int(places[place]), mark) for place, mark in events.marks],
        tuple(int(places[place]) for place in events.waiting),
    )


def _unreadable(why: str) -> Unreadable:
    return Unreadable(f"a message cannot be read: {why}")


def _by_version(
    texts: Texts, found: Found[_Message], marks: list[tuple[int, Mark]]
) -> Iterator[tuple[Found[_Message], int, int]]:
    """Cut up by physical id and version of the schema, which each of them is given with."""
    ids, no_id = c.hole_numbers(texts, found, found.meaning.id_hole)
    if found.meaning.version_hole < 0:  # a version of 0 is left out
        versions, no_version = np.zeros_like(ids), np.zeros_like(no_id)
    else:
        versions, no_version = c.hole_numbers(texts, found, found.meaning.version_hole)
    is_bad = no_id | no_version | (ids > np.uint64((1 << 63) - 1))
    marks += [(row, _unreadable("its tableID or schemaVersion is no number")) for row in found.rows[is_bad].tolist()]
    pairs = np.stack([ids, versions], axis=1)[~is_bad]
    for id, version in np.unique(pairs, axis=0).tolist():
        mine = ~is_bad & (ids == np.uint64(id)) & (versions == np.uint64(version))
        yield (found if mine.all() else found.pick(mine)), id, version


def _is_hole(path: Path) -> Hole | None:
    if path in _NUMBERS:
        return Hole.SCALAR
    if path in _TEXTS or (len(path) == 2 and path[0] in ("data", "old")):
        return Hole.ANY
    return None


def _describe(content: Any, holes: list[Path]) -> _Message:
    places = {path: hole for hole, path in enumerate(holes)}
    if content["version"] != _VERSION:
        raise UnclearError(f"it is not of version {_VERSION} of the simple protocol")
    word, new, old = content["type"], content.get("data"), content.get("old")
    schema, table, claim = content.get("database", ""), content.get("table", ""), content.get("claimCheckLocation", "")
    if not all(isinstance(text, str) for text in (word, schema, table, claim)):
        raise UnclearError("a name is no string")
    ts = places[("commitTs",)]
    if not new and not old:
        return _Message(word, schema, table, None, ts, -1, -1, False, "", frozenset(), {}, {}, (-1, -1))
    if word not in RowOp.__members__:
        raise UnclearError("a row whose type is none of INSERT, UPDATE and DELETE")
    op = RowOp[word]
    images = [{name: places[(member, name)] for name in image or {}} for member, image in (("data", new), ("old", old))]
    kept = {RowOp.INSERT: (True, False), RowOp.UPDATE: (True, True), RowOp.DELETE: (False, True)}[op]
    of_new, of_old = (image if is_kept else {} for image, is_kept in zip(images, kept, strict=True))
    names = frozenset(of_new or of_old)
    if not names or (op is RowOp.UPDATE and of_old.keys() != of_new.keys()):
        raise UnclearError("it lacks a row, or its two rows have different columns")
    is_partial = content.get("handleKeyOnly") is True or bool(claim)
    id_hole, version_hole = places[("tableID",)], places.get(("schemaVersion",), -1)
    sums = (places.get(_SUMS[0], -1), places.get(_SUMS[1], -1))
    return _Message(word, schema, table, op, ts, id_hole, version_hole, is_partial, claim, names, of_new, of_old, sums)


def _is_stamp_hole(path: Path) -> Hole | None:
    return Hole.SCALAR if path in (("location",), ("value",)) else None


def _describe_stamp(_: Any, holes: list[Path]) -> tuple[int, int]:
    """The holes of the zone, -1 where it has none, and of the value."""
    return holes.index(("location",)) if ("location",) in holes else -1, holes.index(("value",))


def _are_all_utc(texts: Texts, found: Found[Any], zone: int) -> bool:
    zones = c.texts(c.hole_cells(texts, found, zone))
    return not zones.null_count and set(zones.unique().to_pylist()) == {"UTC"}
