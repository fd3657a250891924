import pytest

from tests.store.stub import Client, client_of
from tidemill.store.upstream import EmbeddedUpstream
from tidemill.store.warm import warm_up


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    warm_up()  # on a new machine compiling would take longer than tests wait for an answer


@pytest.fixture
def upstream():
    """Three stores, empty, with a resolved-ts only when a test asks for it."""
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=3600) as started:
        yield started


@pytest.fixture
def client(upstream) -> Client:
    with client_of(upstream) as connected:
        yield connected
