"""The simple protocol in Avro read back: messages whose first byte is 0x16, see ``flow.encoder.simple_avro``.

One compiled loop finds what every message says before its rows, and where its two rows lie; a second one takes the maps
of all rows of a table apart, in whatever order a map gives its columns. Descriptions of tables are rare and read one
by one, into the same documents that JSON's side has. Runs on executors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Longs, Words, helper, i64, kernel, u64
from tidemill.flow.encoder.simple_avro import DDL_WORDS
from tidemill.flow.reader import cells as c
from tidemill.flow.reader.avro import varint
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.documents import Texts, frozen
from tidemill.flow.reader.matching import Token
from tidemill.flow.reader.port import RowsSeen
from tidemill.flow.reader.row_checksums import wrong_sums
from tidemill.flow.reader.shape import UnclearError
from tidemill.flow.reader.simple_schema import SchemasSeen
from tidemill.model.event import DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowBatch, RowOp, arrow_schema, arrow_type
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

FIRST_BYTE = 0x16
_WATERMARK, _BOOTSTRAP, _DDL, _DML = range(4)
_BAD = -1
# Of each message: its kind, op and ts, the version of its schema, and where things lie in it.
_KIND, _OP, _VERSION, _NAMES_FROM, _NAMES_TO, _CLAIM_FROM, _CLAIM_TO, _IS_PARTIAL = range(8)
_NEW, _OLD, _NEW_SUM, _OLD_SUM, _FIELDS = range(8, 13)
_NULL, _TEXT, _WRONG = int(Token.NULL), int(Token.TEXT), int(Token.WRONG)
_INTEGER, _REAL, _PLAIN = range(3)  # what a column takes
_WHY = "it is no message of the simple protocol in Avro"


@dataclass(frozen=True, slots=True)
class _Heads:
    fields: Longs  # by field and message
    commit_ts: Words


def read(texts: Texts, schemas: SchemasSeen, marks: list[tuple[int, Mark]]) -> tuple[list[RowsSeen], list[int]]:
    """The rows, and the places of those whose schema has not come. All messages begin with 0x16."""
    count = len(texts)
    heads = _Heads(np.zeros((_FIELDS, count), np.int64), np.zeros(count, np.uint64))
    _read_heads(texts.data, texts.starts, texts.ends, heads.fields, heads.commit_ts)
    kinds = heads.fields[_KIND]
    marks += [
        (row, _mark(texts[row], int(kinds[row]), Ts(int(heads.commit_ts[row])), schemas))
        for row in np.flatnonzero(kinds != _DML).tolist()
    ]
    seen: list[RowsSeen] = []
    waiting: list[int] = []
    for rows in _groups(texts, heads.fields):
        try:
            schema, table, physical_id = _names(texts, heads.fields, int(rows[0]))
            known = schemas.get(schema, table, int(heads.fields[_VERSION, rows[0]]))
            if known is None:
                waiting += rows.tolist()
            else:
                seen += _rows(texts, heads, rows, known, physical_id, schemas, marks)
        except UnclearError as unclear:
            marks += [(row, _unreadable(str(unclear))) for row in rows.tolist()]
        except UnicodeDecodeError:
            marks += [(row, _unreadable("a name is no text")) for row in rows.tolist()]
    return seen, waiting


def _unreadable(why: str) -> Unreadable:
    return Unreadable(f"a message cannot be read: {why}")


def _groups(texts: Texts, fields: Longs) -> Iterator[Longs]:
    """Rows of one table under one schema, in order; each that points elsewhere by itself."""
    rows = np.flatnonzero(fields[_KIND] == _DML)
    if not len(rows):
        return
    cells = Cells(
        texts.data,
        fields[_NAMES_FROM, rows],
        fields[_NAMES_TO, rows],
        np.full(len(rows), _TEXT, np.uint8),
        np.zeros(len(rows), np.bool_),
    )
    names = c.plain_bytes(cells).dictionary_encode().indices.to_numpy()
    is_claim = fields[_CLAIM_TO, rows] > 0
    claim = np.where(is_claim, rows + 1, 0)
    keys = np.stack([names, fields[_VERSION, rows], fields[_IS_PARTIAL, rows], claim], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    yield from np.split(rows[order], np.flatnonzero(np.diff(group.reshape(-1)[order])) + 1)


def _names(texts: Texts, fields: Longs, row: int) -> tuple[str, str, int]:
    cursor = _Cursor(texts[row], int(fields[_NAMES_FROM, row] - texts.starts[row]))
    return cursor.text(), cursor.text(), cursor.long()


def _rows(
    texts: Texts,
    heads: _Heads,
    rows: Longs,
    schema: TableInfo,
    physical_id: int,
    schemas: SchemasSeen,
    marks: list[tuple[int, Mark]],
) -> list[RowsSeen]:
    fields, first = heads.fields, int(rows[0])
    is_partial = bool(fields[_IS_PARTIAL, first])
    claim = texts.data[fields[_CLAIM_FROM, first] : fields[_CLAIM_TO, first]].tobytes().decode("utf-8", "replace")
    at = int(max(fields[_NEW, first], fields[_OLD, first]) - texts.starts[first])
    names = frozenset(_Cursor(texts[first], at).keys())
    table = schemas.variant(schema, names, is_partial=is_partial or bool(claim))
    ops = fields[_OP, rows].astype(np.uint8)
    is_bad = np.zeros(len(rows), np.bool_)
    images = []
    for field, without in ((_NEW, RowOp.DELETE), (_OLD, RowOp.INSERT)):
        has = ops != without
        image, bad = _image(table, texts.data, fields[field, rows[has]])
        is_bad[has] |= bad
        images.append(image)
    new, old = images
    if is_bad.any():
        why = _unreadable(f"a row of table {table.full_name} is not of its schema")
        marks += [(row, why) for row in rows[is_bad].tolist()]
        new = new.filter(pa.array(~is_bad[ops != RowOp.DELETE]))
        old = old.filter(pa.array(~is_bad[ops != RowOp.INSERT]))
        rows, ops = rows[~is_bad], ops[~is_bad]
    if not len(rows):
        return []
    stamps = heads.commit_ts[rows]
    batch = RowBatch(table, physical_id, ops, np.zeros(len(rows), np.uint64), stamps, new, old)
    has_stamps = any(column.type is ColumnType.TIMESTAMP for column in table.stored_columns)  # in whatever zone
    if not (is_partial or claim or has_stamps):
        sums = fields[_NEW_SUM : _OLD_SUM + 1].astype(np.uint64)
        marks += [(row, _unreadable(why)) for row, why in wrong_sums(batch, rows, sums)]
    return [RowsSeen(batch, rows, is_partial or bool(claim), claim)]


def _image(table: TableInfo, data: Bytes, at: Longs) -> tuple[pa.RecordBatch, Bytes]:
    columns, count = table.stored_columns, len(at)
    names = [column.name.encode("utf-8", "surrogateescape") for column in columns]
    name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    takes = np.array([_takes(column) for column in columns], np.int64)
    from_, to = np.zeros((len(columns), count), np.int64), np.zeros((len(columns), count), np.int64)
    tokens, is_bad = np.full((len(columns), count), _WRONG, np.uint8), np.zeros(count, np.bool_)
    plain = frozen(np.frombuffer(b"".join(names) + b"\0", np.uint8))
    _read_maps(data, at, plain, name_ends, takes, from_, to, tokens, is_bad)
    arrays = [_decode(column, Cells(data, from_[n], to[n], tokens[n], is_bad)) for n, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table)), is_bad


def _takes(column: ColumnInfo) -> int:
    kind = arrow_type(column)
    return _INTEGER if pa.types.is_integer(kind) else _REAL if pa.types.is_floating(kind) else _PLAIN


def _decode(column: ColumnInfo, cells: Cells) -> pa.Array:
    kind, is_null = arrow_type(column), cells.tokens != _TEXT
    if pa.types.is_integer(kind):
        numbers = pa.array(cells.from_, mask=is_null)
        return numbers.view(pa.uint64()) if kind == pa.uint64() else numbers
    if pa.types.is_floating(kind):
        values = np.ascontiguousarray(cells.from_).view(np.float64)
        return pa.array(values.astype(np.float32) if kind == pa.float32() else values, mask=is_null)
    found = c.plain_bytes(cells)
    return found if kind == pa.binary() else c.as_text(found)


def _mark(message: bytes, kind: int, ts: Ts, schemas: SchemasSeen) -> Mark:
    if kind == _WATERMARK:
        return ResolvedSeen(ts)
    try:
        if kind not in (_DDL, _BOOTSTRAP):
            return _unreadable(_WHY)
        cursor, query = _Cursor(message, 3), ""
        if cursor.long() != 1:
            return _unreadable("it is not of version 1 of the simple protocol")
        if kind == _DDL:
            _ = DDL_WORDS[cursor.long()]
            query = cursor.text()
            ts = Ts(cursor.long() % (1 << 64))
        cursor.long()  # when it was built
        documents = [cursor.schema()] if kind == _BOOTSTRAP else [cursor.optional(cursor.schema) for _ in range(2)]
        if not cursor.is_at_end:
            return _unreadable(_WHY)
        tables = [schemas.learn(document) for document in documents]
    except UnclearError as unclear:
        return _unreadable(str(unclear))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        return _unreadable(_WHY)
    tables.append(None)
    named = tables[0] or tables[1]
    if not query and tables[0] is None:
        return _unreadable("it has neither a query nor a schema")
    schema, table = (named.schema, named.name) if named else ("", "")
    return DdlSeen(ts, schema, table, query, None, tables[0], tables[1])


class _Cursor:
    """Reads one message from somewhere on. Raises IndexError or ValueError at its end."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def long(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number >> 1 ^ -(number & 1)
        raise ValueError("a number of more than 64 bits")

    def bytes(self) -> bytes:
        size = self.long()
        if not 0 <= size <= len(self._data) - self._at:
            raise IndexError("bytes behind the end of a message")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.bytes().decode()

    def boolean(self) -> bool:
        self._at += 1
        return self._data[self._at - 1] != 0

    def optional(self, read: Any) -> Any:
        return read() if self.long() else None

    def array(self, read: Any) -> list[Any]:
        found: list[Any] = []
        while count := self.long():
            if count < 0:
                self.long()
            found.extend(read() for _ in range(abs(count)))
        return found

    def keys(self) -> list[str]:
        """Of a map of values."""

        def entry() -> str:
            name, branch = self.text(), self.long()
            if branch in (1, 7):
                self.long()
            elif branch in (2, 3):
                self._at += 4 * branch - 4
            elif branch:
                for _ in range(2 if branch == 6 else 1):
                    self.bytes()
            return name

        return self.array(entry)

    def schema(self) -> dict[str, Any]:
        members = ("schema", self.text()), ("table", self.text()), ("tableID", self.long()), ("version", self.long())
        return {**dict(members), "columns": self.array(self._column), "indexes": self.array(self._index)}

    def _column(self) -> dict[str, Any]:
        name = self.text()
        kind: dict[str, Any] = {each: self.text() for each in ("mysqlType", "charset", "collate")}
        kind["length"] = self.long()
        kind["decimal"] = self.optional(self.long) or 0
        kind["elements"] = self.optional(lambda: self.array(self.text))
        kind["unsigned"], kind["zerofill"] = self.optional(self.boolean), self.optional(self.boolean)
        if not kind["length"]:
            del kind["length"]
        nullable, default = self.boolean(), self.optional(self.text)
        if kind["mysqlType"] == "bit" and default is not None:
            default = int(default)
        return {"name": name, "dataType": kind, "nullable": nullable, "default": default}

    def _index(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.text()}
        found |= {each: self.boolean() for each in ("unique", "primary", "nullable")}
        return {**found, "columns": self.array(self.text)}


