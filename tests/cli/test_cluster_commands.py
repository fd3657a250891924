"""The commands that ask a capture: a session in words, in JSON, and what they say where something is wrong."""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.api.clients import NOW
from tests.api.servers import serving
from tests.authority import Authority
from tidemill.api.access import UsersFile
from tidemill.api.tls import ApiTls
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.cli import main
from tidemill.cli.remote.show import print_table
from tidemill.config.changefeed import read_config
from tidemill.config.sink_uri import safe_uri
from tidemill.model.cluster import Cause, Hindrance, NewChangefeed, RunningError
from tidemill.model.keys import KeyRange
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts, compose
from tidemill.testing.operations import FakeCluster

Run = Callable[..., tuple[int, str, str]]
ORDERS = ChangefeedKey("default", "orders")
START = compose(1_772_360_000_000)  # 2026-03-01 10:13:20
MYSQL = "mysql://root:Gr8-secret@127.0.0.1:3306/"


@pytest.fixture(scope="module")
def cluster() -> FakeCluster:
    made = FakeCluster(2, clock=lambda: NOW)
    for name in ("orders", "items"):
        made.add_table("shop", name)
    made.add_table("shop", "log", has_key=False)
    return made


@pytest.fixture(scope="module")
def server(cluster: FakeCluster) -> Iterator[str]:
    with serving(cluster) as addresses:
        yield f"http://{addresses[1]}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code, stdout and stderr of ``tidemill WORDS``."""

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidemill", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return command


@pytest.fixture
def ask(run: Run, server: str, cluster: FakeCluster) -> Iterator[Run]:
    """The same, of the cluster, which has no changefeed yet."""
    yield lambda *words: run(*words, "--server", server)
    cluster.feeds.clear()


def done(answer: tuple[int, str, str]) -> str:
    code, out, err = answer
    assert (code, err) == (0, "")
    return out


@pytest.fixture
def orders(cluster: FakeCluster, ask: Run) -> None:
    cluster.create(NewChangefeed(ORDERS, MYSQL, Ts(START)))


def test_a_changefeed_is_created_in_words(ask: Run) -> None:
    words = ("changefeed", "create", "orders", "--sink-uri", MYSQL, "--start-ts", "2026-03-01T10:13:20Z")
    code, out, err = ask(*words)
    assert code == 0
    assert out == (
        f"Created changefeed orders, starting at 2026-03-01 10:13:20.000 UTC (ts {START}).\n"
        "Watch it with: tidemill changefeed query orders\n"
    )
    assert err == "Not captured, since they have no key: shop.log. Give them a key.\n"


def test_a_changefeed_is_created_from_a_file(ask: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text('memory-quota = 20000000\n[filter]\nrules = ["shop.orders"]\n')
    words = ("changefeed", "create", "-c", "orders", "--sink-uri", "blackhole://", "--config", path, "--output", "json")
    document = json.loads(done(ask(*words)))
    assert (document["id"], document["config"]["memory_quota"]) == ("orders", 20_000_000)
    assert cluster.feeds[ORDERS].info.config == {"memory-quota": 20_000_000, "filter": {"rules": ["shop.orders"]}}


def test_a_changefeed_of_keys_is_created_from_options(ask: Run, cluster: FakeCluster) -> None:
    words = ("changefeed", "create", "-c", "orders", "--sink-uri", "tikv://127.0.0.1:1", "--span-count", "4")
    assert (
        ask(*words, "--format", "raw", "--start-key", "a", "--end-key", "b", "--start-key", "k", "--end-key", "")[0]
        == 0
    )
    keys = read_config(cluster.feeds[ORDERS].info.config).keys
    assert keys == KeyRange(b"a", b"b", more=((b"k", b""),), span_count=4)


def test_a_range_that_cannot_be_is_refused_by_the_server(ask: Run) -> None:
    words = (
        "changefeed",
        "create",
        "orders",
        "--sink-uri",
        "tikv://127.0.0.1:1",
        "--start-key",
        "62",
        "--end-key",
        "61",
    )
    code, out, err = ask(*words)
    assert (code != 0, out) == (True, "")
    assert "is inverted" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("moment", "code", "word"), [("2026-03-01 10:15:00", 0, "Yes"), ("2026-03-01 10:15:01", 1, "No")]
)
def test_query_answers_whether_a_changefeed_has_caught_up(
    ask: Run, orders: None, moment: str, code: int, word: str
) -> None:
    found, out, _ = ask("changefeed", "query", "orders", "--caught-up", moment)
    assert (found, out.partition(":")[0]) == (code, word)
    assert "durable up to 2026-03-01 10:15:00.250 UTC" in out
    found, out, _ = ask("changefeed", "query", "orders", "--caught-up", moment, "--output", "json")
    assert (found, json.loads(out)["caught_up"]) == (code, not code)


