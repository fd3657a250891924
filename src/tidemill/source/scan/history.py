"""What a table was between two ts: its physical ids, and the form in force at each commit-ts.

A table is what bears its name at the moment: one that is dropped and created anew, or that changes names with
another, goes on under the same name with other physical ids. A row belongs to the table if the table in force at
its commit-ts has the name. Runs where reads are planned.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemill.flow.schema import Absent, SchemaStore
from tidemill.flow.schema.loader import load_schema
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.scan.catalog import TableName
from tidemill.source.scan.feed import in_order, take_changes
from tidemill.tidb.keys import record_span
from tidemill.tidb.meta import JOB_TABLE_ID
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


@dataclass(frozen=True, slots=True)
class Form:
    """A table in force for commit-ts above ``since_ts``."""

    since_ts: Ts
    table: TableInfo


@dataclass(frozen=True, slots=True)
class Stretch:
    """A physical id whose rows with commit-ts in ``(from_ts, to_ts]`` are the table's, in these forms."""

    physical_id: int
    from_ts: Ts
    to_ts: Ts
    forms: tuple[Form, ...]  # ascending; the first one is in force from ``from_ts`` on


class TableHistory:
    """Asked for one interval after the other it reads only the DDL jobs in between; elsewhere all metadata anew."""

    def __init__(self, name: TableName) -> None:
        self._name = name
        self._store: SchemaStore | None = None
        self._at = Ts(0)

    async def stretches(self, pd: PdClient, from_ts: Ts, to_ts: Ts) -> list[Stretch]:
        """Where the table's changes in ``(from_ts, to_ts]`` are; empty if it was not there at all."""
        store = self._store
        self._store = None  # of no use any more if something goes wrong half-way
        if store is None or self._at != from_ts:
            reader = SnapshotReader(pd, RegionCache(pd))
            try:
                store = await load_schema(reader, from_ts, from_ts, {}, is_for_every_table=True)
            finally:
                await reader.close()
        else:
            store.gc(from_ts)
        with TemporaryDirectory(prefix="tidemill-jobs-") as folder:
            jobs = await take_changes(pd, record_span(JOB_TABLE_ID), Ts(from_ts - 1), to_ts, Path(folder))
            for changes in in_order(jobs):
                store.apply(changes)
        found = list(self._found(store, from_ts, to_ts))
        self._store, self._at = store, to_ts
        return found

    def _found(self, store: SchemaStore, from_ts: Ts, to_ts: Ts) -> Iterator[Stretch]:
        for followed in store.followed():
            low = max(from_ts, followed.since_ts)
            high = to_ts if followed.until_ts is None else min(to_ts, followed.until_ts)
            if low < high:
                yield from self._named(followed.physical_id, low, high, store.forms(followed.physical_id, low, high))

    def _named(
        self, physical_id: int, low: Ts, high: Ts, forms: list[tuple[Ts, TableInfo | Absent]]
    ) -> Iterator[Stretch]:
        """Runs of forms that bear the name, each one stretch."""
        run: list[Form] = []
        for since_ts, table in forms:
            if isinstance(table, TableInfo) and self._name.is_of(table):
                run.append(Form(since_ts, table))
            elif run:
                yield Stretch(physical_id, run[0].since_ts, since_ts, tuple(run))
                run = []
        if run:
            yield Stretch(physical_id, run[0].since_ts, high, tuple(run))
