"""TLS to PD and TiKV: who proves what to whom, with an authority made for the test by the openssl command."""

import asyncio
import shutil
import subprocess

import grpc
import pytest

from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import UpstreamUnavailableError, UsageError
from tidemill.model.span import WHOLE
from tidemill.testing.scripted import CLUSTER_ID, ScriptedUpstream, region
from tidemill.upstream.channel import Security
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command to make keys with")


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self._run("req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
        self.ca_path = str(folder / "ca.pem")

    def issue(self, name):
        """A certificate for 127.0.0.1 and its key."""
        (self.folder / "names.cnf").write_text("subjectAltName=IP:127.0.0.1\n")
        self._run("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names.cnf"]
        self._run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def _new_key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]

    def _run(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def serving(authority, *, asks_client):
    certificate, key = authority.issue("server")
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


@needs_openssl
def test_a_server_whose_authority_we_trust_is_talked_to(authority):
    upstream = serving(authority, asks_client=False)
    assert talk(upstream, Security(ca_path=authority.ca_path)) == (CLUSTER_ID, b"secret")


@needs_openssl
def test_a_server_that_asks_gets_our_certificate(authority):
    certificate, key = authority.issue("client")
    security = Security(ca_path=authority.ca_path, cert_path=certificate, key_path=key)
    assert talk(serving(authority, asks_client=True), security) == (CLUSTER_ID, b"secret")


@needs_openssl
@pytest.mark.parametrize("case", ["a stranger's authority", "no certificate of ours", "plain text"])
def test_without_trust_nothing_is_said(authority, stranger, case):
    security = {
        "a stranger's authority": Security(ca_path=stranger.ca_path),
        "no certificate of ours": Security(ca_path=authority.ca_path),
        "plain text": Security(),
    }[case]
    with pytest.raises(UpstreamUnavailableError, match="no PD leader answers"):
        talk(serving(authority, asks_client=True), security)


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


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    async def run():
        pd = PdClient("127.0.0.1:1", security=Security(ca_path=str(tmp_path / "missing.pem")))
        with pytest.raises(UsageError, match=r"cannot read the TLS file .*missing\.pem: No such file"):
            await pd.connect(deadline_seconds=0.1)

    asyncio.run(run())
