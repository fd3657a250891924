"""Whichever capture is asked, the owner answers."""

from collections.abc import Iterator

import httpx
import pytest

from tests.api.clients import shop
from tests.api.servers import serving
from tidemill.testing.operations import FakeCluster


@pytest.fixture(scope="module")
def cluster() -> FakeCluster:
    return shop(captures=2)


@pytest.fixture(scope="module")
def addresses(cluster: FakeCluster) -> Iterator[list[str]]:
    with serving(cluster) as found:
        yield found


def test_the_one_that_is_not_the_owner_passes_requests_on(addresses: list[str]) -> None:
    other = f"http://{addresses[1]}/api/v2"
    created = httpx.post(f"{other}/changefeeds", json={"changefeed_id": "orders", "sink_uri": "blackhole://"})
    assert created.status_code == 200
    listed = [httpx.get(f"http://{each}/api/v2/changefeeds?state=normal").json() for each in addresses]
    assert [each["items"][0]["id"] for each in listed] == ["orders", "orders"]
    refused = httpx.post(f"{other}/changefeeds/order/pause")
    assert (refused.status_code, refused.json()["error_code"]) == (400, "CDC:ErrChangeFeedNotExists")
    assert httpx.delete(f"{other}/changefeeds/orders").json() == {}


def test_each_answers_for_itself(addresses: list[str]) -> None:
    found = [httpx.get(f"http://{each}/api/v2/status").json() for each in addresses]
    assert [each["is_owner"] for each in found] == [True, False]
    assert "ticdc_owner_ownership_counter 0.0" in httpx.get(f"http://{addresses[1]}/metrics").text


def test_another_owner_is_found(cluster: FakeCluster, addresses: list[str]) -> None:
    assert httpx.post(f"http://{addresses[1]}/api/v2/owner/resign").status_code == 200
    owners = [
        each["id"] for each in httpx.get(f"http://{addresses[0]}/api/v2/captures").json()["items"] if each["is_owner"]
    ]
    assert owners == ["capture-1"]
    cluster.elect(0)


@pytest.mark.parametrize("name", ["a%C3%A9", "a%20b", "a%1F", "a%2Fb", "a%3Fb=1", "..%2f..", "%25"])
def test_odd_names_are_passed_on_as_they_came(addresses: list[str], name: str) -> None:
    answers = [httpx.get(f"http://{each}/api/v2/changefeeds/{name}?namespace=x%26y") for each in addresses]
    assert [each.status_code for each in answers] == [answers[0].status_code] * 2
    assert answers[0].text == answers[1].text


def test_what_goes_round_in_circles_is_refused(addresses: list[str]) -> None:
    answer = httpx.get(f"http://{addresses[1]}/api/v2/captures", headers={"TiCDC-ForwardTimes": "3"})
    assert (answer.status_code, answer.json()["error_code"]) == (503, "CDC:ErrRequestForwardErr")


def test_without_an_owner_and_with_one_that_is_away_it_says_so(cluster: FakeCluster, addresses: list[str]) -> None:
    here = cluster.captures[0].info
    try:
        cluster.elect(-1)
        answer = httpx.get(f"http://{addresses[1]}/api/v2/captures")
        assert (answer.status_code, answer.json()["error_code"]) == (503, "CDC:ErrOwnerNotFound")
        cluster.elect(0)
        cluster.captures[0].info = type(here)(here.id, "127.0.0.1:1", True, here.cluster_id)
        answer = httpx.get(f"http://{addresses[1]}/api/v2/captures")
        assert (answer.status_code, answer.json()["error_code"]) == (503, "CDC:ErrRequestForwardErr")
        assert "did not answer" in answer.json()["error_msg"]
    finally:
        cluster.captures[0].info = here
