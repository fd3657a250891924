"""Recorded histories of a real TiDB, loaded and replayed: read back, and followed by a change stream."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import histories
from tests.tidebox.follower import Change, Follower
from tests.tidebox.stub import client_of, put
from tidebox.history import read_history
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import DataDirError, HistoryCorruptError, UsageError

NAMES = ["types", "ddl", "online", "bench-narrow", "bench-wide"]
SMALL = "types"


def path_of(name: str) -> Path:
    return histories.FOLDER / name / "history.parquet"


def expected_changes(table: pa.Table, after: int = 0) -> dict[tuple[bytes, int], Change]:
    state: dict[bytes, bytes] = {}
    changes = {}
    for row in table.to_pylist():
        old = state.pop(row["key"], b"")
        is_put = row["op"] == "put"
        if is_put:
            state[row["key"]] = row["value"]
        if row["commit_ts"] > after:
            changes[row["key"], row["commit_ts"]] = Change(
                row["start_ts"], 1 if is_put else 2, row["value"] or b"", old
            )
    return changes


def scan_all(client, ts: int) -> list[tuple[bytes, bytes]]:
    pairs = []
    for region in client.regions():
        start = b""
        while True:
            request = kvrpcpb_pb2.ScanRequest(context=client.context(region), start_key=start, version=ts, limit=500)
            answer = client.kv[region.leader.store_id].KvScan(request)
            assert not answer.HasField("region_error")
            pairs += [(pair.key, pair.value) for pair in answer.pairs]
            if len(answer.pairs) < 500:
                break
            start = answer.pairs[-1].key + b"\0"
    return pairs


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_history_reads_and_streams_as_it_happened(name):
    table = histories.load(name).changes
    with (
        EmbeddedUpstream.start(stores=3, load=path_of(name), resolved_interval_seconds=0.02) as upstream,
        client_of(upstream) as client,
    ):
        assert {region.leader.store_id for region in client.regions()} == {1, 2, 3}
        stamps = table["commit_ts"].to_pylist()
        chosen = random.Random(name).sample(range(len(stamps)), 3)
        state: dict[bytes, bytes] = {}
        wanted = {}
        for at, (key, op, value) in enumerate(
            zip(*(table[c].to_pylist() for c in ("key", "op", "value")), strict=True)
        ):
            state.pop(key, None)
            if op == "put":
                state[key] = value
            if at == len(stamps) - 1 or (at in chosen and stamps[at + 1] > stamps[at]):
                wanted[stamps[at]] = dict(state)
        for ts, at_ts in wanted.items():
            assert scan_all(client, ts) == sorted(at_ts.items())
        assert upstream.tso() > stamps[-1]
        follower = Follower(client)
        follower.follow_until(upstream.tso())
        assert follower.changes == expected_changes(table)


@pytest.mark.parametrize("name", ["types", "ddl", "online", "bench-wide"])
def test_a_replayed_history_streams_the_same_as_a_loaded_one(name):
    history = histories.load(name)
    with (
        EmbeddedUpstream.start(stores=3, load=path_of(name), replay=0, resolved_interval_seconds=0.01) as upstream,
        client_of(upstream) as client,
    ):
        follower = Follower(client, history.bootstrap_ts)
        follower.follow_until(history.changes["commit_ts"][-1].as_py())
        assert upstream.wait_replayed(30)
        assert follower.changes == expected_changes(history.changes, history.bootstrap_ts)
        final = {
            key: change for (key, _), change in sorted(expected_changes(history.changes).items(), key=lambda c: c[0][1])
        }
        alive = sorted((key, change.value) for key, change in final.items() if change.op == 1)
        assert scan_all(client, upstream.tso()) == alive


def test_what_the_bootstrap_covers_is_there_before_anything_is_replayed():
    history = histories.load(SMALL)
    with EmbeddedUpstream.start(load=path_of(SMALL), replay=0.0001) as upstream:
        # So slow that the replay has hardly begun.
        first = next(ts for ts in history.changes["commit_ts"].to_pylist() if ts > history.bootstrap_ts)
        assert upstream.tso() < first
        key = history.changes["key"][0].as_py()
        assert upstream.get(key, history.bootstrap_ts) == history.value_at(key, history.bootstrap_ts)


def test_a_replay_at_its_own_pace_gives_out_the_historys_time():
    history = histories.load(SMALL)
    with EmbeddedUpstream.start(load=path_of(SMALL), replay=2.0) as upstream:
        assert history.bootstrap_ts < upstream.tso() < history.end_ts
        assert upstream.wait_replayed(30)
        assert upstream.tso() > history.changes["commit_ts"][-1].as_py()


def test_a_second_start_loads_nothing_twice_and_keeps_what_was_written_since(tmp_path):
    data = tmp_path / "d"
    with EmbeddedUpstream.start(load=path_of(SMALL), data_dir=data) as first:
        _, commit = first.commit([put(b"zzz", b"mine")])
        regions = first.regions()
    with EmbeddedUpstream.start(load=path_of(SMALL), data_dir=data) as second:
        assert second.regions() == regions
        assert second.get(b"zzz", commit) == b"mine"
    with EmbeddedUpstream.start(data_dir=data) as third:
        assert third.get(b"zzz") == b"mine"
        assert third.tso() > commit


def test_another_history_is_not_loaded_over_the_first(tmp_path):
    with EmbeddedUpstream.start(load=path_of(SMALL), data_dir=tmp_path / "d"):
        pass
    with pytest.raises(DataDirError, match="another history"):
        EmbeddedUpstream.start(load=path_of("ddl"), data_dir=tmp_path / "d")


def test_a_folder_whose_clock_is_past_the_history_cannot_replay_it(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as first:
        first.cluster.tso.pass_by(histories.load(SMALL).end_ts + (1 << 40))
    with pytest.raises(UsageError, match="clock is already at"):
        EmbeddedUpstream.start(load=path_of(SMALL), replay=0, data_dir=tmp_path / "d")


def test_two_upstreams_cannot_share_a_folder(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d"), pytest.raises(DataDirError, match="another process"):
        EmbeddedUpstream.start(data_dir=tmp_path / "d")


def test_the_number_of_stores_is_the_folders(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", stores=2):
        pass
    with pytest.raises(DataDirError, match="made for 2 stores, not 3"):
        EmbeddedUpstream.start(data_dir=tmp_path / "d", stores=3)


def test_a_temporary_folder_goes_with_the_upstream():
    with EmbeddedUpstream.start() as upstream:
        folder = upstream.folder
        assert folder.is_dir()
    assert not folder.exists()


# Being killed

_SERVE = """
import sys, threading
from pathlib import Path
from tidebox.upstream import EmbeddedUpstream
path, data, replay = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
upstream = EmbeddedUpstream.start(load=path, data_dir=data, replay=replay, resolved_interval_seconds=0.01)
for _ in range(int(sys.argv[4])):
    print(upstream.tso(), flush=True)
