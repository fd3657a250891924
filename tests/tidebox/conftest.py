import pytest

from tests.tidebox.stub import Client, client_of
from tidebox.upstream import EmbeddedUpstream


@pytest.fixture
def upstream():
    """Three stores, empty, with a resolved-ts only when a test asks for it."""
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=3600) as started:
        yield started


@pytest.fixture
def client(upstream) -> Client:
    with client_of(upstream) as connected:
        yield connected
