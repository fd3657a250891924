"""Which tables are captured, and what becomes of a DDL."""

from dataclasses import replace
from typing import Any

import pytest

from tests.flow.encoder.samples import KEY, column, table_of
from tidemill.errors import FilterError
from tidemill.flow.filter import DdlFilter, TableFilter, Verdict
from tidemill.flow.filter.events import DDLS
from tidemill.flow.schema.effects import REPLICATED, SYSTEM_SCHEMAS
from tidemill.model.changefeed import ChangefeedConfig, EventFilter
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

KEYED = table_of(column("id", ColumnType.LONG, KEY))
KEYLESS = table_of(column("a", ColumnType.LONG), name="heap")
NORMAL, IGNORED, DISCARDED = Verdict.NORMAL, Verdict.IGNORED, Verdict.DISCARDED


@pytest.mark.parametrize("schema", sorted(SYSTEM_SCHEMAS))
def test_system_databases_are_always_out(schema: str) -> None:
    found = TableFilter(ChangefeedConfig(rules=("*.*", f"{schema}.*")))
    assert not found.matches(schema.upper(), "t")
    assert not found.matches_schema(schema)


def test_tables_whose_rows_cannot_be_told_apart_are_captured_only_by_force() -> None:
    plain, forced = TableFilter(ChangefeedConfig()), TableFilter(ChangefeedConfig(force_replicate=True))
    assert [plain.captures(t) for t in (KEYED, KEYLESS)] == [True, False]
    assert [forced.captures(t) for t in (KEYED, KEYLESS)] == [True, True]
    assert not forced.captures(replace(KEYED, is_view=True))
    assert not forced.captures(replace(KEYED, is_sequence=True))
    assert not TableFilter(ChangefeedConfig(rules=("other.*",))).captures(KEYED)


def test_such_tables_are_named_at_the_start() -> None:
    tables = [KEYED, KEYLESS, replace(KEYED, is_view=True)]
    with pytest.raises(FilterError, match=r"1 of the tables have neither .*: shop\.heap\. .*ignore-ineligible-table"):
        TableFilter(ChangefeedConfig(ignore_ineligible_table=False)).check_eligible(tables)
    for allowed in ({}, {"force_replicate": True}, {"rules": ("*.*", "!*.heap")}):
        settings: dict[str, Any] = {"ignore_ineligible_table": not allowed, **allowed}
        TableFilter(ChangefeedConfig(**settings)).check_eligible(tables)


def ddl(
    kind: int, table: str = "shop.item", query: str = "ALTER TABLE item …", before: str = "", start_ts: int = 9
) -> DdlEvent:
    (schema, _, name), (old_schema, _, old_name) = table.partition("."), before.partition(".")
    return DdlEvent(
        Ts(10), Ts(start_ts), 0, kind, kind, query, schema, name, None, old_schema, old_name or ""
    )  # fmt: skip


RENAME, EXCHANGE = ActionType.RENAME_TABLE, ActionType.EXCHANGE_PARTITION


