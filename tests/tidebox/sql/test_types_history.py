"""The statements of a recorded history, run again: rows and bytes are those that TiDB left."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.tidebox.sql.plain_ddl import plain_node, session_on
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream

FOLDER = Path(__file__).parents[2] / "data" / "histories" / "types"
# Rows that the recording drew by lot, and what lies outside of the subset.
SKIPPED = {"wide", "txn", "p_range", "p_hash", "p_list"}
BY_CLOCK = {"defaults": {"d", "i"}}


def statements() -> list[str]:
    text = re.sub(r"^--.*\n", "", (FOLDER / "scenario.sql").read_text(), flags=re.MULTILINE)
    found = [statement.strip() for statement in text.split(";\n") if statement.strip()]
    words = tuple(f"{name} " for name in SKIPPED)
    return [s for s in found if not any(f" {w}" in f"{s} " for w in words) and s not in ("begin", "commit", "rollback")]


@pytest.fixture(scope="module")
def session():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        session = session_on(plain_node(upstream.cluster))
        session.execute("set sql_mode='NO_ENGINE_SUBSTITUTION,STRICT_TRANS_TABLES'")
        for statement in statements():
            session.execute(statement)
        yield session
        session.close()


def marks():
    lines = (json.loads(line) for line in (FOLDER / "marks.jsonl").read_text().splitlines())
    return [mark for mark in lines if "table" in mark and mark["table"] not in SKIPPED]


def final_pairs() -> dict[bytes, bytes]:
    """What the history leaves in the end, by key."""
    table = pq.read_table(FOLDER / "history.parquet", columns=["commit_ts", "op", "key", "value"])
    found: dict[bytes, bytes] = {}
    for row in sorted(table.to_pylist(), key=lambda row: row["commit_ts"]):
        if row["op"] == "put":
            found[row["key"]] = row["value"]
        else:
            found.pop(row["key"], None)
    return found


def recorded_tables(pairs: dict[bytes, bytes]) -> dict[tuple[int, str], bytes]:
    """The keys' beginning of each table, by name."""
    found = {}
    for key, value in pairs.items():
        if key.startswith(b"mDB:") and b"hTable:" in key:
            document = json.loads(value)
            found[document["name"]["O"]] = b"t" + ((document["id"]) ^ (1 << 63)).to_bytes(8, "big")
    return found


PAIRS = final_pairs()
PREFIXES = recorded_tables(PAIRS)


@pytest.mark.parametrize("mark", marks(), ids=lambda mark: mark["table"])
def test_records_and_index_entries_are_tidbs(session, mark):
    name = mark["table"]
    table = session.node.cache.current().table(mark["schema"], name)
    ours = b"t" + (table.id ^ (1 << 63)).to_bytes(8, "big")
    written = {key[9:]: value for key, value in Transaction(session.cluster).scan(ours, ours + b"\xff")}
    theirs = PREFIXES[name]
    expected = {key[9:]: value for key, value in PAIRS.items() if key.startswith(theirs)}
    assert written.keys() == expected.keys()
    if name not in BY_CLOCK:
        assert written == expected


def test_a_duplicate_key_is_told_as_tidb_tells_it(session):
    with pytest.raises(SqlError, match=r"Duplicate entry '1' for key 'ints\.PRIMARY'") as caught:
        session.execute("insert into kinds.ints (id) values (1)")
    assert caught.value.number == 1062
