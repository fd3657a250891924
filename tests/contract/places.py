"""Downstreams of every kind of sink, and what their readers find there: for the contract that all sinks keep."""

import asyncio
import errno
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from tests.flow.encoder.samples import COMMIT_TS, KEY, column, rows_of, table_of
from tests.kafka import Broker
from tests.mariadb import MariaDb
from tests.open_topic import DDL, ROW, Log, read_log
from tests.sinks.files.storage.buckets import Bucket
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.pipeline import Target
from tidemill.flow.rawkv import is_raw, raw_table
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import OwnerSink, SinkOptions, SinkWriter, read_sink_uri
from tidemill.sinks.files.durable import DurableFiles
from tidemill.sinks.kafka.target import KafkaTarget
from tidemill.sinks.lake import LakeOptions
from tidemill.sinks.lake.reader import Lake
from tidemill.sinks.mysql import MysqlOptions, MysqlOwner, MysqlTarget, MysqlWriter
from tidemill.sinks.mysql.session import POOL
from tidemill.sinks.tikv import TikvOptions
from tidemill.upstream.keyspace import raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache

T = TypeVar("T")
Found = list[tuple[int, int]]  # (id, v) of a table, in order
State = Mapping[str, Any] | None


@dataclass
class Place:
    """One downstream for two tables."""

    uri: str
    schema: str = "shop"

    def options(self, changefeed: str = "feed") -> SinkOptions:
        return read_sink_uri(self.uri).named(changefeed, 7)

    def table(self, name: str, **more: Any) -> TableInfo:
        columns = [column("id", ColumnType.LONGLONG, KEY, flen=20), column("v", ColumnType.LONGLONG, flen=20)]
        columns += more.pop("columns", [])
        number = {"a": 101, "b": 102}[name]
        return table_of(*columns, schema=self.schema, name=name, table_id=number, **more)

    def open_owner(self, state: State = None, changefeed: str = "feed", **more: Any) -> OwnerSink:
        return self.options(changefeed).open_owner(state, **more)

    def open_writer(self, name: str) -> SinkWriter:
        return self.options().open_writer(name)

    def hasty(self, target: Target) -> Target:
        """One that gives up soon when nobody answers."""
        return target

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody answers meanwhile, or the disk is full."""
        raise NotImplementedError
        yield

    def read(self, table: TableInfo, state: State) -> Found:
        """What readers are told of, in order. ``state`` is what was saved."""
        raise NotImplementedError

    def forms(self, table: TableInfo) -> list[Any]:
        """What the downstream knows of the table's form: one entry for each change of it."""
        raise NotImplementedError


class Blackhole(Place):
    def read(self, table: TableInfo, state: State) -> Found:
        return [(0, 0)] * int((state or {}).get("rows", 0))


class _OnDisk(Place):
    @contextmanager
    def away(self) -> Iterator[None]:
        def full(self: DurableFiles, path: str) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DurableFiles, "step_open", full)
            yield


class Files(_OnDisk):
    """Messages, canal-json or csv, in a folder."""

    def read(self, table: TableInfo, state: State) -> Found:
        content, found = self.content(), []
        folder = f"{table.schema}/{table.name}/"
        for path in sorted(content):
            if not path.startswith(folder) or not Path(path).name.startswith("CDC0"):
                continue
            index = content.get(f"{Path(path).parent}/meta/CDC.index", b"").decode().strip()
            assert Path(path).name <= index, f"{path} lies there and nobody is told of it"
            found += [_message(line) for line in content[path].splitlines() if line]
        return found

    def forms(self, table: TableInfo) -> list[Any]:
        return sorted(path for path in self.content() if path.startswith(f"{table.schema}/{table.name}/meta/schema_"))

    def content(self) -> dict[str, bytes]:
        root = Path(self.uri.removeprefix("file://").partition("?")[0])
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _message(line: bytes) -> tuple[int, int]:
    if line.startswith(b"{"):
        row = json.loads(line)["data"][0]
        return int(row["id"]), int(row["v"])
    return int(line.split(b",")[3]), int(line.split(b",")[4])


@dataclass
class BucketFiles(Files):
    bucket: Bucket | None = None

    @contextmanager
    def away(self) -> Iterator[None]:
        assert self.bucket is not None
        with self.bucket.stopped():
            yield

    def content(self) -> dict[str, bytes]:
        assert self.bucket is not None
        return self.bucket.content(self.uri.removeprefix(f"s3://{self.bucket.name}/").partition("?")[0])


class LakeFiles(_OnDisk):
    def read(self, table: TableInfo, state: State) -> Found:
        lake = self._lake()
        changes = lake.changes(lake.table(table.schema, table.name)).sort_by([("_commit_ts", "ascending")]).to_pylist()
        return [(row["id"], row["v"]) for row in changes if row["_commit_ts"] <= lake.checkpoint_ts]

    def forms(self, table: TableInfo) -> list[Any]:
        lake = self._lake()
        (found,) = [each for each in lake.journal.tables if each.full_name == table.full_name]
        return [*found.versions, *(column.name for column in found.columns)]

    def _lake(self) -> Lake:
        options = self.options()
        assert isinstance(options, LakeOptions)
        return Lake(options)


