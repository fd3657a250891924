"""A downstream that is written to while it is read: only what stays different counts."""

from typing import Any

from tests.verify.conftest import Pair
from tidemill.model.ts import Ts


class Feed:
    """A changefeed as its folder tells of it; at each look it does what is written down for that look."""

    def __init__(self, pair: Pair, *steps: Any) -> None:
        self._pair = pair
        self._steps = list(steps)

    def checkpoint_ts(self) -> Ts:
        if self._steps:
            self._steps.pop(0)()
        return self._pair.client.now()

    def is_running(self) -> bool:
        return True


def begin(pair: Pair) -> None:
    pair.both("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)")


def test_rows_that_have_not_arrived_yet_are_waited_for(pair: Pair) -> None:
    begin(pair)
    pair.upstream("UPDATE t SET v = 11 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 40)")
    feed = Feed(
        pair,
        lambda: pair.downstream("UPDATE t SET v = 11 WHERE id = 1"),
        lambda: pair.downstream("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 40)"),
    )
    report = pair.verify("t", progress=feed)
    assert report.is_equal
    assert report.tables[0].differing_chunks == 1


def test_what_stays_different_is_a_difference(pair: Pair) -> None:
    begin(pair)
    pair.downstream("UPDATE t SET v = 99 WHERE id = 3")
    pair.upstream("UPDATE t SET v = 11 WHERE id = 1")
    feed = Feed(pair, lambda: pair.downstream("UPDATE t SET v = 11 WHERE id = 1"))
    [table] = pair.verify("t", progress=feed).tables
    assert [(d.kind.value, dict(d.key)) for d in table.differences] == [("changed", {"id": "3"})]
    assert (table.missing, table.extra, table.changed, table.unsettled) == (0, 0, 1, 0)


def test_a_row_that_changes_whenever_we_look_is_unsettled(pair: Pair) -> None:
    begin(pair)
    pair.downstream("DELETE FROM t WHERE id = 2")

    class Restless(Feed):
        """The row changes between the checkpoint and the ts behind the read."""

        def checkpoint_ts(self) -> Ts:
            ts = super().checkpoint_ts()
            pair.upstream("UPDATE t SET v = v + 1 WHERE id = 2")
            return ts

    [table] = pair.verify("t", progress=Restless(pair)).tables
    assert (table.missing, table.unsettled, table.differences) == (0, 1, [])


def test_hundreds_of_rows_that_are_under_way_are_all_looked_at_again(pair: Pair) -> None:
    """Many more than are shown: none of them may count as equal unseen, and none as different."""
    pair.both("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    rows = "INSERT INTO t VALUES " + ", ".join(f"({n}, {n})" for n in range(600))
    pair.upstream(rows)
    report = pair.verify("t", progress=Feed(pair, lambda: pair.downstream(rows)), most_rows=5)
    assert report.is_equal
    pair.downstream("DELETE FROM t WHERE id % 3 = 0")
    [table] = pair.verify("t", progress=Feed(pair), most_rows=5).tables
    assert (table.missing, table.unsettled, len(table.differences)) == (200, 0, 5)