@kernel
def _read_heads(data: Bytes, starts: Longs, ends: Longs, fields: Longs, commit_ts: Words) -> None:
    for n in range(len(starts)):
        end = ends[n]
        kind, at = varint(data, starts[n] + 1, end)
        branch, at = _next(data, at, end)
        version, after = _next(data, at, end)
        fields[_KIND, n] = i64(-1)
        if after < 0 or kind != branch or kind < 0 or kind > 3 or (kind != 1 and kind != 2 and version != 1):
            continue
        if kind == 1 or kind == 2:
            fields[_KIND, n] = kind
            continue
        if kind == 0:
            ts, at = _next(data, after, end)
            _, at = _next(data, at, end)
            if at == end:
                fields[_KIND, n], commit_ts[n] = kind, u64(ts)
            continue
        at = _skip(data, after, end)  # names, the id
        at = _skip(data, at, end)
        _, at = _next(data, at, end)
        fields[_NAMES_FROM, n], fields[_NAMES_TO, n] = after, at
        op, at = _next(data, at, end)
        ts, at = _next(data, at, end)
        _, at = _next(data, at, end)
        fields[_VERSION, n], at = _next(data, at, end)
        has, at = _next(data, at, end)
        if has == 1 and at >= 0:
            size, begin = _next(data, at, end)
            at = _skip(data, at, end)
            fields[_CLAIM_FROM, n], fields[_CLAIM_TO, n] = begin, begin + size
        has, at = _next(data, at, end)
        if has == 1 and 0 <= at < end:
            fields[_IS_PARTIAL, n] = i64(data[at] != 0)
            at += 1
        has, at = _next(data, at, end)
        if has == 1 and at >= 0:  # a checksum
            _, at = _next(data, at, end)
            at = at + 1 if 0 <= at < end else i64(-1)
            fields[_NEW_SUM, n], at = _next(data, at, end)
            fields[_OLD_SUM, n], at = _next(data, at, end)
        has_new, at = _next(data, at, end)
        if has_new == 1 and at >= 0:
            fields[_NEW, n] = at
            at = _skip_map(data, at, end)
        has_old, at = _next(data, at, end)
        if has_old == 1 and at >= 0:
            fields[_OLD, n] = at
            at = _skip_map(data, at, end)
        if at != end or op < 0 or op > 2 or has_new != (op != 2) or has_old != (op != 0):
            continue
        fields[_OP, n], commit_ts[n], fields[_KIND, n] = op + 1, u64(ts), kind


