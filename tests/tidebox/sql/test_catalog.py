"""The schema as a node knows it, and how long it may be used."""

import pytest

from tests.tidebox.sql.ddl.fake import Memory
from tidebox.sql.bootstrap import bootstrap
from tidebox.sql.catalog import SchemaCache, load_catalog
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_table
from tidebox.sql.meta import Meta
from tidebox.sql.parse.tables import parse_create_table
from tidebox.sql.wire.errors import SqlError
from tidemill.tidb.documents import SchemaState


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def memory() -> Memory:
    memory = Memory()
    bootstrap(memory.begin)
    return memory


def diff(action: int, table_id: int, schema_id: int = 2, **more: object) -> dict[str, object]:
    base = {"old_table_id": 0, "old_schema_id": 0, "regenerate_schema_map": False, "affected_options": None}
    return {"type": action, "schema_id": schema_id, "table_id": table_id, **base, **more}


def create(memory: Memory, sql: str, table_id: int) -> None:
    transaction = memory.begin()
    document = {**build_table(parse_create_table(sql), DEFAULT_CHARSET), "id": table_id}  # type: ignore[arg-type]
    Meta(transaction).put_table(2, document)
    Meta(transaction).bump_version(diff(3, table_id))
    transaction.commit()


def test_a_cache_brought_up_by_diffs_is_what_a_full_load_gives(memory: Memory) -> None:
    cache = SchemaCache(memory.begin, Clock())
    create(memory, "create table A (id int primary key)", 101)
    create(memory, "create table b (id int primary key)", 102)
    assert cache.version == 1
    assert cache.reload() == 3
    full = load_catalog(memory.begin())
    for name, database in full.databases.items():
        known = cache.current().databases[name]
        assert {n: t.document for n, t in known.tables.items()} == {n: t.document for n, t in database.tables.items()}
    assert cache.current().table("TEST", "a").name == "A"


def test_an_unknown_table_and_an_unknown_database_are_refused_by_name(memory: Memory) -> None:
    catalog = load_catalog(memory.begin())
    with pytest.raises(SqlError, match=r"1146.*'test.nosuch'"):
        catalog.table("test", "nosuch")
    with pytest.raises(SqlError, match=r"1049.*'nosuch'"):
        catalog.database("nosuch")


def test_a_node_that_cannot_renew_stops_serving(memory: Memory) -> None:
    clock = Clock()
    cache = SchemaCache(memory.begin, clock, lease_seconds=10)
    clock.now = 9.9
    cache.current()
    clock.now = 10.0
    with pytest.raises(SqlError, match="8027"):
        cache.current()
    cache.hold()
    cache.reload()
    assert not cache.is_serving
    cache.release()
    cache.reload()
    assert cache.is_serving


def test_a_transaction_whose_table_has_changed_may_not_commit(memory: Memory) -> None:
    create(memory, "create table t (id int primary key)", 101)
    cache = SchemaCache(memory.begin, Clock())
    began = cache.version
    create(memory, "create table u (id int primary key)", 102)
    cache.reload()
    cache.check(began, [101])
    with pytest.raises(SqlError, match="8028"):
        cache.check(began, [101, 102])


def test_what_is_read_written_and_kept_clean_follows_from_the_states(memory: Memory) -> None:
    create(memory, "create table t (id int primary key, a int, b int, c int, key ia (a), key ib (b))", 101)
    transaction = memory.begin()
    document = Meta(transaction).table(2, 101)
    assert document is not None
    document["cols"][2]["state"] = int(SchemaState.WRITE_ONLY)
    document["cols"][3]["state"] = int(SchemaState.DELETE_ONLY)
    document["cols"][3]["change_state_info"] = {"relative_col_offset": 1}
    document["index_info"][0]["state"] = int(SchemaState.DELETE_ONLY)
    document["index_info"][1]["state"] = int(SchemaState.WRITE_REORG)
    Meta(transaction).put_table(2, document)
    transaction.commit()
    table = load_catalog(memory.begin()).table("test", "t")
    assert [c.name for c in table.info.columns] == ["id", "a"]
    assert [c.name for c in table.written.columns] == ["id", "a", "b"]
    assert [c.name for c in table.stored.columns] == ["id", "a", "b", "c"]
    assert [i.name for i in table.info.indexes] == []
    assert [i.name for i in table.written.indexes] == ["ib"]
    assert [i.name for i in table.stored.indexes] == ["ia", "ib"]
    assert table.follows == {4: 2}
