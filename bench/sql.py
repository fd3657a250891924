"""sql.*: statements through the MySQL protocol, against their writes alone sent to the store.

    sql.insert          rows/s of INSERT statements of many rows each
    sql.point_update    statements/s of UPDATE of one row by its primary key, from a few connections at once

The table is sysbench's, with its index on the column that is updated. The floor: the same keys and values in
transactions of the same sizes, prewritten and committed by our own client over gRPC, as many at once as there
are connections. Server and client are processes of their own; ours and the floor take turns, so that what
else happens on the machine meets both.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import pymysql

from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.sql.wire.server import SqlServer
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import UpstreamUnavailableError
from tidemill.tidb.keys import table_prefix
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.txn import TxnClient

Result = dict[str, Any]
Writes = dict[bytes, bytes | None]  # of one transaction; None deletes

ROWS_PER_STATEMENT = 500
STATEMENTS = 10  # a round
UPDATES = 500  # a round
CONNECTIONS = 4
ROUNDS = 5
_SEED = 11
_TABLE = (
    "create table {} (id int not null, k int not null default 0, c char(120) not null default '', "
    "pad char(60) not null default '', primary key (id), key k_1 (k))"
)
_PREFIX_BYTES = 9  # of a key: the table it belongs to


def bench_sql() -> list[Result]:
    with _served() as served:
        return asyncio.run(_measure(served))


async def _measure(served: "_Served") -> list[Result]:
    figures: dict[str, list[float]] = {"insert": [], "insert floor": [], "update": [], "update floor": []}
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for _ in range(CONNECTIONS)]
        async with _store_client(served.pd) as store:
            run = _Run(served, clients, store)
            for number in range(ROUNDS + 1):
                seconds = await run.round()
                if number:  # the first warms up
                    for name, passed in seconds.items():
                        figures[name].append(passed)
    rows = STATEMENTS * ROWS_PER_STATEMENT
    return [
        _result("sql.insert", "rows/s", rows, figures["insert"], figures["insert floor"]),
        _result("sql.point_update", "statements/s", UPDATES, figures["update"], figures["update floor"]),
    ]


def _result(name: str, unit: str, count: int, seconds: Sequence[float], floors: Sequence[float]) -> Result:
    value, floor = count / median(seconds), count / median(floors)
    return {"name": name, "value": round(value), "unit": unit, "floor": round(floor), "ratio": round(value / floor, 3)}


class _Run:
    """Rounds of inserts and updates, first by SQL into one table, then the same writes into the other."""

    def __init__(self, served: "_Served", clients: Sequence[pymysql.Connection], store: TxnClient) -> None:
        self._served = served
        self._clients = clients
        self._store = store
        self._chance = random.Random(_SEED)
        self._rows = 0

    async def round(self) -> dict[str, float]:
        first = self._rows
        self._rows += STATEMENTS * ROWS_PER_STATEMENT
        statements = [self._insert(first + at * ROWS_PER_STATEMENT) for at in range(STATEMENTS)]
        seconds = {"insert": self._by_sql(statements, self._clients[:1])}
        before = await self._stored()
        seconds["insert floor"] = await self._by_store(self._inserted(before, first), 1)

        ids = self._chance.sample(range(self._rows), UPDATES)
        updates = [f"update bench set k = k + 1 where id = {row_id}" for row_id in ids]
        seconds["update"] = self._by_sql(updates, self._clients)
        after = await self._stored()
        handles = [_handle(row_id) for row_id in ids]
        seconds["update floor"] = await self._by_store([_changed(before[h], after[h]) for h in handles], CONNECTIONS)
        return seconds

    def _insert(self, first: int) -> str:
        values = ", ".join(
            f"({row_id}, {self._chance.randrange(1_000_000)}, '{self._digits(11)}', '{self._digits(5)}')"
            for row_id in range(first, first + ROWS_PER_STATEMENT)
        )
        return f"insert into bench (id, k, c, pad) values {values}"

    def _digits(self, groups: int) -> str:
        """As sysbench fills its columns: groups of digits with dashes between them."""
        return "-".join(f"{self._chance.randrange(10**10):010d}" for _ in range(groups))[:119]

    def _by_sql(self, statements: Sequence[str], clients: Sequence[pymysql.Connection]) -> float:
        def work(client: pymysql.Connection, share: Sequence[str]) -> None:
            with client.cursor() as cursor:
                for statement in share:
                    cursor.execute(statement)

        begin = time.perf_counter()
        if len(clients) == 1:
            work(clients[0], statements)
        else:
            with ThreadPoolExecutor(len(clients)) as pool:
                count = len(clients)
                done = [pool.submit(work, client, statements[at::count]) for at, client in enumerate(clients)]
            for one in done:
                one.result()
        return time.perf_counter() - begin

    async def _by_store(self, transactions: Sequence[Writes], at_once: int) -> float:
        async def work(share: Sequence[Writes]) -> None:
            for writes in share:
                transaction = await self._store.begin()
                for key, value in writes.items():
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
                await transaction.commit()

        ready = [{self._moved(key): value for key, value in writes.items()} for writes in transactions]
        begin = time.perf_counter()
        await asyncio.gather(*(work(ready[at::at_once]) for at in range(at_once)))
        return time.perf_counter() - begin

    def _moved(self, key: bytes) -> bytes:
        """The same key of the other table."""
        return table_prefix(self._served.floor_id) + key[_PREFIX_BYTES:]

    async def _stored(self) -> dict[bytes, dict[bytes, bytes]]:
        """All pairs of the table, by the handle at the end of each key."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        ts = await self._store.pd.get_ts()
        start, end = table_prefix(self._served.table_id), table_prefix(self._served.table_id + 1)
        async for batch in self._store.reader.scan(start, end, ts):
            for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                found.setdefault(key[-8:], {})[key] = value
        return found

    def _inserted(self, stored: dict[bytes, dict[bytes, bytes]], first: int) -> list[Writes]:
        found: list[Writes] = []
        for at in range(first, self._rows, ROWS_PER_STATEMENT):
            writes: Writes = {}
            for row_id in range(at, at + ROWS_PER_STATEMENT):
                writes.update(stored[_handle(row_id)])
            found.append(writes)
        return found


