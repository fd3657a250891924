"""What single jobs do to the store, one small case each."""

from typing import Any

import pytest

from tests.flow.schema.builders import SHOP, column, database, gone, index, job, store_with, table
from tidemill.errors import SchemaError
from tidemill.flow.schema import Absent, Followed, SchemaStore
from tidemill.model.ddl import ActionType
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import JobState, SchemaState

RUNNING = JobState.RUNNING


def spans(store: SchemaStore) -> list[tuple[int, int, int | None]]:
    return [(f.physical_id, f.since_ts, f.until_ts) for f in store.followed()]


def name_at(store: SchemaStore, physical_id: int, commit_ts: int) -> str | Absent:
    found = store.lookup(physical_id, commit_ts)
    return found.full_name if isinstance(found, TableInfo) else found


def test_a_row_committed_at_finished_ts_belongs_to_the_schema_before() -> None:
    store = store_with(table(7, "t"))
    wider = table(7, "t", cols=[column(1, "id", flag=3), column(2, "v")])
    (change,) = store.apply([job(20, 50, ActionType.ADD_COLUMN, table_id=7, after=wider, query="add v")])
    assert [(e.query, e.finished_ts, e.start_ts) for e in change.events] == [("add v", 20, 19)]
    assert [len(store.table(7, ts).columns) for ts in (11, 20, 21, 99)] == [1, 1, 2, 2]  # type: ignore[union-attr]
    assert [store.table(7, ts).version_ts for ts in (20, 21)] == [10, 20]  # type: ignore[union-attr]
    assert spans(store) == [(7, 10, None)]


def test_what_a_snapshot_holds_already_is_not_applied_again() -> None:
    store = store_with(table(7, "t"), ts=20)
    assert store.apply([job(20, 50, ActionType.DROP_TABLE, table_id=7, after=table(7, "t"))]) == []
    assert store.apply([job(19, 49, ActionType.DROP_TABLE, table_id=7, after=table(7, "t"))]) == []
    assert spans(store) == [(7, 20, None)]


def test_a_second_delivery_changes_nothing() -> None:
    store = store_with(table(7, "t"))
    changes = [
        job(20, 50, ActionType.TRUNCATE_TABLE, table_id=7, after=table(8, "t")),
        gone(25, 50),
        job(30, 51, ActionType.DROP_TABLE, table_id=8, after=table(8, "t")),
    ]
    assert len(store.apply(changes)) == 2
    before = spans(store)
    assert store.apply(changes) == []
    assert spans(store) == before == [(7, 10, 20), (8, 20, 30)]


@pytest.mark.parametrize("state", [JobState.QUEUEING, JobState.ROLLBACK_DONE, JobState.CANCELLED, JobState.SYNCED])
def test_only_done_jobs_change_tables(state: int) -> None:
    store = store_with(table(7, "t"))
    assert store.apply([job(20, 50, ActionType.DROP_TABLE, state=state, table_id=7, after=table(7, "t"))]) == []
    assert name_at(store, 7, 21) == "shop.t"


def test_a_job_that_changed_nothing_is_passed_over() -> None:
    store = store_with(table(7, "t"))
    assert store.apply([job(20, 50, ActionType.ADD_COLUMN, table_id=7, after=table(7, "t"), version=0)]) == []


def test_kinds_that_stay_upstream_are_no_barrier_unless_the_table_changes() -> None:
    store = store_with(table(7, "t"))
    assert store.apply([job(20, 50, ActionType.CACHE_TABLE, table_id=7, after=table(7, "t"))]) == []
    wider = table(7, "t", cols=[column(1, "id", flag=3), column(2, "v")])
    (change,) = store.apply([job(30, 51, 222, table_id=7, after=wider)])
    assert (change.finished_ts, change.events) == (30, ())
    assert len(store.table(7, 31).columns) == 2  # type: ignore[union-attr]


