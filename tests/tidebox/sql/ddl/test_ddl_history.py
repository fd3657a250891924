"""The statements of the recorded DDL history that lie in the subset, run again: rows at every mark are TiDB's."""

import json

import pytest

from tests.histories import load
from tests.tidebox.sql.plain_ddl import session_on
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream

# Tables that partitions, sequences, foreign keys, TTL, RECOVER and their like have touched.
OUTSIDE = {"s1_old", "s2", "ar", "sh", "sq", "tt", "pt", "px", "pl", "fk_c"}
# What TiDB refuses too, with the number that it gives.
ERRORS = {
    "insert into a (id,v) values (90,'no default')": 1364,
    "alter table a add column g int as (id * 2) stored": 3106,
    "alter table a add column bad int as (nosuch) virtual": 1054,
    "alter table ms drop column a, add column a int": 1060,
    "alter table ly modify column v tinyint unsigned default 9": 1690,
    "alter table ly modify column v tinyint": 1690,
    "alter table rb add unique key uv (v)": 1062,
    "alter table rb modify column v int": 1292,
}


def text_of(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None else str(value)


def rows_of(session, schema: str, table: str) -> list[list[object]]:
    found = session.execute(f"select * from `{schema}`.`{table}`").rows
    return sorted(([text_of(v) for v in row] for row in found), key=str)


def is_outside(statement: str, error: SqlError) -> bool:
    return error.number == 1235 or any(
        f" {name} " in f"{statement} " or f"'shop.{name}'" in str(error) for name in OUTSIDE
    )


@pytest.fixture(scope="module")
def session():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        session = session_on(SqlNodes(upstream.cluster, lease_seconds=3600).nodes[0])
        session.execute("set sql_mode='NO_ENGINE_SUBSTITUTION,STRICT_TRANS_TABLES'")
        yield session
        session.close()


def test_rows_at_every_mark_are_tidbs(session):
    history = load("ddl")
    marks: dict[str, list[dict[str, object]]] = {}
    for mark in history.marks():
        marks.setdefault(mark["mark"], []).append(mark)
    compared, refused = 0, {}
    for line in (history.folder / "scenario.sql").read_text().splitlines():
        if line.startswith("-- @mark "):
            for mark in marks[line.split()[2]]:
                if mark["table"] not in OUTSIDE:
                    wanted = sorted(([text_of(v) for v in row] for row in mark["rows"]), key=str)
                    assert rows_of(session, mark["schema"], mark["table"]) == wanted, json.dumps(mark)[:200]
                    compared += 1
        if line.startswith("--") or not line.strip():
            continue
        statement = line.rstrip(";")
        try:
            session.execute(statement)
        except SqlError as error:
            if not is_outside(statement, error):
                refused[statement] = error.number
    assert refused == ERRORS
    assert compared == 46