def _handle(row_id: int) -> bytes:
    return table_prefix(row_id)[1:]


def _changed(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> Writes:
    return {key: None for key in before if key not in after} | {k: v for k, v in after.items() if before.get(k) != v}


@contextlib.asynccontextmanager
async def _store_client(pd_address: str) -> AsyncIterator[TxnClient]:
    async with PdClient(pd_address) as pd:
        client = TxnClient(pd, RegionCache(pd))
        try:
            yield client
        finally:
            await client.close()


# The server


@dataclass(frozen=True, slots=True)
class _Served:
    pd: str
    sql_port: int
    table_id: int
    floor_id: int

    def connect(self) -> pymysql.Connection:
        return pymysql.connect(host="127.0.0.1", port=self.sql_port, user="root", database="test", autocommit=True)


@contextlib.contextmanager
def _served() -> Iterator[_Served]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "bench.sql"]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise UpstreamUnavailableError(f"the embedded TiDB did not start. Try: {' '.join(command)}")
        yield _Served(**json.loads(line))
    finally:
        process.communicate(timeout=60)  # closes its input, at which it ends


def serve() -> None:
    """An embedded TiDB with two empty tables, until the input ends."""
    with EmbeddedUpstream.start(stores=1) as upstream:
        nodes = SqlNodes(upstream.cluster, lease_seconds=3600)
        nodes.start()
        server = SqlServer(lambda: SqlSession(nodes.nodes[0]))
        port = int(server.start(0).rpartition(":")[2])
        session = SqlSession(nodes.nodes[0])
        session.use("test")
        ids = []
        for name in ("bench", "floor"):
            session.execute(_TABLE.format(f"`{name}`"))
            ids.append(nodes.nodes[0].cache.current().table("test", name).id)
        session.close()
        print(json.dumps({"pd": upstream.pd_address, "sql_port": port, "table_id": ids[0], "floor_id": ids[1]}))
        sys.stdout.flush()
        sys.stdin.read()
        server.stop()
        nodes.stop()


if __name__ == "__main__":
    serve()
