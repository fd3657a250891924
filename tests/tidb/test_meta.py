import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import load
from tidemill.errors import SchemaError
from tidemill.tidb import meta

# From the fact sheet.
DB_2 = "6d4442730000000000fa000000000000006844423a3200000000fb"
TABLE_104 = "6d44423a3200000000fb00000000000000685461626c653a3130ff3400000000000000f8"
COUNTER = "6d44423a3200000000fb00000000000000685449443a31303400fe"
SCHEMA_VERSION = "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073"
JOB_123 = "748000fffffffffffe5f72800000000000007b"


def test_keys_are_those_of_the_fact_sheet() -> None:
    assert meta.database_key(2).hex() == DB_2
    assert meta.table_key(2, 104).hex() == TABLE_104


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_hash_keys_are_taken_apart_as_put_together(name: bytes, field: bytes) -> None:
    assert meta.split_hash_key(meta.hash_key(name, field)) == (name, field)


def test_a_snapshot_keeps_databases_tables_and_jobs() -> None:
    pairs = [(bytes.fromhex(key), key[-4:].encode()) for key in (DB_2, TABLE_104, COUNTER, SCHEMA_VERSION, JOB_123)]
    snapshot = meta.read_snapshot(pairs)
    assert list(snapshot.databases) == [2]
    assert list(snapshot.tables) == [(2, 104)]
    assert [key.hex() for key, _ in snapshot.job_rows] == [JOB_123]


def test_the_ranges_hold_all_that_is_needed_and_little_else() -> None:
    history = load("ddl")
    inside = [pair for start, end in meta.scan_ranges() for pair in history.scan_at(start, end, history.end_ts)]
    assert meta.read_snapshot(inside).tables == meta.read_snapshot(history.meta_at(history.end_ts)).tables
    assert meta.read_snapshot(inside).databases == meta.read_snapshot(history.meta_at(history.end_ts)).databases
    assert len(inside) < len(list(history.meta_at(history.end_ts))) / 2
    (start, end), (jobs_start, jobs_end) = meta.scan_ranges()
    assert start <= bytes.fromhex(DB_2) < end
    assert jobs_start <= bytes.fromhex(JOB_123) < jobs_end


def test_a_key_without_its_id_is_an_error_that_names_it() -> None:
    with pytest.raises(SchemaError, match="Table:<id>"):
        meta.read_snapshot([(meta.hash_key(b"DB:2", b"Table:x"), b"{}")])