@pytest.mark.parametrize(
    ("event", "verdict"),
    [
        pytest.param(ddl(ActionType.ADD_COLUMN), NORMAL, id="a table inside"),
        pytest.param(ddl(ActionType.ADD_COLUMN, "test.t"), DISCARDED, id="a table outside"),
        pytest.param(ddl(ActionType.CREATE_SCHEMA, "shop"), NORMAL, id="a database of which tables are inside"),
        pytest.param(ddl(ActionType.CREATE_SCHEMA, "test"), DISCARDED, id="a database of which none is"),
        pytest.param(ddl(ActionType.ADD_COLUMN, start_ts=5), DISCARDED, id="a transaction that is left out"),
        pytest.param(ddl(RENAME, "shop.b", before="shop.a"), NORMAL, id="a rename inside"),
        pytest.param(ddl(RENAME, "test.b", before="shop.a"), NORMAL, id="a rename to the outside still goes out"),
        pytest.param(ddl(RENAME, "test.b", before="test.a"), DISCARDED, id="a rename outside"),
        pytest.param(ddl(EXCHANGE, "shop.b", before="shop.a"), NORMAL, id="an exchange inside"),
        pytest.param(ddl(EXCHANGE, "test.b", before="test.a"), DISCARDED, id="an exchange outside"),
    ],
)
def test_ddls_are_judged_by_the_rules(event: DdlEvent, verdict: Verdict) -> None:
    found = DdlFilter(ChangefeedConfig(rules=("shop.*",), ignore_txn_start_ts=frozenset({5})))
    assert found.judge(event) is verdict
    assert found.keeps(event) is (verdict is NORMAL)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (ddl(RENAME, "shop.b", before="test.a"), "test.a was outside filter.rules and has become shop.b"),
        (ddl(EXCHANGE, "shop.b", before="test.a"), "shop.b and test.a exchange a partition"),
        (ddl(EXCHANGE, "test.b", before="shop.a"), "only one of them is inside"),
    ],
)
def test_rows_that_come_in_from_outside_stop_the_changefeed(event: DdlEvent, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        DdlFilter(ChangefeedConfig(rules=("shop.*",))).judge(event)


DROP_DATABASE = ddl(ActionType.DROP_SCHEMA, "shop", "DROP DATABASE shop")


@pytest.mark.parametrize(
    ("entry", "event", "verdict"),
    [
        ({"ignore_event": ("drop table",)}, ddl(ActionType.DROP_TABLE), IGNORED),
        ({"ignore_event": ("drop table",)}, ddl(ActionType.DROP_VIEW), NORMAL),
        ({"ignore_event": ("drop table",)}, ddl(ActionType.DROP_TABLE, "shop.log"), NORMAL),
        ({"ignore_event": ("all dml",)}, ddl(ActionType.DROP_TABLE), NORMAL),
        ({"ignore_event": ("all ddl",)}, ddl(ActionType.TRUNCATE_TABLE), IGNORED),
        ({"ignore_event": ("alter table",)}, ddl(ActionType.ADD_INDEX), IGNORED),
        ({"ignore_event": ("alter table",)}, ddl(ActionType.DROP_COLUMNS), IGNORED),
        ({"ignore_event": ("alter table",)}, ddl(ActionType.EXCHANGE_PARTITION, before="shop.item"), IGNORED),
        ({"ignore_event": ("alter table",)}, ddl(ActionType.TRUNCATE_TABLE), NORMAL),
        ({"ignore_event": ("create index",)}, ddl(ActionType.ADD_INDEX), IGNORED),
        ({"ignore_event": ("create database",)}, ddl(ActionType.CREATE_SCHEMA, "shop"), IGNORED),
        ({"ignore_event": ("rename table",)}, ddl(RENAME, "shop.new", before="shop.item"), IGNORED),
        ({"ignore_event": ("rename table",)}, ddl(RENAME, "shop.item", before="shop.old"), NORMAL),
        (
            {"ignore_sql": ("^drop", "add column")},
            ddl(ActionType.ADD_COLUMN, query="alter table ADD COLUMN c"),
            IGNORED,
        ),
        ({"ignore_sql": ("^drop", "add column")}, ddl(ActionType.DROP_COLUMN, query="alter table drop c"), NORMAL),
        ({"ignore_sql": ("^drop",)}, DROP_DATABASE, IGNORED),
        ({"ignore_sql": ("^drop",), "matcher": ("crm.*",)}, DROP_DATABASE, NORMAL),
    ],
)
def test_event_filters_hold_ddls_back(entry: dict[str, Any], event: DdlEvent, verdict: Verdict) -> None:
    config = ChangefeedConfig(event_filters=(EventFilter(**{"matcher": ("shop.item",), **entry}),))
    assert DdlFilter(config).judge(event) is verdict


def test_every_kind_that_goes_downstream_has_a_word() -> None:
    disguised = {ActionType.RECOVER_SCHEMA}  # goes as CREATE DATABASE and RECOVER TABLE
    assert {*REPLICATED} - disguised <= DDLS["all ddl"]
    assert DDLS["alter table"] < DDLS["all ddl"]


def test_a_pattern_that_cannot_be_read_is_refused_with_its_place() -> None:
    entry = EventFilter(("*.*",), ignore_sql=("fine", "(open"))
    with pytest.raises(
        FilterError, match=r"filter.event-filters\[0\].ignore-sql\[1\]: the regular expression '\(open'"
    ):
        DdlFilter(ChangefeedConfig(event_filters=(entry,)))
