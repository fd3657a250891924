"""DDLs as messages tell of them."""

import pytest

from tidemill.consumer.ddl import event_of, kind_of
from tidemill.model.ddl import ActionType
from tidemill.model.event import DdlSeen
from tidemill.model.ts import Ts


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("create database shop", ActionType.CREATE_SCHEMA),
        ("DROP SCHEMA IF EXISTS shop", ActionType.DROP_SCHEMA),
        ("CREATE TABLE `t` (id INT)", ActionType.CREATE_TABLE),
        ("/* note */ drop table t", ActionType.DROP_TABLE),
        ("truncate t", ActionType.TRUNCATE_TABLE),
        ("rename table a to b", ActionType.RENAME_TABLE),
        ("create or replace view v as select 1", ActionType.CREATE_VIEW),
        ("create unique index i on t (a)", ActionType.ADD_INDEX),
        ("alter table t add column c int", ActionType.NONE),
        ("", ActionType.NONE),
        ("'", ActionType.NONE),
    ],
)
def test_the_kind_of_a_statement(query: str, kind: ActionType) -> None:
    assert kind_of(query) == kind


def test_a_kind_that_the_message_tells_is_believed() -> None:
    seen = DdlSeen(Ts(9), "shop", "t", "alter table t partition by hash (id)", int(ActionType.ALTER_TABLE_PARTITIONING))
    event = event_of(seen, 2)
    assert (event.type, event.seq, event.finished_ts) == (ActionType.ALTER_TABLE_PARTITIONING, 2, 9)


def test_a_table_made_like_another_is_told() -> None:
    assert event_of(DdlSeen(Ts(9), "shop", "b", "create table b like a"), 0).is_like
