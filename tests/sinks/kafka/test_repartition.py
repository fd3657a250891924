"""More partitions, and fewer: what the sink leaves in topics, whoever dies at whatever step."""

from dataclasses import replace
from typing import Any

import pytest

from tests.flow.encoder.samples import COMMIT_TS
from tests.kafka import Broker
from tests.open_topic import ROW, Log
from tests.sinks.kafka.feed import BY_KEY, Feed, ids, inserts, log_of, table
from tidemill.consumer.check_topic import check_topic
from tidemill.errors import UsageError
from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.model.changefeed import Dispatch
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts
from tidemill.sinks.kafka.target import KafkaTarget

ADMIN = 4


def cut(feed: Feed, partitions: int, at: int) -> None:
    """As the owner does, up to what is saved."""
    feed.owner.prepare(partitions)
    feed.saved = feed.owner.sync(Ts(COMMIT_TS + at))


def go_on(feed: Feed, at: int) -> None:
    """And from there on."""
    feed.writer.recover(Checkpoints(Ts(COMMIT_TS + at)), (), feed.saved, None, feed.owner.term)
    feed.owner.publish(Ts(COMMIT_TS + at))
    feed.saved = feed.owner.sync(Ts(COMMIT_TS + at))


def admins(log: Log) -> list[list[tuple[int, int, int]]]:
    """By partition: how many partitions, which epoch, and the row number of the cut."""
    return [
        [(e.value["partition"], e.value["epoch"], e.ts - COMMIT_TS) for e in part if e.kind == ADMIN]
        for part in log.partitions
    ]


def where(log: Log) -> dict[int, set[int]]:
    """The partitions of each row."""
    found: dict[int, set[int]] = {}
    for number, part in enumerate(log.partitions):
        for event in part:
            if event.kind == ROW:
                found.setdefault(event.columns["id"]["v"], set()).add(number)
    return found


def by_rule(first: int, end: int, partitions: int) -> dict[int, set[int]]:
    found = [p for rows in inserts(first, end) for p in PartitionRule(Kind.INDEX_VALUE).partitions(rows, partitions)]
    return dict(zip(range(first, end), ({int(p)} for p in found), strict=True))


def is_kept(feed: Feed, partitions: int) -> bool:
    report = check_topic(feed.options, keys_stay=True, partitions=partitions, should_stop=lambda: False)
    assert report.is_ok, report.violations
    return report.rows > 0


def as_elsewhere(target: KafkaTarget) -> KafkaTarget:
    """In a process that has met no newer generation, nor has this one met one of it."""
    return replace(target, generation=replace(target.generation, process="elsewhere"))


def test_rows_behind_the_cut_are_spread_anew_and_every_partition_is_told_between(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=3"), BY_KEY)
    feed.batch(0, 100)
    for partitions, first in ((7, 100), (2, 200)):
        cut(feed, partitions, first - 1)
        go_on(feed, first - 1)
        feed.batch(first, first + 100)
    log = log_of(broker, topic)
    assert broker.topics()[topic] == 7
    assert admins(log) == [[(7, 1, 99), (2, 2, 199)]] * 7
    assert where(log) == by_rule(0, 100, 3) | by_rule(100, 200, 7) | by_rule(200, 300, 2)
    for part in log.partitions:  # in each partition the events stand between the rows
        cuts = [i for i, e in enumerate(part) if e.kind == ADMIN]
        assert all(e.ts - COMMIT_TS < 100 for e in part[: cuts[0]] if e.kind == ROW)
        assert all(e.ts - COMMIT_TS > 199 for e in part[cuts[1] :] if e.kind == ROW)
    assert is_kept(feed, 3)


def test_a_change_that_was_saved_is_told_by_the_next_owner(broker: Broker, topic: str) -> None:
    uri = broker.uri(topic, "protocol=open-protocol&partition-num=3")
    feed = Feed(uri, BY_KEY)
    feed.batch(0, 50)
    cut(feed, 5, 49)
    feed = Feed(uri, BY_KEY, feed.saved)  # killed before readers were told
    assert admins(log_of(broker, topic)) == [[(5, 1, 49)]] * 5
    feed.batch(50, 100)
    feed = Feed(uri, BY_KEY, feed.saved)  # and killed again
    feed.batch(100, 150)
    log = log_of(broker, topic)
    assert admins(log) == [[(5, 1, 49)]] * 5
    assert where(log) == by_rule(0, 50, 3) | by_rule(50, 150, 5)
    assert is_kept(feed, 3)


def test_a_change_that_was_not_saved_has_not_been(broker: Broker, topic: str) -> None:
    uri = broker.uri(topic, "protocol=open-protocol&partition-num=3")
    feed = Feed(uri, BY_KEY)
    feed.batch(0, 50)
    feed.owner.prepare(5)
    feed.owner.sync(Ts(COMMIT_TS + 49))
    feed = Feed(uri, BY_KEY, feed.saved)
    feed.batch(50, 100)
    log = log_of(broker, topic)
    assert len(log.partitions) == 5
    assert where(log) == by_rule(0, 100, 3)
    assert is_kept(feed, 3)


@pytest.mark.parametrize("partitions", [5, 1], ids=["more", "fewer"])
def test_what_is_late_are_copies_where_they_were(broker: Broker, topic: str, partitions: int) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=3"), BY_KEY)
    late = as_elsewhere(feed.target())
    feed.batch(0, 50)
    cut(feed, partitions, 49)
    go_on(feed, 49)
    feed.batch(50, 80)
    late.write(inserts(0, 50))
    feed.batch(80, 100)
    log = log_of(broker, topic)
    assert where(log) == by_rule(0, 50, 3) | by_rule(50, 100, partitions)
    assert log.copies == 50
    assert sorted(ids(log)) == list(range(100))
    assert is_kept(feed, 3)


def test_topics_that_come_later_have_as_many_partitions(broker: Broker, topic: str) -> None:
    rules = (Dispatch(("shop.*",), topic=f"{topic}_{{schema}}_{{table}}", partition="index-value"),)
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=2"), rules)
    feed.batch(0, 20, table("first"))
    cut(feed, 4, 19)
    go_on(feed, 19)
    feed.batch(20, 40, table("second"))
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=2"), rules, feed.saved)
    feed.batch(40, 60, table("third"))
    found = {name.removeprefix(topic): n for name, n in broker.topics().items() if name.startswith(topic)}
    assert found == {"": 4, "_shop_first": 4, "_shop_second": 4, "_shop_third": 4}
    assert feed.owner.partitions == 4


@pytest.mark.parametrize(
    ("parameters", "partitions", "reason"),
    [
        pytest.param("protocol=open-protocol", 0, "cannot have 0 partitions. Choose 1 or more", id="none"),
        pytest.param("protocol=open-protocol", -2, "cannot have -2 partitions", id="less than none"),
        pytest.param("protocol=canal-json", 5, "canal-json cannot tell readers", id="another protocol"),
    ],
)
def test_what_cannot_be_changes_nothing(
    broker: Broker, topic: str, parameters: str, partitions: int, reason: str
) -> None:
    feed = Feed(broker.uri(topic, parameters))
    feed.batch(0, 10)
    with pytest.raises(UsageError, match=reason):
        feed.owner.prepare(partitions)
    state: Any = feed.owner.sync(Ts(COMMIT_TS + 9))
    assert (state["epoch"], state["topics"], broker.topics()[topic]) == (0, {topic: 3}, 3)
