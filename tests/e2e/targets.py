"""Sinks of one changefeed each, and whether they hold what upstream has: every row once, and in order.

What upstream has is given as texts, by table and in the order of ``id``. Columns that came by DDL are compared where
the sink keeps a whole row; in messages and lakes a row has the columns that it had when it was written.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pymysql

from tests.e2e import tree
from tests.e2e.processes import sink_uri
from tests.kafka import Broker
from tests.kafka import running as kafka_running
from tests.mariadb import MariaDb
from tests.mariadb import running as mariadb_running
from tests.open_topic import read_log
from tidemill.errors import UsageError
from tidemill.sinks.lake.reader import open_lake

Rows = dict[str, list[dict[str, str | None]]]


class Target(Protocol):
    uri: str

    def check(self, schema: str, expected: Rows) -> None: ...


class Files:
    def __init__(self, folder: Path) -> None:
        self._out = folder / "out"
        self.uri = sink_uri(self._out)

    def check(self, schema: str, expected: Rows) -> None:
        """Every change once and in order, and together what upstream has."""
        tables: dict[str, dict[str, dict[str, str | None]]] = {}
        last: dict[str, int] = {}
        seen: dict[str, set[str]] = {}
        tree.check_layout(self._out)
        files = sorted(tree.data_files(self._out), key=lambda file: (file.table, file.version, str(file.path)))
        for file in files:
            place = f"{file.table}/{file.version}"
            for message in file.messages():
                ts = int(message["_tidb"]["commitTs"])
                assert ts >= last.get(place, 0), f"{place}: {ts} behind {last[place]}"
                last[place] = ts
                identity = tree.identity(message)
                assert identity not in seen.setdefault(f"{place}/{ts}", set()), f"{place}: twice: {identity}"
                seen[f"{place}/{ts}"].add(identity)
                rows = tables.setdefault(file.table, {})
                for row in message["data"]:
                    if message["type"] == "DELETE":
                        rows.pop(row["id"], None)
                    else:
                        rows[row["id"]] = row
        for table, wanted in expected.items():
            same(table, list(tables.get(table, {}).values()), wanted)


class Server:
    def __init__(self, server: MariaDb) -> None:
        self._server = server
        self.uri = server.uri("worker-count=2")

    def check(self, schema: str, expected: Rows) -> None:
        host, port = self._server.host, self._server.port
        with pymysql.connect(host=host, port=port, user="root", autocommit=True) as connection:
            cursor = connection.cursor(pymysql.cursors.DictCursor)
            cursor.execute(f"show tables from {schema}")
            assert {next(iter(row.values())) for row in cursor.fetchall()} == set(expected)
            for table, wanted in expected.items():
                cursor.execute(f"select * from {schema}.{table} order by id")
                found = [{name: text_of(value) for name, value in row.items()} for row in cursor.fetchall()]
                assert found == wanted, table


class Iceberg:
    def __init__(self, folder: Path) -> None:
        self.uri = f"iceberg://{folder / 'lake'}?flush-interval=300ms"

    def check(self, schema: str, expected: Rows) -> None:
        lake = open_lake(self.uri)
        for table, wanted in expected.items():
            try:
                found = lake.rows_at(schema, table, lake.checkpoint_ts).to_pylist()
            except UsageError:  # there is no such table: nothing was ever written to it
                found = []
            same(table, found, wanted)


class Topic:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.uri = broker.uri("shop", "protocol=open-protocol&partition-num=3&write-timeout=5s")

    def check(self, schema: str, expected: Rows) -> None:
        """The order of the protocol; a change that came again is a copy."""
        log = read_log(self._broker, "shop")
        log.check()
        for table, wanted in expected.items():
            same(table, list(log.rows(schema, table).values()), wanted)


KINDS = ("server", "files", "iceberg", "kafka")


@contextmanager
def target(kind: str, folder: Path) -> Iterator[Target]:
    match kind:
        case "server":
            with mariadb_running(folder / "mariadb") as server:
                yield Server(server)
        case "files":
            yield Files(folder)
        case "iceberg":
            yield Iceberg(folder)
        case "kafka":
            with kafka_running(folder / "kafka") as broker:
                yield Topic(broker)


def same(table: str, found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, str | None]]) -> None:
    """As far as a row has a column."""
    rows = sorted(({name: text_of(value) for name, value in row.items()} for row in found), key=lambda r: int(r["id"]))
    assert [row["id"] for row in rows] == [row["id"] for row in wanted], table
    for ours, theirs in zip(rows, wanted, strict=True):
        known = {name: value for name, value in ours.items() if name in ("id", "v", "n")}
        assert known == {name: theirs[name] for name in known}, table


def text_of(value: object) -> str | None:
    return None if value is None else value.decode() if isinstance(value, bytes) else str(value)
