"""The client of schema registries, against a stand-in that speaks HTTP, fails on request and asks for passwords."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.certificates import self_signed
from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.flow.encoder.schema_registry import SchemaRegistry, forget, registry_uri
from tidemill.model.security import Security
from tidemill.retry import Policy
from tidemill.testing.schema_registry import StandInRegistry

SCHEMA = '{"type":"record","name":"item","namespace":"default.shop","fields":[]}'
OTHER = SCHEMA.replace("item", "other")
PATIENT = Policy(1.0, 4.0, jitter=0.0, deadline_seconds=30.0)


class TurnedClock:
    """Time passes only where somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.pause(seconds)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def server() -> Iterator[StandInRegistry]:
    with StandInRegistry() as registry:
        yield registry


def client(uri: str, clock: TurnedClock | None = None, security: Security | None = None) -> SchemaRegistry:
    clock = clock or TurnedClock()
    return SchemaRegistry(uri, security or Security(), PATIENT, clock, clock.pause)


def test_a_schema_is_registered_once_and_then_known(server: StandInRegistry) -> None:
    registry = client(server.uri)
    assert [registry.number_of("shop_item-key", SCHEMA) for _ in range(3)] == [1, 1, 1]
    assert server.requests == [("POST", "/subjects/shop_item-key/versions")]
    assert server.texts == {1: SCHEMA}


def test_another_client_of_the_process_need_not_ask_again(server: StandInRegistry) -> None:
    assert client(server.uri).number_of("s", SCHEMA) == client(server.uri + "").number_of("s", SCHEMA)
    assert len(server.requests) == 1


def test_subjects_and_schemas_are_told_apart(server: StandInRegistry) -> None:
    registry = client(server.uri + "/")
    numbers = [registry.number_of(subject, schema) for subject in ("a", "b/c d") for schema in (SCHEMA, OTHER)]
    assert numbers == [1, 2, 1, 2]
    assert server.schemas == {"a": [1, 2], "b/c d": [1, 2]}


def test_a_failure_that_passes_is_tried_again_with_longer_pauses(server: StandInRegistry) -> None:
    clock = TurnedClock()
    server.fail_next(503, times=2)
    server.fail_next()
    server.fail_next(500)
    assert client(server.uri, clock).number_of("s", SCHEMA) == 1
    assert clock.pauses == [1.0, 2.0, 4.0, 4.0]


def test_it_is_given_up_after_half_a_minute(server: StandInRegistry) -> None:
    clock = TurnedClock()
    server.fail_next(503, times=99)
    with pytest.raises(SinkUnavailableError, match=r"register the schema of 's' at schema registry http.*answers 503"):
        client(server.uri, clock).number_of("s", SCHEMA)
    assert 20 <= clock.seconds < 30


def test_nobody_there_is_named() -> None:
    with StandInRegistry() as gone:
        uri = gone.uri
    with pytest.raises(SinkUnavailableError, match=rf"cannot reach schema registry {uri}: .*refused.* Start it"):
        client(uri).check()


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "user and password"),
        (403, "user and password"),
        (404, "Check the address"),
        (409, "compatibility"),
        (422, "its own log"),
    ],
)
def test_a_refusal_is_not_tried_again(server: StandInRegistry, status: int, advice: str) -> None:
    clock = TurnedClock()
    server.fail_next(status)
    with pytest.raises(SinkError, match=rf"it refuses with {status} \(failed on request\).*{advice}") as raised:
        client(server.uri, clock).number_of("s", SCHEMA)
    assert not raised.value.retryable
    assert clock.pauses == []
    assert len(server.requests) == 1


def test_an_incompatible_schema_is_told_by_the_registrys_own_words(server: StandInRegistry) -> None:
    server.refused.add("s")
    with pytest.raises(SinkError, match=r"refuses with 409 \(Schema being registered is incompatible"):
        client(server.uri).number_of("s", SCHEMA)


def test_the_password_goes_to_the_registry_and_nowhere_else() -> None:
    with StandInRegistry(credentials=("us er", "p@ss:w/rd")) as server:
        uri = server.uri.replace("://", "://us%20er:p%40ss%3Aw%2Frd@")
        registry = client(uri)
        assert registry.number_of("s", SCHEMA) == 1
        assert "rd" not in repr(registry)
        with pytest.raises(SinkError, match="refuses with 401") as raised:
            client(uri.replace("%2Frd", "rong")).number_of("s", OTHER)
        assert "p%40" not in str(raised.value)
        assert "p@ss" not in str(raised.value)
        assert server.uri in str(raised.value)


def test_the_registry_is_checked_by_its_root(server: StandInRegistry) -> None:
    client(server.uri).check()
    assert server.requests == [("GET", "/")]


def test_somebody_else_at_the_address_is_noticed(server: StandInRegistry) -> None:
    with pytest.raises(SinkError, match=r"refuses with 404.*Check the address"):
        client(server.uri + "/elsewhere").check()
    server.fail_next(200)  # with a document of its own
    with pytest.raises(SinkError, match="not as a schema registry does"):
        client(server.uri).check()


def test_an_answer_without_a_number_is_refused(server: StandInRegistry) -> None:
    server.fail_next(200)
    with pytest.raises(SinkError, match="without the number of the schema of 's'"):
        client(server.uri).number_of("s", SCHEMA)


def test_tls_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    made = self_signed("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with StandInRegistry(tls=context) as server:
        uri = server.uri.replace("127.0.0.1", "localhost")
        trusting = client(uri, security=Security(ca_path=str(certificate)))
        assert trusting.number_of("s", SCHEMA) == 1
        with pytest.raises(SinkError, match=r"its certificate is not trusted.*schema-registry-ca"):
            client(uri).number_of("s", OTHER)


@pytest.mark.parametrize(
    "text", ["", "registry:8081", "ftp://x", "http://", "http://x:0", "http://x:99999", "http://x?a"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an address such as http"):
        registry_uri(text)


def test_addresses_are_taken_as_they_are() -> None:
    assert registry_uri("https://u:p@host:8081/base") == "https://u:p@host:8081/base"


def test_a_schema_is_found_by_its_number(server: StandInRegistry) -> None:
    asked = client(server.uri)
    assert asked.schema(asked.number_of("shop_item-value", SCHEMA)) == SCHEMA
    with pytest.raises(LookupError, match="has no such schema"):
        asked.schema(99)
    server.fail_next(404)
    with pytest.raises(SinkError, match="Check the address"):
        asked.schema(1)