print("enough", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("stamps", [1, 40, 200])
def test_a_killed_replay_goes_on_where_it_stopped(tmp_path, stamps):
    """Killed at a random moment of the replay; started again, all is there exactly once."""
    history = histories.load(SMALL)
    arguments = [str(path_of(SMALL)), str(tmp_path / "d"), "1.0", str(stamps)]
    process = subprocess.Popen([sys.executable, "-c", _SERVE, *arguments], stdout=subprocess.PIPE, text=True)
    given = []
    for line in process.stdout:
        if line == "enough\n":
            break
        given.append(int(line))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert given == sorted(set(given))
    with (
        EmbeddedUpstream.start(load=path_of(SMALL), data_dir=tmp_path / "d", replay=0) as upstream,
        client_of(upstream) as client,
    ):
        assert upstream.tso() > given[-1]
        assert upstream.wait_replayed(60)
        assert len(upstream.cluster.locks) == 0
        follower = Follower(client)
        follower.follow_until(upstream.tso())
        assert follower.changes == expected_changes(history.changes)


_WRITE = """
import sys, threading
from pathlib import Path
from tidemill.model.change import Op
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
upstream = EmbeddedUpstream.start(data_dir=Path(sys.argv[1]))
number = 0
while True:
    value = b"%d" % number * 100
    _, commit = upstream.commit([Mutation(Op.PUT, b"a%d" % number, value), Mutation(Op.PUT, b"b%d" % number, value)])
    print(number, commit, flush=True)
    number += 1
"""


def test_every_acknowledged_write_survives_a_kill_and_none_is_half_there(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _WRITE, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True)
    acknowledged = [tuple(map(int, process.stdout.readline().split())) for _ in range(150)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += [tuple(map(int, line.split())) for line in process.stdout if line.endswith("\n")]
    process.wait()
    process.stdout.close()
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as upstream:
        for number, commit in acknowledged:
            assert (
                upstream.get(b"a%d" % number, commit) == upstream.get(b"b%d" % number, commit) == b"%d" % number * 100
            )
            assert upstream.get(b"a%d" % number, commit - 1) is None
        following = len(acknowledged)  # perhaps begun; then both keys are locked, both committed, or neither
        locks = [upstream.cluster.locks.get(key % following) for key in (b"a%d", b"b%d")]
        assert (locks[0] is None) == (locks[1] is None)
        assert upstream.tso() > acknowledged[-1][1]


def test_a_replay_cut_between_lock_and_commit_can_be_finished_by_loading_the_rest(tmp_path):
    history = read_history(path_of(SMALL))
    with EmbeddedUpstream.start(load=path_of(SMALL), data_dir=tmp_path / "d", replay=0.0001) as first:
        row = history.rows_up_to(history.bootstrap_ts)
        _, mutations = history.transaction_at(row)
        first.cluster.prewrite(mutations, int(history.start_ts[row]), for_update_ts=int(history.commit_ts[row]) - 1)
    with EmbeddedUpstream.start(load=path_of(SMALL), data_dir=tmp_path / "d") as second, client_of(second) as client:
        assert len(second.cluster.locks) == 0
        follower = Follower(client)
        follower.follow_until(second.tso())
        assert follower.changes == expected_changes(histories.load(SMALL).changes)


# Files that are no histories

GOOD = {
    "start_ts": pa.array([1, 3, 3], pa.uint64()),
    "commit_ts": pa.array([2, 4, 4], pa.uint64()),
    "op": pa.array(["put", "put", "delete"]),
    "key": pa.array([b"a", b"a", b"b"], pa.binary()),
    "value": pa.array([b"1", b"2", None], pa.binary()),
}


def written(tmp_path, **columns) -> Path:
    path = tmp_path / "history.parquet"
    pq.write_table(pa.table({**GOOD, **columns}), path)
    return path


def test_the_form_of_a_history(tmp_path):
    with EmbeddedUpstream.start(load=written(tmp_path)) as upstream:
        assert upstream.get(b"a", 2) == b"1"
        assert upstream.get(b"a", 4) == b"2"
        assert upstream.get(b"b", 4) is None


def test_an_empty_history_is_a_history(tmp_path):
    path = tmp_path / "history.parquet"
    pq.write_table(pa.table(GOOD).slice(0, 0), path)
    with EmbeddedUpstream.start(load=path) as upstream:
        assert upstream.get(b"a") is None
    with EmbeddedUpstream.start(load=path, replay=0) as upstream:
        assert upstream.wait_replayed(30)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        pytest.param({"op": pa.array(["put", "upsert", "delete"])}, "row 1: op is neither", id="unknown op"),
        pytest.param({"start_ts": pa.array([1, 4, 4], pa.uint64())}, "row 1: start_ts is not below", id="ts turned"),
        pytest.param({"commit_ts": pa.array([9, 4, 4], pa.uint64())}, "row 1: is out of order", id="commits descend"),
        pytest.param({"key": pa.array([b"a", b"b", b"a"])}, "row 2: is out of order", id="keys descend"),
        pytest.param({"key": pa.array([b"a", b"b", b"b"])}, "row 2: repeats the row before", id="repetition"),
        pytest.param(
            {"start_ts": pa.array([1, 2, 3], pa.uint64()), "key": pa.array([b"a", b"b", b"b"])},
            "two rows at commit_ts 4 have one key",
            id="one key twice at a ts",
        ),
        pytest.param({"key": pa.array([b"a", None, b"b"])}, "column key is null in row 1", id="null key"),
        pytest.param({"value": pa.array([b"1", None, None], pa.binary())}, "row 1: a put has no value", id="no value"),
        pytest.param({"commit_ts": pa.array(["x", "y", "z"])}, "column commit_ts is string", id="text for numbers"),
    ],
)
def test_a_history_with_wrong_rows_is_refused(tmp_path, columns, found):
    path = written(tmp_path, **columns)
    with pytest.raises(HistoryCorruptError, match=found) as refused:
        EmbeddedUpstream.start(load=path, data_dir=tmp_path / "d")
    assert str(path) in str(refused.value)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("content", [b"", b"not parquet at all", "truncated", "flipped", "missing column"])
