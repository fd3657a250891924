"""flow.ddl.*: a thousand DDLs of many kinds over fifty tables, with rows between them, through a changefeed.

    flow.ddl.files     DDLs/s into files of canal-json, from the first batch to the end
    flow.ddl.mysql     DDLs/s into a MariaDB; floor: the same DDLs and the rows between them, as the statements that
                       made them, from one bare client, on the same server

The history was made by ``python -m bench.ddl``, with the embedded TiDB, and is kept with the test data: the same
statements every time, those that the embedded TiDB knows.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import RECORDED
from bench.flow import CANAL_JSON, upstream, warm_up
from tests.mariadb import MariaDb
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.flow.sorter import read_slices
from tidemill.model.change import Op
from tidemill.model.span import KEY_END, KEY_START, Span
from tidemill.model.ts import Ts
from tidemill.source.scan.feed import take_changes
from tidemill.spark.session import open_session
from tidemill.upstream.pd import PdClient

_NAME = "bench-ddl"
_SEED = 20261118
_DDLS, _TABLES = 1000, 50
Result = dict[str, Any]


def bench_ddl() -> list[Result]:
    folder = RECORDED / _NAME
    ends, kept = json.loads((folder / "meta.json").read_text()), (folder / "ddl.sql").read_text().split(";\n")
    statements = list(_Story(random.Random(_SEED)).statements())
    count = sum(each.is_ddl for each in statements)
    if [each.text for each in statements if each.is_ddl] != kept[:-1]:
        raise AssertionError(f"{folder / 'ddl.sql'} is of another story: make it anew by python -m bench.ddl")
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name, MariaDb(Path(name) / "mariadb") as server:
        here = Path(name)
        spark = open_session(scratch=here / "spark")
        try:
            warm_up(here)
            with upstream(here / "upstream", folder / "history.parquet") as (pd, _):
                to_files = _seconds(pd, f"file://{here / 'files'}?{CANAL_JSON}", here / "d1", ends)
                to_mysql = _seconds(pd, server.uri(), here / "d2", ends)
        finally:
            spark.stop()
        server.query(*(f"DROP DATABASE IF EXISTS db{n}" for n in range(5)))
        bare = _bare_seconds(server, [each.text for each in statements])
    return [
        {"name": "flow.ddl.files", "value": count / to_files, "unit": "DDLs/s", "floor": None, "ratio": None},
        {
            "name": "flow.ddl.mysql",
            "value": count / to_mysql,
            "unit": "DDLs/s",
            "floor": count / bare,
            "ratio": bare / to_mysql,
        },
    ]


def _seconds(pd: str, uri: str, data_dir: Path, ends: dict[str, int]) -> float:
    """From the changefeed's being up to its end."""
    feed = Changefeed(RunOptions(pd, uri, data_dir, start_ts=Ts(ends["start_ts"]), target_ts=Ts(ends["end_ts"])))
    try:
        feed.start()
        began = time.perf_counter()
        while not feed.poll():
            pass
        return time.perf_counter() - began
    finally:
        feed.close(is_finished=True)


def _bare_seconds(server: MariaDb, queries: list[str]) -> float:
    session = server.connect()
    began = time.perf_counter()
    with session.cursor() as cursor:
        for query in queries:
            cursor.execute(query)
    seconds = time.perf_counter() - began
    session.close()
    return seconds


# Making the history.


@dataclass
class _Table:
    database: str
    name: str
    columns: list[str] = field(default_factory=list)  # besides id and v
    indexes: list[str] = field(default_factory=list)
    width: int = 20

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def creation(self) -> str:
        return f"CREATE TABLE {self} (id BIGINT PRIMARY KEY, v VARCHAR({self.width}))"


@dataclass(frozen=True, slots=True)
class _Statement:
    text: str
    is_ddl: bool


