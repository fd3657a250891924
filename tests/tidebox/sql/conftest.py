import pytest

from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream


@pytest.fixture(scope="module")
def nodes():
    """Two nodes over one store, for the tests of a module: each test has its own database."""
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream:
        yield SqlNodes(upstream.cluster, 2)


@pytest.fixture
def session(nodes, request):
    """A session in a database of its own."""
    made = SqlSession(nodes.nodes[0])
    name = f"db{abs(hash(request.node.nodeid))}"
    made.execute(f"create database {name}")
    made.use(name)
    yield made
    made.close()


@pytest.fixture
def other(nodes, session):
    """A second session, on the other node, in the same database."""
    made = SqlSession(nodes.nodes[1])
    made.use(session.database)
    yield made
    made.close()
