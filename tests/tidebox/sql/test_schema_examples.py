"""The worked examples of TiDB's metadata and online DDL: keys, the job row, a table's document, two timelines."""

from datetime import UTC, datetime

import pytest

from tests.tidebox.sql.ddl.fake import Memory
from tests.tidebox.sql.plain_ddl import session_on
from tidebox.sql import meta
from tidebox.sql.codec import TableCodec, rowid_handle
from tidebox.sql.codec.rows import pack_row, split_row
from tidebox.sql.ddl.plan import Asking, plan
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_table
from tidebox.sql.meta import Meta
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.parse import parse
from tidebox.sql.transaction import Transaction
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.schema.jobs import cell
from tidemill.flow.schema.store import SchemaStore
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts
from tidemill.tidb.documents import JobState, SchemaState, parse_table
from tidemill.tidb.keys import encode_bytes, encode_int, physical_id_of, record_key, record_range, record_span
from tidemill.tidb.meta import JOB_TABLE_ID, database_key, hash_key, read_snapshot, split_hash_key, table_key

HISTORY_TABLE_ID = JOB_TABLE_ID - 2
JOB_LIST = b"m" + encode_bytes(b"DDLJobList")
M = {
    "M1": "6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073",
    "M2": "6d4e657874476c6f62ff616c494400000000fb0000000000000073",
    "M3": "6d446966663a343200fe0000000000000073",
    "M4": "6d4442730000000000fa000000000000006844423a3200000000fb",
    "M5": "6d44423a3200000000fb00000000000000685461626c653a3130ff3400000000000000f8",
    "M6": "6d44423a3200000000fb0000000000000068",
    "M7": "6d44423a3200000000fb00000000000000685449443a31303400fe",
    "M8": "6d44444c4a6f624869ff73746f7279000000fc0000000000000068000000000000007bff0000000000000000f7",
    "M9": "6d44444c4a6f624c69ff7374000000000000f9000000000000006c8000000000000000",
    "M10": "6d44444c4a6f624c69ff7374000000000000f9000000000000004c",
    "M11": "00000000000000000000000000000002",
}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("M1", meta.string_key(b"SchemaVersionKey")),
        ("M2", meta.string_key(b"NextGlobalID")),
        ("M3", meta.string_key(b"Diff:42")),
        ("M4", database_key(2)),
        ("M5", table_key(2, 104)),
        ("M6", meta.hash_range(b"DB:2")[0]),
        ("M7", hash_key(b"DB:2", b"TID:104")),
        ("M8", hash_key(b"DDLJobHistory", (123).to_bytes(8, "big"))),
        ("M9", JOB_LIST + b"\0" * 7 + b"l" + encode_int(0)),
        ("M10", JOB_LIST + b"\0" * 7 + b"L"),
        ("M11", (0).to_bytes(8, "big") + (2).to_bytes(8, "big")),
    ],
)
def test_keys_are_written(name, written):
    assert written.hex() == M[name]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("M1", None),
        ("M3", None),
        ("M4", (b"DBs", b"DB:2")),
        ("M5", (b"DB:2", b"Table:104")),
        ("M7", (b"DB:2", b"TID:104")),
        ("M8", (b"DDLJobHistory", (123).to_bytes(8, "big"))),
        ("M9", None),
        ("M10", None),
    ],
)
def test_keys_are_taken_apart_and_those_of_other_structures_passed_over(name, parts):
    assert split_hash_key(bytes.fromhex(M[name])) == parts
    snapshot = read_snapshot([(bytes.fromhex(M[name]), b"{}")])
    assert bool(snapshot.databases or snapshot.tables) == (name in ("M4", "M5"))


def test_what_metadata_write_lies_under_these_keys():
    transaction = Memory().begin()
    metadata = Meta(transaction)
    metadata.next_ids(7)
    metadata.put_database({"id": 2, "db_name": {"O": "a", "L": "a"}})
    metadata.put_table(2, {"id": 104, "name": {"O": "t", "L": "t"}, "revision": 0})
    metadata.set_counter(2, 104, 9)
    for _ in range(42):
        metadata.bump_version({"type": 3})
    metadata.put_history({"id": 123, "schema_name": "", "table_name": ""}, datetime(2026, 1, 1, tzinfo=UTC), [], [])
    written = {key.hex() for key, _ in transaction.scan(b"m", b"n")}
    assert {M[f"M{n}"] for n in (1, 2, 3, 4, 5, 7, 8)} <= written


