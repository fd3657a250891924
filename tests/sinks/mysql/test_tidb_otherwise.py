"""DDLs of a TiDB that another TiDB refuses. MariaDB refuses the same with the same numbers, so it serves."""

from collections.abc import Iterator
from dataclasses import replace

import pymysql
import pytest

from tests.flow.encoder.samples import KEY, column, table_of
from tests.mariadb import MariaDb
from tests.sinks.mysql.rescanned import Upstream, upstream_into
from tests.sinks.mysql.test_ddl import event
from tests.sinks.mysql.test_otherwise import child_info, foreign_keys, with_children
from tests.sinks.mysql.test_partitions import LOCAL, PLAIN, exchange, make, partitioned
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnType, PartitionInfo
from tidemill.sinks.mysql import failures, parse_mysql_uri
from tidemill.sinks.mysql.carry import Carrier
from tidemill.sinks.mysql.plan import Form
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.session import Flavor, SessionSettings, mode_statement
from tidemill.sinks.mysql.statement import Shapes


@pytest.fixture
def upstream(mariadb: MariaDb) -> Iterator[Upstream]:
    yield from upstream_into(mariadb)


def carry(upstream: Upstream, change: DdlEvent) -> list[str]:
    """As into a TiDB; what was noted of it."""
    owner = upstream.sink.owner
    turn = owner._turn
    assert turn.downstream is not None
    rows = Refill(upstream._rescan, owner._refill_target, turn.patience)
    downstream = replace(turn.downstream, flavor=Flavor.TIDB)
    notes: list[str] = []
    carrier = Carrier(
        turn.opened(), change, turn.ddl_settings(), downstream, turn.lines, rows, lambda: notes.append("rows")
    )
    carrier.carry_out(has_run=False)
    return notes


def test_a_view_of_a_table_that_is_not_there_is_left_out(upstream: Upstream) -> None:
    """As FLASHBACK DATABASE under another name leaves one: it still reads from the database that is gone."""
    view = replace(table_of(column("id", ColumnType.LONG, KEY), schema="ddls", name="v"), is_view=True)
    query = "CREATE VIEW `ddls`.`v` (`id`) AS SELECT `gone`.`t`.`id` AS `id` FROM `gone`.`t`"
    carry(upstream, event(query, ActionType.CREATE_VIEW, 1, view))
    assert upstream.select("SELECT COUNT(*) FROM information_schema.views WHERE table_schema = 'ddls'") == [(0,)]


def test_tables_that_were_made_otherwise_exchange_their_rows(upstream: Upstream) -> None:
    """LIKE gives columns the ids of the other table, CREATE TABLE numbers them anew, and TiDB compares the numbers."""
    local = partitioned((101, "p0"), (102, "p1"), key="k")
    upstream.run(make(LOCAL, local))
    upstream.select("CREATE TABLE ddls.n (id INT NOT NULL, k INT PRIMARY KEY, KEY other (id))")
    upstream.insert(local, 101, {"id": 1, "k": 1}, {"id": 2, "k": 2})
    upstream.insert(local, 102, {"id": 11, "k": 11})
    upstream.insert(PLAIN, PLAIN.id, {"id": 99, "k": 5})
    change = exchange()
    change = replace(change, query=change.query.removesuffix(" WITHOUT VALIDATION"))  # MariaDB cannot spell it
    for _ in range(2):  # and once more, as after a crash in the midst of it
        assert carry(upstream, change) == ["rows"]
        assert upstream.select("SELECT id, k FROM ddls.t ORDER BY k") == [(99, 5), (11, 11)]
        assert upstream.select("SELECT k FROM ddls.n ORDER BY k") == [(1,), (2,)]
        assert upstream.partitions("t") == ["p0", "p1"]


def test_a_foreign_key_that_is_gone_upstream_is_in_no_ddls_way(upstream: Upstream) -> None:
    """TiDB's DROP FOREIGN KEY is not replicated; then its index may go."""
    with_children(upstream)
    after = table_of(column("id", ColumnType.LONG, KEY), schema="ddls", name="b")
    query = "alter table b drop index ip, drop column p"
    carry(upstream, event(query, ActionType.MULTI_SCHEMA_CHANGE, 2, after, pre_table_info=child_info("b")))
    assert [*foreign_keys(upstream)] == ["a"]


@pytest.mark.parametrize(("bits", "is_replaced"), [(8, False), (9, True), (64, True)])
def test_a_long_bit_is_never_taken_from_values(bits: int, is_replaced: bool) -> None:
    """``ON DUPLICATE KEY UPDATE b = VALUES(b)`` of a TiDB 8.5 stores F10F81451870E417 as 17E4701845810FF1."""
    table = table_of(column("id", ColumnType.LONG, KEY), column("b", ColumnType.BIT, flen=bits), schema="ddls")
    shapes = Shapes.of(table)
    assert shapes.heads[Form.UPDATE].startswith(b"REPLACE" if is_replaced else b"INSERT")
    assert (b"VALUES(`b`)" in shapes.tails[Form.UPDATE]) is not is_replaced


