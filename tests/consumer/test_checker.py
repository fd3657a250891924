"""A topic held to its promises: each one broken by itself, and any order of messages against the plainest model."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, column, rows_of, table_of
from tests.flow.reader.plain import received, sent, sent_alone
from tidemill.consumer.checker import Checker
from tidemill.consumer.report import Report, Rule
from tidemill.flow.encoder import OpenProtocol
from tidemill.flow.reader import Events, RowsSeen
from tidemill.flow.reader.open_protocol import OpenProtocolReader
from tidemill.model.event import AdminSeen, DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

TABLE = table_of(column("id", ColumnType.LONGLONG, KEY), column("v", ColumnType.VARCHAR), name="t")
HEAP = table_of(column("v", ColumnType.VARCHAR), name="heap")
Step = tuple[int, Events]


def row(partition: int, key: int, ts: int, value: str = "", kind: str = "insert") -> Step:
    """The value of a row is made of its key and ts, unless said otherwise."""
    held = {"id": key, "v": value or f"{key}@{ts}"}
    change = {"insert": (None, held), "update": ({**held, "v": "old"}, held), "delete": (held, None)}[kind]
    return partition, Events([RowsSeen(rows_of(TABLE, change, ts=[ts]), np.zeros(1, np.int64))], [])


def mark(partition: int, said: Mark) -> Step:
    return partition, Events([], [(0, said)])


def resolved(partition: int, ts: int) -> Step:
    return mark(partition, ResolvedSeen(Ts(ts)))


def ddl(partition: int, ts: int, query: str = "alter table t add c int") -> Step:
    return mark(partition, DdlSeen(Ts(ts), "shop", "t", query))


def checked(steps: Sequence[Step], partitions: int = 2, **options: Any) -> Report:
    checker = Checker(partitions, **options)
    offsets = Counter[int]()
    for partition, events in steps:
        checker.observe(partition, np.array([100 + offsets[partition]]), events)
        offsets[partition] += 1
    return checker.report()


def admins(partitions: int, epoch: int, ts: int) -> list[Step]:
    return [mark(number, AdminSeen(partitions, epoch, Ts(ts))) for number in (0, 1)]


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        pytest.param([row(0, 1, 5), row(0, 1, 6), row(0, 2, 4)], {}, id="rows of different keys have no order"),
        pytest.param([row(0, 1, 6), row(0, 1, 5)], {Rule.COMMIT_ORDER: 1}, id="a key's changes come in commit order"),
        pytest.param([row(0, 1, 5), row(0, 1, 6), row(0, 1, 5), row(0, 1, 6)], {}, id="and may all come again"),
        pytest.param([row(0, 1, 5), row(0, 1, 5, "other")], {Rule.EXACT_COPIES: 1}, id="as exact copies only"),
        pytest.param([row(0, 1, 5, "x", "delete"), row(0, 1, 5, "y")], {}, id="a split update deletes first"),
        pytest.param(
            [row(0, 1, 5, "y"), row(0, 1, 5, "x", "delete")], {Rule.COMMIT_ORDER: 1}, id="and does not insert first"
        ),
        pytest.param([row(0, 1, 5), row(1, 1, 6)], {Rule.ONE_PARTITION: 1}, id="a key stays in its partition"),
        pytest.param([row(0, 1, 5), row(1, 1, 5)], {Rule.ONE_PARTITION: 1}, id="and so do its copies"),
        pytest.param(
            [row(0, 1, 5), mark(0, AdminSeen(2)), mark(1, AdminSeen(2)), row(1, 1, 6)],
            {},
            id="until an admin event gives it another",
        ),
        pytest.param(
            [mark(1, AdminSeen(2)), row(1, 1, 6), row(0, 1, 5), mark(0, AdminSeen(2))],
            {},
            id="whichever partition is read first",
        ),
        pytest.param(
            [row(0, 1, 5), mark(0, AdminSeen(3)), mark(1, AdminSeen(3)), row(2, 1, 6), row(2, 1, 5)],
            {},
            id="a partition that was added has no epoch of old",
        ),
        pytest.param(
            [mark(0, AdminSeen(2, ts=Ts(9))), row(0, 1, 5)], {Rule.RESOLVED: 1}, id="an admin event is cut at a ts"
        ),
        pytest.param(
            [row(0, 1, 5), *admins(2, 1, 9), row(1, 1, 12), row(0, 1, 5)],
            {},
            id="below which a copy stays where it was",
        ),
        pytest.param(
            [row(0, 1, 5), *admins(2, 1, 9), row(1, 1, 12), row(0, 1, 13)],
            {Rule.ONE_PARTITION: 1},
            id="and above which a key has its new place",
        ),
        pytest.param(
            [
                *(mark(number, AdminSeen(1, 1, Ts(5))) for number in (0, 1)),
                *(ddl(0, 6), resolved(0, 8)),
                *(mark(number, AdminSeen(2, 2, Ts(8))) for number in (0, 1)),
                *(resolved(0, 12), resolved(1, 12)),
            ],
            {},
            id="a partition that rests gets no DDL, be there more again later",
        ),
        pytest.param(
            [ddl(0, 6), ddl(1, 6), mark(2, AdminSeen(3, 1, Ts(9))), resolved(2, 12), resolved(0, 12), resolved(1, 12)],
            {},
            id="DDLs before it are not for a partition that it adds",
        ),
        pytest.param(
            [resolved(0, 6), resolved(1, 6), row(0, 1, 6)], {}, id="a row at a resolved-ts may stand behind it"
        ),
        pytest.param([resolved(0, 6), resolved(1, 6), row(0, 1, 5)], {Rule.RESOLVED: 1}, id="one below may not"),
        pytest.param([resolved(1, 6), row(0, 1, 5), resolved(0, 6)], {}, id="unless it is another partition's"),
        pytest.param([row(0, 1, 5), resolved(0, 6), resolved(1, 6), row(0, 1, 5)], {}, id="or the row a copy"),
        pytest.param([resolved(0, 6), resolved(0, 4), resolved(1, 6)], {}, id="a resolved-ts may go back"),
        pytest.param(
            [resolved(0, 6), resolved(0, 4), resolved(1, 6), row(0, 1, 5)], {Rule.RESOLVED: 1}, id="the highest counts"
        ),
        pytest.param([resolved(0, 6)], {Rule.BROADCAST: 1}, id="every partition gets a resolved-ts"),
        pytest.param([ddl(0, 6), ddl(1, 6), row(0, 1, 5)], {Rule.DDL: 1}, id="no row below a DDL stands behind it"),
        pytest.param([ddl(0, 6), row(1, 1, 5), ddl(1, 6), row(0, 2, 6)], {}, id="rows at it do, or elsewhere"),
        pytest.param([ddl(0, 6), ddl(0, 8)], {}, id="a DDL may be on its way"),
        pytest.param([ddl(0, 6), resolved(0, 7), resolved(1, 7)], {Rule.BROADCAST: 1}, id="not once a higher ts is"),
        pytest.param([resolved(1, 7), ddl(0, 6), resolved(0, 7)], {Rule.BROADCAST: 1}, id="nor before it"),
        pytest.param([ddl(0, 6), ddl(1, 6, "drop table t"), ddl(0, 8), ddl(1, 8)], {Rule.BROADCAST: 2}, id="nor other"),
        pytest.param(
            [ddl(0, 8), ddl(1, 8), ddl(0, 6), ddl(1, 6)], {Rule.DDL_ORDER: 1, Rule.BROADCAST: 1}, id="in order"
        ),
        pytest.param(
            [ddl(0, 6), ddl(1, 6), resolved(0, 9), resolved(1, 9), ddl(0, 6), ddl(1, 6)], {}, id="or once more"
        ),
        pytest.param(
            [ddl(0, 6), ddl(1, 6), resolved(0, 9), resolved(1, 9), resolved(2, 9), ddl(0, 10), ddl(1, 10), ddl(2, 10)],
            {},
            id="a partition that was added has no DDLs of old",
        ),
        pytest.param(
            [ddl(0, 6), ddl(1, 6), mark(0, DdlSeen(Ts(0), "shop", "t", "")), row(0, 1, 6)],
            {},
            id="a schema by itself is no DDL",
        ),
        pytest.param([mark(0, Unreadable("it is no JSON"))], {Rule.READABLE: 1}, id="unknown bytes"),
    ],
)
def test_what_a_topic_promises(steps: list[Step], found: dict[Rule, int]) -> None:
    report = checked(steps)
    assert report.counts == found
    assert report.is_ok is (not found)
    assert Counter(violation.rule for violation in report.violations) == found


def test_a_violation_is_named_by_its_place_and_no_value() -> None:
    (violation,) = checked([row(0, 1, 6), row(0, 1, 5, "secret")]).violations
    assert (violation.partition, violation.offset, violation.ts) == (0, 101, 5)
    assert violation.what == "a later change of the same key appeared before (a row of table shop.t)"


def test_counts() -> None:
    steps = [row(0, 1, 5), row(0, 1, 5), row(1, 2, 5, kind="update"), resolved(0, 6), resolved(1, 6), resolved(1, 5)]
    report = checked([*steps, ddl(0, 7)])
    assert (report.rows, report.duplicates, report.resolved, report.resolved_went_back) == (3, 1, 3, 1)
    assert (report.ddls, report.ddls_on_their_way) == (1, 1)
    assert [(each.messages, each.rows, each.resolved_ts) for each in report.partitions.values()] == [
        (4, 2, 6),
        (3, 1, 6),
    ]


def test_a_report_is_json() -> None:
    told = json.loads(checked([row(0, 1, 6), row(0, 1, 5)]).as_json())
    assert told["is_ok"] is False
    assert told["counts"] == {"1.3 changes of a row first appear in commit order": 1}
    assert told["violations"][0]["offset"] == 101
    assert told["partitions"]["0"]["rows"] == 2


def test_canal_json_tells_of_ddls_in_one_partition() -> None:
    steps = [ddl(0, 6), resolved(0, 7), resolved(1, 7)]
    assert checked(steps, broadcasts_ddls=False).is_ok
    assert checked(steps, broadcasts_ddls=False).ddls_on_their_way == 0


def test_where_rows_go_by_ts_a_key_may_be_anywhere() -> None:
    steps = [row(0, 1, 6), row(1, 1, 5), row(1, 1, 4)]
    assert checked(steps, keys_stay=False).counts == {Rule.COMMIT_ORDER: 1}


def test_only_the_first_violations_are_kept() -> None:
    steps = [row(0, 1, 50), *(row(0, 1, ts) for ts in range(1, 40))]
    report = checked(steps, most_violations=5)
    assert (len(report.violations), report.counts[Rule.COMMIT_ORDER]) == (5, 39)


def test_a_table_without_a_key_is_held_to_what_can_be_known() -> None:
    def plain(partition: int, ts: int) -> Step:
        rows = rows_of(HEAP, (None, {"v": "a"}), ts=[ts])
        return partition, Events([RowsSeen(rows, np.zeros(1, np.int64))], [])

    assert checked([plain(0, 5), plain(1, 6)]).is_ok
    assert checked([resolved(0, 6), resolved(1, 6), plain(0, 5)]).counts == {Rule.RESOLVED: 1}


def test_rows_of_one_message_are_in_order_whatever_their_columns() -> None:
    held = {"id": 1, "v": "x"}
    protocol = OpenProtocol(delete_only_output_handle_key_columns=True)
    rows = rows_of(TABLE, (None, held), (held, None), (None, held), ts=[5, 6, 7])
    events = OpenProtocolReader().read(sent(protocol.encoder(0).encode(rows)))
    assert len(events.rows) == 2
    assert checked([(0, events)], 1).is_ok


def test_marks_among_rows_are_in_force_for_what_stands_behind_them() -> None:
    encoder = OpenProtocol(max_batch_size=1).encoder(0)
    some = [sent(encoder.encode(rows_of(TABLE, (None, {"id": n, "v": "x"}), ts=[5]))) for n in (1, 2)]
    mark = sent_alone([OpenProtocol().resolved(Ts(6), 0)])
    messages = [(m.keys[0].as_py(), m.values[0].as_py()) for m in (some[0], mark, some[1])]
    checker = Checker(1)
    checker.observe(0, np.array([7, 8, 9]), OpenProtocolReader().read(received(*messages)))
    (violation,) = checker.report().violations
    assert (violation.rule, violation.offset) == (Rule.RESOLVED, 9)


def test_memory_is_bounded_by_what_is_not_resolved_yet() -> None:
    steps = []
    for ts in range(10, 2000):
        steps += [row(0, ts % 50, ts), resolved(0, ts), resolved(1, ts)]
    checker = Checker(2, keep=100)
    for partition, events in steps:
        checker.observe(partition, np.array([0]), events)
        assert checker._memory.changes <= 101
    assert checker.report().is_ok
    checker.observe(0, np.array([0]), row(0, 7, 11)[1])
    report = checker.report()
    assert (report.is_ok, report.unverifiable) == (True, 1)


def test_without_any_resolved_ts_the_oldest_rows_are_forgotten() -> None:
    checker = Checker(1, keep=100)
    for ts in range(1, 1000):
        checker.observe(0, np.array([0]), row(0, ts % 50, ts)[1])
    assert checker._memory.changes <= 101
    assert checker.report().is_ok


Event = tuple[str, int, int, int]  # what, partition, key, ts
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["row", "row", "row", "resolved"]), st.integers(0, 1), st.integers(0, 1), st.integers(1, 9)
    ).map(lambda event: (*event[:2], 2 * event[2] + event[1], event[3])),  # each key in one partition
    max_size=30,
)


@given(EVENTS, st.integers(1, 5))
def test_any_messages_against_the_plainest_model(events: list[Event], chunk: int) -> None:
    counts, duplicates = plain_model(events)
    checker = Checker(2)
    for begin in range(0, len(events), chunk):
        for partition in (0, 1):
            some = [event for event in events[begin : begin + chunk] if event[1] == partition]
            checker.observe(partition, np.arange(len(some)), joined(some))
    report = checker.report()
    assert Counter({rule: n for rule, n in report.counts.items() if rule in counts}) == +counts
    assert report.duplicates == duplicates


def joined(events: list[Event]) -> Events:
    places = [n for n, (what, *_) in enumerate(events) if what == "row"]
    changes = [(None, {"id": events[n][2], "v": str(events[n][3])}) for n in places]
    rows = rows_of(TABLE, *changes, ts=[events[n][3] for n in places])
    marks: list[tuple[int, Mark]] = [
        (n, ResolvedSeen(Ts(ts))) for n, (what, _, _, ts) in enumerate(events) if what == "resolved"
    ]
    return Events([RowsSeen(rows, np.array(places, np.int64))] if places else [], marks)


def plain_model(events: list[Event]) -> tuple[Counter[Rule], int]:
    counts = Counter({Rule.COMMIT_ORDER: 0, Rule.RESOLVED: 0})
    seen: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    highest = {0: 0, 1: 0}
    duplicates = 0
    for what, partition, key, ts in events:
        if what == "resolved":
            highest[partition] = max(highest[partition], ts)
        elif (key, ts) in seen:
            duplicates += 1
        else:
            seen.add((key, ts))
            counts[Rule.RESOLVED] += ts < highest[partition]
            counts[Rule.COMMIT_ORDER] += ts < last.get(key, 0)
            last[key] = max(last.get(key, 0), ts)
    return counts, duplicates
