"""Debezium's JSON read back, as TiCDC or we write it: a row, a DDL or a watermark per message.

The protocol loses things, and they stay lost: a null in a column with a default is that default, a DECIMAL has been a
double, a date with a zero in it is null or 1970-01-01. With TiDB's extension fields carry ``tidb_type``, and columns
have their own types. Without it they have those that Kafka Connect's tell: integers by width, and strings, bytes among
them, as text. Where schemas are disabled nothing is told of types, and rows cannot be read. Runs on executors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemill.flow.reader import cells as c
from tidemill.flow.reader.compression import Compression, decompressed
from tidemill.flow.reader.debezium_columns import column_seen, decode
from tidemill.flow.reader.documents import Refused, Shapes, Texts
from tidemill.flow.reader.port import Events, Received, RowsSeen
from tidemill.flow.reader.shape import Hole, Path, UnclearError, parse
from tidemill.flow.reader.tables import ColumnSeen, TablesSeen
from tidemill.flow.reader.weave import Part, part_of, weave
from tidemill.model.event import DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowOp
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

_MARKER = b'server_id":'  # all that tells tables apart stands before it
_COMMIT = ("payload", "source", "commit_ts")
_NUMBERS = frozenset({_COMMIT, ("payload", "source", "ts_ms"), ("payload", "source", "start_ts"), ("payload", "ts_ms")})
_IMAGES = ("before", "after")
_OPS = {"c": RowOp.INSERT, "r": RowOp.INSERT, "u": RowOp.UPDATE, "d": RowOp.DELETE}


@dataclass(frozen=True, slots=True)
class _Message:
    """What messages of one shape are. ``op`` is None for a DDL and for a watermark."""

    schema: str
    table: str
    op: RowOp | None
    is_ddl: bool
    ts_hole: int
    columns: tuple[ColumnSeen, ...]
    new: dict[str, int]  # holes by column
    old: dict[str, int]


class DebeziumReader:
    """Reads one partition."""

    def __init__(self, compression: Compression = Compression.NONE) -> None:
        self._compression = compression
        self._shapes = Shapes(_is_hole, _describe)
        self._tables = TablesSeen()

    def read(self, received: Received) -> Events:
        texts = decompressed(Texts.of(received.values), self._compression)
        keys = decompressed(Texts.of(received.keys), self._compression)
        marks: list[tuple[int, Mark]] = []
        parts: dict[int, tuple[TableInfo, list[Part]]] = {}
        commit_ts = np.zeros(len(texts), np.uint64)
        for signature, rows in texts.groups(_MARKER):
            found, refused = self._shapes.find(texts, rows, signature)
            for each in found:
                told = each.meaning
                stamps, is_bad = c.hole_numbers(texts, each, told.ts_hole)
                refused += [Refused(row, "its commit_ts is no whole number") for row in each.rows[is_bad].tolist()]
                each, stamps = (each.pick(~is_bad), stamps[~is_bad]) if is_bad.any() else (each, stamps)
                commit_ts[each.rows] = stamps
                if told.op is None:
                    marks += [(row, _notice(told, Ts(int(commit_ts[row])), texts[row])) for row in each.rows.tolist()]
                elif len(each.rows):
                    table = self._table(told, keys, int(each.rows[0]))
                    part = part_of(table, each, told.op, told.new, told.old)
                    parts.setdefault(id(table), (table, []))[1].append(part)
            marks += [(bad.row, Unreadable(f"a message cannot be read: {bad.why}")) for bad in refused]
        seen: list[RowsSeen] = []
        for table, some in parts.values():
            woven = weave(table, 0, texts.data, some, commit_ts, decode)
            why = f"a row of table {table.full_name} cannot be read: a value is not of its column's type"
            marks += [(row, Unreadable(why)) for row in woven.bad]
            if len(woven.rows):
                seen.append(RowsSeen(woven.batch, woven.rows))
        return Events(seen, sorted(marks, key=lambda mark: mark[0]))

    def _table(self, told: _Message, keys: Texts, row: int) -> TableInfo:
        """The key's members are those of the handle key: for all rows of a shape, since they are of one schema."""
        try:
            handle = frozenset(parse(keys[row])["payload"])
        except (ValueError, KeyError, TypeError):
            handle = frozenset()
        columns = tuple(column.with_key() if column.name in handle else column for column in told.columns)
        return self._tables.get(told.schema, told.table, columns)


def _is_hole(path: Path) -> Hole | None:
    if path in _NUMBERS or (len(path) == 3 and path[0] == "payload" and path[1] in _IMAGES):
        return Hole.SCALAR
    return Hole.ANY if path in (("payload", "ddl"), ("payload", "tableChanges")) else None


def _describe(content: Any, holes: list[Path]) -> _Message:
    places = {path: hole for hole, path in enumerate(holes)}
    payload = content["payload"]
    source = payload["source"]
    schema, table, ts = source["db"], source["table"], places[_COMMIT]
    if not isinstance(schema, str) or not isinstance(table, str):
        raise UnclearError("a name is no string")
    if "ddl" in payload or payload["op"] == "m":
        return _Message(schema, table, None, "ddl" in payload, ts, (), {}, {})
    op = _OPS.get(payload["op"])
    if op is None:
        raise UnclearError("its op is none of c, r, u, d and m")
    before, after = (payload.get(member) or {} for member in _IMAGES)
    if op is RowOp.UPDATE and not before:
        op = RowOp.INSERT  # whose old row is not sent
    image, fields = ("before", before) if op is RowOp.DELETE else ("after", after), content.get("schema")
    if not image[1]:
        raise UnclearError("it holds no columns")
    if not fields:
        raise UnclearError("it does not tell the types of its columns: leave debezium-disable-schema out")
    described = {
        field["field"]: field for each in fields["fields"] if each.get("field") == image[0] for field in each["fields"]
    }
    columns = tuple(column_seen(described[name]) for name in image[1])
    new, old = (
        {name: places[("payload", member, name)] for name in payload.get(member) or {}}
        for member in ("after", "before")
    )
    if op is RowOp.UPDATE and new.keys() != old.keys():
        raise UnclearError("its two rows have different columns")
    return _Message(schema, table, op, False, ts, columns, new, old)


def _notice(told: _Message, ts: Ts, document: bytes) -> Mark:
    if not told.is_ddl:
        return ResolvedSeen(ts)
    try:
        query = parse(document)["payload"]["ddl"]
    except (ValueError, KeyError, TypeError):
        query = None
    if not isinstance(query, str) or not query:
        return Unreadable("a message cannot be read: a DDL whose query is no string")
    return DdlSeen(ts, told.schema, told.table, query)
