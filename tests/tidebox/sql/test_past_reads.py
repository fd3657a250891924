"""Loaded histories, read as they were: every table at every mark is what TiDB showed then."""

import base64
import json
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pytest

from tests.histories import FOLDER
from tidebox.sql.catalog import SchemaCache
from tidebox.sql.codec.times import duration_text
from tidebox.sql.node import Node
from tidebox.sql.session import SqlSession
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.columns import BINARY, Column
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.table import ColumnType

STRINGS = frozenset({ColumnType.STRING, ColumnType.VARCHAR, ColumnType.VARSTRING, *range(249, 253)})
REALS = frozenset({ColumnType.FLOAT, ColumnType.DOUBLE})


def marks(name: str) -> list[dict]:
    lines = (FOLDER / name / "marks.jsonl").read_text().splitlines()
    return [mark for line in lines if "rows" in (mark := json.loads(line))]


@pytest.fixture(scope="module", params=["types", "ddl", "online"])
def loaded(request):
    path = FOLDER / request.param / "history.parquet"
    with EmbeddedUpstream.start(load=path, resolved_interval_seconds=3600) as upstream:
        cluster = upstream.cluster
        cache = SchemaCache(lambda: Transaction(cluster), cluster.clock.monotonic)
        session = SqlSession(Node(cluster, cache))
        yield request.param, session
        session.close()


def shown(value: object, column: Column) -> object:
    """As the marks have it: texts, bytes in base64, and numbers for bits."""
    if value is None:
        return None
    if column.type == ColumnType.BIT or column.type in (1, 2, 3, 8, 9, ColumnType.YEAR):
        return str(value)
    if isinstance(value, timedelta):
        return duration_text(value, column.shown_decimals)
    if column.type in REALS or column.type == ColumnType.NEWDECIMAL:
        return expected(value, column)
    if column.type in STRINGS and column.collation == BINARY:
        raw = value.encode() if isinstance(value, str) else value
        return {"b64": base64.b64encode(raw).decode()}  # type: ignore[arg-type]
    return value


def expected(value: object, column: Column) -> object:
    if value is None:
        return None
    if column.type in REALS:
        return float(np.float32(value) if column.type == ColumnType.FLOAT else value)  # type: ignore[arg-type]
    return str(Decimal(value)) if column.type == ColumnType.NEWDECIMAL else value  # type: ignore[arg-type]


def by_text(row: Sequence[object]) -> str:
    return json.dumps(row, default=str)


def test_every_table_at_every_mark(loaded):
    name, session = loaded
    for mark in marks(name):
        session.execute(f"set @@tidb_snapshot = '{mark['ts']}'")
        names = ", ".join(f"`{column.replace('`', '``')}`" for column in mark["columns"])
        table = f"`{mark['schema']}`.`{mark['table'].replace('`', '``')}`"
        result = session.execute(f"select {names} from {table}")
        found = [[shown(v, c) for v, c in zip(row, result.columns, strict=True)] for row in result.rows]
        wanted = [[expected(v, c) for v, c in zip(row, result.columns, strict=True)] for row in mark["rows"]]
        where = f"{table} at {mark['mark']}"
        assert sorted(map(by_text, found)) == sorted(map(by_text, wanted)), where