@dataclass
class Server(Place):
    server: MariaDb | None = None
    line: "Line | None" = None

    def options(self, changefeed: str = "feed") -> SinkOptions:
        options = read_sink_uri(self.uri).named(f"{changefeed}-{self.schema}", 7)
        assert isinstance(options, MysqlOptions)
        assert self.line is not None
        return replace(options, port=self.line.port)

    def open_owner(self, state: State = None, changefeed: str = "feed", **more: Any) -> MysqlOwner:
        options = self.options(changefeed)
        assert isinstance(options, MysqlOptions)
        return MysqlOwner(options, state, patience_seconds=1.0)

    def open_writer(self, name: str) -> MysqlWriter:
        options = self.options()
        assert isinstance(options, MysqlOptions)
        return MysqlWriter(options, name, patience_seconds=1.0)

    def hasty(self, target: Target) -> Target:
        assert isinstance(target, MysqlTarget)
        return replace(target, away_seconds=0.2)

    @contextmanager
    def away(self) -> Iterator[None]:
        assert self.line is not None
        with self.line.cut():
            yield

    def read(self, table: TableInfo, state: State) -> Found:
        rows = self._query(f"SELECT id, v FROM {table.schema}.{table.name} ORDER BY id")
        return [(int(id), int(v)) for id, v in rows]

    def forms(self, table: TableInfo) -> list[Any]:
        return self._query(f"SHOW COLUMNS FROM {table.schema}.{table.name}")

    def _query(self, *statements: str) -> list[Any]:
        assert self.server is not None
        return self.server.query(*statements)


@dataclass
class Topics(Place):
    """Messages of both tables in one topic, as a reader takes them: what it has seen before it skips."""

    broker: Broker | None = None

    def hasty(self, target: Target) -> Target:
        assert isinstance(target, KafkaTarget)
        return replace(target, options=replace(target.options, write_timeout_seconds=1.0))

    @contextmanager
    def away(self) -> Iterator[None]:
        assert self.broker is not None
        with self.broker.paused():
            yield

    def read(self, table: TableInfo, state: State) -> Found:
        log = self.log()
        first: dict[str, tuple[int, int]] = {}
        for event in log.events(ROW):
            if (event.schema, event.table) == (table.schema, table.name) and event.ts <= log.resolved_ts:
                first.setdefault(event.identity, (event.columns["id"]["v"], event.columns["v"]["v"]))
        return list(first.values())

    def forms(self, table: TableInfo) -> list[Any]:
        partitions = enumerate(self.log().partitions)
        return sorted({(number, e.ts, e.value["q"]) for number, part in partitions for e in part if e.kind == DDL})

    def log(self) -> Log:
        assert self.broker is not None
        return read_log(self.broker, self.uri.partition("?")[0].rpartition("/")[2])


@dataclass
class Keys(Place):
    """Two tables as keys of one TiKV, each behind a name of its own."""

    cluster: EmbeddedUpstream | None = None

    def options(self, changefeed: str = "feed") -> SinkOptions:
        options = read_sink_uri(self.uri).named(changefeed, 7)
        assert isinstance(options, TikvOptions)
        return replace(options, deadline_seconds=1.5, grace_seconds=0.1)

    def table(self, name: str, **more: Any) -> TableInfo:
        number = {"a": 101, "b": 102}[name]
        return replace(raw_table(name, Ts(0)), id=number, **more)

    @contextmanager
    def away(self) -> Iterator[None]:
        assert self.cluster is not None
        self.cluster.stop_store(1)
        yield
        self.cluster.start_store(1)

    def read(self, table: TableInfo, state: State) -> Found:
        prefix = f"{table.name}/".encode()

        async def scanned(client: RawClient) -> Found:
            pairs = [pair async for some in client.scan(prefix, prefix[:-1] + b"0") for pair in some]
            return sorted((int(key.removeprefix(prefix)), int(value)) for key, value in pairs)

        return self._asked(scanned)

    def emptied(self) -> Self:
        self._asked(lambda client: client.delete_range(b"", b""))
        return self

    def _asked(self, ask: Callable[[RawClient], Coroutine[Any, Any, T]]) -> T:
        async def asked(pd_address: str) -> T:
            async with PdClient(pd_address) as pd:
                client = RawClient(RegionCache(pd), keyspace=raw_v2())
                try:
                    return await ask(client)
                finally:
                    await client.close()

        assert self.cluster is not None
        return asyncio.run(asked(self.cluster.pd_address))


def changes(table: TableInfo, after: int, to: int, meanwhile: Callable[[], None] = lambda: None) -> Iterator[RowBatch]:
    """``meanwhile`` comes when the last row has been read, before the task can end."""
    for n in range(after + 1, to + 1):
        yield rows_of(table, (None, row_of(table, n)), ts=[COMMIT_TS + n])
    meanwhile()


def row_of(table: TableInfo, n: int) -> dict[str, Any]:
    if is_raw(table):
        return {"key": f"{table.name}/{n}".encode(), "value": str(n).encode(), "expire_seconds": 0}
    return {"id": n, "v": n, **{c.name: 0 for c in table.columns[2:]}}


def numbered(to: int) -> Found:
    return [(n, n) for n in range(1, to + 1)]


class Line:
    """A port that leads to a server, until it is cut."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._is_cut = True
        for end in self._ends:
            _shut(end)
        POOL.close()
        yield
        self._is_cut = False

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            _shut(end)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        _shut(end)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


MakePlace = Callable[[], Place]
