"""Rows of several tables in one transaction downstream."""

import socket
from dataclasses import replace

import pytest

from tests.mariadb import MariaDb
from tests.sinks.moments import START
from tests.sinks.mysql.upstreams import Past, create_table, keyed_table
from tidemill.errors import SinkError
from tidemill.model.ts import MAX_TS
from tidemill.sinks.mysql import parse_mysql_uri
from tidemill.sinks.mysql.joint import JointTarget
from tidemill.sinks.mysql.sink import MysqlOwner, MysqlWriter

TABLE = keyed_table("joint")
ROWS = Past([[(None, {"id": 1, "a": "x", "b": None, "v": None})]], []).rows(TABLE, 0, 1)


@pytest.fixture
def writer(mariadb: MariaDb) -> MysqlWriter:
    mariadb.query("CREATE OR REPLACE DATABASE joint", create_table(TABLE))
    options = parse_mysql_uri(mariadb.uri())
    owner, writer = MysqlOwner(options, None), MysqlWriter(options, "consumer")
    owner.begin()
    writer.recover(START, None, None, MAX_TS, owner.term)
    owner.close()
    return writer


def test_a_server_that_is_away_from_the_start_is_waited_for(writer: MysqlWriter) -> None:
    (target,) = writer.joint_target([TABLE]).targets
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        options = replace(target.settings.options, port=nobody.getsockname()[1])
        away = replace(target, settings=replace(target.settings, options=options), away_seconds=0.0)
        with pytest.raises(SinkError, match=r"gave up writing table joint\.t") as caught:
            JointTarget((away,)).write(iter([ROWS]))
    writer.close()
    assert caught.value.retryable


def test_a_table_without_a_key_is_refused(writer: MysqlWriter) -> None:
    table = replace(TABLE, pk_is_handle=False, is_common_handle=False, indexes=())
    assert not table.handle_key
    target = writer.joint_target([table])
    with pytest.raises(SinkError, match="cannot be told apart"):
        target.write(iter([replace(ROWS, table=table)]))
    writer.close()
