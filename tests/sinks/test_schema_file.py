"""Schema files: the documents and checksums of the format's own examples."""

import json

import pytest

from tests.flow.encoder.samples import KEY, NOT_NULL, UNSIGNED, column, table_of
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnInfo, ColumnType
from tidemill.model.ts import Ts
from tidemill.sinks.files.schema_file import parse_name, schema_of_database, schema_of_table

VERSION = Ts(445644800000000005)
ITEM = table_of(
    column("id", ColumnType.LONGLONG, KEY, flen=20),
    column("sku", ColumnType.VARCHAR, NOT_NULL, flen=16),
    column("amount", ColumnType.NEWDECIMAL, flen=10, decimal=2),
)
DOCUMENT = """{
    "Table": "item",
    "Schema": "shop",
    "Version": 1,
    "TableVersion": 445644800000000005,
    "Query": "ALTER TABLE `item` ADD COLUMN `amount` DECIMAL(10,2)",
    "Type": 5,
    "TableColumns": [
        {
            "ColumnName": "id",
            "ColumnType": "BIGINT",
            "ColumnPrecision": "20",
            "ColumnNullable": "false",
            "ColumnIsPk": "true"
        },
        {
            "ColumnName": "sku",
            "ColumnType": "VARCHAR",
            "ColumnPrecision": "16",
            "ColumnNullable": "false"
        },
        {
            "ColumnName": "amount",
            "ColumnType": "DECIMAL",
            "ColumnPrecision": "10",
            "ColumnScale": "2"
        }
    ],
    "TableColumnsTotal": 3
}"""


def test_the_document_of_a_table() -> None:
    query = "ALTER TABLE `item` ADD COLUMN `amount` DECIMAL(10,2)"
    file = schema_of_table(ITEM, VERSION, query=query, type=ActionType.ADD_COLUMN)
    assert file.content.decode() == DOCUMENT
    assert file.name == "schema_445644800000000005_1727092890.json"


def test_the_checksum_does_not_know_of_version_or_query() -> None:
    assert schema_of_table(ITEM, Ts(7)).name == "schema_7_1727092890.json"


def test_the_order_of_columns_does_not_change_the_checksum() -> None:
    turned = table_of(*reversed(ITEM.columns))
    assert schema_of_table(turned, VERSION).checksum == 1727092890
    assert schema_of_table(turned, VERSION).content != schema_of_table(ITEM, VERSION).content


@pytest.mark.parametrize(("schema", "checksum"), [("shop", 2805160324), ("schema1", 3233644819)])
def test_the_checksum_of_a_database(schema: str, checksum: int) -> None:
    file = schema_of_database(schema, VERSION, f"CREATE DATABASE {schema}", ActionType.CREATE_SCHEMA)
    assert file.checksum == checksum
    assert json.loads(file.content) == {
        "Table": "",
        "Schema": schema,
        "Version": 1,
        "TableVersion": VERSION,
        "Query": f"CREATE DATABASE {schema}",
        "Type": 1,
        "TableColumns": None,
        "TableColumnsTotal": 0,
    }


@pytest.mark.parametrize(
    ("info", "members"),
    [
        (column("c", ColumnType.LONG, UNSIGNED), {"ColumnType": "INT UNSIGNED", "ColumnPrecision": "11"}),
        (column("c", ColumnType.BIT, UNSIGNED, flen=4, default_bit=b"\x05"),
         {"ColumnType": "BIT UNSIGNED", "ColumnDefault": "\x05", "ColumnPrecision": "4"}),
        (column("c", ColumnType.BIT, default_bit=b"\xff\xfe", flen=16),
         {"ColumnType": "BIT", "ColumnDefault": "\ufffd\ufffd", "ColumnPrecision": "16"}),
        (column("c", ColumnType.YEAR, flen=4), {"ColumnType": "YEAR", "ColumnPrecision": "4"}),
        (column("c", ColumnType.FLOAT, flen=12), {"ColumnType": "FLOAT", "ColumnPrecision": "12"}),
        (column("c", ColumnType.DOUBLE), {"ColumnType": "DOUBLE", "ColumnPrecision": "22"}),
        (column("c", ColumnType.DOUBLE, flen=15, decimal=4),
         {"ColumnType": "DOUBLE", "ColumnPrecision": "15", "ColumnScale": "4"}),
        (column("c", ColumnType.NEWDECIMAL, flen=10, decimal=0),
         {"ColumnType": "DECIMAL", "ColumnPrecision": "10", "ColumnScale": "0"}),
        (column("c", ColumnType.DATETIME, flen=26, decimal=6), {"ColumnType": "DATETIME", "ColumnScale": "6"}),
        (column("c", ColumnType.TIMESTAMP, flen=19, decimal=0), {"ColumnType": "TIMESTAMP"}),
        (column("c", ColumnType.DURATION, flen=14, decimal=3), {"ColumnType": "TIME", "ColumnScale": "3"}),
        (column("c", ColumnType.BLOB, flen=65535, charset="binary"),
         {"ColumnType": "BLOB", "ColumnPrecision": "65535"}),
        (column("c", ColumnType.STRING, flen=3, default=""),
         {"ColumnType": "CHAR", "ColumnDefault": "", "ColumnPrecision": "3"}),
        (column("c", ColumnType.DATE, flen=10, default="2020-01-01"),
         {"ColumnType": "DATE", "ColumnDefault": "2020-01-01"}),
        (column("c", ColumnType.JSON), {"ColumnType": "JSON"}),
        (column("c", ColumnType.ENUM, elems=("a",)), {"ColumnType": "ENUM"}),
        (column("c", ColumnType.SET, elems=("a",)), {"ColumnType": "SET"}),
    ],
)  # fmt: skip
def test_columns(info: ColumnInfo, members: dict[str, str]) -> None:
    document = json.loads(schema_of_table(table_of(info), VERSION).content)
    assert document["TableColumns"] == [{"ColumnName": "c", **members}]


def test_characters_that_go_escapes_are_escaped() -> None:
    file = schema_of_table(table_of(column("<c>", ColumnType.JSON)), VERSION, query="select 1 & 2")
    assert b'"ColumnName": "\\u003cc\\u003e"' in file.content
    assert b'"Query": "select 1 \\u0026 2"' in file.content


def test_column_ids_and_virtual_columns_on_demand() -> None:
    table = table_of(
        column("a", ColumnType.LONG), column("v", ColumnType.LONG, generated_expr="a * 2"), column("b", ColumnType.LONG)
    )
    full = json.loads(schema_of_table(table, VERSION, with_ids=True).content)["TableColumns"]
    assert [(c["ColumnId"], c["ColumnName"]) for c in full] == [("1", "a"), ("2", "v"), ("3", "b")]
    stored = json.loads(schema_of_table(table, VERSION, with_virtual=False).content)
    assert [c["ColumnName"] for c in stored["TableColumns"]] == ["a", "b"]
    assert stored["TableColumnsTotal"] == 2


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("schema_445644800000000005_1727092890.json", (VERSION, 1727092890)),
        ("schema_5_0000000007.json", (5, 7)),
        (".schema_5_0000000007.json.tmp", None),
        ("schema_5_7.json", None),
        ("CDC.index", None),
    ],
)
def test_names_are_read_back(name: str, found: tuple[int, int] | None) -> None:
    assert parse_name(name) == found
