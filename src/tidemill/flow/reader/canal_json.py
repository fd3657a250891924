"""Canal-JSON read back: a row, a DDL or a watermark per message, from TiCDC or from us.

With TiDB's extension a message tells its commit-ts, and rows come back as they were. Without it there is only ``es``,
the milliseconds of the commit: rows and DDLs then have the lowest ts of their millisecond. Rows of one transaction
cannot be told from those of another, and there is no resolved-ts at all.

TiCDC writes the members of ``mysqlType`` in an order of their own for each message. So they are no part of a shape
(``documents``): documents are told apart by what it holds, whatever its order. Runs on executors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.flow.reader import cells as c
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.compression import Compression, decompressed
from tidemill.flow.reader.documents import Found, Refused, Shapes, Texts
from tidemill.flow.reader.matching import bags
from tidemill.flow.reader.port import Events, Received, RowsSeen
from tidemill.flow.reader.shape import Hole, Path, UnclearError, parse
from tidemill.flow.reader.tables import ColumnSeen, TablesSeen
from tidemill.flow.reader.type_words import column_seen
from tidemill.flow.reader.weave import Part, part_of, weave
from tidemill.model.event import DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowOp, arrow_type
from tidemill.model.table import ColumnInfo, TableInfo
from tidemill.model.ts import LOGICAL_BITS, Ts

_MARKER = b'es":'  # all that tells tables apart stands before it
_COMMIT, _RESOLVED, _MILLISECONDS = ("_tidb", "commitTs"), ("_tidb", "watermarkTs"), ("es",)
_SCALARS = frozenset({_COMMIT, _RESOLVED, _MILLISECONDS, ("ts",), ("sql",), ("_tidb", "rowkey")})
_MOST_MS = (1 << (64 - LOGICAL_BITS)) - 1


@dataclass(frozen=True, slots=True)
class _Owner:
    schema: str
    table: str
    is_partial: bool
    claim: str


@dataclass(frozen=True, slots=True)
class _Message:
    """What messages of one shape are. ``op`` is None for a DDL and for a watermark."""

    owner: _Owner
    op: RowOp | None
    is_ddl: bool
    ts_hole: int
    has_ts: bool  # otherwise the hole holds milliseconds
    types_hole: int
    sql_hole: int
    keys: frozenset[str]
    names: tuple[str, ...]  # of columns
    new: dict[str, int]  # holes by column
    old: dict[str, int]


class CanalJsonReader:
    """Reads one partition."""

    def __init__(self, compression: Compression = Compression.NONE) -> None:
        self._compression = compression
        self._shapes = Shapes(_is_hole, _describe)
        self._tables = TablesSeen()

    def read(self, received: Received) -> Events:
        texts = decompressed(Texts.of(received.values), self._compression)
        marks: list[tuple[int, Mark]] = []
        parts: dict[tuple[_Owner, int], tuple[TableInfo, list[Part]]] = {}
        commit_ts = np.zeros(len(texts), np.uint64)
        for signature, rows in texts.groups(_MARKER):
            found, refused = self._shapes.find(texts, rows, signature)
            for each in found:
                each, bad = _stamped(texts, each, commit_ts)
                refused += bad
                if each.meaning.op is None:
                    marks += _notices(texts, each, commit_ts)
                else:
                    refused += self._sort_out(texts, each, parts)
            marks += [(bad.row, Unreadable(f"a message cannot be read: {bad.why}")) for bad in refused]
        seen: list[RowsSeen] = []
        for (owner, _), (table, some) in parts.items():
            woven = weave(table, 0, texts.data, some, commit_ts, _decode)
            why = f"a row of table {table.full_name} cannot be read: a value is not of its column's type"
            marks += [(row, Unreadable(why)) for row in woven.bad]
            if len(woven.rows):
                seen.append(RowsSeen(woven.batch, woven.rows, owner.is_partial, owner.claim))
        return Events(seen, sorted(marks, key=lambda mark: mark[0]))

    def _sort_out(
        self, texts: Texts, found: Found[_Message], parts: dict[tuple[_Owner, int], tuple[TableInfo, list[Part]]]
    ) -> list[Refused]:
        """Rows by table; returns those whose types make no sense."""
        refused: list[Refused] = []
        told = found.meaning
        for some in _by_types(texts, found):
            first, last = some.from_[told.types_hole, 0], some.to[told.types_hole, 0]
            try:
                columns = _columns(told, texts.data[first:last].tobytes())
            except UnclearError as unclear:
                refused += [Refused(row, str(unclear)) for row in some.rows.tolist()]
                continue
            table = self._tables.get(told.owner.schema, told.owner.table, columns)
            assert told.op is not None
            part = part_of(table, some, told.op, told.new, told.old)
            parts.setdefault((told.owner, id(table)), (table, []))[1].append(part)
        return refused


def _is_hole(path: Path) -> Hole | None:
    if path in (("sqlType",), ("mysqlType",)):
        return Hole.ANY
    if path in _SCALARS or (len(path) == 3 and path[0] in ("data", "old")):
        return Hole.SCALAR
    return None


def _describe(content: Any, holes: list[Path]) -> _Message:
    places = {path: hole for hole, path in enumerate(holes)}
    word, is_ddl, extension = content["type"], content["isDdl"], content.get("_tidb") or {}
    is_resolved = word == "TIDB_WATERMARK"
    has_ts = bool(extension)
    ts_hole = places[(_RESOLVED if is_resolved else _COMMIT) if has_ts else _MILLISECONDS]
    if is_resolved and not has_ts:
        raise UnclearError("a watermark without its ts")
    claim = extension.get("claimCheckLocation", "")
    owner = _Owner(content["database"], content["table"], bool(extension.get("onlyHandleKey") or claim), claim)
    if not all(isinstance(text, str) for text in (owner.schema, owner.table, owner.claim)):
        raise UnclearError("a name is no string")
    sql = places.get(("sql",), -1)
    if is_ddl or is_resolved:
        if is_ddl and sql < 0:
            raise UnclearError("a DDL without its query")
        return _Message(owner, None, bool(is_ddl), ts_hole, has_ts, -1, sql, frozenset(), (), {}, {})
    if word not in RowOp.__members__:
        raise UnclearError("its type is none of INSERT, UPDATE and DELETE")
    op = RowOp[word]
    (data,) = content["data"]
    told = _image("data", data, places)
    old = _image("old", content["old"][0], places) if op is RowOp.UPDATE and content.get("old") else {}
    if not told or not old.keys() <= told.keys():
        raise UnclearError("it holds no columns, or its old row has some that its new one has not")
    images = ({}, told) if op is RowOp.DELETE else (told, old)
    keys = frozenset(content.get("pkNames") or (told if owner.is_partial else ()))
    return _Message(owner, op, False, ts_hole, has_ts, places[("mysqlType",)], sql, keys, tuple(told), *images)


def _image(member: str, image: dict[str, Any], places: dict[Path, int]) -> dict[str, int]:
    found = {name: places.get((member, 0, name), -1) for name in image}
    if -1 in found.values():
        raise UnclearError("a value is neither a string nor null")
    return found


def _columns(told: _Message, types: bytes) -> tuple[ColumnSeen, ...]:
    try:
        words = parse(types)
        return tuple(column_seen(name, words[name], is_key=name in told.keys) for name in told.names)
    except UnclearError:
        raise
    except (ValueError, KeyError, TypeError):
        raise UnclearError("its mysqlType does not tell the types of its columns") from None


def _stamped(
    texts: Texts, found: Found[_Message], commit_ts: npt.NDArray[np.uint64]
) -> tuple[Found[_Message], list[Refused]]:
    """Write down the ts of messages; returns those that have one, and those that have none."""
    numbers, is_bad = c.hole_numbers(texts, found, found.meaning.ts_hole)
    if not found.meaning.has_ts:
        is_bad = is_bad | (numbers > _MOST_MS)
        numbers = numbers << np.uint64(LOGICAL_BITS)
    commit_ts[found.rows] = numbers
    if not is_bad.any():
        return found, []
    refused = [Refused(row, "its ts is no whole number of 64 bits") for row in found.rows[is_bad].tolist()]
    return found.pick(~is_bad), refused


def _by_types(texts: Texts, found: Found[_Message]) -> Iterator[Found[_Message]]:
    """Cut up by what ``mysqlType`` holds."""
    hole = found.meaning.types_hole
    signs = np.empty(len(found.rows), np.uint64)
    if not len(signs):
        return
    bags(texts.data, np.ascontiguousarray(found.from_[hole]), np.ascontiguousarray(found.to[hole]), signs)
    if (signs == signs[0]).all():
        yield found
        return
    for sign in np.unique(signs):
        yield found.pick(signs == sign)


def _notices(texts: Texts, found: Found[_Message], commit_ts: npt.NDArray[np.uint64]) -> list[tuple[int, Mark]]:
    told = found.meaning
    if not told.is_ddl:
        return [(row, ResolvedSeen(Ts(int(commit_ts[row])))) for row in found.rows.tolist()]
    queries = c.texts(c.hole_cells(texts, found, told.sql_hole)).to_pylist()
    marks: list[tuple[int, Mark]] = []
    for row, query in zip(found.rows.tolist(), queries, strict=True):
        if query is None:
            marks.append((row, Unreadable("a message cannot be read: a DDL whose query is no string")))
        else:
            marks.append((row, DdlSeen(Ts(int(commit_ts[row])), told.owner.schema, told.owner.table, query)))
    return marks


def _decode(column: ColumnInfo, cells: Cells) -> pa.Array:
    kind = arrow_type(column)
    if pa.types.is_integer(kind):
        return c.integers(cells, is_unsigned=kind == pa.uint64())
    if pa.types.is_floating(kind):
        return c.floats(cells, kind)
    return c.latin1_bytes(cells) if kind == pa.binary() else c.texts(cells)