class _Story:
    """Statements, drawn at random, that succeed in TiDB and in MariaDB."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0
        self._ids: dict[str, int] = {}
        self.tables = [_Table(f"db{n % 5}", f"t{n}") for n in range(_TABLES)]

    def statements(self) -> Iterator[_Statement]:
        """The whole story: the same each time that it is told from the same seed."""
        ddls = 0
        for text in self.beginning():
            ddls += 1
            yield _Statement(text, is_ddl=True)
        while ddls < _DDLS:
            for text in self.ddls(self._rng.choice(self.tables)):
                ddls += 1
                yield _Statement(text, is_ddl=True)
            for text in self.rows():
                yield _Statement(text, is_ddl=False)

    def beginning(self) -> Iterator[str]:
        yield from (f"CREATE DATABASE db{n}" for n in range(5))
        yield from (table.creation for table in self.tables)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def ddls(self, table: _Table) -> list[str]:
        """One kind, of one or two statements."""
        kinds = [
            self._add_column, self._drop_column, self._widen, self._add_index, self._drop_index, self._comment,
            self._default, self._rename, self._truncate, self._drop_and_create, self._database,
        ]  # fmt: skip
        return self._rng.choice(kinds)(table)

    def _add_column(self, table: _Table) -> list[str]:
        name = f"c{self._next()}"
        table.columns.append(name)
        kind = self._rng.choice(["INT DEFAULT 7", "VARCHAR(10)", "DECIMAL(10,2) NOT NULL DEFAULT 1.5", "DATETIME"])
        return [f"ALTER TABLE {table} ADD COLUMN {name} {kind}"]

    def _drop_column(self, table: _Table) -> list[str]:
        if not table.columns:
            return self._add_column(table)
        name = table.columns.pop(self._rng.randrange(len(table.columns)))
        gone = [index for index in table.indexes if index.endswith(f"_{name}")]
        table.indexes = [index for index in table.indexes if index not in gone]
        return [
            *(f"ALTER TABLE {table} DROP INDEX {index}" for index in gone),
            f"ALTER TABLE {table} DROP COLUMN {name}",
        ]

    def _widen(self, table: _Table) -> list[str]:
        table.width += 1
        return [f"ALTER TABLE {table} MODIFY COLUMN v VARCHAR({table.width})"]

    def _add_index(self, table: _Table) -> list[str]:
        name = self._rng.choice(["v", *table.columns])
        table.indexes.append(f"i{self._next()}_{name}")
        return [f"ALTER TABLE {table} ADD INDEX {table.indexes[-1]} ({name})"]

    def _drop_index(self, table: _Table) -> list[str]:
        if not table.indexes:
            return self._add_index(table)
        return [f"ALTER TABLE {table} DROP INDEX {table.indexes.pop()}"]

    def _comment(self, table: _Table) -> list[str]:
        return [f"ALTER TABLE {table} COMMENT = 'number {self._next()}'"]

    def _default(self, table: _Table) -> list[str]:
        return [f"ALTER TABLE {table} ALTER COLUMN v SET DEFAULT 'd{self._next()}'"]

    def _rename(self, table: _Table) -> list[str]:
        before = str(table)
        table.name = f"t{self._next()}r"
        return [f"RENAME TABLE {before} TO {table}"]

    def _truncate(self, table: _Table) -> list[str]:
        return [f"TRUNCATE TABLE {table}"]

    def _drop_and_create(self, table: _Table) -> list[str]:
        dropped = f"DROP TABLE {table}"
        table.columns, table.indexes = [], []
        return [dropped, table.creation]

    def _database(self, table: _Table) -> list[str]:
        name = f"e{self._next()}"
        return [f"CREATE DATABASE {name}", f"DROP DATABASE {name}"]

    def rows(self) -> Iterator[str]:
        for table in self._rng.sample(self.tables, 3):
            ids = sorted(self._rng.sample(range(1, 3000), self._rng.randint(1, 4)))
            values = ", ".join(f"({i}, 'row {self._next()}')" for i in ids)
            yield f"REPLACE INTO {table} (id, v) VALUES {values}"


def make(folder: Path) -> None:
    """Run the statements in an embedded TiDB and keep what it committed."""
    story = _Story(random.Random(_SEED))
    folder.mkdir(parents=True, exist_ok=True)
    queries: list[str] = []
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as box:
        session = SqlSession(SqlNodes(box.cluster, 1, lease_seconds=3600).nodes[0])
        start_ts = box.tso()
        for each in story.statements():
            session.execute(each.text)
            if each.is_ddl:
                queries.append(each.text)
        end_ts = box.tso()
        count = asyncio.run(_keep(box.pd_address, Ts(end_ts), folder / "history.parquet"))
    ends = {"bootstrap_ts": int(start_ts), "start_ts": int(start_ts), "end_ts": int(end_ts)}
    (folder / "meta.json").write_text(json.dumps(ends) + "\n")
    (folder / "ddl.sql").write_text("".join(query + ";\n" for query in queries))
    print(f"{len(queries)} DDLs, {count} changes")


async def _keep(pd_address: str, end_ts: Ts, path: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        async with PdClient(pd_address) as pd:
            slices = await take_changes(pd, Span(KEY_START, KEY_END), Ts(0), end_ts, Path(name) / "segments")
        assert slices is not None
        changes = pa.Table.from_batches(list(read_slices(slices)))
    ops = ["put" if op == Op.PUT else "delete" for op in changes["op"].to_pylist()]
    kept = pa.table(
        {
            "start_ts": changes["start_ts"],
            "commit_ts": changes["commit_ts"],
            "op": pa.array(ops),
            "key": changes["key"].cast(pa.large_binary()),
            "value": changes["value"].cast(pa.large_binary()),
        }
    )
    pq.write_table(kept, path, compression="zstd", compression_level=19)
    return len(kept)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED / _NAME)
