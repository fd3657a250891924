"""A stranger goes through our OpenAPI document: whatever it makes of it, nothing breaks."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.api.clients import shop
from tests.api.strangers import not_broken
from tests.rounds import examples
from tidemill.api.app import create_app

SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", create_app(shop(captures=2).operations(0)))


@SCHEMA.parametrize()
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_nothing_that_a_stranger_makes_of_the_document_breaks_it(case: schemathesis.Case) -> None:
    answer = case.call()
    not_broken(f"{case.method} {case.formatted_path}", answer.status_code, answer.text)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        pytest.param(500, '{"error_msg": "x", "error_code": "CDC:ErrX"}', id="broken"),
        pytest.param(502, "bad gateway", id="broken on the way"),
        pytest.param(404, '{"detail": "Not Found"}', id="a refusal of another shape"),
        pytest.param(400, '{"error_msg": "x", "error_code": "nothing of ours"}', id="a code of no table"),
    ],
)
def test_what_is_broken_is_found(status: int, text: str) -> None:
    with pytest.raises(AssertionError):
        not_broken("GET /", status, text)
