"""What runs in each of two network namespaces that only a line with a delay connects.

python -m tests.sinks.tikv.far serve               a cluster, until stdin ends; prints where it is
python -m tests.sinks.tikv.far write PD URI...     writes keys by each of the sink's parameters; prints the seconds
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa

from tests.e2e.hosts import Host
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.rawkv import raw_table
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.ts import Ts
from tidemill.sinks.tikv import parse_tikv_uri
from tidemill.sinks.tikv.sink import TikvWriter
from tidemill.upstream.keyspace import raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import Checksum, RawClient
from tidemill.upstream.regions import RegionCache

KEYS = 4000


class DelayedLine:
    """The ports of a loopback, as they are in another one: what is sent there arrives ``seconds`` later, in order."""

    def __init__(self, near: Host, far: Host, ports: Sequence[int], seconds: float) -> None:
        self._far, self._seconds = far, seconds
        with near.entered():
            self._listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with self._far.entered():  # this thread's connections are made from there
            for listener in self._listeners:
                self._loop.run_until_complete(self._serve(listener))
            self._loop.run_forever()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        port = listener.getsockname()[1]

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(
                    self._carry(reader, there_writer, self._seconds), self._carry(there_reader, writer, 0.0)
                )

        await asyncio.start_server(connect, sock=listener)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        try:
            while data := await reader.read(1 << 16):
                self._loop.call_later(seconds, writer.write, data)
        finally:
            self._loop.call_later(seconds, writer.close)


@contextmanager
def delayed(near: Host, far: Host, ports: Sequence[int], seconds: float) -> Iterator[None]:
    line = DelayedLine(near, far, ports, seconds)
    try:
        yield
    finally:
        line.close()


def serve() -> None:
    with EmbeddedUpstream.start(stores=2, api_version=2) as cluster:
        cluster.split(b"r\0\0\0key/1500")
        cluster.transfer_leader(cluster.regions()[0].id, 2)
        addresses = [cluster.pd_address, *cluster.store_addresses]
        print(json.dumps([int(address.rpartition(":")[2]) for address in addresses]), flush=True)
        sys.stdin.read()


def rows(number: int) -> RowBatch:
    table = raw_table("DEFAULT", Ts(1))
    keys = [b"key/%04d" % n for n in range(KEYS)]
    values, expiries = [b"%d/%d" % (number, n) for n in range(KEYS)], np.zeros(KEYS, np.uint64)
    new = pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), values, expiries], schema=arrow_schema(table))
    old, ts = new.slice(0, 0), np.arange(1, KEYS + 1, dtype=np.uint64)
    return RowBatch(table, table.id, np.full(KEYS, RowOp.INSERT, np.uint8), ts, ts, new, old)


def write(pd: str, queries: Sequence[str]) -> None:
    seconds = []
    for number, query in enumerate(queries):
        writer = TikvWriter(parse_tikv_uri(f"tikv://{pd}?{query}"), "main")
        batch = rows(number)
        target = writer.target(batch.table, batch.table.id, (Ts(1), Ts(KEYS)))
        began = time.monotonic()
        target.write(iter([batch]))
        seconds.append(time.monotonic() - began)
        writer.close()
    print(json.dumps({"seconds": seconds, "checksum": asyncio.run(checksum(pd)).pairs}))


async def checksum(pd: str) -> Checksum:
    async with PdClient(pd) as client:
        raw = RawClient(RegionCache(client), keyspace=raw_v2())
        try:
            return await raw.checksum(b"")
        finally:
            await raw.close()


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else write(sys.argv[2], sys.argv[3:])