def test_system_schemas_are_not_seen_whatever_happens_in_them() -> None:
    store = store_with(schemas={1: "mysql"})
    changes = [
        job(20, 50, ActionType.CREATE_TABLE, schema_id=1, table_id=9, after=table(9, "user2")),
        job(30, 51, ActionType.CREATE_SCHEMA, schema_id=3, db=database(3, "tidb_cdc")),
        job(40, 52, ActionType.CREATE_TABLE, schema_id=3, table_id=12, after=table(12, "syncpoint")),
    ]
    assert store.apply(changes) == []
    assert store.lookup(9, 21) is store.lookup(12, 41) is Absent.UNKNOWN


def test_merged_create_tables_become_one_event_each() -> None:
    store = store_with()
    text = "create table a (s char(1) default ';'); create table b (id int primary key);"
    (change,) = store.apply([job(20, 50, ActionType.CREATE_TABLES, many=[table(7, "a"), table(8, "b")], query=text)])
    assert [(e.seq, e.type, e.job_type, e.table, e.query) for e in change.events] == [
        (0, ActionType.CREATE_TABLE, ActionType.CREATE_TABLES, "a", "create table a (s char(1) default ';');"),
        (1, ActionType.CREATE_TABLE, ActionType.CREATE_TABLES, "b", "create table b (id int primary key);"),
    ]
    assert spans(store) == [(7, 20, None), (8, 20, None)]


def test_a_table_that_is_there_already_is_not_created_again() -> None:
    store = store_with(table(7, "a"))
    assert store.apply([job(20, 50, ActionType.CREATE_TABLE, table_id=7, after=table(7, "a"))]) == []
    (change,) = store.apply([job(30, 51, ActionType.CREATE_TABLES, many=[table(7, "a"), table(8, "b")], query="x")])
    assert [e.table for e in change.events] == ["b"]


def test_dropping_a_database_drops_its_tables_and_no_others() -> None:
    store = store_with(table(7, "a"), table(8, "b", partitions={81: "p0", 82: "p1"}), schemas={3: "other"})
    store.apply([job(15, 50, ActionType.CREATE_TABLE, schema_id=3, table_id=9, after=table(9, "c"))])
    (change,) = store.apply(
        [job(20, 51, ActionType.DROP_SCHEMA, db=database(SHOP, "shop"), query="drop database shop")]
    )
    assert [(e.schema, e.table, e.table_info) for e in change.events] == [("shop", "", None)]
    assert {(f.physical_id, f.until_ts) for f in change.ended} == {(7, 20), (81, 20), (82, 20)}
    assert [name_at(store, i, 21) for i in (7, 81, 82, 9)] == [Absent.DROPPED] * 3 + ["other.c"]