def test_the_job_row_and_its_span():
    assert record_key(JOB_TABLE_ID, 123).hex() == "748000fffffffffffe5f72800000000000007b"
    assert record_key(HISTORY_TABLE_ID, 123).hex() == "748000fffffffffffc5f72800000000000007b"
    assert [key.hex() for key in record_range(JOB_TABLE_ID)] == ["748000fffffffffffe5f72", "748000fffffffffffe5f73"]
    span = record_span(JOB_TABLE_ID)
    assert span.start.hex() == "748000fffffffffffffe5f720000000000fa"
    assert span.end.hex() == "748000fffffffffffffe5f730000000000fa"
    assert physical_id_of(bytes.fromhex("748000fffffffffffe5f72800000000000007b")) == 0xFFFFFFFFFFFE
    row = [123, None, "2", "104", b'{"id":123}', 3, 0]
    hexed = "8000060000000203040506070100020005000f001000110000323130347b226964223a3132337d0300"
    codec = meta.job_table()
    assert codec.record(rowid_handle(123), [123, 0, *row[2:]]).value.hex() == hexed
    assert codec.decode(record_key(JOB_TABLE_ID, 123), bytes.fromhex(hexed)) == [123, 0, *row[2:]]
    assert cell(bytes.fromhex(hexed), 5) == b'{"id":123}'