def test_a_file_that_is_no_history_is_refused(tmp_path, content):
    path = tmp_path / "history.parquet"
    whole = path_of(SMALL).read_bytes()
    if content == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif content == "flipped":
        path.write_bytes(whole[:5000] + bytes(b ^ 0xFF for b in whole[5000:7000]) + whole[7000:])
    elif content == "missing column":
        pq.write_table(pa.table(GOOD).drop_columns(["key", "op"]), path)
    else:
        path.write_bytes(content)
    with pytest.raises(HistoryCorruptError, match="cannot load history") as refused:
        EmbeddedUpstream.start(load=path)
    assert str(path) in str(refused.value)


def test_a_missing_file_and_a_broken_meta_file_are_named(tmp_path):
    with pytest.raises(HistoryCorruptError, match="no such file"):
        EmbeddedUpstream.start(load=tmp_path / "none.parquet")
    path = written(tmp_path)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(HistoryCorruptError, match=r"meta\.json"):
        EmbeddedUpstream.start(load=path)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"stores": 0}, "choose 1 to 64"),
        ({"replay": 1.0}, "needs a history"),
        ({"load": path_of(SMALL), "replay": -1.0}, "--replay -1 is no pace"),
        ({"resolved_interval_seconds": 0.0}, "must be positive"),
    ],
)
def test_impossible_options_are_refused(options, found):
    with pytest.raises(UsageError, match=found):
        EmbeddedUpstream.start(**options)
