"""Rows that were there before an index or a changing column: gone through in batches, each its own transaction.

Writers write the new index or column already, so a batch only has to fill in what it finds, and what
others change in between makes the batch conflict and run again.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from tidebox.sql.catalog import CatalogTable
from tidebox.sql.codec import Datum, Time
from tidebox.sql.codec.indexes import split_index_value
from tidebox.sql.compute.kinds import Settings, Telling
from tidebox.sql.compute.scope import Context
from tidebox.sql.ddl.jobs import CheckNotNull, Done, Failed, FillColumn, FillIndexes, Reorg, Result
from tidebox.sql.key_texts import shown_datum
from tidebox.sql.meta import Meta, dump
from tidebox.sql.tables import StoredRow, TableAccess, TableUse
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.ts import physical_ms
from tidemill.tidb.keys import record_range

BATCH_ROWS: Final = 256
LOSSY_DDL_SOURCE: Final = 1 << 8  # by which a change stream knows writes that only repeat a row in another type
CONFLICTS: Final = frozenset(
    {Errno.WRITE_CONFLICT, Errno.WRITE_CONFLICT_IN_TIDB, Errno.TXN_RETRYABLE, Errno.RESOLVE_LOCK_TIMEOUT}
)


class Begin(Protocol):
    def __call__(self, *, txn_source: int = 0) -> Transaction: ...


class _RefusedError(Exception):
    """A row forbids the change."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        super().__init__(failed.message)


def run(reorg: Reorg, begin: Begin, check: Callable[[], None] = lambda: None) -> Result:
    """Go through the rows; ``check`` is called between batches and may raise to end it."""
    if isinstance(reorg, FillColumn):
        found = _nulls(reorg, begin, check)
        if isinstance(found, Failed):
            return found
    rows, size = 0, BATCH_ROWS
    start: bytes | None = None
    while True:
        check()
        try:
            count, start = _batch(reorg, begin, start, size)
            size = min(2 * size, BATCH_ROWS)
        except _RefusedError as error:
            return error.failed
        except SqlError as error:
            if error.number in CONFLICTS:
                size = max(size // 4, 1)  # among busy writers only a small batch gets through
                continue
            raise
        rows += count
        if start is None:
            return Done(rows)


def _nulls(reorg: FillColumn, begin: Begin, check: Callable[[], None]) -> Result | None:
    """NULLs are looked for before the first row is written."""
    transaction = begin()
    try:
        access = _use(reorg, transaction).access
    finally:
        transaction.rollback()
    target = next(column for column in access.stored.columns if column.id == reorg.column_id)
    if not target.is_not_null:
        return None
    source = access.table.follows[reorg.column_id]
    return run(CheckNotNull(reorg.schema_id, reorg.table_id, source, reorg.name), begin, check)


def _batch(reorg: Reorg, begin: Begin, start: bytes | None, size: int) -> tuple[int, bytes | None]:
    """Up to ``size`` rows from the key ``start`` on; how many, and where to go on, None at the end."""
    transaction = begin(txn_source=LOSSY_DDL_SOURCE if isinstance(reorg, FillColumn) else 0)
    try:
        use = _use(reorg, transaction)
        rows = list(_rows(use, transaction, start, size))
        for row in rows:
            _fill(reorg, use, transaction, row)
        transaction.commit()
    except BaseException:
        transaction.rollback()
        raise
    return len(rows), rows[-1].key + b"\0" if len(rows) == size else None


def _use(reorg: Reorg, transaction: Transaction) -> TableUse:
    """The table as it is now: in write-reorganization until the job goes on."""
    meta = Meta(transaction)
    document = meta.table(reorg.schema_id, reorg.table_id)
    database = meta.database(reorg.schema_id)
    if document is None or database is None:
        raise sql_error(Errno.NO_SUCH_TABLE, reorg.schema_id, reorg.table_id)
    name = document["name"]["O"]
    table = CatalogTable(reorg.schema_id, database["db_name"]["O"], dump(document), reorg.table_id, name)
    milliseconds = physical_ms(transaction.start_ts)
    zone = reorg.zone if isinstance(reorg, FillColumn) else UTC
    settings = Settings(zone, is_writing=True, telling=Telling.CAST)
    return TableUse(TableAccess(table), Context(settings, _moment(milliseconds)))


def _moment(milliseconds: int) -> Time:
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return Time(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond)


def _rows(use: TableUse, transaction: Transaction, start: bytes | None, size: int) -> Iterator[StoredRow]:
    low, high = record_range(use.info.id)
    for key, value in transaction.scan(start or low, high, size):
        yield use.stored_row(key, value)


def _fill(reorg: Reorg, use: TableUse, transaction: Transaction, row: StoredRow) -> None:
    match reorg:
        case CheckNotNull():
            _check_not_null(reorg, use, row)
        case FillIndexes():
            _fill_indexes(reorg.index_ids, use, transaction, row, row.datums)
        case FillColumn():
            _fill_column(reorg, use, transaction, row)


def _check_not_null(reorg: CheckNotNull, use: TableUse, row: StoredRow) -> None:
    for column, datum in zip(use.access.stored.columns, row.datums, strict=True):
        if column.id == reorg.column_id and datum is None:
            error = sql_error(Errno.INVALID_USE_OF_NULL)
            if reorg.name:
                error = sql_error(Errno.WARN_DATA_TRUNCATED, reorg.name, 1)
            raise _RefusedError(Failed(error.number, error.message))


def _fill_indexes(
    index_ids: tuple[int, ...], use: TableUse, transaction: Transaction, row: StoredRow, datums: Sequence[Datum]
) -> None:
    codec = use.access.codec
    written = [datums[at] for at in use.access.written_places]
    for index, entry in zip(codec.indexes, codec.index_entries(row.handle, written), strict=True):
        if index.index.id not in index_ids:
            continue
        found = transaction.get(entry.key)
        if found is not None and entry.is_distinct and split_index_value(found).handle != row.handle:
            error = use.duplicate(index.index, written, is_from_key=True)
            raise _RefusedError(Failed(error.number, error.message))
        transaction.put(entry.key, entry.value)


def _fill_column(reorg: FillColumn, use: TableUse, transaction: Transaction, row: StoredRow) -> None:
    try:
        datums = use.complete(use.access.public(row.datums), row)
    except SqlError as error:
        raise _RefusedError(_cast_failure(reorg, use, row, error)) from error
    written = [datums[at] for at in use.access.written_places]
    record = use.access.codec.backfilled_record(row.handle, written)
    transaction.put(record.key, record.value)
    if reorg.index_ids:
        _fill_indexes(reorg.index_ids, use, transaction, row, datums)


def _cast_failure(reorg: FillColumn, use: TableUse, row: StoredRow, error: SqlError) -> Failed:
    """What does not fit is told with its value; a NULL by the name that the column would have had."""
    columns = use.access.stored.columns
    places = {column.id: at for at, column in enumerate(columns)}
    source = places[use.access.table.follows[reorg.column_id]]
    shown, name = shown_datum(columns[source], row.datums[source]), columns[source].name
    match error.number:
        case Errno.BAD_NULL_ERROR:
            told = sql_error(Errno.WARN_DATA_TRUNCATED, reorg.name, 1)
            return Failed(told.number, told.message)
        case Errno.DATA_TOO_LONG | Errno.WARN_DATA_TRUNCATED:
            return Failed(1265, f"Data truncated for column '{name}', value is '{shown}'")
        case Errno.WARN_DATA_OUT_OF_RANGE:
            return Failed(1264, f"Out of range value for column '{name}', the value is '{shown}'")
    return Failed(error.number, error.message)
