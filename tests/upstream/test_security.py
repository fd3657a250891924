"""TLS to PD and TiKV: who proves what to whom, with an authority made for the test."""

import asyncio
import shutil
import socket
import threading

import grpc
import pytest

from tests.authority import Authority
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import UntrustedUpstreamError, UsageError
from tidemill.model.security import Security
from tidemill.model.span import WHOLE
from tidemill.testing.scripted import CLUSTER_ID, ScriptedUpstream, region
from tidemill.upstream.channel import open_channel
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def serving(authority, *, asks_client, **theirs):
    certificate, key = authority.issue("server", **theirs)
    credentials = grpc.ssl_server_credentials(
        [(read(key), read(certificate))], read(authority.ca_path) if asks_client else None, asks_client
    )
    upstream = ScriptedUpstream(credentials=credentials)
    upstream.regions = [region(1, WHOLE)]
    upstream.kv = {"RawGet": lambda body: kvrpcpb_pb2.RawGetResponse(value=b"secret")}
    return upstream


def talk(upstream, security):
    """Connect to PD and ask the store for a value, both over TLS."""

    async def run():
        async with upstream:
            pd = PdClient(upstream.pd_address, security=security)
            try:
                await pd.connect(deadline_seconds=0.5)
                client = RawClient(RegionCache(pd))
                try:
                    return pd.cluster_id, await client.get(b"k")
                finally:
                    await client.close()
            finally:
                await pd.close()

    return asyncio.run(run())


def test_a_server_whose_authority_we_trust_is_talked_to(authority):
    upstream = serving(authority, asks_client=False)
    assert talk(upstream, Security(ca_path=authority.ca_path)) == (CLUSTER_ID, b"secret")


def test_a_server_that_asks_gets_our_certificate(authority):
    certificate, key = authority.issue("client")
    security = Security(ca_path=authority.ca_path, cert_path=certificate, key_path=key)
    assert talk(serving(authority, asks_client=True), security) == (CLUSTER_ID, b"secret")


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        ("a stranger's authority", r"that the authority in \S+theirs/ca\.pem has not signed"),
        ("no certificate", r"hangs up after the TLS handshake.*want a client certificate: give --cert and --key"),
        ("an expired certificate", r"does not accept our certificate \S+late\.pem \(certificate has expired\)"),
        ("a stranger's certificate", r"does not accept our certificate \S+theirs/client\.pem \(.*certificate"),
        ("plain text", r"speaks TLS: give --ca, --cert and --key"),
    ],
)
def test_without_trust_nothing_is_said(authority, stranger, ours, says):
    security = {
        "a stranger's authority": stranger.security(),
        "no certificate": Security(ca_path=authority.ca_path),
        "an expired certificate": authority.security("late", is_expired=True),
        "a stranger's certificate": Security(authority.ca_path, *stranger.issue("client")),
        "plain text": Security(),
    }[ours]
    with pytest.raises(UntrustedUpstreamError, match=says):
        talk(serving(authority, asks_client=True), security)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"is_expired": True}, "has a certificate that has expired"),
        ({"host": "127.0.0.9"}, r"that is not for 127\.0\.0\.1"),
    ],
    ids=["expired", "for another address"],
)
def test_a_server_whose_certificate_is_wrong_is_not_talked_to(authority, theirs, says):
    with pytest.raises(UntrustedUpstreamError, match=says):
        talk(serving(authority, asks_client=True, **theirs), authority.security())


def test_a_server_without_tls_is_not_talked_to_over_tls(authority):
    with pytest.raises(UntrustedUpstreamError, match="does not speak TLS"):
        talk(ScriptedUpstream(), authority.security())


