"""A table as statements use it: rows in and out of a transaction, with all that hangs on them.

    statement ── row of public columns ──► TableAccess ──► records and index entries in the transaction
              ◄── rows, by range or key ──

A writer on one schema version keeps the promise of online DDL: what is delete-only is never written but
removed, what is write-only is written but not read, and a column that follows another has its cast.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from tidebox.sql.codec import Datum, IndexEntry, TableCodec, rowid_handle
from tidebox.sql.codec.defaults import original_default, parse_literal, zero_value
from tidebox.sql.codec.indexes import split_index_value
from tidebox.sql.compute import temporal
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import Computed, Kind, Telling, Type, type_of
from tidebox.sql.compute.moments import now_in_zone
from tidebox.sql.compute.scope import Context, Scope, ScopeColumn
from tidebox.sql.key_texts import duplicate_entry
from tidebox.sql.syntax.statements import parse_expression
from tidebox.sql.transaction import Transaction
from tidebox.sql.values import Assigner, is_auto_increment, reader
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.errors import CorruptDataError
from tidemill.model.table import ColumnInfo, ColumnType, IndexInfo, TableInfo
from tidemill.tidb.keys import decode_int, record_prefix, record_range

TOMBSTONE = "_Tombstone$_"  # how the name of a column begins that a MODIFY COLUMN has replaced
_CURRENT = "CURRENT_TIMESTAMP"
_NO_DEFAULT = 4096  # TiDB's flag: not even NULL, after DROP DEFAULT


class CatalogTable(Protocol):
    """One version of one table, as the catalog has it."""

    @property
    def document(self) -> Mapping[str, Any]: ...

    @property
    def info(self) -> TableInfo:
        """What is read: public columns and indexes."""
        ...

    @property
    def written(self) -> TableInfo:
        """What a row is written with; the public columns first."""
        ...

    @property
    def stored(self) -> TableInfo:
        """All that a row may have in the store, delete-only too; the written columns are among its."""
        ...

    @property
    def follows(self) -> Mapping[int, int]:
        """Columns whose value is the cast of another's: id → id of the other."""
        ...


class StoredRow(NamedTuple):
    key: bytes
    handle: bytes
    datums: list[Datum]  # in the order of ``stored.columns``; virtual columns computed if an index has one


class DuplicateError(Exception):
    """A row with these values of a unique key is there already."""

    def __init__(self, index: IndexInfo | None, handle: bytes, error: SqlError) -> None:
        self.index, self.handle, self.error = index, handle, error
        super().__init__(error.message)


class TableAccess:
    """What is the same for every statement on one version of a table."""

    def __init__(self, table: CatalogTable) -> None:
        self.table = table
        self.info, self.written, self.stored = table.info, table.written, table.stored
        version = int(table.document.get("common_handle_version", 1))
        self.codec = TableCodec(self.written, common_handle_version=version)
        self.stored_codec = (
            self.codec if self.stored == self.written else TableCodec(self.stored, common_handle_version=version)
        )
        places = {column.id: at for at, column in enumerate(self.stored.columns)}
        self.written_places = [places[column.id] for column in self.written.columns]
        self.public_places = [places[column.id] for column in self.info.columns]
        self.is_plain = self.written_places == list(range(len(self.stored.columns)))
        self.documents = {document["id"]: document for document in table.document["cols"]}
        self.generated = [at for at, column in enumerate(self.info.columns) if column.is_generated]
        self.virtual = [at for at in self.generated if self.info.columns[at].is_virtual]
        self.auto_increment = next((at for at, c in enumerate(self.info.columns) if is_auto_increment(c)), None)
        self.is_clustered = self.info.pk_is_handle or self.info.is_common_handle
        handle_ids = {column.id for column in self.info.primary_key} if self.is_clustered else set()
        self.handle_places = [at for at, column in enumerate(self.stored.columns) if column.id in handle_ids]

    def public(self, datums: Sequence[Datum]) -> list[Datum]:
        return [datums[at] for at in self.public_places]


_ACCESSES: "WeakKeyDictionary[CatalogTable, TableAccess]" = WeakKeyDictionary()


def access_to(table: CatalogTable) -> TableAccess:
    found = _ACCESSES.get(table)
    if found is None:
        found = _ACCESSES[table] = TableAccess(table)
    return found


