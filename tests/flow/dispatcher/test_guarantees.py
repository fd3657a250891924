"""What each dispatcher keeps: the table of ``docs/how-to/write-to-kafka.md``, cell by cell."""

import random
from collections import defaultdict

import pytest

from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.model.table import ColumnType, TableInfo

PARTITIONS = 8
ONE_KEY = table_of(column("id", ColumnType.LONGLONG, KEY), column("a", ColumnType.LONG, NOT_NULL))
TWO_KEYS = table_of(column("id", ColumnType.LONGLONG, KEY), column("a", ColumnType.LONG, NOT_NULL), uniques=[["a"]])

TABLE, BY_KEY, TS = PartitionRule(), PartitionRule(Kind.INDEX_VALUE), PartitionRule(Kind.TS)
BY_ID, BY_A = (PartitionRule(Kind.COLUMNS, columns=(name,)) for name in ("id", "a"))


def dispatched(rule: PartitionRule, table: TableInfo) -> list[tuple[int, int, int, int]]:
    """A history of 300 transactions of several rows each: (commit-ts, id, a, partition) of every change."""
    draw, changes, stamps = random.Random(7), [], []
    rows: dict[int, int] = {}  # id → a
    for number in range(300):
        for key in draw.sample(range(40), 4):
            old = {"id": key, "a": rows[key]} if key in rows else None
            if old is not None and draw.random() < 0.4:
                del rows[key]
                changes.append((old, None))
            else:
                free = next(a for a in iter(lambda: draw.randrange(1000), None) if a not in rows.values())
                rows[key] = free
                changes.append((old, {"id": key, "a": free}))
            stamps.append(COMMIT_TS + number)
    batch = rows_of(table, *changes, ts=stamps)
    partitions = rule.partitions(batch, PARTITIONS).tolist()
    images = [new if new is not None else old for old, new in changes]
    return [(ts, i["id"], i["a"], p) for ts, i, p in zip(stamps, images, partitions, strict=True) if i is not None]


def is_together(changes: list[tuple[int, int, int, int]], by: int) -> bool:
    """Whether all changes that share a ts, an id or a value are in one partition."""
    where = defaultdict(set)
    for change in changes:
        where[change[by]].add(change[3])
    return all(len(partitions) == 1 for partitions in where.values())


@pytest.mark.parametrize(
    ("rule", "table", "row", "whole_table", "transaction", "is_even"),
    [
        pytest.param(TABLE, TWO_KEYS, True, True, True, False, id="table"),
        pytest.param(BY_KEY, ONE_KEY, True, False, False, True, id="index-value, one key"),
        pytest.param(BY_KEY, TWO_KEYS, False, False, False, True, id="index-value, two keys"),
        pytest.param(BY_ID, ONE_KEY, True, False, False, True, id="columns of the key"),
        pytest.param(BY_A, ONE_KEY, False, False, False, True, id="other columns"),
        pytest.param(TS, ONE_KEY, False, False, True, True, id="ts"),
    ],
)
def test_what_a_dispatcher_keeps(
    rule: PartitionRule, table: TableInfo, row: bool, whole_table: bool, transaction: bool, is_even: bool
) -> None:
    changes = dispatched(rule, table)
    met = is_together(changes, 1) and (table is ONE_KEY or is_together(changes, 2))
    assert met == row == rule.keeps_row_order(table)
    assert (len({change[3] for change in changes}) == 1) == whole_table
    assert is_together(changes, 0) == transaction
    counts = [sum(change[3] == each for change in changes) for each in range(PARTITIONS)]
    assert (max(counts) < 2.5 * len(changes) / PARTITIONS) == is_even
