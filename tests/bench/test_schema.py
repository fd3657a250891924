"""The benchmark of many tables runs, small, and its tables are real ones."""

import pytest

from bench import schema
from bench.__main__ import checked
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(schema, "FEW", 20)
    monkeypatch.setattr(schema, "MANY", 60)
    monkeypatch.setattr(schema, "ROUNDS", 1)
    monkeypatch.setattr(schema, "_PER_DATABASE", 25)


def test_the_cost_of_many_tables_is_measured(small):
    results = {result["name"]: checked(result) for result in schema.bench_schema()}
    assert set(results) == {
        "schema.start",
        "schema.start_memory",
        "schema.start_peak",
        "schema.start_growth",
        "schema.memory_growth",
        "schema.sql_start",
        "schema.sql_start_memory",
    }
    assert results["schema.start"]["value"] > 0


def test_its_tables_can_be_written_and_altered(small, tmp_path):
    history = schema.write_history(60, tmp_path)
    with EmbeddedUpstream.start(load=history, resolved_interval_seconds=3600) as upstream:
        nodes = SqlNodes(upstream.cluster, lease_seconds=3600)
        session = SqlSession(nodes.nodes[0])
        catalog = nodes.nodes[0].cache.current()
        (name, database), *_ = [(n, d) for n, d in catalog.databases.items() if n.startswith("db")]
        assert sum(len(d.tables) for n, d in catalog.databases.items() if n.startswith("db")) == 60
        session.use(name)
        table = min(database.tables)
        session.execute(f"insert into {table} (k, c, pad) values (1, 'a', 'b'), (2, 'c', 'd')")
        session.execute(f"alter table {table} add column n int default 7")
        assert [tuple(row) for row in session.execute(f"select id, k, n from {table}").rows] == [(1, 1, 7), (2, 2, 7)]
        session.close()
