"""The commands against a cluster that speaks TLS with nobody whom its authority has not signed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.authority import Authority
from tests.cli.test_run_refusals import LATE_TS, START_TS, Tidemill, run_words, tidemill  # noqa: F401  # a fixture
from tests.e2e.processes import wait_until
from tests.histories import FOLDER
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.flow.filter import TableFilter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.security import Security
from tidemill.model.ts import Ts
from tidemill.source.scan import ScanClient, read_part
from tidemill.verify import chosen_tables
from tidemill.verify.catalog import claim


class World(NamedTuple):
    upstream: EmbeddedUpstream
    ours: Authority
    theirs: Authority
    security: Security  # of a client that is let in

    @property
    def pd(self) -> str:
        return f"https://{self.upstream.pd_address}"

    @property
    def flags(self) -> dict[str, str | None]:
        return {"ca": self.security.ca_path, "cert": self.security.cert_path, "key": self.security.key_path}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(folder / "ours"), Authority(folder / "theirs")
    with EmbeddedUpstream.start(
        stores=2, load=FOLDER / "types" / "history.parquet", security=ours.security("server")
    ) as upstream:
        yield World(upstream, ours, theirs, ours.security("client"))


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        pytest.param({"ca": None, "cert": None, "key": None}, 2, r"asks for TLS.*give --ca, and --cert", id="nothing"),
        pytest.param({"cert": None, "key": None}, 1, r"want a client certificate: give --cert", id="no certificate"),
        pytest.param({"key": None}, 2, r"give both cert and key", id="no key"),
        pytest.param({"ca": "{theirs}/ca.pem"}, 1, r"authority in \S+ has not signed", id="another authority"),
        pytest.param(
            {"cert": "{theirs}/client.pem", "key": "{theirs}/client.key"},
            1,
            r"does not accept our certificate \S+theirs/client\.pem",
            id="a stranger's certificate",
        ),
        pytest.param(
            {"cert": "{ours}/late.pem", "key": "{ours}/late.key"},
            1,
            r"does not accept our certificate \S+late\.pem \(certificate has expired\)",
            id="an expired certificate",
        ),
        pytest.param({"ca": "/nowhere/ca.pem"}, 2, r"cannot read the TLS file /nowhere/ca\.pem: No such", id="no file"),
    ],
)
def test_without_trust_nothing_begins(
    tidemill: Tidemill,  # noqa: F811
    world: World,
    tmp_path: Path,
    change: dict[str, str | None],
    code: int,
    says: str,
) -> None:
    world.theirs.issue("client")
    world.ours.issue("late", is_expired=True)
    flags = {**world.flags, **change, "pd": world.pd}
    places = {"{ours}": str(world.ours.folder), "{theirs}": str(world.theirs.folder)}
    for name, value in flags.items():
        for mark, place in places.items():
            flags[name] = value = value.replace(mark, place) if value is not None else None
    said = tidemill(*run_words(world.pd, tmp_path, flags))
    assert re.search(says, said.errors), said.errors
    assert said.code == code
    assert not (tmp_path / "data" / "changefeed.json").exists()


@pytest.mark.parametrize(
    ("scheme", "code", "says"),
    [("", 1, r"speaks TLS: give --ca, --cert and --key"), ("http://", 1, r"speaks TLS: give --ca")],
)
def test_a_cluster_that_speaks_tls_says_so_to_who_does_not(
    tidemill: Tidemill,  # noqa: F811
    world: World,
    tmp_path: Path,
    scheme: str,
    code: int,
    says: str,
) -> None:
    said = tidemill(*run_words(scheme + world.upstream.pd_address, tmp_path, {}))
    assert (said.code, bool(re.search(says, said.errors))) == (code, True), said.errors


def test_an_expired_server_is_refused(tidemill: Tidemill, world: World, tmp_path: Path) -> None:  # noqa: F811
    with EmbeddedUpstream.start(security=world.ours.security("old", is_expired=True)) as expired:
        said = tidemill(*run_words(f"https://{expired.pd_address}", tmp_path, world.flags))
    assert said.code == 1
    assert "has a certificate that has expired" in said.errors


def test_a_changefeed_reads_schema_and_changes_over_tls(world: World, tmp_path: Path) -> None:
    """To where it would hand them to Spark: TSO, regions, snapshot reads, GC and the change streams of both stores."""
    options = RunOptions(
        world.pd, "blackhole://", tmp_path / "data", start_ts=Ts(int(START_TS)), security=world.security,
        target_ts=Ts(int(START_TS)),
    )  # fmt: skip
    feed = Changefeed(options)
    try:
        feed.start()
        wait_until(feed.poll, "the target, where it is")
        wait_until(lambda: feed.status().pulled_rows > 0, "changes over TLS")
    finally:
        feed.close(is_finished=True)


def test_a_scan_on_an_executor_goes_over_tls(world: World) -> None:
    ts = Ts(int(LATE_TS))
    with ScanClient(world.pd, world.security) as client:
        table = chosen_tables(client, ts, [], TableFilter(ChangefeedConfig())).tables[0]
        parts = client.plan_scan(table, ts, hold=claim(client, ts))
        assert sum(batch.new.num_rows for part in parts for batch in read_part(part)) > 0


def test_the_file_of_a_changefeed_says_it_as_well(
    tidemill: Tidemill,  # noqa: F811
    world: World,
    tmp_path: Path,
) -> None:
    config = tmp_path / "feed.toml"
    security = {f"{name}-path": path for name, path in world.flags.items()}
    config.write_text("[security]\n" + "".join(f"{name} = {json.dumps(path)}\n" for name, path in security.items()))
    flags: dict[str, str | None] = {"config": str(config), "target-ts": START_TS, "log-level": "error"}
    said = tidemill(*run_words(world.pd, tmp_path, flags))
    assert (said.code, said.errors) == (0, "")


def test_a_fault_is_asked_for_over_tls(tidemill: Tidemill, world: World) -> None:  # noqa: F811
    flags = [word for name, path in world.flags.items() for word in (f"--{name}", path)]
    said = tidemill("fault", *flags, "stores", "--pd", world.pd, "--output", "json")
    assert said.code == 0, said.errors
    assert len(json.loads(said.output)["stores"]) == 2
    said = tidemill("fault", "stores", "--pd", world.pd)
    assert (said.code, "asks for TLS" in said.errors) == (2, True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ca": "ca"}, "give --cert and --key beside --ca"),
        ({"ca": "ca", "cert": "x", "key": "y"}, "cannot read the TLS"),
    ],
)
def test_the_box_refuses_half_a_tls(
    tidemill: Tidemill,  # noqa: F811
    world: World,
    given: dict[str, str],
    says: str,
) -> None:
    flags = [word for name, path in given.items() for word in (f"--{name}", path.replace("ca", world.ours.ca_path))]
    said = tidemill("upstream", "--pd-port", "0", *flags)
    assert (said.code, says in said.errors) == (2, True), said.errors