class TableUse:
    """A table in one statement. Rows of expressions are public columns, as values to compute with."""

    def __init__(self, access: TableAccess, context: Context, alias: str = "") -> None:
        self.access = access
        self.info = access.info
        self.context = context
        self.scope = Scope(self.scope_columns(alias))
        self._readers = [reader(column, context.settings) for column in self.info.columns]
        self._has_readers = any(self._readers)
        self._assigners: dict[int, Assigner] = {}
        self._generated: list[tuple[int, Computed]] | None = None

    def scope_columns(self, alias: str = "") -> list[ScopeColumn]:
        info = self.info
        name = alias or info.name
        return [
            ScopeColumn(column.name, type_of(column), name, info.schema, info.name, column.is_hidden)
            for column in info.columns
        ]

    # Rows

    def values(self, datums: Sequence[Datum]) -> list[Any]:
        """The public columns of a stored row as values to compute with."""
        found: list[Any] = [datums[at] for at in self.access.public_places]
        return self.computable(found)

    def computable(self, public: list[Any]) -> list[Any]:
        if self._has_readers:
            for at, read in enumerate(self._readers):
                if read is not None and public[at] is not None:
                    public[at] = read(public[at])
        return public

    def stored_row(self, key: bytes, value: bytes) -> StoredRow:
        datums = self.access.stored_codec.decode(key, value)
        if self.access.virtual:
            self._fill_virtual(datums)
        return StoredRow(key, key[11:], datums)

    def scan(self, transaction: Transaction) -> Iterator[StoredRow]:
        """Every row, partition by partition."""
        for physical_id in self.info.physical_ids:
            for key, value in transaction.scan(*record_range(physical_id)):
                yield self.stored_row(key, value)

    def scan_handles(self, transaction: Transaction, low: bytes, high: bytes) -> Iterator[StoredRow]:
        """Rows with handles of ``[low, high)``; an empty ``high`` means no end."""
        start, end = record_range(self.info.id)
        prefix = record_prefix(self.info.id)
        for key, value in transaction.scan(prefix + low if low else start, prefix + high if high else end):
            yield self.stored_row(key, value)

    def get(self, transaction: Transaction, handle: bytes) -> StoredRow | None:
        key = record_prefix(self.info.id) + handle
        value = transaction.get(key)
        return None if value is None else self.stored_row(key, value)

    # Values of columns

    def assigner(self, column: ColumnInfo) -> Assigner:
        found = self._assigners.get(column.id)
        if found is None:
            found = self._assigners[column.id] = Assigner(column, self.context.settings)
        return found

    def default(self, column: ColumnInfo, *, is_update: bool = False) -> Datum:
        """What a column gets that is not given a value, or that an UPDATE sets to DEFAULT; 1364 if it has none."""
        document = self.access.documents[column.id]
        if document.get("default_is_expr"):
            computed = Compiler(Scope(()), self.context).compile(parse_expression(str(column.default)))
            return self.assigner(column).assign(computed.compute(()), computed.type)
        if column.type is ColumnType.BIT and column.default_bit is not None:
            return int.from_bytes(column.default_bit, "big")
        if column.default is not None:
            if column.default.upper().startswith(_CURRENT):
                return self.now(column)
            if column.type is ColumnType.NEWDECIMAL:
                return self._decimal_default(column, Decimal(column.default))
            found = parse_literal(column, column.default)
            return self.assigner(column).assign(found, Type(Kind.REAL)) if isinstance(found, float) else found
        if not column.is_not_null and (is_update or not column.flag & _NO_DEFAULT):
            return None
        if is_update and column.offset == self.access.auto_increment:
            return 0
        if column.type is ColumnType.ENUM:
            return 1 if column.is_not_null else None
        if self.context.settings.is_lenient:
            error = sql_error(Errno.NO_DEFAULT_FOR_FIELD, column.name)
            self.context.settings.warnings.append(("Warning", error.number, error.message))
            return original_default(column)
        raise sql_error(Errno.NO_DEFAULT_FOR_FIELD, column.name)

    def _decimal_default(self, column: ColumnInfo, value: Decimal) -> Datum:
        """Kept with all the digits it was given; those that do not fit are lost with a warning each time."""
        settings = self.context.settings
        telling, settings.telling = settings.telling, Telling.CAST
        try:
            return self.assigner(column).assign(value, Type(Kind.DECIMAL))
        finally:
            settings.telling = telling

    def now(self, column: ColumnInfo) -> Datum:
        """The statement's moment, cut to the column's digits."""
        moment = self.context.now if column.type is ColumnType.TIMESTAMP else now_in_zone(self.context)
        moment = temporal.truncate_moment(moment, max(column.decimal, 0))
        return temporal.date_of(moment) if column.type is ColumnType.DATE else moment

    def fill_generated(self, public: list[Datum], row: int = 1) -> None:
        """Compute the generated columns of a row that has all others."""
        if not self.access.generated:
            return
        if self._generated is None:
            compiler = Compiler(Scope(self.scope_columns()), self.context)
            self._generated = [
                (at, compiler.compile(parse_expression(self.info.columns[at].generated_expr)))
                for at in self.access.generated
            ]
        for at, computed in self._generated:
            value = computed.compute(self.computable(list(public)))
            public[at] = self.assigner(self.info.columns[at]).assign(value, computed.type, row)

    def _fill_virtual(self, datums: list[Datum]) -> None:
        public = self.access.public(datums)
        self.fill_generated(public)
        for at in self.access.virtual:
            datums[self.access.public_places[at]] = public[at]

    def complete(self, public: Sequence[Datum], before: StoredRow | None = None, row: int = 1) -> list[Datum]:
        """A stored row from its public columns: others keep what they had, get their original default, or follow."""
        access = self.access
        if access.is_plain and len(public) == len(access.stored.columns):
            return list(public)
        columns = access.stored.columns
        datums: list[Datum] = (
            list(before.datums) if before is not None else [original_default(column) for column in columns]
        )
        for at, place in enumerate(access.public_places):
            datums[place] = public[at]
        places = {column.id: at for at, column in enumerate(columns)}
        for follower, followed in access.table.follows.items():
            if follower in places and followed in places:
                source, target = columns[places[followed]], columns[places[follower]]
                datums[places[follower]] = self._cast(datums[places[followed]], source, target, row)
        return datums

    def _cast(self, datum: Datum, source: ColumnInfo, target: ColumnInfo, row: int) -> Datum:
        read = reader(source, self.context.settings)
        value = read(datum) if read is not None and datum is not None else datum
        try:
            return self.assigner(target).assign(value, type_of(source), row)
        except SqlError:
            if not target.name.startswith(TOMBSTONE):
                raise
            # A column on its way out: nobody reads it any more, and it may not stand in a writer's way.
            return zero_value(target) if target.is_not_null else None

    # Writing

    def handle_of(self, datums: Sequence[Datum], rowid: int | None) -> bytes:
        if self.access.is_clustered:
            return self.access.codec.handle_of(self._written(datums))
        assert rowid is not None  # the caller has taken one
        return rowid_handle(rowid)

    def add(
        self, transaction: Transaction, handle: bytes, datums: Sequence[Datum], *, is_presuming: bool = False
    ) -> None:
        """Write a row that must not be there; ``DuplicateError`` if it is, by its handle or a unique key. With
        ``is_presuming`` only what the transaction itself has written counts at once, what is stored later."""
        row = self._written(datums)
        codec = self.access.codec
        record = codec.record(handle, row)
        if self.access.is_clustered:
            if is_presuming and not transaction.is_buffered(record.key):
                transaction.presume_absent(record.key, lambda found: self.duplicate(None, row, is_from_key=True))
            elif transaction.get(record.key) is not None:
                raise DuplicateError(None, handle, self.duplicate(None, row))
        entries = codec.index_entries(handle, row)
        for index, entry in zip(codec.indexes, entries, strict=True):
            if not entry.is_distinct:
                continue
            if is_presuming and not transaction.is_buffered(entry.key):
                self._presume_unique(transaction, index.index, entry, handle, row)
            else:
                self._check_unique(transaction, index.index, entry, handle, row, is_cut=is_presuming)
        for entry in entries:
            transaction.put(entry.key, entry.value, is_locked=entry.is_distinct)
        transaction.put(record.key, record.value)

    def _presume_unique(
        self, transaction: Transaction, index: IndexInfo, entry: IndexEntry, handle: bytes, row: Sequence[Datum]
    ) -> None:
        def refusal(found: bytes) -> SqlError | None:
            if (
                split_index_value(found).handle == handle
                and transaction.stored(record_prefix(self.info.id) + handle) is None
            ):
                return None  # an entry without its row: of an index that is being built
            return self.duplicate(index, row, is_from_key=True)

        transaction.presume_absent(entry.key, refusal)

    def _check_unique(
        self,
        transaction: Transaction,
        index: IndexInfo,
        entry: IndexEntry,
        handle: bytes,
        row: Sequence[Datum],
        *,
        is_cut: bool = False,
    ) -> None:
        found = transaction.get(entry.key)
        if found is None:
            return
        holder = split_index_value(found).handle
        if holder is None:
            raise CorruptDataError(f"the entry of unique index {index.name!r} of {self.info.full_name} has no handle")
        if holder != handle:
            raise DuplicateError(index, holder, self.duplicate(index, row, is_cut=is_cut))

    def remove(self, transaction: Transaction, row: StoredRow) -> None:
        for entry in self.access.stored_codec.index_entries(row.handle, row.datums):
            transaction.delete(entry.key, is_locked=entry.is_distinct)
        transaction.delete(row.key)

    def change(self, transaction: Transaction, before: StoredRow, datums: list[Datum], rowid: int | None) -> None:
        """Write a row in place of another. ``DuplicateError`` if its keys are taken."""
        if any(before.datums[at] != datums[at] for at in self.access.handle_places):
            handle = self.handle_of(datums, rowid)
            if handle != before.handle:
                self.remove(transaction, before)
                self.add(transaction, handle, datums, is_presuming=transaction.is_pessimistic)
                return
        handle, row = before.handle, self._written(datums)
        codec, stored = self.access.codec, self.access.stored_codec
        after = {c.index.id: entry for c, entry in zip(codec.indexes, codec.index_entries(handle, row), strict=True)}
        changes: list[tuple[IndexInfo, IndexEntry, IndexEntry | None]] = []
        for index, old in zip(stored.indexes, stored.index_entries(handle, before.datums), strict=True):
            new = after.get(index.index.id)
            if new != old:
                changes.append((index.index, old, new))
        for info, old, new in changes:
            if new is not None and new.is_distinct and new.key != old.key:
                self._check_unique(transaction, info, new, handle, row, is_cut=True)
        for _, old, new in changes:
            if new is None or new.key != old.key:
                transaction.delete(old.key, is_locked=old.is_distinct)
        for _, _, new in changes:
            if new is not None:
                transaction.put(new.key, new.value, is_locked=new.is_distinct)
        record = codec.record(handle, row)
        transaction.put(record.key, record.value)

    def _written(self, datums: Sequence[Datum]) -> Sequence[Datum]:
        if self.access.is_plain:
            return datums
        return [datums[at] for at in self.access.written_places]

    # Keys

    # Keys

    def duplicate(
        self, index: IndexInfo | None, row: Sequence[Datum], *, is_from_key: bool = False, is_cut: bool = True
    ) -> SqlError:
        settings = self.context.settings
        return duplicate_entry(self.access.written, index, row, settings, is_from_key=is_from_key, is_cut=is_cut)

    def find_by_index(self, transaction: Transaction, index: IndexInfo, prefix: bytes) -> Iterator[StoredRow]:
        """Rows whose entries in an index begin with ``prefix``, through the entries."""
        for key, value in list(transaction.scan(prefix, _after(prefix))):
            handle = split_index_value(value).handle
            if handle is None:
                handle = _handle_behind(key, prefix, self.info.is_common_handle, len(index.columns))
            row = self.get(transaction, handle)
            if row is not None:
                yield row


def rowid_of(row: StoredRow) -> int:
    return decode_int(row.handle)


def _after(prefix: bytes) -> bytes:
    """The smallest key above all that begin with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else b""


def _handle_behind(key: bytes, prefix: bytes, is_common: bool, columns: int) -> bytes:
    """The handle at the end of an entry that is not distinct."""
    if not is_common:
        return key[-8:]
    from tidebox.sql.codec.flagged import cut_cell

    at = 19
    for _ in range(columns):
        _, at = cut_cell(key, at)
    return key[at:]


def public_columns(info: TableInfo) -> Iterable[ColumnInfo]:
    """Those that ``*`` means."""
    return (column for column in info.columns if not column.is_hidden)
