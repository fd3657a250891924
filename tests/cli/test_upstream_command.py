"""``tidemill upstream`` as a process: ready-file, ports, signals, and what it says when it cannot start."""

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pymysql
import pytest

from tests import histories
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import pdpb_pb2, pdpb_pb2_grpc
from tidemill.cli import main
from tidemill.cli.options import parse_seconds
from tidemill.errors import UsageError

HISTORY = histories.FOLDER / "types" / "history.parquet"
DEADLINE_SECONDS = 120
COMMAND = [sys.executable, "-c", "from tidemill.cli import main; main()", "upstream"]


@contextlib.contextmanager
def running(tmp_path: Path, *options: str):
    ready = tmp_path / "ready.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen([*COMMAND, "--ready-file", str(ready), *options], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not ready.exists():
            assert time.monotonic() < deadline, "no ready-file"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                raise AssertionError(process.stderr.read())
        yield process, json.loads(ready.read_bytes())
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


def cluster_id(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        return pdpb_pb2_grpc.PDStub(channel).GetMembers(pdpb_pb2.GetMembersRequest(), timeout=30).header.cluster_id


def test_the_ready_file_names_addresses_that_answer_and_sigterm_ends_with_0(tmp_path):
    with running(tmp_path, "--stores", "2", "--pd-port", "0", "--load", str(HISTORY)) as (process, ready):
        assert set(ready) == {"pd", "stores"}
        assert len(set(ready["stores"])) == 2
        header = pdpb_pb2.RequestHeader(cluster_id=cluster_id(ready["pd"]))
        with grpc.insecure_channel(ready["pd"]) as channel:
            stores = pdpb_pb2_grpc.PDStub(channel).GetAllStores(pdpb_pb2.GetAllStoresRequest(header=header)).stores
        assert [store.address for store in stores] == ready["stores"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0


def test_a_data_dir_keeps_the_cluster_and_the_asked_port_is_taken(tmp_path):
    data = ["--data-dir", str(tmp_path / "d"), "--load", str(HISTORY), "--replay", "0"]
    with running(tmp_path, "--pd-port", "0", *data) as (process, ready):
        first = cluster_id(ready["pd"])
        process.kill()
    port = ready["pd"].rsplit(":", 1)[1]
    with running(tmp_path, "--pd-port", port, *data) as (process, ready):
        assert ready["pd"] == f"127.0.0.1:{port}"
        assert cluster_id(ready["pd"]) == first


def test_sql_has_an_address_for_each_node_and_ends_with_its_clients_on_sigterm(tmp_path):
    with running(tmp_path, "--pd-port", "0", "--sql-port", "0", "--sql-nodes", "3") as (process, ready):
        assert len(set(ready["sql"])) == 3
        clients = [connect(address) for address in ready["sql"]]
        ask(clients[0], "create table test.t (id int primary key)")
        ask(clients[1], "begin")
        ask(clients[1], "insert into test.t values (1)")
        assert ask(clients[2], "select count(*) from test.t") == ((0,),)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
        assert f"SQL at {' and '.join(ready['sql'])} (user root, no password)" in process.stderr.read()
        for client in clients:
            with pytest.raises(pymysql.err.OperationalError):
                ask(client, "select 1")


def test_the_nodes_have_the_asked_port_and_those_above_it(tmp_path):
    with free_ports(2) as first:
        pass
    with running(tmp_path, "--pd-port", "0", "--sql-port", str(first), "--sql-nodes", "2") as (_, ready):
        assert ready["sql"] == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]


@pytest.mark.parametrize(("user", "password"), [("root", "secret"), ("app", ""), ("app", "secret")])
def test_only_root_without_a_password_comes_in(sql, user, password):
    with pytest.raises(pymysql.err.OperationalError) as refused:
        connect(sql.sql_addresses[0], user=user, password=password)
    assert refused.value.args[0] == 1045


@pytest.mark.parametrize("options", [{"load": HISTORY}, {"stores": 3, "chaos": 3}], ids=["history", "chaos"])
def test_sql_works_on_a_loaded_history_and_with_chaos(options):
    with EmbeddedUpstream.start(sql_port=0, **options) as upstream:
        client = connect(upstream.sql_addresses[0])
        ask(client, "create database more")
        ask(client, "create table more.t (id int primary key, v int)")
        for at in range(100):
            ask(client, f"insert into more.t values ({at}, {at})")
        ask(client, "alter table more.t add index kv (v)")
        assert ask(client, "select count(*), sum(v) from more.t use index (kv)") == ((100, 4950),)
        ask(client, "admin check table more.t")
        client.close()


def connect(address: str, **options):
    host, port = address.split(":")
    options = {"user": "root", "autocommit": True} | options
    return pymysql.connect(host=host, port=int(port), **options)


def ask(client, statement: str):
    with client.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


@contextlib.contextmanager
def free_ports(count: int):
    """Several in a row that nobody has, while inside; the first of them."""
    chance = random.Random(time.monotonic())
    while True:
        first = chance.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for at in range(count):
                held.enter_context(socket.create_server(("127.0.0.1", first + at)))
            yield first
            return


@pytest.fixture(scope="module")
def sql():
    with EmbeddedUpstream.start(sql_port=0) as upstream:
        yield upstream


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--load", "no-such-file.parquet"], 1, "no such file. Give the path of a history.parquet"),
        (["--data-dir", __file__], 1, "it is not a folder. Choose another --data-dir"),
        (["--pd-port", "65536"], 2, "there is no port 65536. Choose --pd-port between 1 and 65535, or 0 for any"),
        (["--load", __file__], 1, "not a readable Parquet file"),
        (["--load", str(Path(__file__).parent)], 1, "it is a folder. Give the history.parquet in it"),
        (["--load", str(HISTORY), "--replay", "nan"], 2, "--replay nan is no pace"),
        (["--load", str(HISTORY), "--replay", "-1"], 2, "--replay -1 is no pace"),
        (["--resolved-interval", "9" * 400], 2, "at most 8760h, a year"),
        (["--stores", "0"], 2, "choose 1 to 64"),
        (["--api-version", "3"], 2, "choose 1 or 2"),
        (["--log-level", "loud"], 2, "--log-level 'loud' is unknown"),
        (["--replay", "1"], 2, "--load"),
        (["--resolved-interval", "soon"], 2, "not a duration"),
        (["--sql-nodes", "2"], 2, "--sql-nodes needs --sql-port"),
        (["--sql-port", "0", "--sql-nodes", "0"], 2, "choose 1 to 64"),
        (["--sql-port", "-1"], 2, "there are no ports -1 to -1"),
        (["--sql-port", "65535", "--sql-nodes", "2"], 2, "choose --sql-port between 1 and 65534"),
        (["--sql-port", "0", "--sql-lease", "0"], 2, "must be positive"),
        (["--sql-port", "0", "--api-version", "2"], 2, "SQL does not go with API version 2"),
        (["--sql-port", "0", "--load", str(HISTORY), "--replay", "0"], 2, "--sql-port does not go with --replay"),
        (["--ready-file", "/no/such/folder/ready.json"], 2, "cannot write --ready-file"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_sentence(monkeypatch, capsys, options, code, said):
    monkeypatch.setattr(sys, "argv", ["tidemill", "upstream", "--pd-port", "0", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("harm", "options", "said"),
    [
        (lambda folder: None, ["--api-version", "2"], "Start with --api-version 1"),
        (lambda folder: None, ["--stores", "3"], "Start with --stores 1"),
        (lambda folder: (folder / "CURRENT").unlink(), [], "it is damaged"),
        (lambda folder: [p.write_bytes(b"") for p in folder.glob("*.sst")], [], "cannot open the upstream's data"),
    ],
)
def test_a_data_folder_that_does_not_fit_is_said_in_one_sentence(tmp_path, monkeypatch, capsys, harm, options, said):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d"):
        pass
    harm(tmp_path / "d")
    monkeypatch.setattr(
        sys, "argv", ["tidemill", "upstream", "--pd-port", "0", "--data-dir", str(tmp_path / "d"), *options]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("flag", ["--pd-port", "--sql-port"])
def test_a_taken_port_is_named(monkeypatch, capsys, flag):
    with EmbeddedUpstream.start() as other:
        port = other.pd_address.rsplit(":", 1)[1]
        monkeypatch.setattr(sys, "argv", ["tidemill", "upstream", "--pd-port", "0", flag, port])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1.0), ("200ms", 0.2), ("2m", 120.0), ("1h30m", 5400.0), ("0.5", 0.5)]
)
def test_durations(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "1d", "-1s", "1 2s"])
def test_what_is_no_duration(text):
    with pytest.raises(UsageError, match="not a duration"):
        parse_seconds(text)
