import base64
from typing import Any

import pytest

from tests.flow.schema.builders import SHOP, column, index, job, pack, partition_by, table
from tidemill.errors import SchemaError
from tidemill.flow.schema.jobs import Job, JobRow, read_changes
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.documents import (
    Rename,
    exchange_args,
    parse_database,
    parse_table,
    partition_args,
    recovered_tables,
    rename_args,
    replaced_view_id,
    truncate_partition_args,
)


def parse(document: dict[str, Any]) -> TableInfo:
    return parse_table(pack(document), SHOP, "shop", Ts(10), document["id"])


def a_job(kind: int, args: Any, **more: Any) -> Job:
    (row,) = read_changes([job(20, 5, kind, args=args, **more)])
    assert isinstance(row, JobRow)
    return row.job


def test_only_public_columns_and_indexes_remain_and_keep_their_meaning() -> None:
    found = parse(
        table(
            7,
            "t",
            pk_is_handle=False,
            cols=[
                column(1, "gone", state=2),
                column(2, "a", flag=1),
                column(3, "coming", state=3),
                column(4, "b", flag=1),
            ],
            index_info=[
                index(1, "ab", [3, 1], is_unique=True),
                index(2, "half", [1], state=2, is_unique=True),
                index(3, "on_gone", [0, 1], is_unique=True),
            ],
        )
    )
    assert [(c.name, c.offset) for c in found.columns] == [("a", 0), ("b", 1)]
    assert [i.name for i in found.indexes] == ["ab"]
    assert [c.name for c in found.handle_key] == ["b", "a"]


def test_a_column_is_read_with_all_that_decoding_needs() -> None:
    kind = {
        "Tp": 16,
        "Flag": 33,
        "Flen": 9,
        "Decimal": -1,
        "Charset": "utf8",
        "Collate": "utf8_bin",
        "Elems": ["x", "y"],
    }
    document = column(
        3,
        "Flags",
        type=kind,
        default="\ufffd",
        default_bit=base64.b64encode(b"\x01\xff").decode(),
        origin_default="7",
        origin_default_bit=base64.b64encode(b"\x02").decode(),
        generated_expr_string="`a` + 1",
        generated_stored=True,
        hidden=True,
    )
    (found,) = parse(table(7, "t", cols=[document])).columns
    assert (found.type, found.flag, found.flen, found.decimal) == (ColumnType.BIT, 33, 9, -1)
    assert (found.charset, found.collate, found.elems) == ("utf8", "utf8_bin", ("x", "y"))
    assert (found.default_bit, found.origin_default, found.origin_default_bit) == (b"\x01\xff", "7", b"\x02")
    assert (found.generated_expr, found.is_stored, found.is_hidden) == ("`a` + 1", True, True)


@pytest.mark.parametrize(("kind", "found"), [(10, "1970-01-02"), (15, "CURRENT_DATE")])
def test_a_date_of_today_is_that_of_the_tables_version(kind: int, found: str) -> None:
    """``ADD COLUMN d DATE DEFAULT (CURRENT_DATE)``: TiDB writes down no day, and shows the one of the moment."""
    made = column(3, "d", origin_default="CURRENT_DATE")
    made["type"] = {**made["type"], "Tp": kind}
    document = table(7, "t", cols=[made])
    (told,) = parse_table(document, 3, "shop", Ts(90_000_000 << 18)).columns
    assert told.origin_default == found


@pytest.mark.parametrize(
    ("partition", "ids"),
    [
        pytest.param(None, [7], id="not partitioned"),
        pytest.param(partition_by({8: "p"}, enable=False), [7], id="not enabled"),
        pytest.param(partition_by({8: "p0", 9: "p1"}), [8, 9], id="partitioned"),
        pytest.param(partition_by({7: "pFullTable"}, ddl_action=71), [7], id="about to be partitioned"),
        pytest.param(
            partition_by({9: "p1"}, ddl_action=20, dropping_definitions=[{"id": 8, "name": {"O": "p0", "L": "p0"}}]),
            [8, 9],
            id="in the middle of a drop the old ones still count",
        ),
        pytest.param(
            partition_by(
                {8: "p0", 12: "p1"},
                ddl_action=23,
                new_partition_ids=[12],
                dropping_definitions=[{"id": 9, "name": {"O": "p1", "L": "p1"}}],
            ),
            [8, 9],
            id="in the middle of a truncation the old ones still count",
        ),
    ],
)
def test_physical_ids_are_those_of_the_form_in_force(partition: Any, ids: list[int]) -> None:
    assert list(parse(table(7, "t", partition=partition)).physical_ids) == ids


def test_views_have_no_columns_and_sequences_no_rows() -> None:
    untyped = column(1, "x", type={"Tp": 0})
    view = parse(table(7, "v", view={"view_select": "select 1"}, cols=[untyped]))
    assert (view.is_view, view.columns, view.view_columns) == (True, (), ("x",))
    sequence = parse(table(8, "s", sequence={"sequence_start": 1}, cols=None))
    assert sequence.is_sequence
    assert not sequence.is_eligible


def test_a_column_may_have_a_comment() -> None:
    found = parse(table(7, "t", cols=[column(1, "a", comment="why"), column(2, "b")]))
    assert [each.comment for each in found.columns] == ["why", ""]
    assert found.view_columns == ()


