"""Open-protocol topics read back by a few lines of their own, and held to the protocol's constraints.

    log = read_log(broker, "topic")
    log.check()                        # constraints 1.1 to 2.4 of the protocol's design
    log.rows("shop", "item")           # what a reader has in the end, by handle key

Nothing of ours decodes here.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.kafka import Broker

ROW, DDL, RESOLVED = 1, 2, 3
ADMIN = 4  # a change of the number of partitions, or a meeting


@dataclass(frozen=True)
class Event:
    kind: int
    ts: int
    schema: str
    table: str
    value: Any  # of a row: {"u": columns, "p": columns} or {"d": columns}; of a DDL: {"q": query, "t": type}

    @property
    def columns(self) -> dict[str, Any]:
        found: dict[str, Any] = self.value["d" if "d" in self.value else "u"]
        return found

    @property
    def key(self) -> tuple[Any, ...]:
        """Which row it is."""
        handle = sorted((name, json.dumps(c["v"])) for name, c in self.columns.items() if c.get("h"))
        return self.schema, self.table, *handle

    @property
    def identity(self) -> str:
        """Equal for exact copies."""
        return json.dumps([self.kind, self.ts, self.schema, self.table, self.value], sort_keys=True)


@dataclass
class Log:
    partitions: list[list[Event]] = field(default_factory=list)

    def events(self, kind: int) -> Iterator[Event]:
        return (event for partition in self.partitions for event in partition if event.kind == kind)

    @property
    def copies(self) -> int:
        """Rows that came more than once, counted each time but the first."""
        rows = [event.identity for event in self.events(ROW)]
        return len(rows) - len(set(rows))

    @property
    def resolved_ts(self) -> int:
        """Up to here every partition is whole."""
        return min(max((e.ts for e in p if e.kind == RESOLVED), default=0) for p in self.partitions)

    def queries(self) -> list[str]:
        """DDLs in their order, copies left out."""
        found = {(event.ts, event.value["q"]) for event in self.events(DDL)}
        return [query for _, query in sorted(found)]

    def rows(self, schema: str, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """By key: first appearances applied in commit order, deletes of a transaction first."""
        changes: dict[str, Event] = {}
        for event in self.events(ROW):
            if (event.schema, event.table) == (schema, table):
                changes.setdefault(event.identity, event)
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for event in sorted(changes.values(), key=lambda e: (e.ts, "u" in e.value)):
            if "d" in event.value:
                found.pop(event.key, None)
            else:
                found[event.key] = {name: column["v"] for name, column in event.columns.items()}
        return found

    def check(self, *, is_row_ordered: bool = True) -> None:
        """Raises AssertionError that names the constraint. ``is_row_ordered``: by how its rows are dispatched."""
        where: dict[tuple[Any, ...], int] = {}
        for number, partition in enumerate(self.partitions):
            seen: set[str] = set()
            last: dict[tuple[Any, ...], int] = {}
            barred_ts = resolved_ts = 0
            for event in partition:
                if event.kind == RESOLVED:
                    resolved_ts = max(resolved_ts, event.ts)
                elif event.kind == DDL:
                    barred_ts = max(barred_ts, event.ts)
                elif event.kind == ROW and event.identity not in seen:
                    seen.add(event.identity)
                    assert event.ts > resolved_ts, f"2.2: a row at {event.ts} first appears behind {resolved_ts}"
                    assert event.ts > barred_ts, f"2.3: a row at {event.ts} first appears behind the DDL {barred_ts}"
                    if is_row_ordered:
                        assert where.setdefault(event.key, number) == number, f"1.1: {event.key} in two partitions"
                        assert event.ts >= last.get(event.key, 0), f"1.3: {event.key} goes back to {event.ts}"
                        last[event.key] = event.ts
        told = [{(e.ts, e.value["q"]) for e in partition if e.kind == DDL} for partition in self.partitions]
        assert all(each == told[0] for each in told), "2.4: a DDL is not in every partition"


def read_log(broker: Broker, topic: str) -> Log:
    return Log(
        [[event for found in part for event in parse(found.key, found.value)] for part in broker.messages(topic)]
    )


def parse(key: bytes | None, value: bytes | None) -> Iterator[Event]:
    assert key is not None
    assert value is not None
    assert int.from_bytes(key[:8]) == 1, "the version of the protocol"
    for head, body in zip(_parts(key[8:]), _parts(value), strict=True):
        said = json.loads(head)
        content = json.loads(body) if body else None
        yield Event(said["t"], said["ts"], said.get("scm", ""), said.get("tbl", ""), content)


def _parts(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:8])
        found.append(data[8 : 8 + size])
        data = data[8 + size :]
    return found
