"""The bank as a MariaDB has it: what it holds, and whether anybody ever sees half of a transfer."""

import threading
from typing import Any

import pymysql

from tests.e2e.bank import TABLES, TOTAL, Rows, selected
from tests.mariadb import MariaDb


class Reader:
    """Looks at the sum of all accounts, again and again: whoever sees half of a transfer sees another one."""

    def __init__(self, mariadb: MariaDb) -> None:
        self._mariadb = mariadb
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="reader")
        self.looked, self.torn = 0, list[Any]()

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        sums = " + ".join(f"(select sum(balance) from bank.{table})" for table in TABLES)
        while not self._is_over.wait(0.01):
            try:
                ((found,),) = self._mariadb.query(f"select {sums}")
            except (pymysql.err.MySQLError, OSError):
                continue  # before there are tables
            self.looked += found is not None
            if found is not None and found != TOTAL:
                self.torn.append(found)


def held(mariadb: MariaDb) -> Rows | None:
    try:
        with mariadb.connect(database="bank") as connection, connection.cursor() as cursor:
            return {table: selected(cursor, table) for table in TABLES}
    except pymysql.err.MySQLError:
        return None
