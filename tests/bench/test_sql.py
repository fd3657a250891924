"""The benchmark of SQL runs, small: both ways write the same, and are measured against each other."""

import pytest

from bench import sql
from bench.__main__ import checked


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(sql, "ROWS_PER_STATEMENT", 20)
    monkeypatch.setattr(sql, "STATEMENTS", 2)
    monkeypatch.setattr(sql, "UPDATES", 8)
    monkeypatch.setattr(sql, "CONNECTIONS", 2)
    monkeypatch.setattr(sql, "ROUNDS", 1)


def test_statements_are_measured_against_their_writes_alone(small):
    results = [checked(result) for result in sql.bench_sql()]
    assert [(result["name"], result["unit"]) for result in results] == [
        ("sql.insert", "rows/s"),
        ("sql.point_update", "statements/s"),
    ]
    for result in results:
        assert result["ratio"] == pytest.approx(result["value"] / result["floor"], rel=0.1)


def test_the_floor_writes_what_an_update_changes():
    before = {b"record": b"1", b"index 1": b"0", b"other": b"9"}
    after = {b"record": b"2", b"index 2": b"0", b"other": b"9"}
    assert sql._changed(before, after) == {b"index 1": None, b"record": b"2", b"index 2": b"0"}
