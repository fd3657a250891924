"""Where MariaDB's table partitions are not TiDB's: each case is a DDL and the rows upstream."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.flow.encoder.samples import KEY, NOT_NULL, column, table_of
from tests.mariadb import MariaDb
from tests.sinks.mysql.rescanned import Upstream, upstream_into
from tests.sinks.mysql.test_ddl import event
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnType, IndexColumn, IndexInfo, PartitionInfo, TableInfo

BY_RANGE = "\nPARTITION BY RANGE (`k`)\n(PARTITION `p0` VALUES LESS THAN (10),\n PARTITION `p1` VALUES LESS THAN (20))"


@pytest.fixture
def upstream(mariadb: MariaDb) -> Iterator[Upstream]:
    yield from upstream_into(mariadb)


def partitioned(*partitions: tuple[int, str], key: str = "id", name: str = "t", table_id: int = 100) -> TableInfo:
    """id and k; one of them is the primary key."""
    columns = [column(each, ColumnType.LONG, KEY if each == key else NOT_NULL) for each in ("id", "k")]
    made = table_of(*columns, schema="ddls", name=name, table_id=table_id)
    return replace(made, partitions=tuple(PartitionInfo(i, n) for i, n in partitions))


T = partitioned((101, "p0"), (102, "p1"))
GLOBAL = (
    "CREATE TABLE `t` (\n  `id` int NOT NULL,\n  `k` int NOT NULL,\n  PRIMARY KEY (`id`) /*T![clustered_index] "
    f"NONCLUSTERED */ /*T![global_index] GLOBAL */\n) ENGINE=InnoDB{BY_RANGE}"
)
LOCAL = GLOBAL.replace("PRIMARY KEY (`id`)", "PRIMARY KEY (`k`)")


def make(creation: str = GLOBAL, table: TableInfo = T, **more: Any) -> DdlEvent:
    return event("create table t …", ActionType.CREATE_TABLE, 1, table, creation=creation, **more)


def filled(upstream: Upstream) -> None:
    """A table that MariaDB cannot partition, with two rows in each partition."""
    upstream.run(make())
    upstream.insert(T, 101, {"id": 1, "k": 1}, {"id": 2, "k": 2})
    upstream.insert(T, 102, {"id": 11, "k": 11}, {"id": 12, "k": 12})


def test_a_table_with_a_global_index_is_not_partitioned_and_stays_unique(upstream: Upstream) -> None:
    filled(upstream)
    assert upstream.partitions("t") == []
    with pytest.raises(Exception, match="Duplicate entry"):
        upstream.select("INSERT INTO ddls.t VALUES (1, 15)")


def test_a_partition_is_truncated_row_by_row_where_there_is_none(upstream: Upstream) -> None:
    filled(upstream)
    after = partitioned((103, "p0"), (102, "p1"))
    upstream.run(
        event("alter table t truncate partition p0", ActionType.TRUNCATE_TABLE_PARTITION, 2, after, pre_table_info=T)
    )
    assert upstream.select("SELECT id FROM ddls.t ORDER BY id") == [(11,), (12,)]
    assert set(upstream.asked) == {("t", (101,))}


def test_a_partition_is_dropped_row_by_row_where_there_is_none(upstream: Upstream) -> None:
    filled(upstream)
    after = partitioned((101, "p0"))
    upstream.run(event("alter table t drop partition p1", ActionType.DROP_TABLE_PARTITION, 2, after, pre_table_info=T))
    assert upstream.select("SELECT id FROM ddls.t ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("alter table t add partition (partition p2 values less than (30))", ActionType.ADD_TABLE_PARTITION),
        ("alter table t reorganize partition p0, p1 into (partition p values less than (20))",
         ActionType.REORGANIZE_PARTITION),
        ("alter table t partition by hash (k) partitions 3 update indexes (`PRIMARY` global)",
         ActionType.ALTER_TABLE_PARTITIONING),
        ("alter table t remove partitioning", ActionType.REMOVE_PARTITIONING),
    ],
)  # fmt: skip
def test_other_partitions_mean_nothing_where_there_are_none(upstream: Upstream, query: str, kind: ActionType) -> None:
    filled(upstream)
    after = replace(T, partitions=(PartitionInfo(109, "p"),) if kind != ActionType.REMOVE_PARTITIONING else ())
    upstream.run(event(query, kind, 2, after, pre_table_info=T, creation=GLOBAL))
    assert upstream.select("SELECT id FROM ddls.t ORDER BY id") == [(1,), (2,), (11,), (12,)]
    assert upstream.asked == []


def test_a_global_index_that_comes_later_ends_the_partitions(upstream: Upstream) -> None:
    local = partitioned((101, "p0"), (102, "p1"), key="k")
    upstream.run(make(LOCAL, local))
    assert upstream.partitions("t") == ["p0", "p1"]
    upstream.insert(local, 101, {"id": 1, "k": 1})
    index = IndexInfo(2, "u", (IndexColumn(0, -1),), is_unique=True, is_primary=False)
    after = replace(local, indexes=(*local.indexes, index))
    query = "alter table t add unique index u (id) global"
    upstream.run(event(query, ActionType.ADD_INDEX, 2, after, pre_table_info=local, creation=GLOBAL))
    assert upstream.partitions("t") == []
    with pytest.raises(Exception, match="Duplicate entry"):
        upstream.select("INSERT INTO ddls.t VALUES (1, 15)")


def test_a_default_partition_that_is_cut_in_two_gives_up_its_rows(upstream: Upstream) -> None:
    """MariaDB's own REORGANIZE leaves all of them in the first half, and its rows go with the wrong partition."""
    definitions = "(PARTITION `a` VALUES IN (1),\n PARTITION `d` DEFAULT)"
    by_list = LOCAL.replace(BY_RANGE, f"\nPARTITION BY LIST (`k`)\n{definitions}")
    before = partitioned((101, "a"), (102, "d"), key="k")
    upstream.run(make(by_list, before))
    upstream.insert(before, 102, {"id": 1, "k": 98}, {"id": 2, "k": 99})
    cut = by_list.replace("`d` DEFAULT", "`b` VALUES IN (98),\n PARTITION `e` DEFAULT")
    after = partitioned((101, "a"), (103, "b"), (104, "e"), key="k")
    query = "alter table t reorganize partition d into (partition b values in (98), partition e default)"
    upstream.run(event(query, ActionType.REORGANIZE_PARTITION, 2, after, pre_table_info=before, creation=cut))
    assert upstream.partitions("t") == ["a", "b", "e"]
    left = partitioned((101, "a"), (103, "b"), key="k")
    query = "alter table t drop partition e"
    upstream.run(event(query, ActionType.DROP_TABLE_PARTITION, 3, left, pre_table_info=after))
    assert upstream.select("SELECT k FROM ddls.t") == [(98,)]


