"""Grown histories are histories: ordered, well-formed, and every change follows what was there."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.data import RECORDED, TABLE_ID, grow
from tidemill.tidb.keys import decode_int, record_prefix, table_prefix


def rows_of(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def table_rows(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["key"].startswith(record_prefix(TABLE_ID))]


@pytest.fixture(scope="module", params=["bench-narrow", "bench-wide"])
def grown(request, tmp_path_factory):
    name = request.param
    asked = {"bench-narrow": 20_000, "bench-wide": 4_000}[name]
    path = grow(name, asked, tmp_path_factory.mktemp("grown") / name)
    return asked, path, rows_of(path), rows_of(RECORDED / name / "history.parquet")


def test_it_has_about_as_many_row_changes_as_asked_for(grown):
    asked, path, rows, recorded = grown
    assert asked <= len(table_rows(rows)) < asked + len(table_rows(recorded))
    assert json.loads((path.parent / "meta.json").read_text())["changes"] == len(rows)


def test_it_has_the_schema_of_the_recorded_one(grown):
    _, path, _, _ = grown
    recorded = RECORDED / path.parent.name / "history.parquet"
    assert pq.read_schema(path).equals(pq.read_schema(recorded))


def test_changes_are_ordered_and_come_after_their_start(grown):
    _, _, rows, _ = grown
    order = [(row["commit_ts"], row["start_ts"], row["key"]) for row in rows]
    assert order == sorted(set(order))
    assert all(row["start_ts"] < row["commit_ts"] for row in rows)


def test_end_ts_lies_behind_everything(grown):
    _, path, rows, _ = grown
    meta = json.loads((path.parent / "meta.json").read_text())
    assert meta["bootstrap_ts"] == json.loads((RECORDED / path.parent.name / "meta.json").read_text())["bootstrap_ts"]
    assert rows[-1]["commit_ts"] <= meta["end_ts"]


def test_what_is_not_of_the_table_is_as_it_was_recorded(grown):
    _, _, rows, recorded = grown
    prefix = table_prefix(TABLE_ID)
    assert [r for r in rows if not r["key"].startswith(prefix)] == [
        r for r in recorded if not r["key"].startswith(prefix)
    ]


def test_rows_are_inserted_before_they_are_changed_and_deleted(grown):
    _, _, rows, recorded = grown
    kinds = []
    for history in (rows, recorded):
        there: set[bytes] = set()
        counts = {"insert": 0, "update": 0, "delete": 0}
        for row in table_rows(history):
            kind = "delete" if row["op"] == "delete" else "update" if row["key"] in there else "insert"
            assert kind != "delete" or row["key"] in there
            (there.discard if kind == "delete" else there.add)(row["key"])
            counts[kind] += 1
        kinds.append({kind: count / sum(counts.values()) for kind, count in counts.items()})
    assert kinds[0] == pytest.approx(kinds[1])


def test_keys_are_those_of_rows_with_small_integers(grown):
    _, _, rows, _ = grown
    for row in table_rows(rows):
        assert len(row["key"]) == 19
        assert 0 <= decode_int(row["key"][11:]) < 1 << 31  # the column is an INT


def test_every_repetition_has_the_bytes_of_the_recorded_rows(grown):
    _, _, rows, recorded = grown
    story = [(row["op"], row["value"]) for row in table_rows(recorded)]
    repeated = [(row["op"], row["value"]) for row in table_rows(rows)]
    assert repeated == story * (len(repeated) // len(story))
    assert len({(row["key"], row["commit_ts"]) for row in table_rows(rows)}) == len(repeated)
