"""Which sync point a check takes. Reading a TiDB as of one needs a TiDB, and is tried by hand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.mariadb import MariaDb
from tidemill.errors import UsageError
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri
from tidemill.sinks.mysql.generation import OWNER, Generation
from tidemill.sinks.mysql.session import SessionSettings, driver_session
from tidemill.sinks.mysql.syncpoint import SyncPoints
from tidemill.verify import MysqlDownstream


@pytest.fixture
def points(mariadb: MariaDb) -> Iterator[MysqlDownstream]:
    """Those of two changefeeds, as the sink records them; the second ts is set as a TiDB would have given it."""
    mariadb.query("drop database if exists tidb_cdc")
    for changefeed, primary_ts in (("orders", 90), ("orders", 1000), ("stock", 500)):
        options = replace(parse_mysql_uri(mariadb.uri("enable-sync-point=true")), changefeed=changefeed)
        with driver_session(SessionSettings(options), "record") as session:
            generation = Generation.new(options.changefeed, options.cluster_id, OWNER)
            generation.begin(session)
            SyncPoints(options, None).record(session, generation, None, Ts(primary_ts))
    mariadb.query("update tidb_cdc.syncpoint_v1 set secondary_ts = primary_ts + 7")
    yield MysqlDownstream(parse_mysql_uri(mariadb.uri()))
    mariadb.query("drop database tidb_cdc")


def test_the_newest_of_a_changefeed_is_taken(points: MysqlDownstream) -> None:
    for changefeed, newest in (("orders", 1000), ("stock", 500)):  # by number, not by text
        found = points.sync_point(changefeed)
        assert found is not None
        assert (found.primary_ts, found.secondary_ts) == (newest, newest + 7)
    assert points.sync_point("nobody") is None


def test_of_several_changefeeds_one_has_to_be_named(points: MysqlDownstream, mariadb: MariaDb) -> None:
    with pytest.raises(UsageError, match=r"2 changefeeds have recorded sync points .*--data-dir"):
        points.sync_point()
    mariadb.query("delete from tidb_cdc.syncpoint_v1 where changefeed = 'stock'")
    found = points.sync_point()
    assert found is not None
    assert found.primary_ts == 1000


def test_a_downstream_without_sync_points_has_none(mariadb: MariaDb) -> None:
    mariadb.query("drop database if exists tidb_cdc")
    assert MysqlDownstream(parse_mysql_uri(mariadb.uri())).sync_point() is None