PLAIN = table_of(
    column("id", ColumnType.LONG, NOT_NULL), column("k", ColumnType.LONG, KEY), schema="ddls", name="n", table_id=200
)


def exchange(partition_id: int = 101, before: TableInfo | None = None) -> DdlEvent:
    after = partitioned((PLAIN.id, "p0"), (102, "p1"), key="k")
    query = "ALTER TABLE `ddls`.`t` EXCHANGE PARTITION `p0` WITH TABLE `ddls`.`n` WITHOUT VALIDATION"
    return event(
        query, ActionType.EXCHANGE_PARTITION, 3, before or after, pre_schema="ddls", pre_table="n",
        pre_table_info=PLAIN, partition_id=partition_id, creation=LOCAL,
    )  # fmt: skip


@pytest.mark.parametrize("fits", [True, False])
def test_rows_that_do_not_fit_are_exchanged_as_rows(upstream: Upstream, fits: bool) -> None:
    local = partitioned((101, "p0"), (102, "p1"), key="k")
    upstream.run(make(LOCAL, local))
    upstream.select("CREATE TABLE ddls.n (id INT NOT NULL, k INT PRIMARY KEY)")
    upstream.insert(local, 101, {"id": 1, "k": 1}, {"id": 2, "k": 2})
    upstream.insert(local, 102, {"id": 11, "k": 11})
    moved = 5 if fits else 15
    upstream.insert(PLAIN, PLAIN.id, {"id": 99, "k": moved})
    upstream.sink.ddl(exchange())
    left = [(99, 5), (11, 11)] if fits else [(11, 11), (99, 15)]
    assert upstream.select("SELECT id, k FROM ddls.t ORDER BY k") == left
    assert upstream.select("SELECT k FROM ddls.n ORDER BY k") == [(1,), (2,)]
    assert upstream.partitions("t") == (["p0", "p1"] if fits else [])
    # The partition goes with the row that did not belong to it.
    after = partitioned((103, "p0"), (102, "p1"), key="k")
    truncate = "alter table t truncate partition p0"
    before = partitioned((PLAIN.id, "p0"), (102, "p1"), key="k")
    upstream.run(event(truncate, ActionType.TRUNCATE_TABLE_PARTITION, 4, after, pre_table_info=before, creation=LOCAL))
    assert upstream.select("SELECT k FROM ddls.t") == [(11,)]