def test_changefeeds_are_listed(ask: Run, orders: None) -> None:
    assert done(ask("changefeed", "list")).splitlines() == [
        "CHANGEFEED  STATE   CHECKPOINT                   LAG    ERROR",
        "orders      normal  2026-03-01 10:15:00.250 UTC  0.0 s",
    ]
    (listed,) = json.loads(done(ask("changefeed", "list", "--output", "json")))
    assert list(listed) == ["id", "namespace", "summary"]
    assert list(listed["summary"]) == ["state", "tso", "checkpoint", "error"]


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_a_table_is_whole_however_long_its_lines_are(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_table(["NAME", "ERROR"], [["orders", "no folder " * 40], ["ö表", "-"]], "")
    assert capsys.readouterr().out.splitlines() == [
        "NAME    ERROR",
        "orders  " + ("no folder " * 40).rstrip(),
        "ö表     -",  # 表 is two columns wide
    ]


def test_an_empty_list_says_what_to_do(ask: Run) -> None:
    code, out, err = ask("changefeed", "list", "--namespace", "other")
    assert (code, out) == (0, "")
    assert "There is no changefeed in namespace other. Make one with: tidemill changefeed create" in err


def test_query_says_why_a_checkpoint_does_not_move(ask: Run, cluster: FakeCluster, orders: None) -> None:
    moment = datetime(2026, 3, 1, 10, 10, tzinfo=UTC)
    lock = Hindrance(Cause.LOCK, "table shop.orders (100)", "an open transaction of start-ts 5", Ts(START), moment)
    cluster.hold(ORDERS, lock)
    out = done(ask("changefeed", "query", "orders"))
    assert "state:      normal\n" in out
    assert "sink:       mysql://xxxxx@127.0.0.1:3306/\n" in out
    assert "tables:     1 on capture-0, 1 on capture-1\n" in out
    assert out.endswith(
        "\nWhat holds the checkpoint back:\n"
        "  lock: table shop.orders (100), for 5 min: an open transaction of start-ts 5. It is at 2026-03-01 "
        f"10:13:20.000 UTC (ts {START}).\n"
    )
    document = json.loads(done(ask("changefeed", "query", "-c", "orders", "--output", "json")))
    assert document["held_back_by"][0]["cause"] == "lock"
    assert {
        "upstream_id", "namespace", "id", "sink_uri", "config", "create_time", "start_ts", "resolved_ts", "target_ts",
        "checkpoint_tso", "checkpoint_time", "state", "creator_version", "task_status",
    } <= set(document)  # fmt: skip
    simple = json.loads(done(ask("changefeed", "query", "orders", "--simple", "--output", "json")))
    assert list(simple) == [
        "upstream_id", "namespace", "id", "state", "checkpoint_tso", "checkpoint_time", "error",
    ]  # fmt: skip


def test_query_shows_the_error_of_one_that_failed(ask: Run, cluster: FakeCluster, orders: None) -> None:
    error = RunningError(datetime(2027, 1, 1, tzinfo=UTC), "127.0.0.1:1", "CDC:ErrSnapshotLostByGC", "collected")
    cluster.fail(ORDERS, error)
    assert "error:      CDC:ErrSnapshotLostByGC: collected\n" in done(ask("changefeed", "query", "orders"))


def test_it_is_paused_updated_and_resumed(ask: Run, cluster: FakeCluster, orders: None) -> None:
    assert done(ask("changefeed", "pause", "orders")).startswith("Paused changefeed orders at 2026-03-01 10:15:00.250")
    updated = done(ask("changefeed", "update", "orders", "--sink-uri", "blackhole://", "--no-confirm"))
    assert updated == "Updated changefeed orders. It stays paused; resume it with: tidemill changefeed resume orders\n"
    back = done(ask("changefeed", "resume", "orders", "--overwrite-checkpoint-ts", str(START), "--no-confirm"))
    assert back == "Resumed changefeed orders.\n"
    info = cluster.feeds[ORDERS].info
    assert (info.sink_uri, info.start_ts, info.state.value) == ("blackhole://", START, "normal")
    assert "nothing to resume" in done(ask("changefeed", "resume", "orders"))


def test_what_takes_a_yes_is_not_done_without_one(ask: Run, orders: None) -> None:
    code, _, err = ask("changefeed", "resume", "orders", "--overwrite-checkpoint-ts", "now")
    assert code == 2
    assert "--no-confirm" in err


def test_it_is_removed_and_says_what_stays(ask: Run, cluster: FakeCluster, orders: None) -> None:
    out = done(ask("changefeed", "remove", "orders"))
    assert out.startswith("Removed changefeed orders, which was at 2026-03-01 10:15:00.250 UTC")
    assert f"What it has written to {safe_uri(MYSQL)} stays." in out
    assert not cluster.feeds


def test_tables_are_moved_and_spread(ask: Run, orders: None) -> None:
    done(ask("span", "move", "orders", "--table", 100, "--to", "capture-1"))
    assert done(ask("processor", "query", "orders", "-p", "capture-1")).split() == ["TABLE", "100", "102"]
    done(ask("changefeed", "move-table", "orders", "--table", 100, "--to", "capture-0"))
    done(ask("span", "rebalance", "orders"))
    done(ask("changefeed", "rebalance", "orders"))
    document = json.loads(done(ask("processor", "query", "-c", "orders", "-p", "capture-1", "--output", "json")))
    assert document == {
        "status": {"tables": {"102": {"start-ts": 0}}, "operation": None, "admin-job-type": 0},
        "position": None,
    }
    rows = [line.split() for line in done(ask("processor", "list")).splitlines()]
    assert rows == [
        ["NAMESPACE", "CHANGEFEED", "CAPTURE"],
        ["default", "orders", "capture-0"],
        ["default", "orders", "capture-1"],
    ]


def test_captures_are_listed(ask: Run, cluster: FakeCluster) -> None:
    rows = [line.split() for line in done(ask("capture", "list")).splitlines()]
    assert rows[1] == ["capture-0", cluster.captures[0].info.address, "owner", "default"]
    (first, _) = json.loads(done(ask("capture", "list", "--output", "json")))
    assert list(first) == ["id", "is-owner", "address", "cluster-id"]


def test_a_capture_is_drained(run: Run) -> None:
    made = FakeCluster(2, clock=lambda: NOW)
    made.add_table("shop", "orders")
    made.add_table("shop", "items")
    made.create(NewChangefeed(ORDERS, "blackhole://"))
    with serving(made) as addresses:
        out = done(run("capture", "drain", "capture-1", "--wait", "--server", f"http://{addresses[0]}"))
        assert out == "Capture capture-1 has no tables; it can be stopped.\n"
        code, _, err = run("capture", "drain", "capture-0", "--server", addresses[0])
        assert code == 1
        assert "it is the owner" in err


def test_small_things(ask: Run, server: str, cluster: FakeCluster, orders: None) -> None:
    now = compose(int(NOW * 1000))
    assert done(ask("tso", "query")) == f"{now}\n"
    assert json.loads(done(ask("tso", "query", "--output", "json")))["ts"] == now
    assert done(ask("unsafe", "show-metadata")).splitlines()[-1] == "Show 3 KVs"
    done(ask("unsafe", "resolve-lock", "--region", 7))
    assert cluster.resolved_locks[-1] == (7, now - compose(60_000))
    done(ask("unsafe", "delete-service-gc-safepoint", "--no-confirm"))
    done(ask("capture", "log-level", "debug"))
    assert cluster.captures[1].log_level == "debug"
    gaps = [json.loads(each) for each in done(ask("changefeed", "statistics", "orders", "--lines", 1)).split("\n\n")]
    assert gaps == [{"sink_gap": "0ms", "replication_gap": "0ms"}]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("query", "order"), 1, "no changefeed named 'order' in namespace 'default'. Did you mean 'orders'?"),
        (("query",), 2, "which changefeed?"),
        (("query", "orders", "-c", "other"), 2, "two changefeeds are named"),
        (("query", "or/ders"), 2, "is not a name"),
        (("create", "orders", "--sink-uri", "blackhole://"), 1, "there is one of that name"),
        (("create", "new"), 2, "--sink-uri"),
        (("create", "new", "--sink-uri", "kafak://127.0.0.1/x"), 2, "kafak"),
        (("create", "new", "--sink-uri", "blackhole://", "--start-ts", "2030-01-01"), 2, "lies in the future"),
        (("create", "new", "--sink-uri", "blackhole://", "--config", "nothing.toml"), 2, "cannot read nothing.toml"),
        (("create", "new", "--sink-uri", "blackhole://", "--target-ts", "2026-01-01T00:00:00Z"), 2, "is not above"),
        (("update", "orders", "--sink-uri", "blackhole://", "--no-confirm"), 1, "Pause it first"),
        (("update", "orders"), 2, "what is to change?"),
        (("move-table", "orders"), 2, "--table ID and --to CAPTURE"),
        (("move-table", "orders", "--table", "1", "--to", "capture-0"), 1, "has no table 1"),
        (("move-table", "orders", "--table", "100", "--to", "nobody"), 1, "no capture has the id 'nobody'"),
        (("lst",), 2, "list"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_a_sentence(
    ask: Run, orders: None, words: tuple[str, ...], code: int, said: str
) -> None:
    found, out, err = ask("changefeed", *words)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
    assert "CDC:" not in err


def test_a_file_with_an_unknown_key_is_refused_by_its_name(ask: Run, tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text('[filter]\nrulez = ["shop.*"]\n')
    code, _, err = ask("changefeed", "create", "--sink-uri", "blackhole://", "--config", path)
    assert code == 2
    assert "'filter.rulez' is unknown. Did you mean 'filter.rules'?" in err
    path.write_text("at = 2026-01-01\n")
    code, _, err = ask("changefeed", "create", "--sink-uri", "blackhole://", "--config", path)
    assert (code, "is no value that any key has" in err) == (2, True)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("http://127.0.0.1:1", "no capture answers at http://127.0.0.1:1"),
        ("127.0.0.1:1", "no capture answers at http://127.0.0.1:1"),
        ("ftp://127.0.0.1:1", "--server must be http://HOST:PORT"),
        ("http://a b", "--server must be"),
        ("http://root:pw@127.0.0.1:1", "--server must be"),
    ],
)
def test_nobody_there(run: Run, server: str, said: str) -> None:
    code, out, err = run("changefeed", "list", "--server", server)
    assert (code in (1, 2), out) == (True, "")
    assert said in err


