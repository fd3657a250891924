"""The statements of the recorded ``ddl`` history, run again: at each mark the rows are TiDB's."""

import re

import pytest

from tests.histories import FOLDER
from tests.tidebox.sql.test_past_reads import by_text, expected, marks, shown
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream

# What the subset leaves out: partitions, sequences, foreign keys, TTL, shards, RECOVER and FLASHBACK.
OUTSIDE = {"pt", "pl", "px", "ar", "sh", "sq", "tt", "fk_c", "fk_p", "s1_old", "s2", "vw"}


def steps():
    """Statements, marks as their names, and whether a statement fails."""
    statement, fails = "", False
    for line in (FOLDER / "ddl" / "scenario.sql").read_text().splitlines():
        if line.startswith("-- @mark"):
            yield "mark", line.split()[2], False
        elif line.startswith("-- @error"):
            fails = True
        elif not line.startswith("--"):
            statement += line
            if line.endswith(";"):
                yield "run", statement[:-1], fails
                statement, fails = "", False


def is_outside(statement: str) -> bool:
    return bool(OUTSIDE & set(re.findall(r"\w+", statement)))


def test_every_mark_of_the_ddl_history():
    wanted = marks("ddl")
    checked = 0
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream:
        session = SqlSession(SqlNodes(upstream.cluster, lease_seconds=3600).nodes[0])
        for kind, text, fails in steps():
            if kind == "mark":
                checked += sum(_check(session, mark) for mark in wanted if mark["mark"] == text)
            elif fails and not is_outside(text):
                with pytest.raises(SqlError):
                    session.execute(text)
            else:
                _run(session, text)
        session.close()
    assert checked == 45


def _run(session: SqlSession, text: str) -> None:
    try:
        session.execute(text)
    except SqlError as error:
        if error.number != 1235 and not is_outside(text):
            raise


def _check(session: SqlSession, mark: dict) -> bool:
    if mark["table"] in OUTSIDE:
        return False
    names = ", ".join(f"`{column}`" for column in mark["columns"])
    result = session.execute(f"select {names} from `{mark['schema']}`.`{mark['table']}`")
    found = [[shown(v, c) for v, c in zip(row, result.columns, strict=True)] for row in result.rows]
    rows = [[expected(v, c) for v, c in zip(row, result.columns, strict=True)] for row in mark["rows"]]
    assert sorted(map(by_text, found)) == sorted(map(by_text, rows)), f"{mark['table']} at {mark['mark']}"
    session.execute(f"admin check table `{mark['schema']}`.`{mark['table']}`")
    return True
