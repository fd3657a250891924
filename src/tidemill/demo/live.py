"""SQL that runs live on the embedded TiDB while a changefeed follows, and what arrives of it in the files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pymysql

from tidemill.demo import Mark, Row
from tidemill.errors import UpstreamError

DATABASE = "demo"
TABLE = "demo.orders"
PREPARATION = "CREATE DATABASE demo"
# Two of them change the schema, under rows that are there already.
STATEMENTS = (
    "CREATE TABLE demo.orders (id INT PRIMARY KEY AUTO_INCREMENT, item VARCHAR(20), amount DECIMAL(8,2))",
    "INSERT INTO demo.orders (item, amount) VALUES ('tea', 3.50), ('coffee', 4.20), ('cake', 5.00)",
    "UPDATE demo.orders SET amount = amount + 1 WHERE item = 'tea'",
    "ALTER TABLE demo.orders ADD COLUMN state VARCHAR(10) NOT NULL DEFAULT 'new', ADD INDEX by_item (item)",
    "INSERT INTO demo.orders (item, amount, state) VALUES ('bread', 2.80, 'paid')",
    "UPDATE demo.orders SET state = 'paid' WHERE amount > 4.40",
    "DELETE FROM demo.orders WHERE item = 'coffee'",
)
MIDDLE = 4  # so many of them later, SELECT is asked for the first time what is there


class SqlClient:
    """A MySQL client of one SQL node; each statement is a transaction of its own."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        try:
            self._connection = pymysql.connect(host=host, port=int(port), user="root", autocommit=True)
        except pymysql.MySQLError as error:
            raise UpstreamError(f"cannot connect to the embedded TiDB at {address}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def run(self, statement: str) -> list[dict[str, Any]]:
        """The rows that it answers, if any."""
        try:
            with self._connection.cursor(pymysql.cursors.DictCursor) as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        except pymysql.MySQLError as error:
            raise UpstreamError(f"the embedded TiDB refused {statement!r}: {error}") from error

    def now(self) -> int:
        """A ts above everything that is committed."""
        self.run("BEGIN")
        [found] = self.run("SELECT @@tidb_current_ts AS ts")
        self.run("ROLLBACK")
        return int(found["ts"])

    def select(self, name: str, ts: int) -> Mark:
        """The table at ``ts``, as TiDB shows it."""
        self.run(f"SET @@tidb_snapshot = '{ts}'")
        found = self.run(f"SELECT * FROM {TABLE}")
        self.run("SET @@tidb_snapshot = ''")
        rows: list[Row] = [{c: None if v is None else str(v) for c, v in row.items()} for row in found]
        return Mark(name, ts, TABLE, {str(row["id"]): row for row in rows})


@dataclass(frozen=True, slots=True)
class Arrival:
    """A row change, or a DDL, that a consumer of the files can see."""

    ts: int
    text: str


def checkpoint(folder: Path) -> int:
    """Up to where the files are complete; 0 before anything is there."""
    try:
        ts: int = json.loads((folder / "metadata").read_bytes())["checkpoint-ts"]
    except FileNotFoundError:
        return 0
    return ts


def arrivals(folder: Path, after: int, up_to: int) -> list[Arrival]:
    """What the files have of the table, with ``after`` < ts ≤ ``up_to``, in order."""
    schema, table = TABLE.split(".")
    found = [*_rows(folder / schema / table), *_ddls(folder / schema / table)]
    return sorted((a for a in found if after < a.ts <= up_to), key=lambda arrival: arrival.ts)


def _rows(folder: Path) -> Iterator[Arrival]:
    for path in sorted(folder.glob("[0-9]*/**/CDC*.json")):
        for line in path.read_bytes().splitlines():
            message: dict[str, Any] = json.loads(line)
            (image,) = message["data"]
            values = " ".join(f"{column}={value}" for column, value in image.items())
            yield Arrival(message["_tidb"]["commitTs"], f"{message['type']} {values}")


def _ddls(folder: Path) -> Iterator[Arrival]:
    for path in (folder / "meta").glob("schema_*.json"):
        document = json.loads(path.read_bytes())
        if document["Query"]:
            names = ", ".join(column["ColumnName"] for column in document["TableColumns"])
            yield Arrival(document["TableVersion"], f"DDL, a new schema file: {names}")