def test_credentials_are_given_by_flags_files_and_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    users.write_text("ops:correct-horse\n0123456789abcdef\n")
    users.chmod(0o600)
    (tmp_path / "secret").write_text("correct-horse\n")
    with serving(FakeCluster(1), users=UsersFile(users)) as addresses:
        base = ("capture", "list", "--server", addresses[0])
        done(run(*base, "--user", "ops", "--password", f"@{tmp_path}/secret"))
        done(run(*base, "--token", "0123456789abcdef"))
        for words in ((), ("--user", "ops", "--password", "wrong-horse"), ("--token", "wrong-horse")):
            code, out, err = run(*base, *words)
            assert (code, out) == (1, "")
            assert "does not let us in" in err
            assert "wrong-horse" not in err
        assert run(*base, "--user", "ops")[0] == 2
        monkeypatch.setenv("TIDEMILL_TOKEN", "0123456789abcdef")
        done(run(*base))


def test_over_tls(run: Run, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    tls = ApiTls(ours.security("capture"), wants_certificates=True)
    cert, key = ours.issue("operator")
    with serving(FakeCluster(1), tls=tls) as addresses:
        done(run("capture", "list", "--server", addresses[0], "--ca", ours.ca_path, "--cert", cert, "--key", key))
        wrong = {
            "cannot trust": ("--ca", theirs.ca_path),
            "no TLS with": ("--ca", ours.ca_path),
            "but certificates are given": ("--ca", ours.ca_path, "--server", f"http://{addresses[0]}"),
        }
        for said, words in wrong.items():
            code, out, err = run("capture", "list", "--server", addresses[0], *words)
            assert (code in (1, 2), out) == (True, "")
            assert said in err or "hung up" in err
        code, _, err = run("capture", "list", "--server", f"http://{addresses[0]}")
        assert (code, "hung up" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param([], 2, "give the new one a name", id="no name"),
        pytest.param(["orders", "--initial-scan"], 2, "leave --start-ts and --initial-scan out", id="a copy"),
        pytest.param(["orders", "--start-ts", START], 2, "leave --start-ts and", id="a start-ts"),
        pytest.param(["orders"], 1, "it has no changefeed.json", id="no changefeed's folder"),
    ],
)
def test_a_folder_is_not_taken_over_by_mistake(
    ask: Run, tmp_path: Path, words: list[object], code: int, said: str
) -> None:
    create = ("changefeed", "create", *words, "--sink-uri", "blackhole://", "--no-confirm")
    found, out, err = ask(*create, "--from-data-dir", tmp_path)
    assert (found, out, said in err) == (code, "", True), err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_cluster_has_had_is_never_begun_with_again(ask: Run, tmp_path: Path) -> None:
    """It stands where it was given, and what continued it is further on."""
    folder = DataDir(tmp_path / "data")
    folder.acquire()
    folder.save(
        ChangefeedState(7, "blackhole://", START, START, START, 0, {}, None, changefeed_id=folder.changefeed_id())
    )
    folder.release()
    create = ("changefeed", "create", "orders", "--sink-uri", "blackhole://", "--no-confirm", "--from-data-dir")
    assert ask(*create, folder.path)[0] == 0
    done(ask("changefeed", "remove", "orders"))
    code, out, err = ask(*create, folder.path)
    assert (code, out) == (1, "")
    assert "has been taken over before" in err
    assert "has no changefeed 'orders' now" in err