@helper
def _next(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The number there, and what is behind it; -1 stays -1."""
    if at < 0:
        return i64(0), i64(-1)
    return varint(data, at, end)


@helper
def _skip(data: Bytes, at: int, end: int) -> int:
    """Behind a string."""
    size, at = _next(data, at, end)
    return at + size if at >= 0 and 0 <= size <= end - at else i64(-1)


@helper
def _skip_map(data: Bytes, at: int, end: int) -> int:
    while True:
        count, at = _next(data, at, end)
        if at < 0 or count == 0:
            return at
        if count < 0:
            count = -count
            _, at = _next(data, at, end)
        for _ in range(count):
            at = _skip(data, at, end)
            branch, at = _next(data, at, end)
            at = _skip_value(data, branch, at, end)
            if at < 0:
                return at


@helper
def _skip_value(data: Bytes, branch: int, at: int, end: int) -> int:
    if at < 0 or branch < 0 or branch > 7:
        return i64(-1)
    if branch == 1 or branch == 7:
        return _next(data, at, end)[1]
    if branch == 2 or branch == 3:
        size = i64(4) if branch == 2 else i64(8)
        return at + size if size <= end - at else i64(-1)
    if branch >= 4:
        at = _skip(data, at, end)
        return _skip(data, at, end) if branch == 6 else at
    return at


@kernel
def _read_maps(
    data: Bytes,
    starts: Longs,
    names: Bytes,
    name_ends: Longs,
    takes: Longs,
    from_: Longs,
    to: Longs,
    tokens: Bytes,
    is_bad: Bytes,
) -> None:
    """The heads' loop has seen that every map is whole. Each column has to be there once."""
    end, columns = i64(len(data)), len(name_ends)
    for n in range(len(starts)):
        at, seen, guess = starts[n], 0, 0
        while True:
            count, at = varint(data, at, end)
            if count == 0:
                break
            if count < 0:
                count = -count
                _, at = varint(data, at, end)
            for _ in range(count):
                size, at = varint(data, at, end)
                column = _column_of(data, at, size, names, name_ends, guess)
                branch, value = varint(data, at + size, end)
                at = _skip_value(data, branch, value, end)
                if column < 0 or tokens[column, n] != _WRONG:
                    is_bad[n] = True
                    continue
                guess = column + 1
                seen += 1
                take = takes[column]
                if branch == 0:
                    tokens[column, n] = _NULL
                    continue
                tokens[column, n] = _TEXT
                if take == _INTEGER and (branch == 1 or branch == 7):
                    from_[column, n] = varint(data, value, end)[0]
                elif take == _INTEGER and branch == 4:  # so newer TiCDCs write a BIT
                    size, value = varint(data, value, end)
                    from_[column, n], fits = _digits(data, value, value + size)
                    is_bad[n] |= not fits
                elif take == _REAL and (branch == 2 or branch == 3):
                    from_[column, n] = _real_bits(data, value, branch == 2)
                elif take == _PLAIN and branch >= 4 and branch < 7:
                    if branch == 6:
                        value = _skip(data, value, end)
                    size, value = varint(data, value, end)
                    from_[column, n], to[column, n] = value, value + size
                else:
                    tokens[column, n] = _NULL
                    is_bad[n] = True
        if seen != columns:
            is_bad[n] = True
        if is_bad[n]:
            for column in range(columns):
                tokens[column, n] = _NULL


@helper
def _column_of(data: Bytes, at: int, size: int, names: Bytes, name_ends: Longs, guess: int) -> int:
    """Which column is called like this; -1: none. Maps of one writer tend to have one order."""
    columns = len(name_ends)
    for k in range(columns):
        column = (guess + k) % columns
        start = name_ends[column - 1] if column else i64(0)
        if name_ends[column] - start != size:
            continue
        same = True
        for j in range(size):
            if names[start + j] != data[at + j]:
                same = False
                break
        if same:
            return column
    return -1


@helper
def _digits(data: Bytes, at: int, end: int) -> tuple[int, bool]:
    number = u64(0)
    if at >= end or end - at > 20:
        return i64(0), False
    for k in range(at, end):
        digit = u64(data[k]) - u64(48)
        if digit > u64(9):
            return i64(0), False
        number = number * u64(10) + digit
    return i64(number), True


@helper
def _real_bits(data: Bytes, at: int, is_single: bool) -> int:
    """Of a 64-bit float: a single is widened, bit by bit."""
    bits = u64(0)
    for k in range(4 if is_single else 8):
        bits |= u64(data[at + k]) << u64(8 * k)
    if not is_single:
        return i64(bits)
    sign, exponent, rest = bits >> u64(31), (bits >> u64(23)) & u64(255), bits & u64(0x7FFFFF)
    if exponent == u64(255):
        wide = u64(2047)
    elif exponent == u64(0):
        if rest == u64(0):
            return i64(sign << u64(63))
        wide = u64(897)
        while rest & u64(0x800000) == u64(0):
            rest <<= u64(1)
            wide -= u64(1)
        rest &= u64(0x7FFFFF)
    else:
        wide = exponent + u64(896)
    return i64((sign << u64(63)) | (wide << u64(52)) | (rest << u64(29)))
