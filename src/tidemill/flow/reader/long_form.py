"""The long form of the protocol's first design read back: JSON with words spelled out, one event per message.

    {"ts":1,"type":"Row","schema":"s","table":"t"}     {"update":{"id":{"type":"Long","value":7,"unique":true}}}
    {"ts":1,"type":"DDL","schema":"s","table":"t"}     {"query":"drop table a;"}
    {"ts":1,"type":"Resolved"}
    {"type":"Admin"}                                   {"partition":5}

It alone tells of a change of the number of partitions. An update does not hold its old row, so it reads as an insert;
a delete holds its unique columns, which are the key. Integers are signed and strings are text, unless ``unsigned`` and
``binary``, our own additions, say otherwise. Runs on executors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Longs
from tidemill.flow.encoder.long_form import WORDS
from tidemill.flow.reader import cells as c
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.documents import Found, Refused, Shapes, Texts
from tidemill.flow.reader.port import Events, Received, RowsSeen
from tidemill.flow.reader.shape import Hole, Path, UnclearError, parse
from tidemill.flow.reader.tables import ColumnSeen, TablesSeen
from tidemill.flow.reader.weave import Part, part_of, weave
from tidemill.model.event import AdminSeen, DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowOp, arrow_type
from tidemill.model.table import STRING_TYPES, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

TYPE_WORDS = {word: kind for kind, word in WORDS.items() if kind is not ColumnType.NEWDATE}
_KINDS = ("Row", "DDL", "Resolved", "Admin")


@dataclass(frozen=True, slots=True)
class _Key:
    kind: str
    schema: str
    table: str
    ts_hole: int  # -1: it has no ts


@dataclass(frozen=True, slots=True)
class _Value:
    op: RowOp
    columns: tuple[ColumnSeen, ...]
    holes: dict[str, int]  # by column


class LongFormReader:
    """Reads one partition."""

    def __init__(self) -> None:
        self._keys = Shapes(_is_key_hole, _describe_key)
        self._values = Shapes(_is_value_hole, _describe_value)
        self._tables = TablesSeen()

    def read(self, received: Received) -> Events:
        keys, values = Texts.of(received.keys), Texts.of(received.values)
        marks: list[tuple[int, Mark]] = []
        owners: dict[tuple[str, str], list[Longs]] = {}
        commit_ts = np.zeros(len(keys), np.uint64)
        for signature, some in keys.groups():
            found, refused = self._keys.find(keys, some, signature)
            for each in found:
                each, bad = _stamped(keys, each, commit_ts)
                refused += bad
                if each.meaning.kind == "Row":
                    owners.setdefault((each.meaning.schema, each.meaning.table), []).append(each.rows)
                else:
                    marks += [(row, _notice(each.meaning, Ts(int(commit_ts[row])), values[row])) for row in each.rows]
            marks += [(bad.row, Unreadable(f"a key cannot be read: {bad.why}")) for bad in refused]
        seen: list[RowsSeen] = []
        for (schema, table), places in owners.items():
            seen += self._rows(values, schema, table, np.sort(np.concatenate(places)), commit_ts, marks)
        return Events(seen, sorted(((int(place), mark) for place, mark in marks), key=lambda mark: mark[0]))

    def _rows(
        self, values: Texts, schema: str, name: str, rows: Longs, commit_ts: Any, marks: list[tuple[int, Mark]]
    ) -> list[RowsSeen]:
        found, refused = self._values.find(values, rows, (schema, name))
        by_table: dict[int, tuple[TableInfo, list[Part]]] = {}
        for each in found:
            told = each.meaning
            table = self._tables.get(schema, name, told.columns)
            part = part_of(table, each, told.op, told.holes, told.holes)
            by_table.setdefault(id(table), (table, []))[1].append(part)
        seen = []
        for table, parts in by_table.values():
            woven = weave(table, 0, values.data, parts, commit_ts, _decode)
            refused += [Refused(row, "a value is not of its column's type") for row in woven.bad]
            if len(woven.rows):
                seen.append(RowsSeen(woven.batch, woven.rows))
        marks += [(bad.row, Unreadable(f"a row of table {schema}.{name} cannot be read: {bad.why}")) for bad in refused]
        return seen


def _is_key_hole(path: Path) -> Hole | None:
    return Hole.SCALAR if path == ("ts",) else None


def _describe_key(content: Any, holes: list[Path]) -> _Key:
    kind, schema, table = content["type"], content.get("schema", ""), content.get("table", "")
    if kind not in _KINDS:
        raise UnclearError(f"its type is none of {', '.join(_KINDS)}")
    if not isinstance(schema, str) or not isinstance(table, str) or (kind == "Row" and not (schema and table)):
        raise UnclearError("it names no schema or no table")
    if kind != "Admin" and not holes:
        raise UnclearError("it has no ts")
    return _Key(kind, schema, table, 0 if holes else -1)


def _stamped(texts: Texts, found: Found[_Key], commit_ts: Any) -> tuple[Found[_Key], list[Refused]]:
    if found.meaning.ts_hole < 0:
        return found, []
    stamps, is_bad = c.hole_numbers(texts, found, found.meaning.ts_hole)
    commit_ts[found.rows] = stamps
    refused = [Refused(row, "its ts is no whole number of 64 bits") for row in found.rows[is_bad].tolist()]
    return (found.pick(~is_bad) if refused else found), refused


def _notice(key: _Key, ts: Ts, value: bytes) -> Mark:
    if key.kind == "Resolved":
        return ResolvedSeen(ts)
    try:
        content = parse(value)
        if key.kind == "DDL":
            query = content["query"]
            if isinstance(query, str) and query:
                return DdlSeen(ts, key.schema, key.table, query)
        else:
            partitions, epoch = content["partition"], content.get("epoch", 0)
            if type(partitions) is int and partitions > 0 and type(epoch) is int and epoch >= 0:
                return AdminSeen(partitions, epoch, ts if key.ts_hole >= 0 else None)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return Unreadable(f"the value of a message of type {key.kind} cannot be read: it is not what the protocol demands")


def _is_value_hole(path: Path) -> Hole | None:
    return Hole.SCALAR if len(path) == 3 and path[2] == "value" else None


def _describe_value(content: Any, holes: list[Path]) -> _Value:
    member = "delete" if content.get("delete") else "update"
    image = content.get(member)
    if not image:
        raise UnclearError("it holds no columns")
    places = {path: hole for hole, path in enumerate(holes)}
    columns = tuple(_column(name, column) for name, column in image.items())
    if any((member, column.name, "value") not in places for column in columns):
        raise UnclearError("a column has no value, or one that is no string, number or null")
    found = {column.name: places[(member, column.name, "value")] for column in columns}
    return _Value(RowOp.DELETE if member == "delete" else RowOp.INSERT, columns, found)


def _column(name: str, column: dict[str, Any]) -> ColumnSeen:
    kind = TYPE_WORDS.get(column["type"])
    if kind is None:
        raise UnclearError(f"column {name} is of an unknown type")
    is_unique = column.get("unique") is True
    return ColumnSeen(
        name,
        kind,
        is_binary=column.get("binary") is True and kind in STRING_TYPES,
        is_unsigned=column.get("unsigned") is True,
        is_nullable=not is_unique,
        is_handle=is_unique,
        is_unique=is_unique,
    )


def _decode(column: ColumnInfo, cells: Cells) -> pa.Array:
    kind = arrow_type(column)
    if pa.types.is_integer(kind):
        return c.integers(cells, is_unsigned=kind == pa.uint64())
    if pa.types.is_floating(kind):
        return c.floats(cells, kind)
    return c.base64_bytes(cells) if kind == pa.binary() else c.texts(cells)
