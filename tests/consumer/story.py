"""A topic with a short story of two tables in it, written by our own sink: rows, and DDLs of every sort.

story = tell(uri)
story.rows["thing"]          # what the table holds in the end, by id
story.changes["thing"]       # (commit-ts, operation, id), in order, under the name that it had
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.flow.encoder.samples import COMMIT_TS, rows_of
from tests.sinks.kafka.feed import BY_KEY, Feed
from tidemill.consumer.catalog import Catalog
from tidemill.model.event import DdlSeen
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.kafka.target import KafkaTarget

Row = dict[str, Any]
CREATE = (
    "CREATE TABLE item (id BIGINT PRIMARY KEY, sku VARCHAR(20) NOT NULL, price DECIMAL(10,2), kind ENUM('a','b'), "
    "at TIMESTAMP NULL, raw VARBINARY(20))"
)


@dataclass
class Story:
    feed: Feed
    ts: int = COMMIT_TS
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    changes: dict[str, list[tuple[int, str, int]]] = field(default_factory=lambda: defaultdict(list))
    catalog: Catalog = field(default_factory=Catalog)

    def table(self, name: str) -> TableInfo:
        return self.catalog.tables["shop", name]

    def ddl(self, query: str, table: str = "", type: int | None = None) -> None:
        self.resolve()
        self.ts += 10
        event, self.catalog = self.catalog.after(DdlSeen(Ts(self.ts), "shop", table, query, type), 0)
        self.feed.owner.ddl(event)

    def transaction(self, *changes: tuple[str, int, Row | None], copies: int = 1) -> None:
        """(table, id, its new columns or None) each."""
        self.ts += 10
        tables: dict[str, list[tuple[Row | None, Row | None]]] = {}
        for name, id, new in changes:
            held = self.rows[name]
            old = held.get(id)
            row = None if new is None else {"id": id, **(old or {}), **new}
            tables.setdefault(name, []).append((old, row))
            self.changes[name].append((self.ts, "I" if old is None else "D" if row is None else "U", id))
            if row is None:
                del held[id]
            else:
                held[id] = row
        for _ in range(copies):
            receipts = [self._send(self.table(name), found) for name, found in tables.items()]
            self.feed.saved = self.feed.owner.take(self.feed.writer.commit(Ts(self.ts), receipts))

    def _send(self, table: TableInfo, found: list[tuple[Row | None, Row | None]]) -> Receipt:
        target = self.feed.writer.target(table, table.id, (Ts(self.ts - 1), Ts(self.ts)))
        assert isinstance(target, KafkaTarget)
        names = {column.name for column in table.columns}
        cut = [tuple(row and {k: v for k, v in row.items() if k in names} for row in pair) for pair in found]
        return target.write(iter([rows_of(table, *cut, ts=[self.ts] * len(cut))]))  # type: ignore[arg-type]

    def resolve(self) -> None:
        self.ts += 1
        self.feed.owner.publish(Ts(self.ts))

    def fill(self, name: str, first: int, end: int) -> None:
        """Inserts, then updates and deletes of some, a few to a transaction, some of them twice in the topic."""
        for n in range(first, end, 3):
            some = range(n, min(n + 3, end))
            self.transaction(*((name, id, self.row(id)) for id in some), copies=1 + (n % 4 == 0))
        for n in range(first, end, 4):
            self.transaction((name, n, {"sku": f"again-{n}", "price": "0.01"}))
        for n in range(first + 1, end, 5):
            self.transaction((name, n, None))
        self.resolve()

    def row(self, id: int) -> Row:
        return {
            "sku": f"s{id}", "price": f"{id}.50", "kind": 1 + id % 2, "at": f"2026-01-02 03:04:{id % 60:02d}",
            "raw": bytes([0, id % 256]),
        }  # fmt: skip


def tell(uri: str, *, length: int = 24) -> Story:
    story = Story(Feed(uri, BY_KEY))
    story.ddl("CREATE DATABASE shop", type=1)
    story.ddl(CREATE, "item", 3)
    story.ddl("CREATE TABLE other (id INT PRIMARY KEY, v INT)", "other", 3)
    story.fill("item", 0, length)
    story.transaction(("other", 1, {"v": 1}), ("item", 1000, story.row(1000)))
    story.ddl("ALTER TABLE item ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none'", "item", 5)
    for row in story.rows["item"].values():
        row["note"] = "none"
    story.transaction(("item", 1001, {**story.row(1001), "note": "new"}), ("other", 1, {"v": 2}))
    story.ddl("RENAME TABLE item TO thing", "thing", 14)
    story.rows["thing"] = story.rows.pop("item")
    story.ddl("ALTER TABLE thing RENAME COLUMN sku TO code, ADD INDEX (code)", "thing", 61)
    for row in story.rows["thing"].values():
        row["code"] = row.pop("sku")
    story.transaction(("thing", 1001, {"code": "renamed"}), ("thing", 1000, None))
    story.ddl("TRUNCATE TABLE other", "other", 11)
    story.rows["other"].clear()
    story.transaction(("other", 7, {"v": 70}), ("thing", 1002, {**story.row(1002), "note": "last", "code": "x"}))
    story.resolve()
    return story