def test_a_name_may_be_a_bare_string() -> None:
    assert parse(table(7, "t", name="Plain")).name == "Plain"
    assert parse_database(pack({"id": 3, "db_name": "Shop"}), 3).name == "Shop"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"cols": [{"id": 1}]}, id="a column without a name"),
        pytest.param(
            {"cols": [column(1, "x", type={"Tp": 99, "Flag": 0, "Flen": 0, "Decimal": 0})]}, id="a type unheard of"
        ),
        pytest.param({"cols": [column(1, "x", default_bit="%%")]}, id="bits that are not base64"),
        pytest.param({"partition": {"enable": True, "definitions": [{"name": "p"}]}}, id="a partition without an id"),
        pytest.param({"name": None}, id="no name"),
    ],
)
def test_a_malformed_table_is_an_error_that_names_it(more: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="table 7 of 'shop'"):
        parse(table(7, "t") | more)


P = {"definitions": [{"id": 31}, {"id": 32}]}


@pytest.mark.parametrize(
    ("read", "kind", "array", "object_", "wanted"),
    [
        pytest.param(
            truncate_partition_args,
            ActionType.TRUNCATE_TABLE_PARTITION,
            [[8, 9], [18, 19]],
            {"old_partition_ids": [8, 9], "new_partition_ids": [18, 19]},
            ((8, 9), (18, 19)),
            id="truncate partition",
        ),
        pytest.param(
            truncate_partition_args,
            ActionType.TRUNCATE_TABLE_PARTITION,
            [[8]],
            {"old_partition_ids": [8]},
            ((8,), ()),
            id="truncate partition, done",
        ),
        pytest.param(
            partition_args,
            ActionType.REORGANIZE_PARTITION,
            [["P0", "p1"], P],
            {"part_names": ["P0", "p1"], "part_info": P},
            (frozenset({"p0", "p1"}), (31, 32)),
            id="reorganize",
        ),
        pytest.param(
            exchange_args,
            ActionType.EXCHANGE_PARTITION,
            [8, 2, 7, "p0", False],
            {"partition_id": 8, "pt_schema_id": 2, "pt_table_id": 7, "partition_name": "p0"},
            (8, 2, 7, "p0", False),
            id="exchange",
        ),
        pytest.param(
            rename_args,
            ActionType.RENAME_TABLE,
            [3, {"O": "New", "L": "new"}, {"O": "Old", "L": "old"}],
            {"old_schema_id": 3, "new_table_name": {"O": "New", "L": "new"}},
            (Rename(7, 3, SHOP, "New"),),
            id="rename table",
        ),
        pytest.param(
            rename_args,
            ActionType.RENAME_TABLES,
            [[2, 3], [3, 2], [{"O": "a", "L": "a"}, {"O": "b", "L": "b"}], [7, 8]],
            {
                "rename_table_infos": [
                    {"table_id": 7, "old_schema_id": 2, "new_schema_id": 3, "new_table_name": "a"},
                    {"table_id": 8, "old_schema_id": 3, "new_schema_id": 2, "new_table_name": "b"},
                ]
            },
            (Rename(7, 2, 3, "a"), Rename(8, 3, 2, "b")),
            id="rename tables",
        ),
        pytest.param(
            replaced_view_id,
            ActionType.CREATE_VIEW,
            [{}, True, 6],
            {"table_info": {}, "on_exist_replace": True, "old_view_tbl_id": 6},
            6,
            id="create or replace view",
        ),
        pytest.param(
            recovered_tables,
            ActionType.RECOVER_SCHEMA,
            [{"RecoverTabsInfo": [{"TableInfo": {"id": 7}}]}],
            {"recover_info": {"RecoverTableInfos": [{"TableInfo": {"id": 7}}]}},
            ({"id": 7},),
            id="recover schema",
        ),
    ],
)
def test_arguments_of_both_versions_say_the_same(read: Any, kind: int, array: Any, object_: Any, wanted: Any) -> None:
    assert read(a_job(kind, array, table_id=7)) == wanted
    assert read(a_job(kind, object_, table_id=7)) == wanted


def test_malformed_arguments_are_an_error_that_names_the_job() -> None:
    with pytest.raises(SchemaError, match=r"DDL job 5 \(rename table\)"):
        rename_args(a_job(ActionType.RENAME_TABLE, {"old_schema_id": 3}))


def test_a_job_of_a_newer_tidb_is_named_by_its_number() -> None:
    assert str(a_job(222, {})) == "DDL job 5 (type 222)"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (None, ""),
        ({"name": "", "offset": 0}, "+00:00"),
        ({"name": "", "offset": 19800}, "+05:30"),
        ({"name": "", "offset": -12600}, "-03:30"),
        ({"name": "America/New_York", "offset": 0}, "America/New_York"),
        ({"name": "Local", "offset": 0}, ""),
    ],
)
def test_a_job_that_converts_rows_tells_in_which_time_zone(location: Any, expected: str) -> None:
    assert a_job(ActionType.MODIFY_COLUMN, [], reorg_meta={"location": location}).time_zone == expected


def test_a_job_tells_the_modes_that_its_statement_needs() -> None:
    assert a_job(ActionType.ADD_COLUMN, [], sql_mode=1 << 1 | 1 << 21).sql_modes == ("PIPES_AS_CONCAT",)