def test_a_recovered_database_is_followed_again() -> None:
    store = store_with(table(7, "a"))
    recover = {"recover_info": {"RecoverTableInfos": [{"TableInfo": table(7, "a")}]}}
    store.apply([job(20, 50, ActionType.DROP_SCHEMA, db=database(SHOP, "shop"))])
    (change,) = store.apply([job(30, 51, ActionType.RECOVER_SCHEMA, db=database(SHOP, "shop"), args=recover)])
    assert [(e.type, e.table, e.seq) for e in change.events] == [
        (ActionType.CREATE_SCHEMA, "", 0),
        (ActionType.RECOVER_TABLE, "a", 1),
    ]
    assert change.events[0].query == "CREATE DATABASE `shop` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    assert change.events[1].creation.startswith("CREATE TABLE `a` (")
    assert spans(store) == [(7, 10, 20), (7, 30, None)]
    assert [name_at(store, 7, ts) for ts in (20, 30, 31)] == ["shop.a", Absent.DROPPED, "shop.a"]


def test_a_recovered_database_has_its_views_again() -> None:
    """Their columns have no types; a sequence is nothing to replicate."""
    untyped = column(1, "x`y") | {"type": {**column(1, "x")["type"], "Tp": 0}}
    view = table(8, "v", pk_is_handle=False, cols=[untyped], view={"view_select": "SELECT `a`.`id` FROM `shop`.`a`"})
    sequence = table(9, "s", pk_is_handle=False, cols=[], sequence={"sequence_start": 1})
    listed = [{"TableInfo": each} for each in (view, sequence, table(7, "a"))]
    recover = {"recover_info": {"RecoverTableInfos": listed}}
    (change,) = store_with().apply([job(30, 51, ActionType.RECOVER_SCHEMA, db=database(9, "shop2"), args=recover)])
    assert [(e.type, e.table) for e in change.events] == [
        (ActionType.CREATE_SCHEMA, ""),
        (ActionType.RECOVER_TABLE, "a"),
        (ActionType.CREATE_VIEW, "v"),
    ]
    assert change.events[2].query == "CREATE OR REPLACE VIEW `shop2`.`v` (`x``y`) AS SELECT `a`.`id` FROM `shop`.`a`"


LATER = {"recover_info": {"RecoverTableInfos": None, "LoadTablesOnExecute": True}}


def test_a_recovered_database_whose_tables_are_not_listed_has_those_that_it_was_dropped_with() -> None:
    store = store_with(table(7, "a"))
    store.apply([job(20, 50, ActionType.DROP_SCHEMA, db=database(SHOP, "shop"))])
    (change,) = store.apply([job(30, 51, ActionType.RECOVER_SCHEMA, db=database(SHOP, "shop2"), args=LATER)])
    assert [(e.schema, e.table, e.query) for e in change.events[1:]] == [("shop2", "a", "RECOVER TABLE `shop2`.`a`")]
    assert [name_at(store, 7, ts) for ts in (20, 30, 31)] == ["shop.a", Absent.DROPPED, "shop2.a"]


def test_a_recovered_database_that_was_never_known_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"brought back database 'old', which was dropped before"):
        store_with().apply([job(30, 51, ActionType.RECOVER_SCHEMA, db=database(9, "old"), args=LATER)])


def test_a_rename_moves_all_partitions_and_keeps_the_case_of_names() -> None:
    store = store_with(table(7, "Old", partitions={71: "p0", 72: "p1"}), schemas={3: "Other"})
    args = {"old_schema_id": SHOP, "new_table_name": {"O": "New", "L": "new"}}
    after = table(7, "New", partitions={71: "p0", 72: "p1"})
    (change,) = store.apply([job(20, 50, ActionType.RENAME_TABLE, schema_id=3, table_id=7, args=args, after=after)])
    (event,) = change.events
    assert (event.pre_schema, event.pre_table, event.schema, event.table) == ("shop", "Old", "Other", "New")
    for physical_id in (71, 72):
        assert [name_at(store, physical_id, ts) for ts in (20, 21)] == ["shop.Old", "Other.New"]
    assert (change.started, change.ended) == ((), ())


def test_replacing_a_view_lets_the_old_one_go() -> None:
    view = {"view": {"view_select": "select 1"}}
    store = store_with(table(7, "v", **view))
    args = {"on_exist_replace": True, "old_view_tbl_id": 7}
    (change,) = store.apply([job(20, 50, ActionType.CREATE_VIEW, table_id=8, args=args, after=table(8, "v", **view))])
    assert [e.table for e in change.events] == ["v"]
    assert change.events[0].creation == "CREATE OR REPLACE VIEW `shop`.`v` (`id`) AS select 1"
    assert store.lookup(7, 21) is Absent.DROPPED
    assert store.lookup(8, 21) is Absent.INELIGIBLE
    (change,) = store.apply([job(30, 51, ActionType.DROP_VIEW, table_id=8, after=table(8, "v", **view))])
    assert [e.query for e in change.events] == ["DROP VIEW `shop`.`v`"]


