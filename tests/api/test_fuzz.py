"""Whatever is sent along the lines of our own OpenAPI document, nothing breaks: no 5xx but "not now", answers of the
shape that was promised, refusals with a code."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.api.clients import Client, shop
from tests.rounds import examples
from tidemill.api.app import create_app
from tidemill.errors import ChangefeedExistsError
from tidemill.model.cluster import NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.testing.operations import FakeCluster

APP = create_app(shop(captures=1).operations(0))
# One for all of many requests.
CLIENT = httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://127.0.0.1:8300", verify=False)
LOOP = asyncio.new_event_loop()
DOCUMENT: dict[str, Any] = APP.openapi()
OPERATIONS = [
    (method, path, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()
]
ANSWERS: dict[tuple[str, str], Any] = {
    (method.lower(), route.path): route.response_model  # type: ignore[attr-defined]
    for route in APP.routes
    for method in getattr(route, "methods", ())
    if getattr(route, "response_model", None) is not None
}
# Values that lead somewhere, among all others.
TEXTS = st.one_of(
    st.sampled_from(["orders", "default", "capture-0", "capture-1", "all", "normal", "blackhole://", "1", "3", "warn"]),
    st.sampled_from(["mysql://root@127.0.0.1:3306/", "file:///tmp/x?protocol=csv", "kafka://127.0.0.1:9/t", "s3://"]),
    st.text(max_size=12),
    st.just("x" * 200),
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 100, 464_613_539_840_000_000, (1 << 64) - 1]), st.integers(-(1 << 70), 1 << 70)
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.dictionaries(
    st.sampled_from(
        ["filter", "sink", "memory_quota", "case-sensitive", "sync_point_interval", "mounter", "consistent"]
    ),
    st.one_of(
        ANYTHING,
        st.dictionaries(
            st.sampled_from(["rules", "event_filters", "protocol", "dispatchers", "column_selectors", "worker_num"]),
            st.one_of(
                ANYTHING, st.lists(st.dictionaries(st.sampled_from(["matcher", "columns"]), ANYTHING), max_size=2)
            ),
            max_size=3,
        ),
    ),
    max_size=4,
)


def values_of(schema: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Mostly of the schema, at times of none."""
    if name == "replica_config":
        return st.none() | CONFIGS
    if "$ref" in schema:
        return values_of(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of([values_of(each) for each in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            fields = {name: values_of(each, name) for name, each in schema.get("properties", {}).items()}
            needed = {name: fields[name] for name in schema.get("required", ())}
            whole = st.fixed_dictionaries(needed, optional={k: v for k, v in fields.items() if k not in needed})
            return st.one_of(whole, whole, whole, ANYTHING)
        case "array":
            return st.lists(values_of(schema.get("items", {})), max_size=3)
        case "integer" | "number":
            return NUMBERS
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            return TEXTS


def request_of(operation: dict[str, Any], path: str) -> st.SearchStrategy[tuple[str, dict[str, str], Any]]:
    parameters = operation.get("parameters", [])
    places = st.fixed_dictionaries(
        {p["name"]: TEXTS.map(lambda text: quote(text or "x", safe="")) for p in parameters if p["in"] == "path"}
    )
    query = st.fixed_dictionaries({}, optional={p["name"]: TEXTS for p in parameters if p["in"] == "query"})
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        body: st.SearchStrategy[Any] = values_of(content["application/json"]["schema"])
    elif content:
        body = st.dictionaries(st.sampled_from(["cf-id", "admin-job", "table-id", "target-cp-id", "x"]), TEXTS)
    else:
        body = st.none()
    return st.tuples(places.map(lambda found: path.format(**found)), query, body)


def send(method: str, where: str, query: dict[str, str], body: Any, *, is_form: bool) -> httpx.Response:
    sent: dict[str, Any] = {"data": body} if is_form else {} if body is None else {"json": body}
    return LOOP.run_until_complete(CLIENT.request(method, where, params=query, **sent))


def check(method: str, path: str, answer: httpx.Response) -> None:
    assert answer.status_code in (200, 202, 400, 404, 405, 413, 503), answer.text
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error_msg", "error_code"}
        assert answer.json()["error_code"].startswith("CDC:Err")
    elif (method, path) in ANSWERS:
        TypeAdapter(ANSWERS[method, path]).validate_json(answer.content)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    LOOP.run_until_complete(CLIENT.aclose())
    LOOP.close()


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_nothing_that_is_sent_breaks_it(method: str, path: str, operation: dict[str, Any]) -> None:
    is_form = "application/x-www-form-urlencoded" in operation.get("requestBody", {}).get("content", {})

    @settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(request_of(operation, path))
    def try_it(request: tuple[str, dict[str, str], Any]) -> None:
        check(method, path, send(method.upper(), *request, is_form=is_form))

    try_it()


def test_every_answer_of_a_cluster_at_work_has_its_promised_shape() -> None:
    """With a changefeed that is there, paths of its own are found."""
    send("POST", "/api/v2/changefeeds", {}, {"changefeed_id": "orders", "sink_uri": "blackhole://"}, is_form=False)
    fill = {"changefeed_id": "orders", "capture_id": "capture-0"}
    for method, path, _ in OPERATIONS:
        if method == "get":
            answer = send("GET", path.format(**fill), {}, None, is_form=False)
            assert answer.status_code == 200, answer.text
            check(method, path, answer)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"', b"\xff\xfe", b"[" * 100_000, b'{"a":1e999}', b"1" * 9_999]
)
def test_bodies_that_are_no_json_are_refused(content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = LOOP.run_until_complete(CLIENT.post("/api/v2/changefeeds", content=content, headers=headers))
    assert (answer.status_code, answer.json()["error_code"]) == (400, "CDC:ErrAPIInvalidParam")


def test_what_nobody_expected_is_told_without_its_words() -> None:
    class Broken(FakeCluster):
        def create(self, new: NewChangefeed) -> Any:
            raise RuntimeError(f"of {new.sink_uri}")

        def feed(self, key: ChangefeedKey) -> Any:
            raise ChangefeedExistsError("a refusal")

    app = create_app(Broken(1).operations(0))

    client = Client(app)
    body = {"sink_uri": "mysql://root:Gr8-secret@127.0.0.1:3306/"}
    answer = client.ask("POST", "/api/v2/changefeeds", json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (500, "CDC:ErrInternalServerError")
    assert "Gr8-secret" not in answer.text
    assert client.ask("GET", "/api/v2/changefeeds/orders").status_code == 400