def test_an_exchange_with_a_table_that_is_not_partitioned_here_swaps_rows(upstream: Upstream) -> None:
    filled(upstream)
    upstream.select("CREATE TABLE ddls.n (id INT NOT NULL, k INT PRIMARY KEY)")
    upstream.insert(PLAIN, PLAIN.id, {"id": 5, "k": 5})
    upstream.run(exchange(before=partitioned((PLAIN.id, "p0"), (102, "p1"))))
    assert upstream.select("SELECT id FROM ddls.t ORDER BY id") == [(5,), (11,), (12,)]
    assert upstream.select("SELECT id FROM ddls.n ORDER BY id") == [(1,), (2,)]


def test_a_hashed_partition_is_exchanged_by_the_rows_that_tidb_put_there(upstream: Upstream) -> None:
    """An empty table fits every partition, so the server itself would not refuse."""
    before, after = partitioned((101, "p0"), (102, "p1"), key="k"), partitioned((200, "p0"), (102, "p1"), key="k")
    creation = LOCAL.replace(BY_RANGE, "\nPARTITION BY KEY (`k`) PARTITIONS 2")
    upstream.run(make(creation, before))
    upstream.select("CREATE TABLE ddls.n (id INT NOT NULL, k INT PRIMARY KEY)")
    upstream.insert(before, 101, *({"id": n, "k": n} for n in range(8)))  # all of them, as no hash of MariaDB's does
    upstream.insert(before, 102, *({"id": n, "k": n} for n in range(8, 16)))
    upstream.run(replace(exchange(before=after), creation=creation))
    assert upstream.select("SELECT MIN(k), COUNT(*) FROM ddls.t") == [(8, 8)]
    assert upstream.select("SELECT MAX(k), COUNT(*) FROM ddls.n") == [(7, 8)]


LIST = "\nPARTITION BY LIST (`k`)\n(PARTITION `p` VALUES IN (1,2,5),\n PARTITION `p1` VALUES IN (3,4))"


def test_list_partitions_that_are_no_neighbours_are_reorganized(upstream: Upstream) -> None:
    before = partitioned((101, "p0"), (102, "p1"), (103, "p2"), key="k")
    was = (
        "\nPARTITION BY LIST (`k`)\n(PARTITION `p0` VALUES IN (1,2),\n PARTITION `p1` VALUES IN (3,4),\n "
        "PARTITION `p2` VALUES IN (5))"
    )
    upstream.run(make(LOCAL.replace(BY_RANGE, was), before))
    upstream.insert(before, 101, {"id": 1, "k": 1}, {"id": 5, "k": 5}, {"id": 3, "k": 3})
    after = partitioned((104, "p"), (102, "p1"), key="k")
    query = "alter table t reorganize partition p0, p2 into (partition p values in (1, 2, 5))"
    creation = LOCAL.replace(BY_RANGE, LIST)
    upstream.run(event(query, ActionType.REORGANIZE_PARTITION, 2, after, pre_table_info=before, creation=creation))
    assert upstream.partitions("t") == ["p", "p1"]
    assert upstream.select("SELECT k FROM ddls.t PARTITION (p) ORDER BY k") == [(1,), (5,)]


@pytest.mark.parametrize("by", ["HASH (`k`)", "KEY (`k`)"])
def test_a_hashed_partition_is_truncated_by_the_rows_that_tidb_put_there(upstream: Upstream, by: str) -> None:
    before = partitioned((101, "p0"), (102, "p1"), key="k")
    creation = LOCAL.replace(BY_RANGE, f"\nPARTITION BY {by} PARTITIONS 2")
    upstream.run(make(creation, before))
    upstream.insert(before, 101, *({"id": n, "k": n} for n in range(8)))  # all of them, as no hash of MariaDB's does
    upstream.insert(before, 102, *({"id": n, "k": n} for n in range(8, 16)))
    after = partitioned((103, "p0"), (102, "p1"), key="k")
    query = "alter table t truncate partition p0"
    upstream.run(event(query, ActionType.TRUNCATE_TABLE_PARTITION, 2, after, pre_table_info=before, creation=creation))
    assert upstream.select("SELECT MIN(k), COUNT(*) FROM ddls.t") == [(8, 8)]


