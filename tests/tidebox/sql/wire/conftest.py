import pytest

from tests.tidebox.sql.wire.raw import RawClient
from tests.tidebox.sql.wire.script import Script
from tidebox.sql.wire.server import SqlServer


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def server(script):
    """Small limits, so that tests can reach them."""
    started = SqlServer(script.make_session, max_packet_bytes=1 << 20, max_connections=60)
    started.start(0)
    yield started
    started.stop()
    assert started.connection_count == 0


@pytest.fixture
def raw(server):
    """A client that has logged in."""
    with RawClient(server.address) as client:
        client.log_in()
        yield client
