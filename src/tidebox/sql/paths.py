"""Which rows a condition can mean at all: by primary key, by index, by a range of handles, or every row.

The condition itself is tested on each of them afterwards, so a path may give too many rows, never too few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Any, Final

from tidebox.sql.codec import Datum, rowid_handle
from tidebox.sql.codec.flagged import key_writer
from tidebox.sql.codec.indexes import index_prefix
from tidebox.sql.compute.compiler import literal_type
from tidebox.sql.compute.kinds import Kind, Type
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Between, Binary, Expression, In, Literal, Name, Parameter
from tidebox.sql.tables import StoredRow, TableUse
from tidebox.sql.transaction import Transaction
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnInfo, ColumnType, IndexInfo

_MOST_KEYS: Final = 10_000
_FLIPPED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


@dataclass
class _Bounds:
    """What a condition says of one column: one of ``equals`` if that is not None, and a range of numbers."""

    equals: list[Datum] | None = None
    low: int = _INT_MIN
    high: int = _INT_MAX


@dataclass
class _Known:
    by_offset: dict[int, _Bounds] = field(default_factory=dict)

    def of(self, offset: int) -> _Bounds:
        return self.by_offset.setdefault(offset, _Bounds())

    def equals(self, offset: int) -> list[Datum] | None:
        found = self.by_offset.get(offset)
        return found.equals if found is not None else None


def rows_for(use: TableUse, transaction: Transaction, where: Expression | None) -> Iterator[StoredRow]:
    """Rows that ``where`` may be true of."""
    if where is None or use.info.is_partitioned:
        return use.scan(transaction)
    known = _Known()
    _learn(where, use, known)
    handles = _handles(use, known)
    if handles is not None:
        return _by_handles(use, transaction, handles)
    path = _index_path(use, known)
    if path is not None:
        return _by_index(use, transaction, *path)
    return _by_range(use, transaction, known)


def _learn(where: Expression, use: TableUse, known: _Known) -> None:
    """Take from a condition what all of its parts, joined by AND, say of single columns."""
    match where:
        case Binary("AND", left, right):
            _learn(left, use, known)
            _learn(right, use, known)
        case Binary("=" | "<" | "<=" | ">" | ">=" as symbol, Name() as name, constant):
            _note(symbol, name, constant, use, known)
        case Binary("=" | "<" | "<=" | ">" | ">=" as symbol, constant, Name() as name):
            _note(_FLIPPED[symbol], name, constant, use, known)
        case Between(Name() as name, low, high, False):
            _note(">=", name, low, use, known)
            _note("<=", name, high, use, known)
        case In(Name() as name, tuple() as items, False):
            _note_many(name, items, use, known)


def _note(symbol: str, name: Name, constant: Expression, use: TableUse, known: _Known) -> None:
    offset = use.scope.find(name)
    if offset is None:
        return
    column = use.info.columns[offset]
    value, kind = _constant(constant, use.context)
    if kind is None:
        return
    if symbol == "=":
        _intersect(known.of(offset), [value], [kind], column)
    elif column.type in INTEGER_TYPES and not column.is_unsigned and kind.kind is Kind.INT and value is not None:
        bounds = known.of(offset)
        if symbol in (">", ">="):
            bounds.low = max(bounds.low, value + (symbol == ">"))
        else:
            bounds.high = min(bounds.high, value - (symbol == "<"))


def _note_many(name: Name, items: Sequence[Expression], use: TableUse, known: _Known) -> None:
    offset = use.scope.find(name)
    if offset is None:
        return
    pairs = [_constant(item, use.context) for item in items]
    kinds = [kind for _, kind in pairs if kind is not None]
    if len(kinds) == len(pairs):
        _intersect(known.of(offset), [value for value, _ in pairs], kinds, use.info.columns[offset])


def _intersect(bounds: _Bounds, values: list[Any], kinds: list[Type], column: ColumnInfo) -> None:
    found: list[Datum] = []
    for value, kind in zip(values, kinds, strict=True):
        if value is None:
            continue  # nothing equals NULL
        exact = _exact(column, value, kind)
        if exact is None:
            return
        found += [datum for datum in exact if datum not in found]
    if bounds.equals is None:
        bounds.equals = found


def _constant(tree: Expression, context: Context) -> tuple[Any, Type | None]:
    match tree:
        case Literal(value) if not isinstance(value, bool):
            return value, literal_type(value)
        case Parameter(index) if index < len(context.parameters):
            return context.parameters[index]
        case _:
            return None, None


def _exact(column: ColumnInfo, value: Any, kind: Type) -> list[Datum] | None:
    """The datums that equal a value in this column: one, or none at all. None: that cannot be said here."""
    if column.type in INTEGER_TYPES and kind.kind is Kind.INT:
        low, high = (0, (1 << 64) - 1) if column.is_unsigned else (_INT_MIN, _INT_MAX)
        return [value] if low <= value <= high else []
    if column.type in STRING_TYPES and kind.kind is Kind.TEXT and not column.is_binary:
        return [value]
    if column.type in STRING_TYPES and kind.kind is Kind.BYTES and column.collate == "binary":
        return [value]
    if column.type is ColumnType.NEWDECIMAL and kind.kind in (Kind.INT, Kind.DECIMAL):
        exact = Decimal(value)
        exponent = exact.normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent <= max(column.decimal, 0):
            digits = max(exact.adjusted() + 1, 0)
            return [exact] if digits <= max(column.flen, 1) - max(column.decimal, 0) else []
        return []
    return None


# By handle


def _handles(use: TableUse, known: _Known) -> list[bytes] | None:
    info = use.info
    if info.pk_is_handle:
        offset = info.primary_key[0].offset
        values = known.equals(offset)
        if values is None:
            return None
        column = info.columns[offset]
        return [_int_handle(int(value), column) for value in values]  # type: ignore[arg-type]  # of an integer column
    if info.is_common_handle:
        index = next(i for i in info.indexes if i.is_primary)
        parts = [known.equals(part.offset) if part.length < 0 else None for part in index.columns]
        if any(part is None for part in parts):
            return None
        combined = list(product(*(part or [] for part in parts)))
        if len(combined) > _MOST_KEYS:
            return None
        found = []
        for combination in combined:
            row: list[Datum] = [None] * len(use.access.written.columns)
            for part, value in zip(index.columns, combination, strict=True):
                row[part.offset] = value
            found.append(use.access.codec.handle_of(row))
        return found
    return None


def _int_handle(value: int, column: ColumnInfo) -> bytes:
    return rowid_handle(value - (1 << 64) if column.is_unsigned and value > _INT_MAX else value)


def _by_handles(use: TableUse, transaction: Transaction, handles: list[bytes]) -> Iterator[StoredRow]:
    for handle in sorted(set(handles)):
        row = use.get(transaction, handle)
        if row is not None:
            yield row


def _by_range(use: TableUse, transaction: Transaction, known: _Known) -> Iterator[StoredRow]:
    info = use.info
    if not info.pk_is_handle or info.primary_key[0].is_unsigned:
        return use.scan(transaction)
    bounds = known.by_offset.get(info.primary_key[0].offset)
    if bounds is None or bounds.equals is not None:
        return use.scan(transaction)
    if bounds.low > bounds.high:
        return iter(())
    high = rowid_handle(bounds.high + 1) if bounds.high < _INT_MAX else b""
    return use.scan_handles(transaction, rowid_handle(bounds.low) if bounds.low > _INT_MIN else b"", high)


# By index


def _index_path(use: TableUse, known: _Known) -> tuple[IndexInfo, list[bytes]] | None:
    """The index of which the longest part is known, and the keys' beginnings."""
    best: tuple[int, IndexInfo, list[list[Datum]]] | None = None
    for index in use.info.indexes:
        if index.is_primary and use.info.is_common_handle:
            continue
        parts: list[list[Datum]] = []
        for part in index.columns:
            values = known.equals(part.offset) if part.length < 0 else None
            if values is None:
                break
            parts.append(values)
        if parts and (best is None or len(parts) > best[0]):
            best = (len(parts), index, parts)
    if best is None:
        return None
    _, index, parts = best
    combined = list(product(*parts))
    if len(combined) > _MOST_KEYS:
        return None
    head = index_prefix(use.info.id, index.id)
    writers = [key_writer(use.info.columns[part.offset]) for part in index.columns]
    prefixes = [head + b"".join(write(v) for write, v in zip(writers, values, strict=False)) for values in combined]
    return index, prefixes


def _by_index(use: TableUse, transaction: Transaction, index: IndexInfo, prefixes: list[bytes]) -> Iterator[StoredRow]:
    for prefix in sorted(set(prefixes)):
        yield from use.find_by_index(transaction, index, prefix)