@pytest.mark.parametrize(
    ("query", "kind", "left"),
    [
        ("alter table t first partition less than (10)", ActionType.DROP_TABLE_PARTITION, ["p1"]),
        ("alter table t last partition less than (30)", ActionType.ADD_TABLE_PARTITION, ["p0", "p1", "P_LT_30"]),
    ],
)
def test_partitions_by_interval_are_what_they_become(
    upstream: Upstream, query: str, kind: ActionType, left: list[str]
) -> None:
    before = partitioned((101, "p0"), (102, "p1"), key="k")
    upstream.run(make(LOCAL, before))
    upstream.insert(before, 101, {"id": 1, "k": 1})
    after = partitioned(*((101 + n, name) for n, name in enumerate(["p0", "p1", "P_LT_30"]) if name in left), key="k")
    creation = LOCAL.replace("(20))", "(20),\n PARTITION `P_LT_30` VALUES LESS THAN (30))")
    upstream.run(event(query, kind, 2, after, pre_table_info=before, creation=creation))
    assert upstream.partitions("t") == left


def test_a_partition_is_added_with_the_bound_that_tidb_understood(upstream: Upstream) -> None:
    """As typed it depends on the time zone of the session."""
    made = (
        "CREATE TABLE `t` (\n  `id` int NOT NULL,\n  `k` timestamp NOT NULL,\n  PRIMARY KEY (`k`)\n)\nPARTITION BY "
        "RANGE (UNIX_TIMESTAMP(`k`))\n(PARTITION `p0` VALUES LESS THAN (1577836800))"
    )
    before, after = partitioned((101, "p0"), key="k"), partitioned((101, "p0"), (102, "P`1"), key="k")
    upstream.run(make(made, before))
    query = (
        "alter table t add partition (partition `P``1` values less than (unix_timestamp('2025-01-01')) comment 'x)')"
    )
    added = made[:-1] + ",\n PARTITION `P``1` VALUES LESS THAN (1735660800) COMMENT 'x)')"
    upstream.run(event(query, ActionType.ADD_TABLE_PARTITION, 2, after, pre_table_info=before, creation=added))
    assert upstream.select(
        "SELECT partition_name, partition_description FROM information_schema.partitions WHERE table_schema = 'ddls'"
    ) == [("p0", "1577836800"), ("P`1", "1735660800")]
    query = (
        "alter table t reorganize partition `P``1` into (partition q values less than (unix_timestamp('2025-01-02')))"
    )
    whole = added.replace("P``1", "q").replace("1735660800", "1735747200")
    last = partitioned((101, "p0"), (103, "q"), key="k")
    upstream.run(event(query, ActionType.REORGANIZE_PARTITION, 3, last, pre_table_info=after, creation=whole))
    assert upstream.select(
        "SELECT partition_description FROM information_schema.partitions WHERE partition_name = 'q'"
    ) == [("1735747200",)]


def test_a_partition_has_a_comment_with_a_quote(upstream: Upstream) -> None:
    """MariaDB takes it, and cannot open the table afterwards."""
    commented = BY_RANGE.replace("(10)", "(10) COMMENT 'it''s'")
    local = partitioned((101, "p0"), (102, "p1"), key="k")
    upstream.run(make(LOCAL.replace(BY_RANGE, commented), local))
    after = partitioned((101, "p0"), (102, "p1"), (103, "p2"), key="k")
    query = "alter table t add partition (partition p2 values less than (30) comment = 'a\"b\\\\')"
    creation = LOCAL.replace(BY_RANGE, commented[:-1] + ",\n PARTITION `p2` VALUES LESS THAN (30) COMMENT 'a\"b\\\\')")
    upstream.run(event(query, ActionType.ADD_TABLE_PARTITION, 2, after, pre_table_info=local, creation=creation))
    upstream.select("FLUSH TABLES")
    upstream.insert(after, 103, {"id": 1, "k": 25})
    assert upstream.select("SELECT k FROM ddls.t PARTITION (p2)") == [(25,)]
