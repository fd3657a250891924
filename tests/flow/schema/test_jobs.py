import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.schema.builders import gone, job, pack, row_v1, row_v2
from tests.histories import load
from tidemill.errors import SchemaError
from tidemill.flow.schema.jobs import JobGone, JobRow, cell, decode_job, read_changes
from tidemill.model.ddl import ActionType
from tidemill.tidb.keys import record_key
from tidemill.tidb.meta import JOB_TABLE_ID

# From the fact sheet: job_meta {"id":123}, schema_ids "2", table_ids "104", type 3.
GOLDEN = bytes.fromhex("8000060000000203040506070100020005000f001000110000323130347b226964223a3132337d0300")


def test_the_document_of_a_known_row_is_found() -> None:
    assert cell(GOLDEN, 5) == b'{"id":123}'
    assert cell(GOLDEN, 4) == b"104"
    assert cell(GOLDEN, 9) is None


@given(st.dictionaries(st.integers(1, 400), st.none() | st.binary(max_size=40), max_size=8), st.integers(1, 400))
def test_a_cell_of_format_v2_is_read_as_written(cells: dict[int, bytes | None], column_id: int) -> None:
    assert cell(row_v2(cells), column_id) == cells.get(column_id)


def test_a_row_longer_than_64_kilobytes_is_read() -> None:
    document = b"x" * 70_000
    assert cell(row_v2({5: document, 6: b"y"}), 5) == document
    assert cell(row_v1({5: document, 6: 3}), 5) == document


@given(
    st.dictionaries(
        st.integers(1, 400), st.none() | st.binary(max_size=40) | st.integers(-(1 << 62), 1 << 62), max_size=8
    ),
    st.integers(1, 400),
)
def test_a_cell_of_format_v1_is_read_as_written(cells: dict[int, bytes | int | None], column_id: int) -> None:
    wanted = cells.get(column_id)
    assert cell(row_v1(cells), column_id) == (wanted if isinstance(wanted, bytes) else None)


@given(st.integers(1, 60))
def test_a_row_cut_short_is_an_error_that_names_the_job(length: int) -> None:
    for row in (row_v2({1: b"1", 5: b"{" + b"x" * 80}), row_v1({1: 1, 5: b"{" + b"x" * 80})):
        with pytest.raises(SchemaError, match="DDL job 77"):
            decode_job(record_key(JOB_TABLE_ID, 77), row[:length])


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        pytest.param(row_v2({1: b"?"}), "no job_meta", id="no document"),
        pytest.param(row_v2({5: b"{"}), "cannot read DDL job 77", id="no JSON"),
        pytest.param(row_v2({5: b"[1]"}), "a JSON object was expected", id="not an object"),
        pytest.param(row_v2({5: pack({"id": 77})}), "KeyError: 'type'", id="a key is missing"),
        pytest.param(row_v2({5: pack({"id": "x", "type": 1, "state": 4})}), "invalid literal", id="not a number"),
        pytest.param(b"\x0d", "unexpected kind of value", id="neither row format"),
    ],
)
def test_a_malformed_job_is_an_error_that_names_it(row: bytes, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint) as caught:
        decode_job(record_key(JOB_TABLE_ID, 77), row)
    assert "77" in str(caught.value)


def test_transitions_and_removals_are_told_apart() -> None:
    rows = list(read_changes([job(20, 5, ActionType.CREATE_TABLE), gone(30, 5)]))
    assert [type(r) for r in rows] == [JobRow, JobGone]
    assert [r.commit_ts for r in rows] == [20, 30]
    assert rows[1] == JobGone(30, 5)


def test_a_batch_and_tuples_say_the_same() -> None:
    batch = load("online").job_changes().slice(100, 50)
    rows = zip(*(batch.column(c).to_pylist() for c in ("commit_ts", "start_ts", "key", "value")), strict=True)
    assert list(read_changes(batch)) == list(read_changes(rows))


def test_the_document_may_live_in_another_column() -> None:
    commit_ts, start_ts, key, _ = job(20, 5, ActionType.CREATE_TABLE)
    document = pack({"id": 5, "type": 3, "state": 1})
    (row,) = read_changes([(commit_ts, start_ts, key, row_v2({5: b"other", 9: document}))], column_id=9)
    assert isinstance(row, JobRow)
    assert row.job.id == 5
