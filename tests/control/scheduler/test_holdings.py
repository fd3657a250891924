"""What an agent is told of an executor, and what it means to stop."""

import pytest

from tidemill.control.scheduler.holdings import Ending, HeldLane, Holdings, ending, held
from tidemill.model.orders import Assignment
from tidemill.model.schedule import REST, TableId, TableState, TableStatus
from tidemill.model.ts import Ts

ONE, TWO, THREE = TableId(1), TableId(2), TableId(3)
MAIN = HeldLane(Assignment(frozenset({1, 3}), is_rest=True), {REST: Ts(10)}, Ts(30))
BESIDE = HeldLane(Assignment(frozenset({1})), {ONE: Ts(20)}, Ts(25))
PREPARED = {TWO: TableStatus(TWO, TableState.PREPARED, Ts(5), Ts(6))}


def holding(
    *lanes: HeldLane,
    between: frozenset[int] = frozenset(),
    prepared: dict[TableId, TableStatus] | None = None,
    stopped: dict[TableId, Ts | None] | None = None,
    under_way: dict[TableId, TableState] | None = None,
) -> Holdings:
    return held(lanes, between, prepared or {}, stopped or {}, under_way or {})


@pytest.mark.parametrize(
    ("holdings", "table", "state", "is_of_rest"),
    [
        pytest.param(holding(MAIN), REST, TableState.REPLICATING, False, id="the rest has a name"),
        pytest.param(holding(MAIN), TWO, TableState.REPLICATING, True, id="what is in it has none"),
        pytest.param(holding(MAIN), ONE, TableState.ABSENT, False, id="what others have is not in it"),
        pytest.param(holding(MAIN, BESIDE), ONE, TableState.REPLICATING, False, id="a lane of its own names them"),
        pytest.param(
            holding(MAIN, between=frozenset({1})), ONE, TableState.REPLICATING, False,
            id="a table between two lanes is written, though neither lane names it",
        ),
        pytest.param(
            holding(MAIN, between=frozenset({1}), under_way={ONE: TableState.STOPPING}),
            ONE, TableState.STOPPING, False, id="unless it is told to stop meanwhile",
        ),
        pytest.param(holding(prepared=PREPARED), TWO, TableState.PREPARED, False, id="what is prepared is so"),
        pytest.param(
            holding(prepared=PREPARED, under_way={TWO: TableState.STOPPING}), TWO, TableState.STOPPING, False,
            id="until a command is at work for it",
        ),
        pytest.param(
            holding(under_way={THREE: TableState.PREPARING}), THREE, TableState.PREPARING, False,
            id="a command is all that is known of a table that has only been asked for",
        ),
        pytest.param(holding(stopped={ONE: Ts(9)}), ONE, TableState.STOPPED, False, id="what has stopped says so"),
    ],
)  # fmt: skip
def test_how_a_table_is_held(holdings: Holdings, table: TableId, state: TableState, is_of_rest: bool) -> None:
    found = holdings.of(table)
    assert (found.table, found.state, found.is_of_rest) == (table, state, is_of_rest)


def test_a_table_is_where_its_lane_has_it() -> None:
    found = holding(MAIN, BESIDE).of(ONE)
    assert (found.checkpoint_ts, found.resolved_ts) == (20, 25)


@pytest.mark.parametrize(
    ("tables", "prepared", "expected"),
    [
        pytest.param({1, 2}, set(), Ending(frozenset(), frozenset({1, 2}), False), id="what is written is given up"),
        pytest.param(
            {1, 2}, {2}, Ending(frozenset({2}), frozenset({1}), False),
            id="what is prepared is dropped, and nothing else: it may be written here as one of the rest",
        ),
        pytest.param({0}, set(), Ending(frozenset(), frozenset(), True), id="the rest is let go of as a whole"),
        pytest.param({0}, {0}, Ending(frozenset(), frozenset(), False), id="unless it was to come"),
        pytest.param({1}, {1, 2}, Ending(frozenset({1}), frozenset(), False), id="others are no matter"),
    ],
)  # fmt: skip
def test_what_stopping_means(tables: set[int], prepared: set[int], expected: Ending) -> None:
    assert ending(map(TableId, tables), {TableId(table) for table in prepared}) == expected
