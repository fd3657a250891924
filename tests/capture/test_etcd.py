"""What a cluster remembers, on a real etcd: transactions, sessions, elections, and states that only the owner saves."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.etcd import Etcd, running
from tidemill.capture.cluster.snapshot import Registry
from tidemill.capture.etcd.client import Delete, EtcdClient, EtcdUser, Exists, IsAt, Put, read_endpoints
from tidemill.capture.etcd.documents import capture_document, info_document, read_capture, read_info
from tidemill.capture.etcd.election import Claim, Election
from tidemill.capture.etcd.home import EtcdHome, removal
from tidemill.capture.etcd.keys import Keys, check_name
from tidemill.capture.etcd.session import Session
from tidemill.capture.metadata import ChangefeedState
from tidemill.errors import (
    MetadataError,
    MetadataUnavailableError,
    SessionLostError,
    SupersededError,
    TidemillError,
    UsageError,
)
from tidemill.model.cluster import AdminJob, CaptureInfo, ChangefeedInfo, FeedState, RunningError
from tidemill.model.schedule import CaptureId, ChangefeedKey
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts

PATIENCE_SECONDS = 40.0
KEY = ChangefeedKey("default", "cf")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def client(etcd: Etcd) -> Iterator[EtcdClient]:
    with etcd.client() as client:
        yield client


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> Keys:
    return Keys("c" + str(abs(hash(request.node.name))))


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state_at(ts: int, **more: object) -> ChangefeedState:
    state = ChangefeedState(1, "files", Ts(5), Ts(ts), Ts(ts), 0, {}, None, changefeed_id="x")
    return replace(state, **more)  # type: ignore[arg-type]


def info_at(ts: int) -> ChangefeedInfo:
    return ChangefeedInfo(
        KEY, 7, "blackhole://", datetime(2026, 1, 1, tzinfo=UTC), Ts(ts), Ts(0), {"filter": {"rules": ["a.*"]}},
        FeedState.NORMAL, AdminJob.NONE, "v1", 3, Ts(ts), Ts(ts),
        error=RunningError(datetime(2026, 1, 2, tzinfo=UTC), "h:1", "CDC:ErrX", "what it was"), initial_copy=True,
    )  # fmt: skip


# Transactions.


def test_a_transaction_is_carried_out_where_its_conditions_hold(client: EtcdClient, keys: Keys) -> None:
    key = f"{keys.base}/a"
    first = client.commit([IsAt(key, 0)], [Put(key, b"1")])
    assert first is not None
    assert client.commit([IsAt(key, 0)], [Put(key, b"2")]) is None
    found = client.get(key)
    assert found is not None
    assert (found.value, found.mod_revision) == (b"1", first)
    assert client.commit([IsAt(key, first), Exists(key)], [Put(key, b"3"), Put(key + "b", b"")]) is not None
    assert [each.value for each in client.prefix(key)] == [b"3", b""]
    assert client.commit([Exists(key + "c")], [Delete(key)]) is None
    assert client.commit([], [Delete(key, is_prefix=True)]) is not None
    assert client.prefix(key) == []


def test_a_restart_of_etcd_is_waited_out(etcd: Etcd, client: EtcdClient, keys: Keys) -> None:
    client.put(f"{keys.base}/a", b"1")
    etcd.kill()
    restarting = threading.Timer(0.5, etcd.start)
    restarting.start()
    found = client.get(f"{keys.base}/a")
    restarting.join()
    assert found is not None
    assert found.value == b"1"


def test_an_etcd_that_is_not_there_is_told(keys: Keys) -> None:
    client = EtcdClient("127.0.0.1:9")
    with pytest.raises(MetadataUnavailableError, match=r"none of 127\.0\.0\.1:9 answers.*Check the address"):
        client.commit([], [], deadline_seconds=0.5)
    client.close()


@pytest.mark.parametrize("text", ["", "host", "http://", "host:1:2", "host:99999"])
def test_an_address_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_endpoints(text)


def test_a_scheme_goes_with_the_certificates() -> None:
    assert read_endpoints("http://a:1, b:2") == ("a:1", "b:2")
    with pytest.raises(UsageError, match="do not go together"):
        read_endpoints("https://a:1", PLAIN)


def test_tls_and_users(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.security("server")
    flags = (
        *("--cert-file", server.cert_path, "--key-file", server.key_path),
        *("--trusted-ca-file", server.ca_path, "--client-cert-auth"),
    )
    security = authority.security("client")
    with running(tmp_path / "etcd", security=security, flags=flags) as etcd:
        with etcd.client() as client:
            client.put("/tidemill/a", b"1")
        stranger = EtcdClient(etcd.address, security=Security(ca_path=server.ca_path))
        with pytest.raises(MetadataUnavailableError):
            stranger.commit([], [], deadline_seconds=0.5)
        stranger.close()
        named = EtcdClient(etcd.address, security=security, user=EtcdUser("x", "secret"))
        with pytest.raises(MetadataError) as refused:  # no users are known there
            named.get("/tidemill/a")
        assert "secret" not in str(refused.value)
        named.close()


def test_certificates_are_read_again_when_etcd_does_not_take_them(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server = ours.security("server")
    flags = (
        *("--cert-file", server.cert_path, "--key-file", server.key_path),
        *("--trusted-ca-file", server.ca_path, "--client-cert-auth"),
    )
    files = [tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")]

    def install(*paths: str) -> None:
        for path, source in zip(files, paths, strict=True):
            path.write_bytes(Path(source).read_bytes())

    with running(tmp_path / "etcd", security=ours.security("client"), flags=flags) as etcd:
        install(ours.ca_path, *theirs.issue("client"))
        client = EtcdClient(etcd.address, security=Security(*map(str, files)))
        with pytest.raises(MetadataUnavailableError):
            client.commit([], [], deadline_seconds=0.5)
        install(ours.ca_path, *ours.issue("renewed"))
        assert client.commit([], []) is not None
        client.close()


@pytest.mark.parametrize("version", [b"2", b"10", b"", b"\xff"])
def test_metadata_of_another_version_are_left_alone(client: EtcdClient, keys: Keys, version: bytes) -> None:
    name = CaptureId("c1")
    session = Session(client, 5)
    info = CaptureInfo(name, "127.0.0.1:1", False, keys.cluster, "v1", datetime.now(UTC))
    registry = Registry(client, keys, session, info)
    client.put(keys.meta_version, version)
    with pytest.raises(MetadataError, match="Use the version of Tidemill or TiCDC that wrote them, or another"):
        registry.register("127.0.0.1:2")
    assert client.prefix(keys.captures) == client.prefix(keys.places) == []
    client.delete(keys.meta_version)
    registry.register("127.0.0.1:2")
    found = client.get(keys.meta_version)
    assert found is not None
    assert found.value == b"1"
    session.close()


# Sessions.


def test_a_session_lives_while_nobody_else_gets_to_run(client: EtcdClient, keys: Keys) -> None:
    session = Session(client, 5)
    client.put(f"{keys.base}/mine", b"", session.lease)
    ends, number = time.monotonic() + 6.5, 0
    while time.monotonic() < ends:  # a busy capture: sorts, collections
        number += sum(sorted(range(200_000), key=lambda each: -each)[:3])
        gc.collect()
    assert not session.is_lost
    assert client.get(f"{keys.base}/mine") is not None
    session.close()
    assert client.get(f"{keys.base}/mine") is None


def test_a_session_outlives_a_restart_of_etcd(etcd: Etcd, client: EtcdClient) -> None:
    lost = threading.Event()
    session = Session(client, 5, on_lost=lost.set)
    etcd.restart()
    assert not lost.wait(6.0)
    session.close()


def test_a_session_that_somebody_ends_is_lost(client: EtcdClient) -> None:
    lost = threading.Event()
    session = Session(client, 5, on_lost=lost.set)
    client.revoke(session.lease)
    assert lost.wait(PATIENCE_SECONDS)
    assert session.is_lost
    session.close()


def test_a_session_is_lost_by_the_clock_where_etcd_is_away(etcd: Etcd, client: EtcdClient) -> None:
    lost = threading.Event()
    session = Session(client, 5, on_lost=lost.set)
    etcd.kill()
    began = time.monotonic()
    assert lost.wait(PATIENCE_SECONDS)
    assert time.monotonic() - began < 5 + 2
    etcd.start()
    session.close()


# Elections.


def test_the_oldest_candidate_is_the_owner_until_it_goes(client: EtcdClient, keys: Keys) -> None:
    sessions = [Session(client, 5) for _ in range(3)]
    elections = [Election(client, keys, each, CaptureId(f"c{n}")) for n, each in enumerate(sessions)]
    assert elections[0].look() is None
    for election in elections:
        election.stand()
        election.stand()
    first = elections[2].look()
    assert first is not None
    assert (first.capture, first.is_me) == ("c0", False)
    elections[0].resign()
    second = elections[1].look()
    assert second is not None
    assert second.is_me
    assert second.claim.revision > first.claim.revision
    sessions[1].close()
    third = elections[2].look()
    assert third is not None
    assert third.is_me
    with pytest.raises(SessionLostError):
        elections[1].stand()
    client.delete(third.claim.key)  # by an operator
    found = elections[2].look()
    assert found is None
    again = elections[2].look()
    assert again is not None
    assert again.claim.revision > third.claim.revision
    for session in sessions:
        session.close()


# States.


@pytest.fixture
def claim(client: EtcdClient, keys: Keys) -> Claim:
    client.put(keys.info(KEY), info_document(info_at(5)))
    revision = client.commit([], [Put(f"{keys.owners}1", b"me")])
    assert revision is not None
    return Claim(f"{keys.owners}1", revision)


def test_a_state_is_what_was_saved(client: EtcdClient, keys: Keys, claim: Claim, tmp_path: Path) -> None:
    home = EtcdHome(client, keys, KEY, claim, tmp_path)
    assert home.load() is None
    assert home.changefeed_id() == home.changefeed_id()
    for ts in (10, 20, 30):
        home.save(state_at(ts))
    other = EtcdHome(client, keys, KEY, claim, tmp_path)
    assert other.load() == home.saved == state_at(30)
    assert other.changefeed_id() == home.changefeed_id()
    status = client.get(keys.status(KEY))
    assert status is not None
    assert b'"checkpoint-ts":30' in status.value


def test_a_large_state_comes_in_parts(client: EtcdClient, keys: Keys, claim: Claim, tmp_path: Path) -> None:
    home = EtcdHome(client, keys, KEY, claim, tmp_path)
    large = {str(hash(str(n))): Ts(abs(hash(str(-n))) >> 4) for n in range(60_000)}
    home.save(state_at(9, behind={key.strip("-"): ts for key, ts in large.items()}))
    assert len(client.prefix(keys.parts(KEY))) > 1
    other = EtcdHome(client, keys, KEY, claim, tmp_path)
    assert other.load() == home.saved
    other.save(state_at(10))
    assert client.prefix(keys.parts(KEY)) == []


def test_an_owner_that_is_late_is_refused(client: EtcdClient, keys: Keys, claim: Claim, tmp_path: Path) -> None:
    late = EtcdHome(client, keys, KEY, claim, tmp_path)
    late.save(state_at(10))
    client.delete(claim.key)
    with pytest.raises(SupersededError, match="another capture is its owner"):
        late.save(state_at(11))
    revision = client.commit([], [Put(f"{keys.owners}2", b"other")])
    assert revision is not None
    new = EtcdHome(client, keys, KEY, Claim(f"{keys.owners}2", revision), tmp_path)
    assert new.load() == state_at(10)
    new.save(state_at(12))
    with pytest.raises(SupersededError):
        late.save(state_at(99))
    assert new.load() == state_at(12)


def test_a_changefeed_that_was_removed_does_not_come_back(
    client: EtcdClient, keys: Keys, claim: Claim, tmp_path: Path
) -> None:
    home = EtcdHome(client, keys, KEY, claim, tmp_path)
    home.save(state_at(10))
    client.commit([], removal(keys, KEY))
    with pytest.raises(SupersededError, match="it has been removed"):
        home.save(state_at(11))
    assert client.prefix(keys.base + "/default") == client.prefix(keys.ours) == []


def test_a_state_waits_for_etcd(etcd: Etcd, client: EtcdClient, keys: Keys, claim: Claim, tmp_path: Path) -> None:
    home = EtcdHome(client, keys, KEY, claim, tmp_path)
    etcd.kill()
    restarting = threading.Timer(0.5, etcd.start)
    restarting.start()
    home.save(state_at(10))
    restarting.join()
    assert EtcdHome(client, keys, KEY, None, tmp_path).load() == state_at(10)


def test_a_save_that_was_carried_out_and_not_answered_is_known(
    client: EtcdClient, keys: Keys, claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = EtcdHome(client, keys, KEY, claim, tmp_path)
    home.save(state_at(10))
    commit = client.commit

    def unanswered(*args: object) -> int | None:
        commit(*args)  # type: ignore[arg-type]
        return commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "commit", unanswered)
    home.save(state_at(11))
    home.save(state_at(12))
    assert home.load() == state_at(12)


@pytest.mark.parametrize("value", [b"", b"whole:1-1:abc", b"parts:[]", b'parts:["/nowhere"]', b"other:1"])
def test_a_state_that_cannot_be_read_is_told(client: EtcdClient, keys: Keys, tmp_path: Path, value: bytes) -> None:
    client.put(keys.state(KEY), value)
    with pytest.raises(MetadataError, match="Restore it"):
        EtcdHome(client, keys, KEY, None, tmp_path).load()


# Keys and documents.


def test_documents_are_read_as_they_were_written() -> None:
    info = info_at(5)
    assert read_info(info_document(info), KEY) == info
    capture = CaptureInfo(CaptureId("c"), "h:1", True, "default", "v1", datetime(2026, 1, 1, tzinfo=UTC))
    assert read_capture(capture_document(capture), CaptureId("c"), "default") == capture


def test_the_keys_are_ticdcs() -> None:
    keys = Keys("default")
    assert keys.info(KEY) == "/tidb/cdc/default/default/changefeed/info/cf"
    assert keys.status(KEY) == "/tidb/cdc/default/default/changefeed/status/cf"
    assert keys.owner(0x1F) == "/tidb/cdc/default/__cdc_meta__/owner/1f"
    assert keys.capture(CaptureId("c")) == "/tidb/cdc/default/__cdc_meta__/capture/c"
    assert keys.changefeed_of(keys.info(KEY)) == KEY
    assert keys.changefeed_of(keys.status(KEY)) is None


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}", b'{"start-ts": "x"}'])
def test_a_document_that_cannot_be_read_is_told(value: bytes) -> None:
    with pytest.raises(TidemillError, match="cannot understand changefeed default/cf"):
        read_info(value, KEY)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a--b", "a/b", "x" * 129])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name, "changefeed-id")


def test_reserved_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match="reserved"):
        Keys("owner")
