"""CREATE TABLE makes the documents that TiDB makes, key by key."""

import json
from functools import cache
from typing import Any

import pytest

from tests.histories import load
from tidebox.sql.ddl.defaults import Settings
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_like, build_table
from tidebox.sql.parse import parse
from tidebox.sql.parse.statements import CreateTable, CreateTableLike
from tidebox.sql.types import Charset
from tidebox.sql.wire.errors import SqlError
from tidemill.flow.schema.jobs import cell
from tidemill.tidb.create_table import type_text

# What a job chooses and a definition does not.
CHOSEN = ("id", "update_timestamp")
# How TiDB's own sessions, which make its system tables, differ from those of users.
SYSTEM = Settings(is_strict=False, clusters_all=False)


@cache
def jobs(name: str) -> list[dict[str, Any]]:
    """The jobs of a history that were done, in order."""
    rows = [cell(value, 5) for value in load(name).job_changes().column("value").to_pylist() if value]
    found = [json.loads(row) for row in rows if row]
    return [job for job in found if job["state"] == 4]


def creations(name: str) -> list[tuple[CreateTable, Charset, Settings, dict[str, Any]]]:
    """Each CREATE TABLE that is served, with the character set of its database and TiDB's document."""
    charsets: dict[int, Charset] = {}
    found = []
    for job in jobs(name):
        if database := job["binlog"]["DBInfo"]:
            charsets[job["schema_id"]] = Charset(database["charset"], database["collate"])
        if job["type"] != 3:
            continue
        try:
            statement = parse(job["query"])
        except SqlError as error:
            if error.number != 1235:
                raise
            continue
        settings = SYSTEM if job["schema_name"] in ("mysql", "sys") else Settings()
        if isinstance(statement, CreateTable):
            charset = charsets.get(job["schema_id"], DEFAULT_CHARSET)
            found.append((statement, charset, settings, job["binlog"]["TableInfo"]))
    return found


@pytest.mark.parametrize(("name", "count"), [("types", 73), ("ddl", 64), ("online", 52)])
def test_created_tables_have_tidbs_documents(name: str, count: int) -> None:
    found = creations(name)
    for statement, charset, settings, wanted in found:
        built = build_table(statement, charset, settings)
        built.update({key: wanted[key] for key in CHOSEN})
        assert json.dumps(built) == json.dumps(wanted)  # the order of keys too
    assert len(found) == count


def test_a_table_like_another_has_tidbs_document() -> None:
    seen: dict[str, dict[str, Any]] = {}
    compared = 0
    for job in jobs("ddl"):
        table = job["binlog"]["TableInfo"]
        statement = parse(job["query"]) if job["type"] == 3 and " like " in job["query"] else None
        if isinstance(statement, CreateTableLike):
            built = build_like(seen[statement.source.name], statement.table.name)
            built.update({key: table[key] for key in CHOSEN})
            assert json.dumps(built) == json.dumps(table)
            compared += 1
        if table:
            seen[table["name"]["L"]] = table
    assert compared == 1


def test_types_print_as_they_were_typed() -> None:
    text = "a int, b bigint unsigned, a1 tinyint(1), a2 int(5) unsigned zerofill"
    text += ", c decimal(10,2), d varchar(20), e varbinary(7), f datetime(3)"
    more = "g enum('x','y''z'), h bit(3), i year(4), j json, k text, l longblob, m double(7,3), n time"
    statement = parse(f"create table t ({text}, {more})")
    assert isinstance(statement, CreateTable)
    printed = [type_text(c["type"]) for c in build_table(statement, DEFAULT_CHARSET)["cols"]]
    assert printed == [part.split(" ", 1)[1] for part in f"{text}, {more}".split(", ")]
