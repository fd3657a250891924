"""CREATE TABLE from TiDB's documents: text that makes the same table again."""

from typing import Any

import orjson
import pytest

from tests.histories import load
from tidebox.sql.ddl.tables import build_table
from tidebox.sql.parse.tables import parse_create_table
from tidebox.sql.types import NO_DEFAULT_FLAG, Charset
from tidemill.tidb.create_table import create_table_sql
from tidemill.tidb.documents import parse_database
from tidemill.tidb.meta import read_snapshot


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The user tables of a recorded history at its end."""
    history = load(name)
    found = read_snapshot(history.meta_at(history.end_ts))
    schemas = {i: parse_database(raw, i).name for i, raw in found.databases.items()}
    tables = {}
    for (schema_id, _), raw in found.tables.items():
        document = orjson.loads(raw)
        if schemas[schema_id] not in ("mysql", "sys") and not document["view"] and not document["sequence"]:
            tables[f"{schemas[schema_id]}.{document['name']['O']}"] = document
    return tables


ALL = {f"{name}:{key}": d for name in ("types", "ddl", "online") for key, d in documents(name).items()}


def essence(column: dict[str, Any]) -> dict[str, Any]:
    kind = column["type"]
    names = ("default", "default_bit", "generated_expr_string", "generated_stored", "comment")
    types = {n: kind[n] for n in ("Tp", "Flen", "Decimal", "Charset", "Collate", "Elems")}
    found = {"name": column["name"]["O"], **{n: column.get(n) for n in names}, **types}
    if kind["Flag"] & NO_DEFAULT_FLAG:
        found["default"] = None  # a YEAR that is said to be NOT NULL has one that is never used
    return found


# What the embedded TiDB does not take: numbers at random or in shards, defaults from a sequence.
BEYOND = {"ddl:shop.ar", "ddl:shop.sh", "ddl:shop.sq"}


@pytest.mark.parametrize("name", [n for n, d in ALL.items() if not d["partition"] and n not in BEYOND])
def test_the_text_makes_the_same_table_again(name: str) -> None:
    document = ALL[name]
    again = build_table(parse_create_table(create_table_sql(document)), Charset("utf8mb4", "utf8mb4_bin"))
    public = [c for c in document["cols"] if c["state"] == 5 and not c["hidden"]]
    assert [essence(c) for c in again["cols"] if not c["hidden"]] == [essence(c) for c in public]
    assert again["pk_is_handle"] == document["pk_is_handle"]
    assert again["is_common_handle"] == document["is_common_handle"]
    indexes = [
        {(i["idx_name"]["L"], i["is_unique"], i["is_primary"], len(i["idx_cols"])) for i in d["index_info"] or ()}
        for d in (again, document)
    ]
    assert indexes[0] == indexes[1]


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        pytest.param(
            "types:kinds.p_range",
            "PARTITION BY RANGE (`id`)\n(PARTITION `p0` VALUES LESS THAN (10),\n"
            " PARTITION `p1` VALUES LESS THAN (100),\n PARTITION `pm` VALUES LESS THAN (MAXVALUE))",
            id="range",
        ),
        pytest.param("types:kinds.p_hash", "PARTITION BY HASH (`k`) PARTITIONS 4", id="hash"),
        pytest.param(
            "types:kinds.p_list",
            "PARTITION BY LIST COLUMNS(`region`)\n(PARTITION `eu` VALUES IN ('de','fr'),\n"
            " PARTITION `us` VALUES IN ('us'),\n PARTITION `ot` VALUES IN ('jp',NULL))",
            id="list",
        ),
        pytest.param("ddl:shop.pt", "PARTITION BY KEY (`id`) PARTITIONS 2", id="key"),
    ],
)
def test_how_the_table_is_partitioned_stands_behind_its_options(name: str, clause: str) -> None:
    text = create_table_sql(ALL[name], "a`b")
    assert text.startswith("CREATE TABLE `a``b`.`")
    assert text.endswith("\n" + clause)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ddl:shop.ar", "`id` bigint NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */,"),
        ("ddl:shop.sh", "COLLATE=utf8mb4_bin /*T! SHARD_ROW_ID_BITS=4 PRE_SPLIT_REGIONS=2 */"),
    ],
)
def test_what_only_tidb_knows_stands_in_comments(name: str, part: str) -> None:
    assert part in create_table_sql(ALL[name])


@pytest.mark.parametrize("kind", ["enum", "set"])
def test_a_member_with_a_backslash_is_the_same_when_it_is_read_again(kind: str) -> None:
    query = f"create table t (id int primary key, e {kind}('a\\\\b', 'it''s', 'x\\ny') default 'a\\\\b')"
    document = build_table(parse_create_table(query), Charset("utf8mb4", "utf8mb4_bin"))
    again = build_table(parse_create_table(create_table_sql(document)), Charset("utf8mb4", "utf8mb4_bin"))
    assert again["cols"][1]["type"]["Elems"] == document["cols"][1]["type"]["Elems"] == ["a\\b", "it's", "x\ny"]


def test_the_day_as_a_default_is_no_text() -> None:
    """As TiDB writes it down for DEFAULT (CURRENT_DATE)."""
    query = "create table t (id int primary key, d date default '2026-01-01')"
    document = build_table(parse_create_table(query), Charset("utf8mb4", "utf8mb4_bin"))
    document["cols"][1]["default"] = "CURRENT_DATE"
    assert "`d` date DEFAULT (CURRENT_DATE)," in create_table_sql(document)