def test_the_minimal_table_document():
    """Of CREATE TABLE T1(id INT PRIMARY KEY, v VARCHAR(20)), as far as the sheet prints it."""
    document = build_table(parse("CREATE TABLE T1(id INT PRIMARY KEY, v VARCHAR(20))"), DEFAULT_CHARSET)
    document["id"] = 104
    head = {
        "id": 104,
        "name": {"O": "T1", "L": "t1"},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "index_info": None,
        "constraint_info": None,
        "fk_info": None,
        "state": 5,
        "pk_is_handle": True,
        "is_common_handle": False,
        "common_handle_version": 0,
        "max_col_id": 2,
        "max_idx_id": 0,
        "partition": None,
        "version": 5,
    }
    assert {name: document[name] for name in head} == head
    common = {
        "origin_default": None,
        "origin_default_bit": None,
        "default": None,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "state": 5,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }
    kind = {"Decimal": 0, "Elems": None, "ElemsIsBinaryLit": None, "Array": False}
    number = kind | {"Tp": 3, "Flag": 4099, "Flen": 11, "Charset": "binary", "Collate": "binary"}
    words = kind | {"Tp": 15, "Flag": 0, "Flen": 20, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    assert document["cols"] == [
        {"id": 1, "name": {"O": "id", "L": "id"}, "offset": 0, "type": number} | common,
        {"id": 2, "name": {"O": "v", "L": "v"}, "offset": 1, "type": words} | common,
    ]
    table = parse_table(meta.dump(document), 2, "test", Ts(0))
    assert (table.id, table.name, table.pk_is_handle) == (104, "T1", True)
    assert [(c.id, c.name, c.type) for c in table.columns] == [(1, "id", ColumnType.LONG), (2, "v", ColumnType.VARCHAR)]


# Timelines


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        yield upstream.cluster


class Timeline:
    """A job on a table that is taken step by step, by one node."""

    def __init__(self, cluster, name: str, statement: str) -> None:
        self.cluster = cluster
        self.name = name
        self.sql = SqlNodes(cluster)
        self.session = session_on(self.sql.nodes[0])
        self.session.execute(f"create table {name} (id int primary key, v int)")
        self.start = Ts(int(cluster.tso.next()))
        pairs = [*Transaction(cluster).scan(b"m", b"n"), *Transaction(cluster).scan(*record_range(JOB_TABLE_ID))]
        self.store = SchemaStore.from_snapshot(pairs, self.start)
        (planned,) = plan(parse(statement), self.catalog, Asking("test", statement, datetime.now(UTC))).jobs
        self.job_id = self.sql.worker.submit(planned)
        self.first_version = self.catalog.version

    @property
    def catalog(self):
        return self.sql.nodes[0].cache.current()

    @property
    def table(self):
        return self.catalog.table("test", self.name)

    def moment(self) -> tuple[int, list[tuple[str, int, int]], tuple[int, int]]:
        """Versions since the beginning; columns with id and state; the job's state and schema state."""
        job = self.sql.worker.job(self.job_id)
        columns = [(c["name"]["O"], c["id"], c["state"]) for c in self.table.document["cols"]]
        return self.catalog.version - self.first_version, columns, (job["state"], job["schema_state"])

    def written_ids(self, row_id: int, value: str) -> set[int]:
        """The column ids of a row that a client writes now."""
        self.session.execute(f"insert into {self.name} (id, v) values ({row_id}, {value})")
        stored = Transaction(self.cluster).get(record_key(self.table.id, row_id))
        return set(split_row(stored).cells)

    def job_row(self) -> bytes | None:
        return Transaction(self.cluster).get(record_key(JOB_TABLE_ID, self.job_id))


def test_the_timeline_of_add_column(cluster):
    """17.1: ADD COLUMN c INT DEFAULT 7."""
    line = Timeline(cluster, "a", "alter table a add column c int default 7")
    before = [("id", 1, 5), ("v", 2, 5)]
    assert line.moment() == (0, before, (JobState.QUEUEING, SchemaState.NONE))
    for version, state in ((1, SchemaState.DELETE_ONLY), (2, SchemaState.WRITE_ONLY), (3, SchemaState.WRITE_REORG)):
        assert line.sql.worker.advance(line.job_id)
        assert line.moment() == (version, [*before, ("c", 3, state)], (JobState.RUNNING, state))
        line.written_ids(version, "5")
    finished = int(cluster.tso.next())
    assert line.sql.worker.advance(line.job_id)
    assert line.moment() == (4, [*before, ("c", 3, 5)], (JobState.DONE, SchemaState.PUBLIC))
    done = line.sql.worker.job(line.job_id)
    assert done["binlog"]["SchemaVersion"] == line.catalog.version
    assert [c["name"]["O"] for c in done["binlog"]["TableInfo"]["cols"]] == ["id", "v", "c"]
    row = line.job_row()
    assert line.sql.worker.advance(line.job_id)
    assert line.sql.worker.job(line.job_id)["state"] == JobState.SYNCED
    assert line.job_row() is None

    line.store.apply([(finished, finished - 1, record_key(JOB_TABLE_ID, line.job_id), row)])
    old, new = (line.store.table(line.table.id, ts) for ts in (finished, finished + 1))
    assert [c.name for c in old.columns] == ["id", "v"]  # a row at FinishedTS itself: the schema before
    assert [c.name for c in new.columns] == ["id", "v", "c"]
    at_write_only = pack_row([2, 3], [b"\x05", b"\x08"], [])
    key = record_key(line.table.id, 9)
    assert TableCodec(old).decode(key, at_write_only) == [9, 5]  # id 3 is passed over
    assert TableCodec(new).decode(key, pack_row([2], [b"\x05"], [])) == [9, 5, 7]  # its origin default
    line.session.close()


def test_the_timeline_of_a_lossy_modify_column(cluster):
    """17.2: v INT → VARCHAR, with what rows of clients contain at each state."""
    line = Timeline(cluster, "m", "alter table m modify column v varchar(20)")
    line.written_ids(1, "5")
    seen = [(line.moment()[1][1:], line.written_ids(10, "5"))]
    number = 11
    while line.sql.worker.job(line.job_id)["state"] != JobState.DONE:
        assert line.sql.worker.advance(line.job_id)
        columns = line.moment()[1][1:]
        ids = line.written_ids(number, "'8'" if ("v", 3, 5) in columns else "5")
        if (columns, ids) != seen[-1]:
            seen.append((columns, ids))
        number += 1
    old, hidden = ("v", 2, 5), "_Col$_v_0"
    assert seen == [
        ([old], {2}),
        ([old, (hidden, 3, 1)], {2}),
        ([old, (hidden, 3, 2)], {2, 3}),
        ([old, (hidden, 3, 3)], {2, 3}),
        ([("v", 3, 5), ("_Tombstone$_v", 2, 2)], {2, 3}),
        ([("v", 3, 5), ("_Tombstone$_v", 2, 1)], {3}),
        ([("v", 3, 5)], {3}),
    ]
    assert set(split_row(Transaction(cluster).get(record_key(line.table.id, 1))).cells) >= {3}  # rewritten
    line.session.close()
