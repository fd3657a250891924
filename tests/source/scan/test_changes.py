"""Changes between two ts: each once, with the schema in force, whatever the cuts and whatever the regions do."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flow.mounter.test_histories import go_row, images
from tests.flow.schema.stores import fed_store
from tests.histories import History, load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import StartTsCollectedError
from tidemill.model.change import Op
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.ts import Ts
from tidemill.source.scan import ScanClient, TableHistory, TableName, read_changes, read_part
from tidemill.source.scan.hold import ReadHold
from tidemill.tidb.keys import physical_id_of, record_key

Change = tuple[int, str, str]  # commit-ts, kind, the row


def told(history: History) -> dict[str, Counter[Change]]:
    """What TiCDC decodes, by table: of the ids that are the table's at the time; key updates in two."""
    store, _ = fed_store(history.name)
    followed = store.followed()
    found: dict[str, Counter[Change]] = {}
    for row in history.ticdc_rows():
        commit_ts, physical_id = row["commit_ts"], physical_id_of(bytes.fromhex(row["key"]))
        table = store.table(physical_id, commit_ts)
        if "columns" not in row or table is None:
            continue
        if not any(f.physical_id == physical_id and commit_ts in f for f in followed):
            continue
        new, old = go_row(row["columns"]), go_row(row["pre_columns"])
        keys = [c.name for c in table.unique_key_columns]
        is_split = new is not None and old is not None and any(new[k] != old[k] for k in keys)
        changes = found.setdefault(table.full_name.lower(), Counter())
        if is_split:
            changes.update([(commit_ts, "DELETE", repr(old)), (commit_ts, "INSERT", repr(new))])
        else:
            kind = "DELETE" if new is None else "INSERT" if old is None else "UPDATE"
            changes[commit_ts, kind, repr(new or old)] += 1
    return found


def seen(history: History, batches: list[RowBatch]) -> Counter[Change]:
    """But for what TiCDC knows nothing of: rows of tables that have no key at the time, and rows of the ids that take
    a table's place while a DDL that copies it still runs."""
    store, _ = fed_store(history.name)
    unknown = {(row["table_id"], row["commit_ts"]) for row in history.ticdc_rows() if "columns" not in row}
    found: Counter[Change] = Counter()
    for rows in batches:
        for commit_ts, op, (new, old) in zip(rows.commit_ts.tolist(), rows.op.tolist(), images(rows), strict=True):
            if store.table(rows.physical_id, commit_ts) is None or (rows.physical_id, commit_ts) in unknown:
                continue
            found[commit_ts, RowOp(op).name, repr(old if op == RowOp.DELETE else new)] += 1
    return found


def changes(client: ScanClient, history: TableHistory, from_ts: int, to_ts: int) -> list[RowBatch]:
    stretches = client.stretches(history, Ts(from_ts), Ts(to_ts))
    parts = client.plan_changes(stretches, hold=ReadHold.new(Ts(from_ts)))
    found = [rows for part in parts for rows in read_changes(part)]
    for rows in found:
        assert rows.commit_ts.tolist() == sorted(rows.commit_ts.tolist())
        assert all(from_ts < ts <= to_ts for ts in rows.commit_ts.tolist())
    return found


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_changes_of_every_table_are_those_that_ticdc_decodes(name: str) -> None:
    history = load(name)
    expected = told(history)
    assert len(expected) >= 2
    with (
        EmbeddedUpstream.start(stores=2, load=history.folder / "history.parquet", resolved_interval_seconds=0.02) as up,
        ScanClient(up.pd_address) as client,
    ):
        for table, theirs in expected.items():
            schema, _, table_name = table.partition(".")
            read = changes(client, TableHistory(TableName(schema, table_name)), history.bootstrap_ts, history.end_ts)
            assert seen(history, read) == theirs, table


