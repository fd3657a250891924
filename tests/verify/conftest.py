"""An embedded TiDB and a MariaDB for all tests of this folder; each test has a database of its own on both."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.mariadb import MariaDb, need_mariadb
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.sinks.mysql import parse_mysql_uri
from tidemill.source.scan import ScanClient, TableName
from tidemill.verify import Check, CheckOptions, MysqlDownstream, MysqlSide, Report


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with MariaDb(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="session")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def client(upstream: EmbeddedUpstream) -> Iterator[ScanClient]:
    with ScanClient(upstream.pd_address) as client:
        yield client


@pytest.fixture(scope="session")
def nodes(upstream: EmbeddedUpstream) -> SqlNodes:
    return SqlNodes(upstream.cluster, 1, lease_seconds=3600)


def run(tasks: Sequence[Any]) -> list[Any]:
    """In place of Spark: as there, tasks and results travel pickled."""
    return [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task)).run())) for task in tasks]


class Pair:
    """The same database on both sides, and the check of it."""

    def __init__(self, name: str, tidb: SqlSession, mariadb: MariaDb, client: ScanClient) -> None:
        self.name = name
        self.client = client
        self.uri = mariadb.uri()
        self._tidb = tidb
        self._mariadb = mariadb

    def upstream(self, *statements: str) -> None:
        for statement in statements:
            self._tidb.execute(statement)

    def downstream(self, *statements: str) -> list[Any]:
        settings = "SET SESSION sql_mode='ALLOW_INVALID_DATES', time_zone='+00:00'"
        return self._mariadb.query(settings, f"USE `{self.name}`", *statements)

    def both(self, *statements: str) -> None:
        self.upstream(*statements)
        self.downstream(*statements)

    def verify(self, *tables: str, progress: Any = None, at: Any = None, side: Any = None, **options: Any) -> Report:
        ts = at or self.client.now()
        found = [self.client.find_table(TableName(self.name, table), ts) for table in tables]
        side = side or MysqlSide(MysqlDownstream(parse_mysql_uri(self.uri)))
        given = CheckOptions(pd="", **options)
        return Check(self.client, side, run, given, progress).check(found, ts)


@pytest.fixture
def pair(nodes: SqlNodes, mariadb: MariaDb, client: ScanClient, request: pytest.FixtureRequest) -> Iterator[Pair]:
    name = f"v{abs(hash(request.node.nodeid))}"
    session = SqlSession(nodes.nodes[0])
    session.execute(f"create database {name}")
    session.execute("set time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
    session.use(name)
    mariadb.query(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    yield Pair(name, session, mariadb, client)
    session.close()
    mariadb.query(f"DROP DATABASE {name}")


Plant = Callable[[Pair], None]
