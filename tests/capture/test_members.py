"""Where tables are that go from one processor to another."""

from tidemill.capture.members import NOBODY, Members
from tidemill.control.ownership import Ownership
from tidemill.flow.schema import SchemaStore
from tidemill.model.orders import Assignment, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

T16 = 16


def ignore(_: Orders) -> None:
    pass


def test_a_table_that_was_dropped_is_handed_over_where_its_drop_has_run() -> None:
    """Below that its rows are written: to read them again would write them twice, or beyond its end."""
    members = Members(SchemaStore(Ts(100)))  # which does not know the table any more
    owned = Ownership({NOBODY: Checkpoints(Ts(20))}, ddl_ts=Ts(100), schema_ts=Ts(100))
    owned = members.admit(owned, "rest", Assignment(frozenset({T16}), True), Checkpoints(Ts(20)), ignore, NOBODY)
    owned = members.admit(owned, "gone", Assignment(frozenset({T16})), Checkpoints(Ts(90)), ignore, None)
    members.mute(["gone"])
    owned, handovers = members.hand_over(owned, [T16], None)
    assert owned.lowest_ts == 20
    assert handovers[T16].at == {T16: 100}
    assert owned.in_transit == {T16: 100}


def test_tables_of_one_that_is_fenced_are_orphans_by_name_or_adrift_until_another_has_them() -> None:
    members = Members(SchemaStore(Ts(10)))
    owned = Ownership({NOBODY: Checkpoints(Ts(20))}, ddl_ts=Ts(20), schema_ts=Ts(100))
    everything = Assignment(frozenset({T16, 17}), True)
    owned = members.admit(owned, "rest", everything, Checkpoints(Ts(20)), ignore, NOBODY)
    owned = members.admit(owned, "beside", Assignment(frozenset({T16, 17})), Checkpoints(Ts(90)), ignore, None)
    left = Report("beside", 1, Assignment(frozenset({T16})), Checkpoints(Ts(90)), frozenset(), gone={17: Ts(90)})
    owned = members.hear(owned, left) or owned
    assert members.orphans(["rest"]) == frozenset()
    members.mute(["beside"])
    assert members.orphans([]) == frozenset()  # it is not fenced yet
    assert members.orphans(["beside"]) == {T16, 17}
    owned, _ = members.hand_over(owned, [T16], None)
    assert members.orphans(["beside"]) == {T16, 17}  # adrift, both
    owned = members.admit(owned, "heir", Assignment(frozenset({T16})), Checkpoints(Ts(90)), ignore, None)
    members.hear(owned, Report("heir", 1, Assignment(frozenset({T16})), Checkpoints(Ts(90)), came=frozenset()))
    assert members.orphans(["beside"]) == {17}
