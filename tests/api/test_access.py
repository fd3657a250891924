"""Who is let in, over what, and with how much."""

import base64
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.clients import Client, client_of, shop
from tests.api.servers import serving
from tests.authority import Authority
from tidemill.api.access import Users, UsersFile
from tidemill.api.tls import ApiTls
from tidemill.errors import UsageError
from tidemill.model.security import Security

PASSWORD, TOKEN = "correct-horse", "0123456789abcdef"


def users_file(folder: Path, text: str = f"# who\nops:{PASSWORD}\n{TOKEN}\n", mode: int = 0o600) -> Path:
    path = folder / "users"
    path.write_text(text)
    path.chmod(mode)
    return path


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Client:
    path = users_file(tmp_path_factory.mktemp("users"))
    return client_of(shop(), users=UsersFile(path))


RIGHT = [basic("ops", PASSWORD), {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"bearer {TOKEN}"}]
WRONG = {
    "none": {},
    "another password": basic("ops", "wrong-horse"),
    "another user": basic("root", PASSWORD),
    "no user": basic("", PASSWORD),
    "a token as a password": basic("", TOKEN),
    "a password as a token": {"Authorization": f"Bearer ops:{PASSWORD}"},
    "another token": {"Authorization": "Bearer 0123456789abcdeX"},
    "no token": {"Authorization": "Bearer"},
    "not base64": {"Authorization": "Basic ???"},
    "not text": {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode()},
    "another kind": {"Authorization": f"Digest {TOKEN}"},
}
PATHS = [
    "/api/v2/changefeeds",
    "/api/v2/status",
    "/status",
    "/metrics",
    "/debug",
    "/config",
    "/openapi.json",
    "/nothing",
]


@pytest.mark.parametrize("headers", RIGHT, ids=["basic", "token", "small letters"])
def test_who_is_known_is_let_in(guarded: Client, headers: dict[str, str]) -> None:
    assert guarded.ask("GET", "/api/v2/changefeeds", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_who_is_not_known_learns_nothing(guarded: Client, headers: dict[str, str]) -> None:
    for path in PATHS:
        answer = guarded.ask("GET", path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error_code"] in ("CDC:ErrUnauthorized", "CDC:ErrCredentialNotFound")
        assert set(answer.headers) == {"content-type", "content-length", "www-authenticate"}
        assert PASSWORD not in answer.text
        assert TOKEN not in answer.text
    assert (
        guarded.ask("POST", "/api/v2/changefeeds", json={"sink_uri": "blackhole://"}, headers=headers).status_code
        == 401
    )


def test_whether_it_is_healthy_everybody_may_know(guarded: Client) -> None:
    assert guarded.ask("GET", "/api/v2/health").json() == {}


def test_the_file_is_read_again_and_a_broken_one_is_not_taken(tmp_path: Path) -> None:
    path = users_file(tmp_path)
    client = client_of(shop(), users=UsersFile(path))
    users_file(tmp_path, "another-token\n")
    assert client.ask("GET", "/status", headers={"Authorization": "Bearer another-token"}).status_code == 200
    assert client.ask("GET", "/status", headers=RIGHT[0]).status_code == 401
    users_file(tmp_path, "")
    path.unlink()
    assert client.ask("GET", "/status", headers={"Authorization": "Bearer another-token"}).status_code == 200


@pytest.mark.parametrize(
    ("text", "mode", "wanted"),
    [
        ("ops:short\n", 0o600, "line 1: it must be NAME:PASSWORD"),
        ("# nobody\n\n", 0o600, "has nobody in it"),
        (":no-name-at-all\n", 0o600, "line 1"),
        (f"ops:{PASSWORD}\n", 0o644, "chmod 600"),
    ],
)
def test_a_file_that_guards_nothing_is_refused(tmp_path: Path, text: str, mode: int, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted) as refused:
        Users.read(users_file(tmp_path, text, mode))
    assert "short" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        UsersFile(tmp_path / "nothing")


def test_a_page_of_another_site_is_refused() -> None:
    client = client_of(shop())
    path = "/api/v2/changefeeds/orders/pause"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "http://[broken"):
        assert client.ask("POST", path, headers={"Origin": origin}).status_code == 403
    own = client.ask("GET", "/api/v2/changefeeds", headers={"Origin": "http://127.0.0.1:8300"})
    assert own.status_code == 200


def test_a_body_that_is_too_large_is_refused() -> None:
    client = client_of(shop())

    async def endless() -> object:
        for _ in range(1 << 12):
            yield b" " * 4096

    for content in (b"x" * (2 << 20), endless()):
        answer = client.ask("POST", "/api/v2/changefeeds", content=content)
        assert (answer.status_code, answer.json()["error_code"]) == (413, "CDC:ErrAPIInvalidParam")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours") / "ca")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs") / "ca")


@pytest.fixture(scope="module")
def server(ours: Authority) -> Iterator[str]:
    tls = ApiTls(ours.security("capture"), wants_certificates=True, allowed_cn=("capture", "operator"))
    with serving(shop(), tls=tls) as addresses:
        yield addresses[1]  # who passes requests on to the owner, over TLS too


def ask(address: str, security: Security, path: str = "/api/v2/changefeeds") -> httpx.Response:
    context = ssl.create_default_context(cafile=security.ca_path)
    if security.cert_path:
        context.load_cert_chain(security.cert_path, security.key_path)
    with httpx.Client(verify=context) as client:
        return client.get(f"https://{address}{path}")


def test_a_client_with_the_right_certificate_is_let_in_and_passed_on(server: str, ours: Authority) -> None:
    assert ask(server, ours.security("operator")).json() == {"total": 0, "items": []}


def test_certificates_that_are_missing_wrong_expired_or_of_another_name_are_refused(
    server: str, ours: Authority, theirs: Authority
) -> None:
    wrong = {
        "missing": Security(ours.ca_path),
        "of another authority": Security(ours.ca_path, *theirs.issue("operator")),
        "expired": ours.security("operator", is_expired=True),
        "of another name": ours.security("stranger"),
    }
    for name, security in wrong.items():
        try:
            ask(server, security)
        except httpx.TransportError:
            continue
        pytest.fail(f"a certificate that is {name} was let in")


def test_plain_text_is_not_answered(server: str) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{server}/api/v2/status")


def test_a_server_that_is_not_trusted_is_not_asked(server: str, theirs: Authority) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(server, Security(theirs.ca_path))


def test_certificates_are_read_again(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")]

    def install(authority: Authority) -> None:
        for path, source in zip(files, (authority.ca_path, *authority.issue("rolling")), strict=True):
            aside = path.with_suffix(".new")
            aside.write_bytes(Path(source).read_bytes())
            os.replace(aside, path)

    install(ours)
    tls = ApiTls(Security(*map(str, files)), wants_certificates=True)
    with serving(shop(1), tls=tls) as addresses:
        assert ask(addresses[0], ours.security("operator")).status_code == 200
        install(theirs)
        assert ask(addresses[0], theirs.security("operator")).status_code == 200
        with pytest.raises(httpx.TransportError):
            ask(addresses[0], Security(theirs.ca_path, *ours.issue("operator")))
        files[1].write_text("no certificate")
        assert ask(addresses[0], theirs.security("operator")).status_code == 200


def test_tls_that_does_not_go_together_is_refused(ours: Authority) -> None:
    with pytest.raises(UsageError, match="needs a certificate"):
        ApiTls(Security(ours.ca_path))
    with pytest.raises(UsageError, match="turn mTLS on"):
        ApiTls(ours.security("capture"), allowed_cn=("operator",))
