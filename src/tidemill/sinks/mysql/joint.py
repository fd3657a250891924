"""Rows of several tables in one transaction downstream, so that no reader sees a transaction of the upstream torn.

A consumer of topics, which has put transactions together again, hands over whole ones. Their net effect is written
table by table on one connection, as REPLACE and DELETE, and committed at once.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.errors import InvariantError
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.model.table import TableInfo
from tidemill.sinks.mysql.plan import Plan
from tidemill.sinks.mysql.statement import Shapes
from tidemill.sinks.mysql.writer import MysqlTarget, UnitWriter, Worker


@dataclass(frozen=True, slots=True)
class JointTarget:
    """Where the rows of several tables go. All rows of a unit are held: whoever makes one bounds it."""

    targets: tuple[MysqlTarget, ...]

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors: one transaction."""
        tables: dict[tuple[str, str], list[RowBatch]] = {}
        for batch in flat(rows):
            if len(batch):
                tables.setdefault(_name(batch.table), []).append(batch)
        if not tables:
            return Receipt("", 0, 0, 0, 0)
        writers = {_name(target.table): UnitWriter(target) for target in self.targets}

        def plans(is_safe: bool) -> Iterator[tuple[Plan, int]]:
            for name, batches in tables.items():
                yield from writers[name].plans(iter(batches), is_safe)

        def shapes(table: TableInfo) -> Shapes:
            return writers[_name(table)].shapes

        first = self.targets[0]
        packet = min(writer.packet for writer in writers.values())
        with Worker(first, shapes, packet, threading.Event()) as worker:
            count, size = worker.stream(plans, any(writer.is_safe for writer in writers.values()))
        return Receipt("", 0, 0, count, size)

    def share(self, number: int) -> "JointTarget":
        raise InvariantError("rows that belong into one transaction cannot be shared")


def _name(table: TableInfo) -> tuple[str, str]:
    return table.schema, table.name
