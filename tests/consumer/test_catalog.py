"""Tables made of the DDLs in a topic: against what TiDB itself says of them, for every DDL of the real histories."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.flow.encoder.samples import KEY, column, table_of
from tests.flow.schema.stores import fed_store
from tidemill.consumer.catalog import Catalog
from tidemill.errors import CorruptDataError, SinkError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import DdlSeen
from tidemill.model.table import ColumnFlag, ColumnType, TableInfo
from tidemill.model.ts import Ts

FLAGS = ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY | ColumnFlag.UNSIGNED


def told(event: DdlEvent) -> DdlSeen:
    """As the open protocol tells of it."""
    return DdlSeen(event.finished_ts, event.schema, event.table, event.query, event.type)


def form(table: TableInfo) -> dict[str, Any]:
    """What sinks go by."""
    columns = [c for c in table.columns if not c.is_hidden]
    return {
        "name": (table.schema, table.name),
        "columns": [
            (c.name, c.type, c.flag & FLAGS, c.elems, c.is_binary, c.is_generated, c.is_stored) for c in columns
        ],
        "sizes": [(c.name, c.flen, c.decimal) for c in columns if c.type is ColumnType.NEWDECIMAL],
        "key": [c.name for c in table.handle_key],
    }


def ddl(catalog: Catalog, query: str, ts: int = 100, table: str = "t", type: int | None = None) -> Catalog:
    return catalog.after(DdlSeen(Ts(ts), "shop", table, query, type), 0)[1]


def only(catalog: Catalog) -> TableInfo:
    (table,) = catalog.tables.values()
    return table


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
@pytest.mark.parametrize("knows_type", [True, False], ids=["with types", "queries alone"])
def test_every_table_of_the_real_histories_is_what_tidb_made_of_it(name: str, knows_type: bool) -> None:
    _, changes = fed_store(name)
    catalog, compared = Catalog(), 0
    for event in (event for change in changes for event in change.events):
        seen = told(event) if knows_type else replace(told(event), type=None)
        mine, catalog = catalog.after(seen, event.seq)
        catalog = Catalog().loaded(orjson.loads(orjson.dumps(catalog.document)))
        if event.table_info is None or event.table_info.is_view or event.table_info.is_sequence or not event.table:
            continue
        if event.type in (ActionType.RECOVER_TABLE, ActionType.EXCHANGE_PARTITION) and not knows_type:
            continue
        assert mine.table_info is not None
        if mine.table_info.columns or event.pre_table_info is None:
            assert form(mine.table_info) == form(event.table_info), event.query
            compared += 1
    assert compared > 5


def test_columns_and_tables_keep_their_ids_through_everything_but_truncate() -> None:
    catalog = ddl(Catalog(), "create table t (id int primary key, a int, b varchar(10) default 'x')")
    before = only(catalog)
    catalog = ddl(
        catalog, "alter table t rename column a to c, modify b varchar(20), add d int default 5 after id", 200
    )
    after = only(catalog)
    ids = {c.name: c.id for c in before.columns}
    assert [(c.name, c.origin_default) for c in after.columns] == [("id", None), ("d", "5"), ("c", None), ("b", None)]
    assert {c.name: c.id for c in after.columns} == {
        "id": ids["id"],
        "d": after.columns[1].id,
        "c": ids["a"],
        "b": ids["b"],
    }
    assert (after.id, after.version_ts) == (before.id, 200)
    catalog = ddl(catalog, "rename table t to shop.u", 300, "u")
    assert (only(catalog).name, only(catalog).id) == ("u", before.id)
    catalog = ddl(catalog, "truncate table u", 400, "u")
    assert only(catalog).id != before.id
    assert [c.id for c in only(catalog).columns] == [c.id for c in after.columns]
    assert ddl(catalog, "drop database shop", 500, "").tables == {}


def test_a_table_that_no_ddl_told_of_is_what_its_rows_say() -> None:
    seen = table_of(column("id", ColumnType.LONGLONG, KEY), column("d", ColumnType.NEWDECIMAL), name="t")
    table, catalog = Catalog().form_of(seen, Ts(70))
    assert (table.version_ts, [c.name for c in table.handle_key]) == (69, ["id"])
    assert table.columns[1].flen == 65  # its text holds any
    assert catalog.form_of(seen, Ts(90)) == (table, catalog)
    wider = ddl(catalog, "alter table t add w int", 100)
    assert [c.name for c in only(wider).columns] == ["id", "d", "w"]


def test_elements_that_nobody_tells_are_refused_where_they_are_needed() -> None:
    seen = table_of(column("id", ColumnType.LONGLONG, KEY), column("e", ColumnType.ENUM), name="t")
    assert Catalog().form_of(seen, Ts(70))[0].columns[1].type is ColumnType.ENUM
    with pytest.raises(CorruptDataError, match=r"column .e. of table shop\.t is an ENUM"):
        Catalog(needs_elements=True).form_of(seen, Ts(70))


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("alter table t add column at timestamp default current_timestamp", "computed upstream"),
        ("alter table t truncate partition p0", "messages do not say which"),
        ("alter table t drop partition p0", "messages do not say which"),
    ],
)
def test_what_no_row_tells_of_is_refused_by_sinks_that_keep_every_moment(query: str, why: str) -> None:
    made = "create table t (id int primary key)"
    ddl(ddl(Catalog(), made), query)
    with pytest.raises(SinkError, match=why):
        ddl(ddl(Catalog(sees_rows_alone=True), made), query)


def test_several_unique_keys_are_seen_in_the_statement() -> None:
    here = [("shop", "t")]
    assert not ddl(Catalog(), "create table t (id int primary key, u int, key (u))").has_several_keys(here)
    made = ddl(Catalog(), "create table t (id int primary key, u int, unique key (u))")
    assert made.has_several_keys(here)
    assert not made.has_several_keys([("shop", "other")])
    added = ddl(ddl(Catalog(), "create table t (id int primary key, u int)"), "create unique index i on t (u)", 200)
    assert added.has_several_keys(here)