def test_a_table_is_followed_exactly_while_it_is_eligible() -> None:
    keyless = table(7, "t", pk_is_handle=False, cols=[column(1, "id", flag=1)])
    keyed = keyless | {"index_info": [index(1, "u", [0], is_unique=True)]}
    store = store_with(keyless)
    store.apply(
        [
            job(20, 50, ActionType.ADD_INDEX, table_id=7, after=keyed),
            job(30, 51, ActionType.DROP_INDEX, table_id=7, after=keyless),
            job(40, 52, ActionType.ADD_INDEX, table_id=7, after=keyed),
        ]
    )
    assert spans(store) == [(7, 20, 30), (7, 40, None)]
    assert [name_at(store, 7, ts) for ts in (20, 21, 30, 31)] == [
        Absent.INELIGIBLE,
        "shop.t",
        "shop.t",
        Absent.INELIGIBLE,
    ]


def test_exchange_swaps_the_ids_of_a_partition_and_a_table() -> None:
    store = store_with(table(7, "pt", partitions={71: "p0", 72: "p1"}), table(8, "plain"))
    args = {"partition_id": 72, "pt_schema_id": SHOP, "pt_table_id": 7, "partition_name": "p1"}
    after = table(7, "pt", partitions={71: "p0", 8: "p1"})
    (change,) = store.apply([job(20, 50, ActionType.EXCHANGE_PARTITION, table_id=8, args=args, after=after)])
    (event,) = change.events
    assert event.query == "ALTER TABLE `shop`.`pt` EXCHANGE PARTITION `p1` WITH TABLE `shop`.`plain` WITHOUT VALIDATION"
    assert (event.table, event.pre_table) == ("pt", "plain")
    assert [name_at(store, 72, ts) for ts in (20, 21)] == ["shop.pt", "shop.plain"]
    assert [name_at(store, 8, ts) for ts in (20, 21)] == ["shop.plain", "shop.pt"]
    assert (change.started, change.ended) == ((), ())
    # The plain table is known by its new id from here on.
    (change,) = store.apply([job(30, 51, ActionType.DROP_TABLE, table_id=72, after=table(72, "plain"))])
    assert [f.physical_id for f in change.ended] == [72]


COPY_ARGS: dict[str, Any] = {
    "part_names": ["pfulltable"],
    "part_info": {"definitions": [{"id": 71}, {"id": 72}]},
}


def copying(commit_ts: int, schema_state: int, state: int = RUNNING) -> Any:
    return job(
        commit_ts,
        50,
        ActionType.ALTER_TABLE_PARTITIONING,
        state=state,
        schema_state=schema_state,
        table_id=7,
        args=COPY_ARGS,
        start_ts=12,
    )


def test_copied_rows_are_ignored_and_ids_switch_at_delete_reorg() -> None:
    store = store_with(table(7, "t"))
    quiet = [copying(20 + state, state) for state in (1, 2, 3)]
    assert store.apply(quiet) == []
    (switch,) = store.apply([copying(30, SchemaState.DELETE_REORG)])
    assert (switch.finished_ts, switch.events) == (30, ())
    assert {f.physical_id for f in switch.started} == {71, 72}
    assert store.apply([copying(35, SchemaState.PUBLIC)]) == []
    after = table(9, "t", partitions={71: "p0", 72: "p1"})
    (done,) = store.apply([job(40, 50, ActionType.ALTER_TABLE_PARTITIONING, table_id=7, after=after, schema_state=0)])
    assert (done.visible_ts, done.started, done.ended) == (30, (), ())
    assert spans(store) == [(7, 10, 30), (71, 30, None), (72, 30, None)]
    before, inside = store.table(7, 30), store.table(71, 40)
    assert before is inside
    assert store.table(71, 41).id == 9  # type: ignore[union-attr]
    assert store.lookup(71, 30) is Absent.UNKNOWN
    assert store.lookup(7, 41) is Absent.DROPPED


def test_a_switch_that_is_rolled_back_returns_to_the_old_ids() -> None:
    store = store_with(table(7, "t"))
    store.apply([copying(30, SchemaState.DELETE_REORG)])
    (back,) = store.apply([copying(35, SchemaState.DELETE_REORG, JobState.ROLLING_BACK)])
    assert [f.physical_id for f in back.started] == [7]
    assert store.apply([copying(37, SchemaState.NONE, JobState.ROLLBACK_DONE), gone(38, 50)]) == []
    assert spans(store) == [(7, 10, 30), (7, 35, None), (71, 30, 35), (72, 30, 35)]
    assert store.lookup(71, 36) is Absent.DROPPED