@pytest.mark.parametrize(
    ("kind", "elems", "is_replaced", "value"),
    [
        (ColumnType.ENUM, ("b", "a"), False, b"=VALUES(`e`)"),
        (ColumnType.ENUM, ("a", ""), True, b""),
        (ColumnType.SET, ("a", "b"), False, b"=VALUES(`e`)"),
        (ColumnType.SET, ("", "b"), True, b""),
    ],
)
def test_members_are_taken_from_values_without_a_cast(
    kind: ColumnType, elems: tuple[str, ...], is_replaced: bool, value: bytes
) -> None:
    """``CAST(VALUES(e) AS UNSIGNED)`` is an error of a TiDB 8.5 (1105), whatever the value; without it, a SET's empty
    member is lost, and an ENUM's index 0 becomes that of the empty member."""
    table = table_of(column("id", ColumnType.LONG, KEY), column("e", kind, elems=elems), schema="ddls")
    shapes = Shapes.of(table, is_tidb=True)
    assert shapes.heads[Form.UPDATE].startswith(b"REPLACE" if is_replaced else b"INSERT")
    assert shapes.tails[Form.UPDATE].endswith(value)
    assert b"CAST(VALUES(`e`) AS UNSIGNED)" in Shapes.of(table).tails[Form.UPDATE]


@pytest.mark.parametrize(("zone", "expected"), [("+05:30", "2026-01-01 17:30:00"), ("", "2026-01-01 12:00:00")])
def test_a_column_is_converted_in_the_time_zone_of_who_typed_it(upstream: Upstream, zone: str, expected: str) -> None:
    """A TiDB fills the new column by itself, and no change tells its rows what the upstream's have become."""
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY, at TIMESTAMP NULL)")
    upstream.select("INSERT INTO ddls.t VALUES (1, CONVERT_TZ('2026-01-01 12:00:00', '+00:00', @@time_zone))")
    before, after = (
        table_of(column("id", ColumnType.LONG, KEY), replace(column("at", kind), id=number), schema="ddls", name="t")
        for number, kind in ((2, ColumnType.TIMESTAMP), (3, ColumnType.DATETIME))
    )
    change = event("alter table t modify at datetime", ActionType.MODIFY_COLUMN, 1, after, pre_table_info=before)
    carry(upstream, replace(change, time_zone=zone))
    assert [str(at) for (at,) in upstream.select("SELECT at FROM ddls.t")] == [expected]


@pytest.mark.parametrize(("modes", "expected"), [((), "double"), (("REAL_AS_FLOAT", "PIPES_AS_CONCAT"), "float")])
def test_a_ddl_means_what_it_meant_under_its_sql_mode(
    upstream: Upstream, modes: tuple[str, ...], expected: str
) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    after = table_of(column("id", ColumnType.LONG, KEY), column("r", ColumnType.FLOAT), schema="ddls", name="t")
    change = event("alter table t add column r real", ActionType.ADD_COLUMN, 1, after)
    carry(upstream, replace(change, sql_modes=modes))
    other = event("alter table t add column s real", ActionType.ADD_COLUMN, 2, after)  # the next is as it was
    carry(upstream, other)
    found = upstream.select(
        "SELECT data_type FROM information_schema.columns WHERE table_schema = 'ddls' AND table_name = 't' AND "
        "column_name IN ('r', 's') ORDER BY column_name"
    )
    assert found == [(expected,), ("double",)]


def test_an_unsigned_number_less_a_larger_one_is_a_value_that_a_lenient_session_takes() -> None:
    """Of a generated column ``u - 10`` a TiDB says 1690, but under NO_UNSIGNED_SUBTRACTION, as it was upstream."""
    said = "BIGINT UNSIGNED value is out of range in '(shop.t.u - 10)'"
    assert failures.is_about_a_value(pymysql.err.DataError(1690, said))
    settings = SessionSettings(parse_mysql_uri("tidb://root@127.0.0.1:4000/"), is_for_rows=True)
    assert "NO_UNSIGNED_SUBTRACTION" in mode_statement(settings, is_lenient=True)
    assert "NO_UNSIGNED_SUBTRACTION" not in mode_statement(settings, is_lenient=False)


def test_partitions_have_the_bounds_that_were_understood(upstream: Upstream) -> None:
    """``unix_timestamp('…')`` is another number in another time zone, and two kinds of jobs do not tell in which."""
    after = replace(table_of(column("at", ColumnType.TIMESTAMP, KEY), schema="ddls", name="t"))
    bounds = {"p0": 1577804400, "p1": 1609426800}
    query = (
        "create table t (at timestamp primary key) partition by range (unix_timestamp(at)) (partition p0 values less "
        "than (unix_timestamp('2020-01-01')));"
    )
    added = "alter table t add partition (partition p1 values less than (unix_timestamp('2021-01-01')))"
    before = replace(after, partitions=(PartitionInfo(1, "p0"),))
    for number, (kind, text, pre) in enumerate(
        [(ActionType.CREATE_TABLE, query, None), (ActionType.ADD_TABLE_PARTITION, added, before)], 1
    ):
        parts = ",\n ".join(f"PARTITION `{p}` VALUES LESS THAN ({n})" for p, n in [*bounds.items()][:number])
        creation = (
            "CREATE TABLE `ddls`.`t` (\n  `at` timestamp NOT NULL,\n  PRIMARY KEY (`at`)\n)\nPARTITION BY RANGE "
            f"(UNIX_TIMESTAMP(`at`))\n({parts})"
        )
        carry(upstream, event(text, kind, number, after, creation=creation, pre_table_info=pre))
    found = upstream.select(
        "SELECT partition_name, partition_description FROM information_schema.partitions WHERE table_schema = 'ddls' "
        "AND table_name = 't' ORDER BY partition_ordinal_position"
    )
    assert [(name, int(bound)) for name, bound in found] == [*bounds.items()]
