"""Numbers for AUTO_INCREMENT columns and hidden row ids: taken from the store in ranges, given out from memory.

As in TiDB each node takes 30,000 at a time, so ids of two nodes interleave in ranges, and what a node has
not given out is lost when it stops.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidebox.sql.meta import Counter, Meta
from tidebox.sql.tables import CatalogTable
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import Errno, SqlError, sql_error

STEP: Final = 30_000
_MOST: Final = (1 << 63) - 1
_RETRIES: Final = 100


@dataclass
class _Range:
    """Given out up to ``base``; up to ``end`` there is no need to ask the store."""

    base: int = 0
    end: int = 0
    option: int = 0  # the table's AUTO_INCREMENT option then


class AutoIds:
    """The allocators of one node, safe to use from several threads."""

    def __init__(self, begin: Callable[[], Transaction]) -> None:
        self._begin = begin
        self._mutex = threading.Lock()
        self._ranges: dict[tuple[int, Counter], _Range] = {}

    def next(self, table: CatalogTable, *, is_rowid: bool = False, count: int = 1) -> int:
        """The first of ``count`` numbers in a row."""
        with self._mutex:
            counter, found = self._range(table, is_rowid)
            if found.base + count > found.end:
                step = max(self._step(table), count)
                before = self._advance(table, counter, lambda now: min(now + step, _MOST))
                if before + count > _MOST:
                    raise sql_error(Errno.AUTOINC_READ_FAILED)
                found.base, found.end = before, min(before + step, _MOST)
            found.base += count
            return found.base - count + 1

    def rebase(self, table: CatalogTable, least: int) -> None:
        """Somebody has used ``least``: what is given out from now on lies above."""
        least = min(least, _MOST)
        with self._mutex:
            counter, found = self._range(table, False)
            if least <= found.base:
                return
            if least <= found.end:
                found.base = least
                return
            step = self._step(table)
            before = self._advance(table, counter, lambda now: min(max(now, least), _MOST - step) + step)
            found.base = max(before, least)
            found.end = min(found.base, _MOST - step) + step

    def stored(self, table: CatalogTable) -> int:
        """How far the store's counter is, whatever of that is not given out yet."""
        counter = self._counter(table, is_rowid=False)
        schema_id = int(table.document.get("old_schema_id") or 0) or table.info.schema_id
        return Meta(self._begin()).counter(schema_id, table.info.id, counter)

    @staticmethod
    def _counter(table: CatalogTable, *, is_rowid: bool) -> Counter:
        document = table.document
        is_separate = document.get("auto_id_cache") == 1 and document.get("version", 0) >= 5
        return Counter.AUTO_INCREMENT if is_separate and not is_rowid else Counter.ROW

    def _range(self, table: CatalogTable, is_rowid: bool) -> tuple[Counter, _Range]:
        counter = self._counter(table, is_rowid=is_rowid)
        option = int(table.document.get("auto_inc_id") or 0)
        found = self._ranges.get((table.info.id, counter))
        if found is None or found.option != option:  # ALTER TABLE has set the counter: what is kept here is void
            found = self._ranges[table.info.id, counter] = _Range(option=option)
        return counter, found

    def _step(self, table: CatalogTable) -> int:
        cache = int(table.document.get("auto_id_cache") or 0)
        return cache if cache > 0 else STEP

    def _advance(self, table: CatalogTable, counter: Counter, move: Callable[[int], int]) -> int:
        """Move the stored counter; what it was before."""
        schema_id = int(table.document.get("old_schema_id") or 0) or table.info.schema_id
        for _ in range(_RETRIES):
            transaction = self._begin()
            meta = Meta(transaction)
            before = meta.counter(schema_id, table.info.id, counter)
            meta.set_counter(schema_id, table.info.id, move(before), counter)
            try:
                transaction.commit()
                return before
            except SqlError as error:
                if error.number != Errno.WRITE_CONFLICT:
                    raise
        raise sql_error(Errno.AUTOINC_READ_FAILED)
