"""schema.*: what many tables cost those who must know them all before they can begin.

    schema.start              seconds to load the schema store of a changefeed, per 10,000 tables
    schema.start_memory       MiB that it keeps then, per 10,000 tables
    schema.start_peak         MiB at most while it loads, per 10,000 tables
    schema.start_growth       seconds per table with 100,000 tables against 1,000; at most linear is at most 1
    schema.memory_growth      the same of the memory
    schema.sql_start          seconds until an SQL node knows its schema, per 10,000 tables
    schema.sql_start_memory   MiB that it keeps, per 10,000 tables

Tables are sysbench's, 1,000 to a database, written as committed metadata and loaded by an embedded upstream.
Whoever loads a schema store is a process of its own that reads over gRPC, as a capture does; an SQL node
sits in the store's process. Figures are those of the large number of tables.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tidebox.sql.bootstrap import write_system
from tidebox.sql.catalog import SchemaCache
from tidebox.sql.ddl.columns import PUBLIC
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_database, build_table
from tidebox.sql.meta import Meta
from tidebox.sql.parse.statements import CreateTable
from tidebox.sql.parse.tables import parse_create_table
from tidebox.sql.transaction import Transaction
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import UpstreamUnavailableError
from tidemill.flow.schema.loader import load_schema
from tidemill.model.ts import Ts, compose
from tidemill.tidb.meta import table_key
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

Result = dict[str, Any]

FEW, MANY = 1_000, 100_000
ROUNDS = 3  # of the few; the many are loaded once
_PER_DATABASE = 1_000
_UNIT = 10_000
_START_TS = compose(1_700_000_000_000, 0)
_TABLE = (
    "create table sbtest (id int not null auto_increment, k int not null default 0, c char(120) not null default '', "
    "pad char(60) not null default '', primary key (id), key k_1 (k))"
)


def bench_schema() -> list[Result]:
    few, many = _measure(FEW, ROUNDS), _measure(MANY, 1)
    per_unit = _UNIT / MANY
    return [
        _result("schema.start", many["seconds"] * per_unit, "s per 10 k tables"),
        _result("schema.start_memory", many["mib"] * per_unit, "MiB per 10 k tables"),
        _result("schema.start_peak", many["peak_mib"] * per_unit, "MiB per 10 k tables"),
        _result("schema.start_growth", many["seconds"] / MANY / (few["seconds"] / FEW), "× linear"),
        _result("schema.memory_growth", many["mib"] / MANY / (few["mib"] / FEW), "× linear"),
        _result("schema.sql_start", many["sql_seconds"] * per_unit, "s per 10 k tables"),
        _result("schema.sql_start_memory", many["sql_mib"] * per_unit, "MiB per 10 k tables"),
    ]


def _result(name: str, value: float, unit: str) -> Result:
    return {"name": name, "value": round(value, 4), "unit": unit, "floor": None, "ratio": None}


def _measure(tables: int, rounds: int) -> dict[str, float]:
    """The medians of ``rounds`` loads, each by a process of its own."""
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        history = write_history(tables, Path(folder))
        with _process("serve", str(history)) as served:
            loads = []
            for _ in range(rounds):
                with _process("load", served["pd"]) as loaded:
                    loads.append(loaded)
    if any(load["tables"] != tables for load in loads):
        raise UpstreamUnavailableError(f"of {tables} tables only {loads[0]['tables']} were found")
    medians = {name: median(load[name] for load in loads) for name in ("seconds", "mib", "peak_mib")}
    return {**medians, "sql_seconds": served["sql_seconds"], "sql_mib": served["sql_mib"]}


# Many tables


class _Pairs(dict[bytes, bytes]):
    """Stands where metadata expect a transaction."""

    start_ts = Ts(_START_TS)

    def put(self, key: bytes, value: bytes) -> None:
        self[key] = value

    def delete(self, key: bytes) -> None:
        del self[key]

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        found = sorted(pair for pair in self.items() if start <= pair[0] < end)
        yield from found[:limit]


def write_history(tables: int, folder: Path) -> Path:
    """A cluster with so many tables, as one transaction would have made them."""
    pairs = _Pairs()
    meta = Meta(pairs)
    write_system(pairs, meta)
    databases = meta.next_ids(-(-tables // _PER_DATABASE))
    for schema_id in databases:
        meta.put_database(build_database(schema_id, f"db{schema_id}", DEFAULT_CHARSET, PUBLIC))
    statement = parse_create_table(_TABLE)
    assert isinstance(statement, CreateTable)
    table = build_table(statement, DEFAULT_CHARSET)
    raw = orjson.dumps({**table, "update_timestamp": _START_TS})
    head, _, tail = raw.partition(b'{"id":0,"name":{"O":"sbtest","L":"sbtest"}')
    if head:
        raise ValueError("the document of a table does not begin with its id and name")
    for at, table_id in enumerate(meta.next_ids(tables)):
        document = b'{"id":%d,"name":{"O":"sbtest%d","L":"sbtest%d"}%s' % (table_id, table_id, table_id, tail)
        pairs[table_key(databases[at // _PER_DATABASE], table_id)] = document
    keys = sorted(pairs)
    count = len(keys)
    columns = {
        "start_ts": pa.array([_START_TS] * count, pa.uint64()),
        "commit_ts": pa.array([_START_TS + 1] * count, pa.uint64()),
        "op": pa.array(["put"] * count),
        "key": pa.array(keys, pa.large_binary()),
        "value": pa.array([pairs[key] for key in keys], pa.large_binary()),
    }
    path = folder / "history.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=1)
    return path


# Processes


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[dict[str, Any]]:
    """What it says of itself in its first line. It ends when its input does."""
    command = [sys.executable, "-m", "bench.schema", *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise UpstreamUnavailableError(f"a part of the benchmark did not start. Try: {' '.join(command)}")
        yield json.loads(line)
    finally:
        process.communicate(timeout=120)


def serve(history: str) -> None:
    """An embedded upstream; how long its SQL node takes to know the schema, and what that keeps."""
    with EmbeddedUpstream.start(stores=1, load=Path(history), resolved_interval_seconds=60) as upstream:
        cluster = upstream.cluster
        before = _resident_mib()
        begin = time.perf_counter()
        cache = SchemaCache(lambda: Transaction(cluster), cluster.clock.monotonic)
        seconds = time.perf_counter() - begin
        kept = _resident_mib() - before
        del cache
        _say({"pd": upstream.pd_address, "sql_seconds": seconds, "sql_mib": kept})
        sys.stdin.read()


def load(pd_address: str) -> None:
    """A capture's schema store; how long it takes to load, and what it keeps."""
    asyncio.run(_load(pd_address))


async def _load(pd_address: str) -> None:
    async with PdClient(pd_address) as pd:
        ts = await pd.get_ts()
        reader = SnapshotReader(pd, RegionCache(pd))
        await reader.get(b"m", ts)  # opens the channel
        before = _resident_mib()
        begin = time.perf_counter()
        store = await load_schema(reader, ts, ts, {})
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        await reader.close()
        kept = _resident_mib() - before
        _say({"tables": len(store.followed()), "seconds": seconds, "mib": kept, "peak_mib": peak})


def _resident_mib() -> float:
    """What this process holds, without what it has given up but not yet given back."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _say(figures: dict[str, Any]) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    {"serve": serve, "load": load}[sys.argv[1]](sys.argv[2])
