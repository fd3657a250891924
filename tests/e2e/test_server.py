"""``tidemill server`` as an operator meets it: its start and end, who may ask it, and what it refuses."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.e2e.captures import cluster
from tests.e2e.processes import Command
from tests.etcd import running
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.security import Security

pytestmark = pytest.mark.spark


def ask(*words: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of ``tidemill WORDS``."""
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(resolved_interval_seconds=0.1) as started:
        yield started


def test_a_capture_keeps_what_it_knows_in_pds_etcd_and_is_started_again_with_its_folder(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    sink = f"file://{tmp_path}/out?protocol=canal-json"
    with cluster(tmp_path, upstream.pd_address) as captures:
        for is_new in (True, False):
            capture = captures.start_in(tmp_path / "data")
            server = f"http://{captures.address(capture)}"
            code, out, err = ask("changefeed", "create", "orders", "--server", server, "--sink-uri", sink)
            assert ((code == 0) == is_new, "Created changefeed orders" in out) == (True, is_new), (code, out, err)
            captures.until(lambda: captures.changefeed("orders")["state"] == "normal", "a changefeed that runs")
            assert "owner" in ask("capture", "list", "--server", server)[1]
            assert captures.id_of(capture) in ask("processor", "list", "--server", server)[1]
            code, out, err = ask("span", "move", "orders", "--server", server, "--table", 7, "--to", "nobody")
            assert (code, out, "nobody" in err) == (1, "", True)
            assert capture.terminate() == 0, capture.errors
            assert "Traceback" not in capture.errors
            captures.gone(capture)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        pytest.param(["--addr", "nowhere"], 2, "--addr 'nowhere' is not of the form host:port", id="no address"),
        pytest.param(
            ["--addr", "0.0.0.0:0"], 2, "others cannot reach 0.0.0.0", id="an address that nobody can be told"
        ),
        pytest.param(["--peer-addr", "[::]:0"], 2, "--peer-addr [::]:0: others cannot", id="nor for captures"),
        pytest.param(["--pd", "nowhere"], 2, "PD address 'nowhere' is not of the form host:port", id="no PD address"),
        pytest.param(["--etcd", "127.0.0.1:0x"], 2, "etcd address '127.0.0.1:0x'", id="no etcd address"),
        pytest.param(["--mtls"], 2, "give --ca, --cert and --key", id="mTLS without certificates"),
        pytest.param(["--users", "/nobody/here"], 2, "cannot read the users file", id="no users"),
        pytest.param(["--cluster-id", "a/b"], 2, "--cluster-id 'a/b' is not a name", id="no cluster"),
        pytest.param(["--capture-session-ttl", "1"], 2, "--capture-session-ttl", id="a session too short to be kept"),
        pytest.param(["--spark-master", "mesos"], 2, "is not a Spark master", id="no Spark"),
        pytest.param(["--etcd", "127.0.0.1:9"], 1, "etcd", id="nobody at etcd's address"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(flags: list[str], code: int, said: str, tmp_path: Path) -> None:
    found, out, err = ask("server", "--pd", "127.0.0.1:9", "--data-dir", tmp_path / "data", *flags)
    assert (found, out) == (code, ""), err
    assert said in err
    assert "Traceback" not in err


def test_two_captures_do_not_share_a_folder(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    with cluster(tmp_path, upstream.pd_address) as captures:
        captures.start_in(tmp_path / "data")
        flags = ("--pd", upstream.pd_address, "--data-dir", tmp_path / "data", "--addr", "127.0.0.1:0")
        code, _, err = ask("server", *flags)
        assert (code, "is in use by another tidemill" in err) == (1, True), err


def test_the_api_lets_in_whom_it_is_told_to_whichever_capture_is_asked(tmp_path: Path) -> None:
    """Over mTLS, with users and names; also where the capture that is asked has to pass it on. PD, etcd and the other
    captures are reached over TLS as well."""
    authority, strange = Authority(tmp_path / "ca"), Authority(tmp_path / "strange")
    server, client = authority.security("capture"), authority.security("ann")
    wrong = {
        "no certificate": Security(authority.ca_path),
        "an expired one": authority.security("late", is_expired=True),
        "one of another name": authority.security("bob"),
        "one of another authority": Security(authority.ca_path, *strange.issue("ann")),
        "another authority's server": Security(strange.ca_path, client.cert_path, client.key_path),
    }
    users = tmp_path / "users"
    users.write_text("ann:a-good-secret\n")
    users.chmod(0o600)
    files = {"ca": server.ca_path, "cert": server.cert_path, "key": server.key_path}
    shown = ("--ca", client.ca_path, "--cert", client.cert_path, "--key", client.key_path)
    guarded = {"users": users, "cert_allowed_cn": "capture,ann", **files}
    etcd_flags = (
        *("--cert-file", server.cert_path, "--key-file", server.key_path),
        *("--trusted-ca-file", server.ca_path, "--client-cert-auth"),
    )
    with (
        running(tmp_path / "etcd", security=server, flags=etcd_flags) as etcd,
        Command(tmp_path / "up", "upstream", is_serving=True, pd_port=0, **files) as upstream,
    ):
        pd = f"https://{upstream.ready()['pd']}"
        with cluster(tmp_path, pd, etcd=etcd.address) as captures:
            # The second one passes on to the first.
            both = [captures.start_in(tmp_path / f"data-{n}", "--mtls", **guarded) for n in range(2)]
            for each in both:
                reach = ("capture", "list", "--server", f"https://{captures.address(each)}", *shown)
                code, out, err = ask(*reach, "--user", "ann", "--password", "a-good-secret")
                assert (code, out.count("127.0.0.1:")) == (0, 2), err
                code, out, err = ask(*reach, "--user", "ann", "--password", "another-secret")
                assert (code, out, "does not let us in" in err) == (1, "", True), err
                assert "secret" not in err
            for name, security in wrong.items():
                files_of = ["--ca", security.ca_path]
                files_of += ["--cert", security.cert_path, "--key", security.key_path] if security.cert_path else []
                reach = ("capture", "list", "--server", f"https://{captures.address(both[1])}", *files_of)
                code, out, err = ask(*reach, "--user", "ann", "--password", "a-good-secret")
                assert (code, out) == (1, ""), f"{name}: {out}{err}"
                assert "secret" not in err
            for each in both:
                assert each.terminate() == 0, each.errors
                captures.gone(each)
                assert "secret" not in each.errors
                assert "Traceback" not in each.errors