def test_reorganize_switches_only_the_partitions_it_names() -> None:
    store = store_with(table(7, "t", partitions={71: "P0", 72: "p1", 73: "p2"}))
    args = {"part_names": ["p0", "p1"], "part_info": {"definitions": [{"id": 74}]}}
    kind, state = ActionType.REORGANIZE_PARTITION, SchemaState.DELETE_REORG
    store.apply([job(20, 50, kind, state=RUNNING, schema_state=state, table_id=7, args=args, start_ts=12)])
    store.apply([job(30, 50, kind, table_id=7, after=table(7, "t", partitions={74: "p01", 73: "p2"}))])
    assert spans(store) == [(71, 10, 20), (72, 10, 20), (73, 10, None), (74, 20, None)]


def test_a_dropped_partition_is_followed_until_the_job_is_done() -> None:
    store = store_with(table(7, "t", partitions={71: "p0", 72: "p1"}))
    kind, args = ActionType.DROP_TABLE_PARTITION, {"part_names": ["p0"]}
    for ts, state in ((20, SchemaState.WRITE_ONLY), (22, SchemaState.DELETE_ONLY), (24, SchemaState.DELETE_REORG)):
        assert (
            store.apply([job(ts, 50, kind, state=RUNNING, schema_state=state, table_id=7, args=args, start_ts=12)])
            == []
        )
    (done,) = store.apply([job(30, 50, kind, table_id=7, after=table(7, "t", partitions={72: "p1"}))])
    assert done.visible_ts == 20
    assert spans(store) == [(71, 10, 30), (72, 10, None)]


def test_rows_written_into_a_truncated_partition_come_after_the_truncation() -> None:
    store = store_with(table(7, "t", partitions={71: "p0", 72: "p1"}))
    kind, args = ActionType.TRUNCATE_TABLE_PARTITION, {"old_partition_ids": [71], "new_partition_ids": [73]}
    step: dict[str, Any] = {"state": RUNNING, "table_id": 7, "args": args, "start_ts": 15}
    assert store.apply([job(20, 50, kind, schema_state=SchemaState.WRITE_ONLY, **step)]) == []
    (switch,) = store.apply([job(22, 50, kind, schema_state=SchemaState.DELETE_ONLY, **step)])
    (pending,) = switch.started
    assert pending == Followed(73, Ts(15))
    assert pending.rows_of(20, 25) is None
    after = table(7, "t", partitions={73: "p0", 72: "p1"})
    (done,) = store.apply([job(30, 50, kind, table_id=7, args={"old_partition_ids": [71]}, after=after, start_ts=15)])
    (begun,) = done.started
    assert begun == Followed(73, Ts(15), begin_ts=Ts(30))
    assert begun.rows_of(20, 30) is None
    assert begun.rows_of(30, 40) == (15, 40)
    assert begun.rows_of(40, 50) == (40, 50)
    assert spans(store) == [(71, 10, 30), (72, 10, None), (73, 15, None)]
    assert name_at(store, 73, 25) == "shop.t"


