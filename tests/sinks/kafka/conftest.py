"""One broker for all tests here; each has topics of its own."""

from collections.abc import Iterator

import pytest

from tests.kafka import Broker, running


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t-{abs(hash(request.node.nodeid))}"
