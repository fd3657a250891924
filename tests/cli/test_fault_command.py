"""``tidemill fault``: what it prints, what it does, and what it says where there is nobody to ask."""

import http.server
import json
import socket
import sys
import threading

import pytest

from tests.tidebox.stub import put
from tidebox.faults import FAULTS
from tidebox.upstream import EmbeddedUpstream
from tidemill.cli import fault as command
from tidemill.cli import main


@pytest.fixture
def upstream():
    with EmbeddedUpstream.start(stores=3) as started:
        yield started


@pytest.fixture
def fault(upstream, monkeypatch, capsys):
    """Run ``tidemill fault WORDS``; return the exit code, stdout and stderr."""

    def run(*words: object, pd: str | None = None) -> tuple[int, str, str]:
        name, *flags = map(str, words)
        monkeypatch.setattr(sys, "argv", ["tidemill", "fault", name, "--pd", pd or upstream.pd_address, *flags])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def document(fault):
    """The same, with the JSON that it prints."""

    def run(*words: object):
        code, out, err = fault(*words, "--output", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_there_is_a_command_for_every_fault():
    assert [registered.name for registered in command.fault.registered_commands] == list(FAULTS)


def test_regions_are_listed_with_legible_keys(upstream, fault):
    upstream.split(b"m")
    upstream.split(b"\xff\x00")
    code, out, err = fault("regions")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["REGION", "START", "END", "EPOCH", "LEADER", "STORES"]
    assert [row[1:3] for row in rows[1:]] == [["-", "m"], ["m", "0xff00"], ["0xff00", "-"]]
    assert {row[3] for row in rows[1:]} == {"1/2", "1/3"}


def test_stores_are_listed_with_their_state(upstream, fault):
    upstream.stop_store(2)
    rows = [line.split() for line in fault("stores")[1].splitlines()]
    assert rows[0] == ["STORE", "ADDRESS", "STATE", "LEADERS"]
    assert [row[2] for row in rows[1:]] == ["up", "down", "up"]
    assert [row[1] for row in rows[1:]] == upstream.store_addresses


def test_a_region_is_split_merged_and_moved(upstream, document):
    upstream.commit([put(b"k%d" % at) for at in range(10)])
    left, right = document("split", "--key", "k5")["regions"]
    assert (left["end"], right["start"]) == (b"k5".hex(), b"k5".hex())
    assert len(document("split", "--region", left["id"])["regions"]) == 2
    [merged] = document("merge", "--region", left["id"], "--into", right["id"])["regions"]
    assert merged["id"] == right["id"]
    [moved] = document("transfer-leader", "--region", right["id"], "--store", 3)["regions"]
    assert moved["leader"] == 3
    assert upstream.region_of(b"k9").leader_store == 3


def test_stores_stop_die_and_come_back(upstream, document):
    assert document("stop-store", "--store", 1)["stores"][0]["is_up"] is False
    assert document("start-store", "--store", 1)["stores"][0]["is_up"] is True
    before = upstream.store_addresses[1]
    assert document("kill-store", "--store", 2)["stores"][1]["is_up"] is False
    assert document("start-store", "--store", 2, "--new-address")["stores"][1]["address"] != before


def test_pd_can_be_told_to_come_back_while_it_is_away(upstream, fault):
    assert fault("pd-away")[:2] == (0, f"PD at {upstream.pd_address} is away.\n")
    assert upstream.cluster.is_pd_away
    assert fault("pd-back")[:2] == (0, f"PD at {upstream.pd_address} answers.\n")
    assert not upstream.cluster.is_pd_away


def test_writes_are_delayed_and_locks_left_behind(upstream, fault):
    assert fault("delay-apply", "--by", "200ms")[1] == "Writes are applied after 0.2 s.\n"
    assert fault("delay-apply", "--by", "0")[1] == "Writes are applied at once.\n"
    out = fault("orphan-lock", "--key", "orphan", "--ttl", "1s")[1]
    [(key, lock)] = upstream.cluster.locks.within(b"", b"")
    assert (key, lock.ttl_ms) == (b"orphan", 1000)
    assert out == f"Locked orphan at start-ts {lock.start_ts}.\n"


def test_a_region_is_held_and_released_and_streams_are_dropped(upstream, fault):
    [region] = upstream.regions()
    assert fault("hold-resolved", "--region", region.id)[1].split()[-1] == "held"
    assert fault("release-resolved", "--region", region.id)[1].split()[-1] != "held"
    assert fault("drop-streams")[1] == "Dropped 0 streams.\n"


def test_a_sql_node_is_held_and_released(fault):
    with EmbeddedUpstream.start(sql_port=0, sql_nodes=2) as sql:
        rows = [line.split() for line in fault("sql-nodes", pd=sql.pd_address)[1].splitlines()]
        assert rows[0] == ["NODE", "ADDRESS", "SCHEMA", "STATE"]
        assert [row[:2] for row in rows[1:]] == [["1", sql.sql_addresses[0]], ["2", sql.sql_addresses[1]]]
        assert {row[3] for row in rows[1:]} == {"serves"}
        assert fault("hold-schema", "--node", 2, pd=sql.pd_address)[1].split()[-1] == "held"
        assert fault("release-schema", "--node", 2, pd=sql.pd_address)[1].split()[-1] == "serves"
        assert "there is no SQL node 3" in fault("hold-schema", "--node", 3, pd=sql.pd_address)[2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sql-nodes"], 2, "start it with --sql-port"),
        (["split"], 2, "needs a key, or a region"),
        (["split", "--hex-key", "zz"], 2, "not a key in hex"),
        (["merge", "--region", "77"], 2, "there is no region 77"),
        (["merge", "--region", "9" * 30], 2, "is too large to be an id"),
        (["split", "--key", "\udcff"], 2, "--key is not UTF-8 text. Give such a key with --hex-key"),
        (["stop-store", "--store", "9"], 2, "there is no store 9"),
        (["kill-store", "--store", "1", "--for", "soon"], 2, "not a duration"),
        (["transfer-leader", "--region", "4"], 2, "--store"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(fault, words, code, said):
    assert fault(*words)[0] == code
    _, out, err = fault(*words)
    assert said in err
    assert "Traceback" not in err
    assert out == ""


def test_nobody_at_the_address_is_said(fault, upstream):
    upstream.stop()
    code, _, err = fault("regions")
    assert code == 1
    assert f"nobody listens at {upstream.pd_address}" in err


def test_a_store_is_not_pd_and_is_told_so(fault, upstream):
    code, _, err = fault("regions", pd=upstream.store_addresses[0])
    assert code == 1
    assert "Faults are served only by tidemill upstream" in err


def test_a_port_of_sql_is_not_pd_and_is_told_so(fault):
    def greet(listener):
        with listener.accept()[0] as connection:
            connection.sendall(b"V\x00\x00\x00\x0a8.0.11-TiDB-v8.5.0\x00\n")
            connection.recv(1 << 16)  # what is left unread would break the connection

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        code, _, err = fault("regions", pd=address)
    assert code == 1
    assert f"cannot ask {address} for a fault: what answered does not speak HTTP. Faults are served only by" in err


@pytest.mark.parametrize("answer", [b"404 page not found\n", b"[]", b'{"version": "8.5.0"}'])
def test_a_pd_that_is_not_ours_is_told_so(fault, answer):
    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        code, _, err = fault("regions", pd=f"127.0.0.1:{server.server_port}")
    assert code == 1
    assert "it answered with HTTP status 404" in err


@pytest.mark.parametrize("address", ["127.0.0.1:port", "127.0.0.1:99999", "not an address:1"])
def test_what_is_no_address_is_said(fault, address):
    code, _, err = fault("regions", pd=address)
    assert code in (1, 2)
    assert "Traceback" not in err
    assert address in err
