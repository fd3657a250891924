"""Transactions that are written piece by piece."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mariadb import MariaDb
from tests.rounds import examples
from tests.sinks.halves import mysql_sink
from tests.sinks.moments import START
from tests.sinks.mysql.upstreams import COMMIT_TS, Past, create_table, keyed_table, pasts
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.filter.rows import without
from tidemill.model.row import LargeRows, RowBatch, RowOp
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri, write_rows
from tidemill.sinks.mysql.writer import windows

END = Ts(COMMIT_TS + 1000)


def in_pieces(rows: RowBatch) -> LargeRows:
    """The rows of one transaction as the pipeline gives those of a large one: a row at a time, deletes first."""

    def read() -> Iterator[RowBatch]:
        halves = split_key_updates(rows)
        for op in (RowOp.DELETE, RowOp.UPDATE, RowOp.INSERT):
            for place in np.flatnonzero(halves.op == op):
                yield without(halves, np.arange(len(halves)) != place)

    return LargeRows(read)


@pytest.mark.parametrize("parameters", ["", "transaction-atomicity=table"])
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(past=pasts(4), text_key=st.booleans(), most_rows=st.integers(1, 5))
def test_large_transactions_end_in_the_same_rows(
    mariadb: MariaDb, parameters: str, past: Past, text_key: bool, most_rows: int
) -> None:
    table = keyed_table("large", text_key=text_key)
    mariadb.query("CREATE OR REPLACE DATABASE large", create_table(table))
    sink = mysql_sink(parse_mysql_uri(mariadb.uri(f"worker-count=2&max-txn-row=2&{parameters}")), None)
    sink.recover(START)
    for number in range(len(past.transactions)):
        rows = past.rows(table, number, number + 1)
        target = replace(sink.target(table, table.id, (Ts(0), END)), window_rows=most_rows)
        receipt = write_rows(target, iter([in_pieces(rows)]))
        assert receipt.rows == len(split_key_updates(rows))
        sink.commit(END, [])
    sink.close()
    found = mariadb.query("SELECT id, a, b, v FROM large.t")
    assert sorted(map(repr, found)) == sorted(repr(tuple(row.values())) for row in past.states[-1])


def test_what_stands_before_a_large_transaction_is_written_before_it() -> None:
    row: dict[str, Any] = {"id": 1, "a": "x", "b": None, "v": None}
    table = keyed_table("large")
    past = Past([[(None, {**row, "id": n})] for n in range(3)], [])
    before, large, after = past.rows(table, 0, 1), in_pieces(past.rows(table, 1, 2)), past.rows(table, 2, 3)
    found = list(windows(iter([before, large, after]), most_rows=100))
    assert found[1] is large
    assert [each.commit_ts.tolist() for each in found if isinstance(each, RowBatch)] == [
        before.commit_ts.tolist(),
        after.commit_ts.tolist(),
    ]


def test_with_table_atomicity_nobody_sees_a_part_and_what_fails_is_written_again(mariadb: MariaDb) -> None:
    table = keyed_table("large")
    mariadb.query("CREATE OR REPLACE DATABASE large", create_table(table))
    sink = mysql_sink(parse_mysql_uri(mariadb.uri("transaction-atomicity=table")), None)
    sink.recover(START)
    rows = Past([[(None, {"id": n, "a": f"{n}", "b": None, "v": None}) for n in range(6)]], []).rows(table, 0, 1)
    seen: list[int] = []
    tries = iter([True])

    def read() -> Iterator[RowBatch]:
        for number, piece in enumerate(in_pieces(rows).read()):
            seen.append(mariadb.query("SELECT COUNT(*) FROM large.t")[0][0])
            if number == 3 and next(tries, False):
                raise ConnectionResetError("the network")
            yield piece

    receipt = write_rows(replace(sink.target(table, table.id, (Ts(0), END)), window_rows=1), iter([LargeRows(read)]))
    sink.close()
    assert seen == [0] * (4 + 6)
    assert receipt.rows == 6
    assert mariadb.query("SELECT COUNT(*) FROM large.t") == [(6,)]