@pytest.mark.parametrize(
    ("hangs_up", "says"), [(True, "does not speak TLS"), (False, "does not answer the TLS handshake")]
)
def test_what_a_server_without_tls_does_at_a_handshake_is_understood(authority, hangs_up, says):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve():
            taken = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    break
                if hangs_up:
                    connection.recv(1)
                    connection.close()
                taken.append(connection)
            for connection in taken:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()

        async def run():
            async with PdClient(address, security=authority.security()) as pd:
                await pd.connect(deadline_seconds=0.5)

        try:
            with pytest.raises(UntrustedUpstreamError, match=says):
                asyncio.run(run())
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_store_that_we_cannot_trust_is_named_at_once(authority, stranger):
    """PD is as it should be; of its store the certificate is another authority's."""

    async def run():
        async with serving(authority, asks_client=True) as upstream, serving(stranger, asks_client=True) as other:
            upstream.stores[1].address = other.pd_address
            async with PdClient(upstream.pd_address, security=authority.security()) as pd:
                client = RawClient(RegionCache(pd))
                try:
                    await client.get(b"k")
                finally:
                    await client.close()

    with pytest.raises(UntrustedUpstreamError, match=r"TiKV store 1 over TLS: it, at .*has not signed"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cert_path": "c", "ca_path": "a"}, "needs its key"),
        ({"key_path": "k", "ca_path": "a"}, "needs its key"),
        ({"cert_path": "c", "key_path": "k"}, "certificate of its authority"),
    ],
)
def test_half_a_security_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        Security(**given)


def test_certificates_that_are_renewed_in_place_need_no_new_client(tmp_path):
    """All of them, by another authority: what was opened with the old ones does not go on."""
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    files = {name: (a.security(f"{name}-server"), a.security(f"{name}-client")) for name, a in
             (("before", before), ("after", after))}  # fmt: skip
    server, client = files["before"]

    def renew():
        for old, new in zip(files["before"], files["after"], strict=True):
            for name in ("ca_path", "cert_path", "key_path"):
                shutil.copyfile(getattr(new, name), getattr(old, name))

    async def run():
        up = await asyncio.to_thread(EmbeddedUpstream.start, data_dir=tmp_path / "d", security=server)
        port = int(up.pd_address.rpartition(":")[2])
        pd = PdClient(up.pd_address, security=client)
        reader = SnapshotReader(pd, RegionCache(pd))
        try:
            await pd.connect()
            ts = await pd.get_ts()
            assert await reader.get(b"k", ts) is None
            await asyncio.to_thread(up.stop)
            renew()
            up = await asyncio.to_thread(EmbeddedUpstream.start, data_dir=tmp_path / "d", pd_port=port, security=server)
            assert await pd.get_ts() > ts
            assert await reader.get(b"k", await pd.get_ts()) is None
        finally:
            await reader.close()
            await pd.close()
            await asyncio.to_thread(up.stop)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("ca", "cert", "key", "says"),
    [
        ("junk", "good", "good", r"junk holds no certificate of an authority in PEM form"),
        ("good", "junk", "good", r"junk and \S+ are not a certificate and its key in PEM form"),
        ("good", "good", "other", r"do not belong together"),
        ("good", "good", "missing", r"cannot read the TLS file \S+missing"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(authority, tmp_path, ca, cert, key, says):
    (tmp_path / "junk").write_text("junk")
    ours, our_key = authority.issue("client")
    others_key = authority.issue("other")[1]
    junk, missing = str(tmp_path / "junk"), str(tmp_path / "missing")
    security = Security(
        {"good": authority.ca_path, "junk": junk}[ca],
        {"good": ours, "junk": junk}[cert],
        {"good": our_key, "other": others_key, "missing": missing}[key],
    )
    with pytest.raises(UsageError, match=says):
        open_channel("127.0.0.1:1", security)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    async def run():
        pd = PdClient("127.0.0.1:1", security=Security(ca_path=str(tmp_path / "missing.pem")))
        with pytest.raises(UsageError, match=r"cannot read the TLS file .*missing\.pem: No such file"):
            await pd.connect(deadline_seconds=0.1)

    asyncio.run(run())