@pytest.mark.parametrize(
    ("old_ids", "after", "queries", "started"),
    [
        pytest.param([61], {71: "p0", 72: "p1"}, [], [], id="all have new ids: nothing was truncated"),
        pytest.param(
            [61, 72], {71: "p0", 82: "p1"}, ["ALTER TABLE `shop`.`t` TRUNCATE PARTITION `p1`"], [82], id="one has"
        ),
        pytest.param([71, 72], {81: "p0", 82: "p1"}, ["alter table t truncate partition all"], [81, 82], id="none has"),
    ],
)
def test_partitions_that_got_new_ids_while_their_truncation_waited_are_not_truncated(
    old_ids: list[int], after: dict[int, str], queries: list[str], started: list[int]
) -> None:
    """TiDB looks ids up when the statement comes, and leaves alone those that another job has replaced by its turn."""
    store = store_with(table(7, "t", partitions={71: "p0", 72: "p1"}))
    kind, query = ActionType.TRUNCATE_TABLE_PARTITION, "alter table t truncate partition all"
    args = {"old_partition_ids": old_ids, "new_partition_ids": [81, 82][-len(old_ids) :]}
    step: dict[str, Any] = {"table_id": 7, "start_ts": 15, "query": query}
    store.apply([job(22, 83, kind, state=RUNNING, schema_state=SchemaState.DELETE_ONLY, args=args, **step)])
    gone: dict[str, Any] = {"args": {"old_partition_ids": old_ids}, "after": table(7, "t", partitions=after)}
    (done,) = store.apply([job(30, 83, kind, **step, **gone)])
    assert [event.query for event in done.events] == queries
    assert [f.physical_id for f in done.started] == started
    assert sorted(f.physical_id for f in store.followed() if f.until_ts is None) == sorted(after)


def test_what_a_neighbour_took_of_a_dropped_range_comes_again_behind_the_drop() -> None:
    """Downstream those rows went into the old table partition, and so went with it."""
    store = store_with(table(7, "t", partitions={71: "p0", 72: "p1", 73: "p2", 74: "p3", 75: "p4"}))
    kind, after = ActionType.DROP_TABLE_PARTITION, table(7, "t", partitions={71: "p0", 74: "p3", 75: "p4"})
    step: dict[str, Any] = {"table_id": 7, "args": {"old_partition_ids": [72, 73]}, "start_ts": 15}
    assert store.apply([job(20, 50, kind, state=RUNNING, schema_state=SchemaState.DELETE_ONLY, **step)]) == []
    assert store.replayed() == []
    store.apply([job(30, 50, kind, after=after, **step)])
    assert store.replayed() == [Followed(74, Ts(15), Ts(30), Ts(30))]
    assert (74, 10, None) in spans(store)
    store.gc(Ts(30))
    assert len(store.replayed()) == 1  # the batch behind it has not gone out
    store.gc(Ts(31))
    assert store.replayed() == []


@pytest.mark.parametrize(
    ("values", "replayed"),
    [
        pytest.param({71: [["1"]], 72: [["2"]], 73: [["DEFAULT"]]}, [73], id="the default takes what is homeless"),
        pytest.param({71: [["1"]], 72: [["2"]], 73: [["3"]]}, [], id="without a default nobody does"),
    ],
)
def test_of_a_dropped_list_only_the_default_takes_rows(values: dict[int, Any], replayed: list[int]) -> None:
    def listed(ids: list[int]) -> dict[str, Any]:
        document = table(7, "t", partitions={i: f"p{i}" for i in ids})
        for definition in document["partition"]["definitions"]:
            definition["in_values"] = values[definition["id"]]
        document["partition"]["type"] = 3
        return document

    store = store_with(listed([71, 72, 73]))
    store.apply([job(30, 50, ActionType.DROP_TABLE_PARTITION, table_id=7, start_ts=15, after=listed([72, 73]))])
    assert [f.physical_id for f in store.replayed()] == replayed


@pytest.mark.parametrize(
    ("followed", "batch", "rows"),
    [
        pytest.param(Followed(7, Ts(10), begin_ts=Ts(10)), (5, 10), None, id="before it starts"),
        pytest.param(Followed(7, Ts(10), begin_ts=Ts(10)), (10, 20), (10, 20), id="from its start"),
        pytest.param(Followed(7, Ts(10), Ts(15), Ts(10)), (10, 20), (10, 15), id="up to its end"),
        pytest.param(Followed(7, Ts(10), Ts(15), Ts(10)), (15, 20), None, id="after its end"),
    ],
)
def test_a_batch_takes_the_rows_inside_the_interval(
    followed: Followed, batch: tuple[int, int], rows: tuple[int, int] | None
) -> None:
    assert followed.rows_of(*batch) == rows