def test_intervals_side_by_side_give_what_the_whole_gives() -> None:
    history = load("online")
    expected = told(history)
    cuts = sorted({history.bootstrap_ts, *(mark["ts"] for mark in history.marks()), history.end_ts})
    cuts[2:2] = [(cuts[1] + cuts[2]) // 2]
    with (
        EmbeddedUpstream.start(stores=2, load=history.folder / "history.parquet", resolved_interval_seconds=0.02) as up,
        ScanClient(up.pd_address) as client,
    ):
        for table, theirs in expected.items():
            table_history = TableHistory(TableName(*table.split(".", 1)))
            read = []
            for from_ts, to_ts in itertools.pairwise(cuts):
                read += changes(client, table_history, from_ts, to_ts)
            assert seen(history, read) == theirs, table


# Those that copy the rows to other physical ids while they are written to.
COPYING = ("partition by", "remove partitioning", "reorganize partition")


def test_a_table_and_its_changes_make_the_later_table() -> None:
    history = load("online")
    ddls = [ddl for ddl in history.ticdc_ddl() if ddl["job_type"].endswith(COPYING)]
    assert len(ddls) == 2
    with (
        EmbeddedUpstream.start(stores=2, load=history.folder / "history.parquet", resolved_interval_seconds=0.02) as up,
        ScanClient(up.pd_address) as client,
    ):
        for ddl in ddls:
            name, end = TableName(ddl["schema"], ddl["table"]), ddl["commit_ts"] + 1
            start = max(other["commit_ts"] for other in history.ticdc_ddl() if other["commit_ts"] < ddl["commit_ts"])
            rows = {row["id"]: row for row in rows_at(client, name, start)}
            found = [change for some in changes(client, TableHistory(name), start, end) for change in each(some)]
            assert found
            for _, op, (new, old) in sorted(found, key=lambda change: (change[0], change[1] != RowOp.DELETE)):
                if op == RowOp.DELETE:
                    rows.pop(old["id"], None)
                else:
                    rows[new["id"]] = new
            assert rows == {row["id"]: row for row in rows_at(client, name, end)}, ddl["query"]


def each(rows: RowBatch) -> Iterator[tuple[int, int, Any]]:
    return zip(rows.commit_ts.tolist(), rows.op.tolist(), images(rows), strict=True)


def rows_at(client: ScanClient, name: TableName, ts: int) -> list[dict[str, Any]]:
    parts = client.plan_scan(client.find_table(name, Ts(ts)), Ts(ts), hold=ReadHold.new(Ts(ts)))
    return [row for part in parts for rows in read_part(part) for row in rows.new.to_pylist()]


@pytest.fixture
def bench() -> Any:
    """The table bench.sbtest with its recorded rows."""
    path = load("bench-narrow").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.02) as upstream:
        yield upstream


def a_row() -> bytes:
    value = load("bench-narrow").value_at(record_key(112, 1), load("bench-narrow").end_ts)
    assert value
    return value


def test_regions_that_split_and_merge_meanwhile_leave_neither_hole_nor_overlap(bench: EmbeddedUpstream) -> None:
    start = bench.tso()
    for turn in range(6):
        puts = [Mutation(Op.PUT, record_key(112, 20_000 + 10 * turn + i), a_row()) for i in range(10)]
        bench.commit(puts)
        left, right = bench.split(record_key(112, 20_005 + 10 * turn))[:2]
        if turn % 2:
            bench.merge(left.id, right.id)
        else:
            bench.transfer_leader(right.id, 1 + turn % 3)
    bench.commit([Mutation(Op.DELETE, record_key(112, 20_000))])
    end = bench.tso()
    with ScanClient(bench.pd_address) as client:
        stretches = client.stretches(TableHistory(TableName("bench", "sbtest")), start, end)
        parts = client.plan_changes(stretches, hold=ReadHold.new(start))
        assert len(parts) > 1
        bench.split(record_key(112, 20_033))
        bench.split(record_key(112, 20_011))
        ops = Counter(op for part in parts for rows in read_changes(part) for op in rows.op.tolist())
    assert ops == {RowOp.INSERT: 60, RowOp.DELETE: 1}


def test_an_abandoned_lock_does_not_hold_a_read_for_ever(bench: EmbeddedUpstream) -> None:
    start = bench.tso()
    bench.commit([Mutation(Op.PUT, record_key(112, 30_000), a_row())])
    bench.orphan_lock(record_key(112, 30_001), ttl_ms=1)
    end = bench.tso()
    with ScanClient(bench.pd_address) as client:
        [rows] = changes(client, TableHistory(TableName("bench", "sbtest")), start, end)
    assert rows.new.column("id").to_pylist() == [30_000]


def test_what_the_upstream_has_collected_is_refused(bench: EmbeddedUpstream) -> None:
    start = bench.tso()
    bench.set_gc_safepoint(bench.tso())
    with (
        ScanClient(bench.pd_address) as client,
        pytest.raises(StartTsCollectedError, match=r"cannot read at .*garbage-collected up to .*tidb_gc_life_time"),
    ):
        client.hold(ReadHold.new(start))


def test_a_table_that_was_not_there_has_no_changes(bench: EmbeddedUpstream) -> None:
    with ScanClient(bench.pd_address) as client:
        now = client.now()
        assert client.stretches(TableHistory(TableName("bench", "nothing")), now, client.now()) == []
