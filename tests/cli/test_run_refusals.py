"""What ``tidemill run`` and ``tidemill demo`` say when they cannot: one sentence that names it and what to do."""

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.sqlclient import Client
from tests.histories import FOLDER
from tidebox.upstream import EmbeddedUpstream
from tidemill.cli import main

START_TS, LATE_TS = "470489256794521601", "470489262527873024"  # within what the history holds, and above it
SINK = "file://{tmp}/out?protocol=canal-json"


class Said(NamedTuple):
    code: int
    output: str
    errors: str


Tidemill = Callable[..., Said]


@pytest.fixture
def tidemill(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tidemill:
    """Run a command line in this process, as the installed script does."""

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["tidemill", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        output, errors = capsys.readouterr()
        assert "Traceback" not in output + errors
        return Said(int(ended.value.code or 0), output, errors)

    return run


@pytest.fixture(scope="module")
def pd() -> Iterator[str]:
    with EmbeddedUpstream.start(load=FOLDER / "types" / "history.parquet") as upstream:
        yield upstream.pd_address


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def run_words(pd: str, tmp: Path, changes: dict[str, str | None]) -> list[str]:
    flags: dict[str, str | None] = {"pd": pd, "sink-uri": SINK, "data-dir": "{tmp}/data"}
    flags |= {"start-ts": START_TS, "target-ts": LATE_TS}
    flags |= changes
    given = [(name, value.replace("{tmp}", str(tmp))) for name, value in flags.items() if value is not None]
    return ["run", *(word for name, value in given for word in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        pytest.param({"pd": None}, 2, r"Missing option '--pd'", id="no PD"),
        pytest.param({"pd": "somewhere"}, 2, r"'somewhere' is not of the form host:port", id="a PD without port"),
        pytest.param({"pd": "127.0.0.1:99999"}, 2, r"port 99999; a port is a number from 1 to", id="a PD's port"),
        pytest.param({"pd": "127.0.0.1:0"}, 2, r"has port 0; a port is", id="port zero"),
        pytest.param({"spark-master": "spark://h:99999"}, 2, r"port 99999; a port is", id="a master's port"),
        pytest.param({"pd": ""}, 2, r"no PD address given", id="an empty PD"),
        pytest.param({"pd": "127.0.0.1:２３７９"}, 2, r"is not of the form host:port", id="a port in wide digits"),
        pytest.param({"pd": "a..b:2379"}, 2, r"'a..b:2379' names a host that cannot be one", id="a host's dots"),
        pytest.param({"pd": "a" * 64 + ":2379"}, 2, r"names a host that cannot be one", id="a host too long"),
        pytest.param({"pd": "h:" + "9" * 5000}, 2, r"a port is a number from 1 to", id="a port too long"),
        pytest.param({"spark-master": "local[0]"}, 2, r"'local\[0\]' is not a Spark master", id="no threads"),
        pytest.param({"spark-master": "local[99999999999]"}, 2, r"is not a Spark master", id="too many threads"),
        pytest.param({"spark-master": "spark://a..b:7077"}, 2, r"names a host that cannot be", id="a master's host"),
        pytest.param({"start-ts": "9" * 5000}, 2, r"--start-ts 9+… is neither", id="a ts of 5000 digits"),
        pytest.param({"sink-uri": None}, 2, r"Missing option '--sink-uri'", id="no sink"),
        pytest.param({"sink-uri": "fil:///tmp/x"}, 2, r"unknown scheme 'fil'.*Did you mean 'file'\?", id="a scheme"),
        pytest.param({"sink-uri": "/tmp/x"}, 2, r"no scheme. Write mysql://", id="a bare path"),
        pytest.param({"sink-uri": "pulsar://b:6650/t"}, 2, r"'pulsar' are not supported", id="a later scheme"),
        pytest.param(
            {"sink-uri": SINK + "&flush-intervall=1s"}, 2, r"Did you mean 'flush-interval'\?", id="a parameter"
        ),
        pytest.param({"sink-uri": SINK + "&file-size=big"}, 2, r"'file-size' is 'big'; it must be", id="a value"),
        pytest.param(
            {"sink-uri": "file:///tmp/x"}, 2, r"needs a protocol. Add 'protocol=canal-json'", id="no protocol"
        ),
        pytest.param({"start-ts": "yesterday"}, 2, r"--start-ts yesterday is neither a time nor", id="in words"),
        pytest.param({"start-ts": "0"}, 2, r"--start-ts 0 is not a ts", id="ts zero"),
        pytest.param({"start-ts": "12"}, 2, r"--start-ts 12 is not a ts: a ts is milliseconds since", id="a small ts"),
        pytest.param(
            {"start-ts": "1772360100"}, 2, r"seconds since 1970.*write 2026-03-01T10:15:00Z, or 4646", id="Unix seconds"
        ),
        pytest.param({"start-ts": "1772360100123"}, 2, r"like milliseconds since 1970", id="Unix milliseconds"),
        pytest.param({"start-ts": "1772360100123456"}, 2, r"like microseconds since 1970", id="Unix microseconds"),
        pytest.param({"start-ts": "1772360100123456789"}, 2, r"like nanoseconds since 1970", id="Unix nanoseconds"),
        pytest.param({"target-ts": "1772360100"}, 2, r"--target-ts 1772360100 is not a ts", id="a target in seconds"),
        pytest.param({"start-ts": "-5"}, 2, r"--start-ts -5 is neither", id="a negative ts"),
        pytest.param({"start-ts": "18446744073709551615"}, 2, r"--start-ts 18446744073709551615 is not", id="max ts"),
        pytest.param({"target-ts": "9" * 30}, 2, r"--target-ts 9+ is not a ts", id="a number too long"),
        pytest.param(
            {"start-ts": "1066-10-14"}, 2, r"a time at which no cluster runs", id="a time before all clusters"
        ),
        pytest.param(
            {"start-ts": "2090-01-01", "target-ts": None}, 2, r"lies in the future", id="a start in the future"
        ),
        pytest.param({"start-ts": "470489262527873025"}, 2, r"target-ts .* lies before --start-ts", id="target first"),
        pytest.param({"time-zone": "Mars/Olympus"}, 2, r"--time-zone 'Mars/Olympus' is unknown", id="a zone"),
        pytest.param({"time-zone": "Europe"}, 2, r"--time-zone 'Europe' is unknown", id="a continent for a zone"),
        pytest.param({"time-zone": "../etc/passwd"}, 2, r"--time-zone .* is unknown", id="a path for a zone"),
        pytest.param({"log-level": "loud"}, 2, r"--log-level 'loud' is unknown. Use debug", id="a log level"),
        pytest.param({"output": "xml"}, 2, r"'xml' is not one of", id="an output"),
        pytest.param({"spark-master": "my-cluster"}, 2, r"--spark-master 'my-cluster'.*spark://", id="a master"),
        pytest.param({"spark-conf": "memory=2g"}, 2, r"--spark-conf 'memory' is not a setting", id="a setting"),
        pytest.param({"spark-conf": "spark.speculation=true"}, 2, r"which has to be 'false': the", id="a second copy"),
        pytest.param({"spark-conf": "spark.master=x"}, 2, r"'x' is not a Spark master", id="a setting's master"),
        pytest.param({"colour": "blue"}, 2, r"No such option: --colour", id="an option"),
        pytest.param({"data-dir": "/proc/tidemill"}, 1, r"cannot use data-dir /proc/tidemill: ", id="no such rights"),
        pytest.param({"data-dir": "{tmp}/file/x"}, 1, r"cannot use data-dir .*Not a directory", id="a file above it"),
        pytest.param(
            {"sink-uri": "file:///proc/out?protocol=csv"}, 1, r"cannot use /proc/out: .*start again", id="no rights"
        ),
        pytest.param(
            {"sink-uri": "file://{tmp}/file?protocol=csv"}, 1, r"A file stands where a folder should", id="a file"
        ),
        pytest.param({"data-dir": "{tmp}"}, 1, r"holds 'file', which is not a changefeed's", id="a folder in use"),
        pytest.param({"ready-file": "/proc/ready"}, 2, r"cannot write --ready-file /proc/ready", id="a ready-file"),
    ],
)
def test_bad_input_is_named_with_what_to_do(
    tidemill: Tidemill, pd: str, tmp_path: Path, changes: dict[str, str | None], code: int, says: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    said = tidemill(*run_words(pd, tmp_path, changes))
    assert re.search(says, said.errors.replace("\n", " ")), said.errors
    assert said.code == code
    assert said.output == ""
    assert not (tmp_path / "data" / "changefeed.json").exists()  # nothing is bound to a value that was refused


def test_a_copy_alone_takes_no_target(tidemill: Tidemill, pd: str, tmp_path: Path) -> None:
    said = tidemill(*run_words(pd, tmp_path, {}), "--once")
    assert said.code == 2
    assert "--once ends at --start-ts, so it takes no --target-ts" in said.errors.replace("\n", " ")


def test_tables_without_a_key_are_refused_or_named(tidemill: Tidemill, tmp_path: Path) -> None:
    """At the end of the history, where there are some. With a target at its start no Spark is needed."""
    strict = tmp_path / "strict.toml"
    strict.write_text("ignore-ineligible-table = false\n")
    with EmbeddedUpstream.start(sql_port=0) as upstream, Client(upstream.sql_addresses[0]) as client:
        client.run("create database shop")
        client.run("create table shop.log (line text)")
        client.run("create table shop.item (id int primary key)")
        ts = str(upstream.tso())
        flags: dict[str, str | None] = {"start-ts": ts, "target-ts": ts, "output": "json"}
        said = tidemill(*run_words(upstream.pd_address, tmp_path, {**flags, "config": str(strict)}))
        assert (said.code, said.output) == (2, "")
        assert re.search(r"cannot be told apart: shop\.log\. Give them a key.*ignore-ineligible-table", said.errors)
        said = tidemill(*run_words(upstream.pd_address, tmp_path, flags))
        assert said.code == 0
        assert "tables=shop.log" in said.errors or 'tables="shop.log"' in said.errors
        assert json.loads(said.output)["left_out"] == ["shop.log"]
        said = tidemill(*run_words(upstream.pd_address, tmp_path, {**flags, "output": "text"}))
        assert "Not captured, since they have no key: shop.log." in said.output


def test_an_unreachable_pd_is_named(tidemill: Tidemill, tmp_path: Path) -> None:
    address = closed_port()
    said = tidemill(*run_words(address, tmp_path, {}))
    assert said.code == 1
    assert f"no PD leader answers at {address}" in said.errors
    assert "Check the address" in said.errors


def test_a_start_below_the_gc_safepoint_is_refused_and_holds_nothing_back(tidemill: Tidemill, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(load=FOLDER / "types" / "history.parquet") as upstream:
        upstream.set_gc_safepoint(upstream.tso())
        said = tidemill(*run_words(upstream.pd_address, tmp_path, {}))
        assert said.code == 1
        assert "the upstream has garbage-collected up to" in said.errors
        assert "Choose a --start-ts above it" in said.errors
        assert upstream.cluster.safepoints.minimum().service == b"gc_worker"


def test_a_refused_start_lets_go_of_the_upstream(tidemill: Tidemill, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(load=FOLDER / "types" / "history.parquet") as upstream:
        said = tidemill(*run_words(upstream.pd_address, tmp_path, {"sink-uri": "file:///proc/out?protocol=csv"}))
        assert said.code == 1
        upstream.set_gc_safepoint(upstream.tso())  # whoever still held it back would now be the lowest
        assert upstream.cluster.safepoints.minimum().service == b"gc_worker"


# A data-dir remembers what it was started with. Its state is written by hand here: no Spark is needed to refuse it.


def remembered(tmp_path: Path, **changes: Any) -> Path:
    state = {
        "format": 1,
        "cluster_id": 7,
        "sink": SINK.replace("{tmp}", str(tmp_path)),
        "start_ts": 470489256794521601,
        "checkpoint_ts": 470489256794521601,
        "ddl_ts": 470489256794521601,
        "rows": 0,
        "table_versions": {},
        "sink_state": None,
    }
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    kept = {name: value for name, value in (state | changes).items() if value != "missing"}
    (folder / "changefeed.json").write_text(json.dumps(kept))
    return folder / "changefeed.json"


@pytest.fixture
def cluster_id(pd: str) -> int:
    import grpc

    from tidemill._pb import pdpb_pb2, pdpb_pb2_grpc

    with grpc.insecure_channel(pd) as channel:
        answer = pdpb_pb2_grpc.PDStub(channel).GetMembers(pdpb_pb2.GetMembersRequest(), timeout=30)
    return int(answer.header.cluster_id)


@pytest.mark.parametrize(
    ("state", "flags", "code", "says"),
    [
        pytest.param({"cluster_id": 7}, {}, 2, r"belongs to cluster 7, PD says \d+. Use another", id="a cluster"),
        pytest.param({}, {"sink-uri": "blackhole://"}, 2, r"changefeed into file://.*not blackhole://", id="a sink"),
        pytest.param(
            {},
            {"sink-uri": SINK.replace("canal-json", "csv")},
            2,
            r"\(protocol: canal-json, now csv\)",
            id="a protocol",
        ),
        pytest.param({}, {"start-ts": "470489256794521700"}, 2, r"from start-ts 470489256794521601", id="a start"),
        pytest.param(
            {"checkpoint_ts": 470489256794521700},
            {"target-ts": "470489256794521650"},
            2,
            r"where this changefeed stands\. Choose",
            id="a target",
        ),
        pytest.param({"format": 9}, {}, 1, r"another version of tidemill.*Restore it", id="a format"),
        pytest.param({"rows": "missing"}, {}, 1, r"rows is missing.*another --data-dir", id="a field missing"),
        pytest.param({"checkpoint_ts": "soon"}, {}, 1, r"checkpoint_ts is missing or is not", id="a field of a kind"),
        pytest.param({"table_versions": [1]}, {}, 1, r"table_versions is missing or is not", id="a list for a map"),
        pytest.param({"later": 1}, {}, 1, r"cannot understand .*later", id="a field too many"),
    ],
)
def test_a_data_dir_of_another_changefeed_is_refused(
    tidemill: Tidemill,
    pd: str,
    cluster_id: int,
    tmp_path: Path,
    state: dict[str, Any],
    flags: dict[str, str | None],
    code: int,
    says: str,
) -> None:
    remembered(tmp_path, **{"cluster_id": cluster_id, **state})
    said = tidemill(*run_words(pd, tmp_path, flags))
    assert re.search(says, said.errors), said.errors
    assert said.code == code


@pytest.mark.parametrize("change", ["&worker-count=4", "&flush-interval=5s", "&file-size=4096"])
def test_a_parameter_that_does_not_say_where_to_write_may_change(
    tidemill: Tidemill, pd: str, cluster_id: int, tmp_path: Path, change: str
) -> None:
    remembered(tmp_path, cluster_id=cluster_id, checkpoint_ts=int(LATE_TS), ddl_ts=int(LATE_TS))
    said = tidemill(*run_words(pd, tmp_path, {"sink-uri": SINK + change}))
    assert said.code == 0, said.errors


def test_a_target_that_most_tables_have_passed_ends_where_they_are(
    tidemill: Tidemill, pd: str, cluster_id: int, tmp_path: Path
) -> None:
    """The others follow them; a target below all of them is refused."""
    base_ts, low_ts = int(LATE_TS), int(LATE_TS) - 100
    where = {"checkpoint_ts": low_ts, "base_ts": base_ts, "ddl_ts": low_ts, "behind": {"80": low_ts}}
    path = remembered(tmp_path, cluster_id=cluster_id, **where)
    said = tidemill(*run_words(pd, tmp_path, {"target-ts": str(low_ts - 1)}))
    assert (said.code, "where this changefeed stands. Choose" in said.errors) == (2, True), said.errors
    said = tidemill(*run_words(pd, tmp_path, {"target-ts": str(low_ts + 1)}))
    assert said.code == 0, said.errors
    assert json.loads(path.read_text())["checkpoint_ts"] == base_ts


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}'])
def test_a_corrupt_state_is_not_taken_for_none(tidemill: Tidemill, pd: str, tmp_path: Path, content: bytes) -> None:
    path = remembered(tmp_path)
    path.write_bytes(content)
    said = tidemill(*run_words(pd, tmp_path, {}))
    assert said.code == 1
    assert str(path) in said.errors
    assert "Restore it from a copy, or start anew" in said.errors
    assert path.read_bytes() == content


def test_a_data_dir_in_use_is_refused(tidemill: Tidemill, pd: str, tmp_path: Path) -> None:
    from tidemill.capture.metadata import DataDir

    holder = DataDir(tmp_path / "data")
    holder.acquire()
    try:
        said = tidemill(*run_words(pd, tmp_path, {}))
    finally:
        holder.release()
    assert said.code == 1
    assert "is in use by another tidemill" in said.errors


def test_a_folder_that_holds_later_changes_is_refused(tidemill: Tidemill, pd: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metadata").write_text(json.dumps({"checkpoint-ts": int(LATE_TS)}))
    said = tidemill(*run_words(pd, tmp_path, {}))
    assert said.code == 1
    assert "already holds changes up to" in said.errors


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["demo", "--speed", "1"], 2, r"No such option: --speed", id="an option"),
        pytest.param(["demo", "--keep", "/proc/files"], 2, r"cannot use --keep /proc/files: ", id="no rights"),
        pytest.param(["demo", "--keep", __file__], 2, r"cannot use --keep .*: it is not a folder", id="a file"),
        pytest.param(["demo", "--keep", str(FOLDER)], 2, r"cannot use --keep .*: it holds '\w", id="a full folder"),
        pytest.param(["demo", "--output", "xml"], 2, r"'xml' is not one of", id="an output"),
        pytest.param(["dance"], 2, r"No such command 'dance'", id="a command"),
    ],
)
def test_misuse_of_the_other_commands_is_named(tidemill: Tidemill, words: list[str], code: int, says: str) -> None:
    said = tidemill(*words)
    assert re.search(says, said.errors), said.errors
    assert said.code == code


def test_the_version_and_the_help_are_on_stdout(tidemill: Tidemill) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", tidemill("--version").output)
    for words in ([], ["--help"], ["run", "--help"], ["upstream", "--help"], ["demo", "--help"]):
        said = tidemill(*words)
        assert said.code == (0 if words else 2) or os.environ.get("TERM") is None
        assert "Usage: " in said.output + said.errors