def test_an_interval_is_open_at_its_start_and_closed_at_its_end() -> None:
    closed = Followed(7, Ts(10), Ts(15), Ts(10))
    assert [ts in closed for ts in (10, 11, 15, 16)] == [False, True, True, False]
    assert 1 << 63 in Followed(7, Ts(10), begin_ts=Ts(10))


def test_a_multi_schema_change_tells_when_its_first_clause_was_visible() -> None:
    store = store_with(table(7, "t"))
    add, drop = int(ActionType.ADD_COLUMN), int(ActionType.DROP_COLUMN)

    def clauses(*states: tuple[int, int, int]) -> dict[str, Any]:
        return {"multi_schema_info": {"sub_jobs": [{"type": t, "state": s, "schema_state": ss} for t, s, ss in states]}}

    kind = ActionType.MULTI_SCHEMA_CHANGE
    step: dict[str, Any] = {"state": RUNNING, "schema_state": 0, "table_id": 7, "start_ts": 15}
    store.apply(
        [
            job(20, 50, kind, **step, **clauses((add, 1, 3), (drop, 8, 5))),
            job(22, 50, kind, **step, **clauses((add, 1, 3), (drop, 1, 5))),
            job(24, 50, kind, **step, **clauses((add, 4, 5), (drop, 1, 2))),
            job(26, 50, kind, **step, **clauses((add, 4, 5), (drop, 4, 0))),
        ]
    )
    (done,) = store.apply([job(30, 50, kind, table_id=7, after=table(7, "t"), schema_state=0)])
    assert done.visible_ts == 24


def test_old_versions_are_forgotten_but_for_the_newest() -> None:
    store = store_with(table(7, "t"), table(8, "u"))
    wider = table(7, "t", cols=[column(1, "id", flag=3), column(2, "v")])
    store.apply(
        [
            job(20, 50, ActionType.ADD_COLUMN, table_id=7, after=wider),
            job(30, 51, ActionType.DROP_TABLE, table_id=8, after=table(8, "u")),
            job(40, 52, ActionType.DROP_COLUMN, table_id=7, after=table(7, "t")),
        ]
    )
    store.gc(Ts(30))
    assert [len(store.table(7, ts).columns) for ts in (31, 40, 41)] == [2, 2, 1]  # type: ignore[union-attr]
    assert store.lookup(8, 31) is Absent.UNKNOWN
    assert spans(store) == [(7, 10, None)]
    with pytest.raises(SchemaError, match="at and below 30 are gone"):
        store.lookup(7, 30)
    # Delivered once more after that, they still change nothing.
    assert store.apply([job(30, 51, ActionType.DROP_TABLE, table_id=8, after=table(8, "u"))]) == []


def test_versions_survive_a_restart() -> None:
    store = store_with(table(7, "t"), table(8, "u"))
    store.apply([job(20, 50, ActionType.MODIFY_TABLE_COMMENT, table_id=7, after=table(7, "t"))])
    assert (store.versions(19), store.versions(20)) == ({}, {7: 20})


def test_turning_the_cluster_back_stops_the_changefeed() -> None:
    with pytest.raises(SchemaError, match="turned the whole cluster back"):
        store_with().apply([job(20, 50, ActionType.FLASHBACK_CLUSTER)])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(job(20, 50, ActionType.ADD_COLUMN, table_id=99, after=table(99, "x")), id="an unknown table"),
        pytest.param(job(20, 50, ActionType.CREATE_TABLE, schema_id=9, after=table(99, "x")), id="an unknown database"),
        pytest.param(job(20, 50, ActionType.DROP_TABLE, table_id=99), id="a table dropped twice"),
        pytest.param(job(20, 50, ActionType.CREATE_TABLE, table_id=99), id="no document"),
        pytest.param(job(20, 50, ActionType.CREATE_SCHEMA, schema_id=9), id="no database"),
    ],
)
def test_a_job_that_cannot_be_followed_is_an_error_that_names_it(change: Any) -> None:
    with pytest.raises(SchemaError, match="DDL job 50"):
        store_with(table(7, "t")).apply([change])
