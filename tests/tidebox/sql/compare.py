"""The same statements, drawn by lot, on the embedded TiDB and on a real one: what differs, or what to remember.

    python -m tests.tidebox.sql.compare --tidb 127.0.0.1:4000 --seeds 0-499
    python -m tests.tidebox.sql.compare --tidb 127.0.0.1:4000 --seeds 0-49 --record tests/data/sql/random.jsonl.xz

Each seed has a database of its own. The embedded side is two SQL nodes over one store, a client on each.
"""

import argparse
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql

from tests.tidebox.sql.random_sql import Step, story
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.sql.wire.server import SqlServer
from tidebox.upstream import EmbeddedUpstream

Outcome = dict[str, Any]
# These texts name timestamps and keys.
_BINARY = 63
_STRINGS = (16, *range(249, 255))
_KINDS = {
    **dict.fromkeys((1, 2, 3, 8, 9), "integer"),
    **dict.fromkeys((4, 5), "real"),
    **dict.fromkeys((15, 249, 250, 251, 252, 253, 254), "text"),
}
_BY_NUMBER_ONLY = (9007, 8028, 8022)


class Client:
    """One connection; every statement ends in an ``Outcome`` of plain JSON."""

    def __init__(self, address: str, database: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._connection = pymysql.connect(
            host=host, port=int(port), user="root", database=database or None, autocommit=True, charset="utf8mb4",
            conv={}, use_unicode=False,
        )  # fmt: skip

    def run(self, sql: str) -> Outcome:
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
        except pymysql.err.MySQLError as error:
            number, text = error.args
            if sql.startswith("update"):  # in which order rows are changed nobody has promised
                text = re.sub(r"at row \d+", "at a row", text)
            return {"error": [number, "" if number in _BY_NUMBER_ONLY else text.partition(" out of range in '(")[0]]}
        result = self._connection._result
        found: Outcome = {}
        if not result.field_count:
            found["affected"] = result.affected_rows
            if result.insert_id:
                found["id"] = result.insert_id
        else:
            is_plain = re.fullmatch(r"select \* from \w+", sql) is not None
            found["columns"] = [_described(field, is_plain=is_plain) for field in result.fields]
            are_bytes = [f.charsetnr == _BINARY and f.type_code in _STRINGS for f in result.fields]
            found["rows"] = [[_plain(v, b) for v, b in zip(row, are_bytes, strict=True)] for row in result.rows]
            if sql.startswith("show index"):  # how many values there are is an estimate
                found["rows"] = [[*row[:6], *row[7:]] for row in found["rows"]]
            if " order by " not in sql:
                found["rows"].sort(key=repr)
        if result.warning_count:
            found["warnings"] = self._warnings(result.warning_count)
        return found

    def _warnings(self, count: int) -> list[Any]:
        cursor = self._connection.cursor()
        cursor.execute("show warnings")
        listed = [[_plain(v) for v in row] for row in cursor.fetchall()]
        return listed if len(listed) == count else [count, listed]

    def close(self) -> None:
        self._connection.close()


def _described(field: Any, *, is_plain: bool) -> list[Any]:
    """All of a table's columns where a whole table is asked for; else, as TiDB's way to the rows colours the rest,
    what a client decodes by."""
    if not is_plain:
        return [field.name, _KINDS.get(field.type_code, field.type_code)]
    return [field.name, field.type_code, field.charsetnr, field.flags, field.scale, field.length, field.table_name]


def _plain(value: bytes | None, is_bytes: bool = False) -> str | None:
    if value is None:
        return None
    try:
        return f"0x{value.hex()}" if is_bytes else value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


class Side:
    """A database server: two clients in the database of a seed."""

    def __init__(self, addresses: tuple[str, str]) -> None:
        self._addresses = addresses

    @contextmanager
    def clients(self, seed: int) -> Iterator[Callable[[Step], Outcome]]:
        first = Client(self._addresses[0])
        first.run(f"drop database if exists r{seed}")
        first.run(f"create database r{seed}")
        first.close()
        both = [Client(address, f"r{seed}") for address in self._addresses]
        yield lambda step: both[step.client].run(step.sql)
        for client in both:
            client.close()


@contextmanager
def embedded() -> Iterator[Side]:
    with ExitStack() as stack:
        upstream = stack.enter_context(EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600))
        nodes = SqlNodes(upstream.cluster, 2)
        nodes.start()
        stack.callback(nodes.stop)
        addresses = []
        for node in nodes.nodes:
            server = SqlServer(lambda node=node: SqlSession(node))  # type: ignore[misc]
            addresses.append(server.start(0))
            stack.callback(server.stop)
        yield Side((addresses[0], addresses[1]))


def tell(seed: int, answer: Callable[[Step], Outcome]) -> Iterator[tuple[Step, Outcome]]:
    """The statements of a seed and their outcomes on the side that decides which of them were taken."""
    talk = story(seed)
    step = next(talk, None)
    while step is not None:
        outcome = answer(step)
        yield step, outcome
        try:
            step = talk.send("error" not in outcome)
        except StopIteration:
            return


def differences(seed: int, theirs: Side, ours: Side, most: int) -> list[str]:
    found: list[str] = []
    with theirs.clients(seed) as real, ours.clients(seed) as embedded_clients:
        for number, (step, expected) in enumerate(tell(seed, real)):
            actual = embedded_clients(step)
            if actual != expected:
                found.append(f"seed {seed} #{number} client {step.client}: {step.sql}\n{_unlike(expected, actual)}")
                if len(found) >= most or _parts(expected, actual):
                    break
    return found


def _parts(expected: Outcome, actual: Outcome) -> bool:
    """Whether the two databases now hold different things, so that going on would tell nothing new."""
    return ("error" in expected) != ("error" in actual) or expected.get("affected") != actual.get("affected")


def _unlike(expected: Outcome, actual: Outcome) -> str:
    lines = []
    for key in sorted({*expected, *actual}):
        a, b = expected.get(key), actual.get(key)
        if a == b:
            continue
        if isinstance(a, list) and isinstance(b, list) and key in ("rows", "columns") and len(a) == len(b):
            pairs = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
            lines += [f"  {key}\n    tidb {x}\n    ours {y}" for x, y in pairs[:2]]
        else:
            lines.append(f"  {key}\n    tidb {_short(a)}\n    ours {_short(b)}")
    return "\n".join(lines)


def _short(value: object) -> str:
    return repr(value)[:700]


def record(seeds: range, theirs: Side, path: Path) -> None:
    with lzma.open(path, "wt", encoding="utf-8", preset=9) as out:
        for seed in seeds:
            with theirs.clients(seed) as real:
                for step, outcome in tell(seed, real):
                    line = {"seed": seed, "client": step.client, "sql": step.sql, **outcome}
                    out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tidb", required=True, help="HOST:PORT of a real TiDB, user root")
    arguments.add_argument("--seeds", default="0-499", help="FIRST-LAST")
    arguments.add_argument("--record", type=Path, help="write TiDB's answers there and compare nothing")
    arguments.add_argument("--most", type=int, default=1, help="differences to show of a seed")
    given = arguments.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    theirs = Side((given.tidb, given.tidb))
    if given.record:
        record(seeds, theirs, given.record)
        return 0
    unlike = 0
    with embedded() as ours:
        for seed in seeds:
            found = differences(seed, theirs, ours, given.most)
            unlike += bool(found)
            for text in found:
                print(text, flush=True)
    print(f"{len(seeds)} seeds, {unlike} with differences")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
