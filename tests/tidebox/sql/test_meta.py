"""Metadata in TiDB's keys and JSON."""

import json
from datetime import UTC, datetime

import pytest

from tests.histories import load
from tests.tidebox.sql.ddl.fake import Memory
from tidebox.sql import meta
from tidebox.sql.bootstrap import bootstrap
from tidebox.sql.meta import Meta
from tidemill.flow.schema.store import SchemaStore
from tidemill.tidb.keys import decode_bytes
from tidemill.tidb.meta import JOB_TABLE_ID, table_key

JOB = {"id": 123, "type": 3, "schema_name": "shop", "table_name": "t"}


@pytest.mark.parametrize(
    ("key", "hexed"),
    [
        pytest.param(
            meta.string_key(b"SchemaVersionKey"),
            "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073",
            id="M1",
        ),
        pytest.param(
            meta.string_key(b"NextGlobalID"), "6d4e657874476c6f62ff616c494400000000fb0000000000000073", id="M2"
        ),
        pytest.param(meta.string_key(b"Diff:42"), "6d446966663a343200fe0000000000000073", id="M3"),
        pytest.param(meta.hash_range(b"DB:2")[0], "6d44423a3200000000fb0000000000000068", id="M6"),
        pytest.param(
            table_key(2, 104), "6d44423a3200000000fb00000000000000685461626c653a3130ff3400000000000000f8", id="M5"
        ),
    ],
)
def test_keys_are_those_of_the_fact_sheet(key: bytes, hexed: str) -> None:
    assert key.hex() == hexed


def test_the_row_of_a_job_is_that_of_the_fact_sheet() -> None:
    row = [123, 0, "2", "104", b'{"id":123}', 3, 0]
    key, value = meta.job_table().record(meta.rowid_handle(123), row)
    assert key.hex() == "748000fffffffffffe5f72800000000000007b"
    assert value.hex() == "8000060000000203040506070100020005000f001000110000323130347b226964223a3132337d0300"


def test_counters_and_fields_of_the_fact_sheet_are_written() -> None:
    transaction = Memory().begin()
    Meta(transaction).set_counter(2, 104, 30000)
    Meta(transaction).put_history(JOB, datetime(2026, 1, 1, tzinfo=UTC), [2], [104])
    written = {key.hex(): value for key, value in transaction.scan(b"m", b"n")}
    assert written["6d44423a3200000000fb00000000000000685449443a31303400fe"] == b"30000"
    history = "6d44444c4a6f624869ff73746f7279000000fc0000000000000068000000000000007bff0000000000000000f7"
    assert json.loads(written[history]) == JOB


def test_a_job_is_found_until_it_is_deleted() -> None:
    transaction = Memory().begin()
    metadata = Meta(transaction)
    metadata.put_job(JOB, is_reorg=True, schema_ids=[2, 110], table_ids=[9, 9])
    assert metadata.job(123) == JOB
    assert metadata.jobs() == [JOB]
    metadata.delete_job(123)
    assert metadata.job(123) is None


def test_ids_follow_each_other_and_versions_have_their_diffs() -> None:
    metadata = Meta(Memory().begin())
    assert metadata.next_ids(2) == [1, 2]
    assert metadata.next_ids(1) == [3]
    assert metadata.bump_version({"type": 5}) == 1
    assert metadata.diff(1) == {"version": 1, "type": 5}
    assert metadata.diff(2) is None


def test_documents_read_and_written_again_are_tidbs_bytes() -> None:
    """Each document of the recorded metadata, with the escapes that Go's JSON has."""
    history = load("ddl")
    count = 0
    for key, value in history.meta_at(history.end_ts):
        name, _ = decode_bytes(key, 1)
        if name[:2] == b"DB" and value[:1] == b"{":
            assert meta.dump(json.loads(value)) == value
            count += 1
    assert count > 80


def test_the_systems_tables_are_tidbs() -> None:
    """But for the format's columns of newer versions and the clock."""
    history = load("types")
    for table_id, document in meta.system_tables().items():
        recorded = history.value_at(table_key(1, table_id), history.bootstrap_ts)
        assert recorded is not None
        wanted = json.loads(recorded)
        assert {**document, "update_timestamp": wanted["update_timestamp"]} == wanted


def test_a_fresh_cluster_is_made_ready_once() -> None:
    memory = Memory()
    assert bootstrap(memory.begin)
    before = dict(memory.pairs)
    assert not bootstrap(memory.begin)
    assert memory.pairs == before
    metadata = Meta(memory.begin())
    assert [d["db_name"]["O"] for d in metadata.databases()] == ["mysql", "test"]
    assert JOB_TABLE_ID in {t["id"] for t in metadata.tables(1)}
    assert metadata.schema_version == 1


def test_a_changefeed_reads_the_metadata_of_a_fresh_cluster() -> None:
    memory = Memory()
    bootstrap(memory.begin)
    store = SchemaStore.from_snapshot(sorted(memory.pairs.items()), memory.tick())
    assert store.followed() is not None
