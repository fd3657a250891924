"""Processes of one group: who has the work, what they remember together, and that nobody else's word counts."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.processes import wait_until
from tests.kafka import PASSWORD, STRANGER, Broker
from tests.kafka import running as running_kafka
from tidemill.consumer.alignment import Position
from tidemill.consumer.group import Group
from tidemill.consumer.group_state import (
    GroupState,
    contents_of,
    ensure_topic,
    messages_of,
    parts_of,
    topic_of,
)
from tidemill.consumer.state import ConsumerState
from tidemill.consumer.topic import parse_topic
from tidemill.errors import CorruptDataError, SupersededError, UpstreamError
from tidemill.model.ts import Ts
from tidemill.sinks.kafka import KafkaOptions

STATE = ConsumerState(
    "cluster/topic", "mysql://host/", Position({0: Ts(7), 1: Ts(9)}, Ts(5), ("shop\x00t\x00drop table t",), 3),
    {0: 12, 1: 0}, {"shop.t": 1}, 42, {"format": 1}, meeting=frozenset({("shop", "t")}), begun_ts=Ts(11),
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(["id", "sink", "tables"]), st.binary(max_size=40)), max_size=4))
def test_the_last_content_of_each_part_comes_back(saves: list[dict[str, bytes]]) -> None:
    topic: dict[str, bytes] = {}
    expected: dict[str, bytes] = {}
    for parts in saves:
        expected |= parts
        topic |= {key: value for name, content in parts.items() for key, value in messages_of(name, content)}
    assert contents_of(topic) == expected


def test_a_part_that_has_become_shorter_leaves_nothing_of_the_longer_one() -> None:
    long, short = secrets.token_bytes(1_200_000), b"short"
    assert [key for key, _ in messages_of("tables", long)] == ["tables/0", "tables/1", "tables/2"]
    topic = dict(messages_of("tables", long))
    assert contents_of(topic) == {"tables": long}
    assert contents_of(topic | dict(messages_of("tables", short))) == {"tables": short}


def test_a_batch_moves_no_tables() -> None:
    moved = replace(STATE, rows=43, offsets={0: 13, 1: 0})
    before, after = parts_of(STATE), parts_of(moved)
    assert {name for name in after if before[name] != after[name]} == {"position"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        started.create("shop")
        yield started


@pytest.fixture
def name(broker: Broker) -> str:
    return f"g{secrets.token_hex(4)}"


@pytest.fixture
def kafka(broker: Broker, name: str) -> KafkaOptions:
    found = parse_topic(broker.uri("shop"))
    ensure_topic(found, name)
    ensure_topic(found, name)  # another member comes
    return found


def begun(kafka: KafkaOptions, name: str) -> GroupState:
    state = GroupState(kafka, name, lambda: False)
    state.begin()
    return state


@pytest.mark.slow
def test_a_later_process_knows_what_an_earlier_one_has_saved_and_refuses_what_it_still_saves(
    kafka: KafkaOptions, name: str
) -> None:
    first = begun(kafka, name)
    assert first.load() is None
    known = first.consumer_id()
    large = {f"shop.t{n}.{secrets.token_hex(300)}": n for n in range(3000)}  # more than one message
    first.save(replace(STATE, ids=large))
    first.save(replace(STATE, ids=large, rows=43))
    second = begun(kafka, name)
    assert second.load() == replace(STATE, ids=large, rows=43)
    assert second.consumer_id() == known
    with pytest.raises(SupersededError, match="has taken the work over"):
        first.save(replace(STATE, rows=1))
    second.save(STATE)
    third = begun(kafka, name)
    assert third.load() == STATE
    for state in (first, second, third):
        state.close()


@pytest.mark.slow
def test_who_begins_late_cannot_confirm_that_the_work_is_theirs(kafka: KafkaOptions, name: str) -> None:
    paused, other = begun(kafka, name), begun(kafka, name)
    with pytest.raises(SupersededError):
        paused.consumer_id()
    other.save(STATE)
    with pytest.raises(SupersededError):
        paused.save(STATE)


@pytest.mark.slow
def test_a_save_waits_for_a_broker_that_is_away(broker: Broker, kafka: KafkaOptions, name: str) -> None:
    state = begun(kafka, name)
    state.save(STATE)
    broker.kill()
    broker.start()
    state.save(replace(STATE, rows=44))
    assert begun(kafka, name).load() == replace(STATE, rows=44)


@pytest.mark.slow
def test_what_is_not_a_state_is_named(broker: Broker, kafka: KafkaOptions, name: str) -> None:
    from confluent_kafka import Producer

    producer: Any = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic_of(name), b"what?", "position/0", partition=0)
    producer.flush(30)
    with pytest.raises(CorruptDataError, match=f"cannot understand the state of group '{name}'"):
        begun(kafka, name)


@pytest.mark.slow
def test_a_user_without_rights_hears_which_are_missing(broker: Broker, name: str) -> None:
    uri = f"kafka://127.0.0.1:{broker.sasl_port}/shop?protocol=open-protocol&sasl-mechanism=plain"
    kafka = parse_topic(f"{uri}&sasl-user={STRANGER}&sasl-password={PASSWORD.replace('/', '%2F').replace('&', '%26')}")
    with pytest.raises(UpstreamError, match="grant the user Create"):
        ensure_topic(kafka, name)
    ensure_topic(parse_topic(broker.uri("shop")), name)
    with pytest.raises(UpstreamError, match=f"transactional id tidemill-group-{name}"):
        begun(kafka, name)


@pytest.mark.slow
def test_one_member_has_the_work_and_the_next_one_when_it_leaves(kafka: KafkaOptions, name: str) -> None:
    members = [Group(kafka, name) for _ in range(3)]
    try:
        members[0].join()
        wait_until(lambda: members[0].is_mine, "the work")
        for member in members[1:]:
            member.join()
        wait_until(lambda: len(assigned(kafka, name)) == 3, "three members", every_seconds=0.1)
        assert [member.is_mine for member in members] == [True, False, False]
        members[0].tell({0: 12})
        wait_until(lambda: committed(kafka, name) == 12, "the offset that it told", every_seconds=0.1)
        members.pop(0).leave()
        wait_until(lambda: any(member.is_mine for member in members), "another one at work")
        assert sum(member.is_mine for member in members) == 1
    finally:
        for member in members:
            member.leave()


def assigned(kafka: KafkaOptions, name: str) -> list[Any]:
    """Members of a group that is at rest."""
    from confluent_kafka import ConsumerGroupState
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.place})
    found = admin.describe_consumer_groups([name])[name].result(30)
    return list(found.members) if found.state is ConsumerGroupState.STABLE else []


def committed(kafka: KafkaOptions, name: str) -> int | None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.place})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(30)
    return next((place.offset for place in found.topic_partitions if place.topic == kafka.topic), None)
