"""What is written and in which order: no order that the plan allows ends in other rows, or meets a duplicate."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.sinks.mysql.upstreams import Past, folded, keyed_table, pasts
from tidemill.flow.encoder import Encoded
from tidemill.model.row import RowBatch
from tidemill.sinks.mysql.literals import Literals
from tidemill.sinks.mysql.plan import Form, Limits, Plan, Transaction, make_plan
from tidemill.sinks.mysql.writer import windows

TABLE = keyed_table("d")
BY_TEXT = keyed_table("d", text_key=True)
SMALL = Limits(rows=3, update_rows=2, bytes=120, lanes=3)
Row = dict[str, Any]


class Duplicate(Exception):
    pass


class Downstream:
    """A table as MySQL keeps it: unique keys compared loosely, REPLACE removes what is in its way."""

    def __init__(self, key: str, rows: list[Row]) -> None:
        self.key, self.rows = key, list(rows)

    def run(self, plan: Plan, transaction: Transaction, *, is_safe: bool) -> None:
        for statement in transaction:
            for number in range(statement.first, statement.last):
                (row,) = plan.row(number).to_pylist()
                self._apply(statement.form, row, is_safe=is_safe)

    def _apply(self, form: Form, row: Row, *, is_safe: bool) -> None:
        if form is Form.DELETE:
            self.rows = [r for r in self.rows if not _meets(r, row, (self.key,))]
            return
        rivals = [r for r in self.rows if _meets(r, row, ("id", "a", "b"))]
        if form is Form.UPDATE and not is_safe:
            assert len(rivals) <= 1, "an update in place met two rows"
        elif rivals and form is Form.INSERT and not is_safe:
            raise Duplicate(row)
        self.rows = [r for r in self.rows if r not in rivals] + [row]

    def content(self) -> list[Row]:
        return sorted(self.rows, key=repr)


def _meets(one: Row, two: Row, keys: tuple[str, ...]) -> bool:
    return any(one[k] is not None and _loose(one[k]) == _loose(two[k]) for k in keys)


def _loose(value: Any) -> Any:
    return folded(value) if isinstance(value, str) else value


def shuffled(plan: Plan, chance: random.Random) -> Iterator[Transaction]:
    """One of the orders in which workers may run a plan."""
    for lanes in plan.phases:
        waiting = [list(lane) for lane in lanes]
        while waiting:
            lane = chance.choice(waiting)
            yield lane.pop(0)
            waiting = [lane for lane in waiting if lane]


def planned(rows: RowBatch, *, is_safe: bool, is_atomic: bool) -> Plan:
    return make_plan(rows, SMALL, Literals(rows.table), is_safe=is_safe, is_atomic=is_atomic)


@pytest.mark.parametrize("is_atomic", [False, True], ids=["none", "table"])
@pytest.mark.parametrize("table", [TABLE, BY_TEXT], ids=["number", "text"])
@settings(max_examples=examples(150), deadline=None)
@given(past=pasts(), seed=st.integers(0, 1 << 32), data=st.data())
def test_any_order_of_lanes_ends_in_the_upstreams_rows(
    table: Any, is_atomic: bool, past: Past, seed: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(past.transactions)))
    downstream = Downstream(table.handle_key[0].name, past.after(begin))
    plan = planned(past.rows(table, begin, len(past.transactions)), is_safe=False, is_atomic=is_atomic)
    for transaction in shuffled(plan, random.Random(seed)):
        downstream.run(plan, transaction, is_safe=False)
    assert downstream.content() == sorted(past.states[-1], key=repr)


@pytest.mark.parametrize("is_atomic", [False, True], ids=["none", "table"])
@pytest.mark.parametrize("table", [TABLE, BY_TEXT], ids=["number", "text"])
@settings(max_examples=examples(150), deadline=None)
@given(past=pasts(), seed=st.integers(0, 1 << 32), data=st.data())
def test_a_batch_that_was_written_in_part_is_written_again_to_the_same_rows(
    table: Any, is_atomic: bool, past: Past, seed: int, data: st.DataObject
) -> None:
    count, chance = len(past.transactions), random.Random(seed)
    begin = data.draw(st.integers(0, count))
    downstream = Downstream(table.handle_key[0].name, past.after(begin))
    for end in sorted(data.draw(st.lists(st.integers(begin, count), max_size=3))):  # each longer than the one before
        plan = planned(past.rows(table, begin, end), is_safe=True, is_atomic=is_atomic)
        transactions = list(shuffled(plan, chance))
        for transaction in transactions[: chance.randint(0, len(transactions))]:
            downstream.run(plan, transaction, is_safe=True)
    plan = planned(past.rows(table, begin, count), is_safe=True, is_atomic=is_atomic)
    for transaction in shuffled(plan, chance):
        downstream.run(plan, transaction, is_safe=True)
    assert downstream.content() == sorted(past.states[-1], key=repr)


@settings(max_examples=examples(100), deadline=None)
@given(past=pasts())
def test_with_atomicity_each_transaction_stays_whole(past: Past) -> None:
    """Whatever was committed downstream up to any moment is whole transactions: here, in one lane, a prefix."""
    rows = past.rows(TABLE, 0, len(past.transactions))
    plan = make_plan(rows, Limits(1, 1, 1 << 20, 1), Literals(TABLE), is_safe=False, is_atomic=True)
    downstream, seen = Downstream("id", []), 0
    for transaction in (t for lanes in plan.phases for lane in lanes for t in lane):
        downstream.run(plan, transaction, is_safe=False)
        while downstream.content() != sorted(past.states[seen], key=repr):
            seen += 1  # runs past the end, and fails, if the rows are of no moment
    assert downstream.content() == sorted(past.states[-1], key=repr)


def test_rows_that_only_change_a_key_are_never_out_of_sight() -> None:
    one, two = ({"id": n, "a": "xy"[n - 1], "b": n, "v": None} for n in (1, 2))
    past = Past([[(one, {**one, "b": 2}), (two, {**two, "b": 1})]], [[one, two], []])
    plan = planned(past.rows(TABLE, 0, 1), is_safe=False, is_atomic=False)
    ((((statement,),),),) = plan.phases
    assert (statement.form, statement.last - statement.first) == (Form.REPLACE, 2)


def test_an_update_of_the_primary_key_is_one_transaction_with_the_delete_first() -> None:
    row = {"id": 1, "a": "x", "b": 1, "v": None}
    past = Past([[(row, {**row, "id": 2})]], [])
    plan = planned(past.rows(TABLE, 0, 1), is_safe=False, is_atomic=False)
    (((transaction,),),) = plan.phases
    assert [statement.form for statement in transaction] == [Form.DELETE, Form.INSERT]


def test_what_came_and_went_is_written_only_where_it_may_be_there() -> None:
    row = {"id": 1, "a": "x", "b": 1, "v": None}
    rows = Past([[(None, row)], [(row, None)]], []).rows(TABLE, 0, 2)
    assert planned(rows, is_safe=False, is_atomic=False).phases == []
    ((((statement,),),),) = planned(rows, is_safe=True, is_atomic=False).phases
    assert statement.form is Form.DELETE


def test_statements_stay_below_their_limits() -> None:
    changes: list[tuple[Row | None, Row | None]] = [
        (None, {"id": n, "a": f"text {n}", "b": None, "v": "x" * 20}) for n in range(40)
    ]
    plan = planned(Past([changes], []).rows(TABLE, 0, 1), is_safe=False, is_atomic=False)
    sizes = [(s.last - s.first, len(plan.slice(s.first, s.last))) for lane in plan.phases[0] for t in lane for s in t]
    assert sum(rows for rows, _ in sizes) == 40
    assert all(rows <= SMALL.rows and size <= SMALL.bytes for rows, size in sizes)


def test_a_window_ends_only_between_transactions() -> None:
    row = {"id": 1, "a": "x", "b": None, "v": None}
    past = Past([[(None, {**row, "id": n + 10 * t}) for n in range(3)] for t in range(5)], [])
    rows = past.rows(TABLE, 0, 5)
    pieces = [RowBatch(TABLE, 120, rows.op[i : i + 1], rows.start_ts[i : i + 1], rows.commit_ts[i : i + 1],
                       rows.new.slice(i, 1), rows.old.slice(0, 0)) for i in range(15)]  # fmt: skip
    found = list(windows(iter(pieces), most_rows=5))
    assert np.concatenate([w.commit_ts for w in found]).tolist() == rows.commit_ts.tolist()
    assert len(found) > 1
    for before, after in pairwise(found):
        assert before.commit_ts[-1] < after.commit_ts[0]


def test_text_of_a_plan_is_one_buffer() -> None:
    row = {"id": 1, "a": "it's", "b": None, "v": "\\"}
    plan = planned(Past([[(None, row)]], []).rows(TABLE, 0, 1), is_safe=False, is_atomic=False)
    assert isinstance(plan.text, Encoded)
    assert bytes(plan.slice(0, 1)) == b"(1,'it''s',NULL,'\\')"
