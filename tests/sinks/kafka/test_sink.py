"""What the sink leaves in topics: each message in its partition, in order, and told of."""

import json
from typing import Any

import pytest

from tests.flow.encoder.samples import COMMIT_TS
from tests.kafka import Broker
from tests.open_topic import RESOLVED, ROW
from tests.sinks.kafka.feed import BY_KEY, ITEM, Feed, ids, inserts, log_of, table
from tidemill.errors import ConfigError, SinkError
from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.model.changefeed import Dispatch
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.kafka.producer import Sending
from tidemill.testing.schema_registry import StandInRegistry


def ddl(of: TableInfo, at: int, kind: ActionType = ActionType.ADD_COLUMN, **more: Any) -> DdlEvent:
    ts = Ts(COMMIT_TS + at)
    return DdlEvent(ts, Ts(ts - 1), 0, kind, kind, f"ddl {at}", of.schema, of.name, of, **more)


def test_a_row_is_in_the_partition_that_ticdc_would_choose(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=6"), BY_KEY)
    feed.batch(0, 200)
    log = log_of(broker, topic)
    log.check()
    rule = PartitionRule(Kind.INDEX_VALUE)
    wanted = [each for rows in inserts(0, 200) for each in rule.partitions(rows, 6).tolist()]
    found = {e.columns["id"]["v"]: number for number, part in enumerate(log.partitions) for e in part if e.kind == ROW}
    assert [found[n] for n in range(200)] == wanted
    assert len(set(wanted)) == 6


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json&enable-tidb-extension=true"])
def test_all_partitions_hear_of_the_resolved_ts_once(broker: Broker, topic: str, protocol: str) -> None:
    feed = Feed(broker.uri(topic, f"protocol={protocol}"))
    feed.batch(0, 10)
    feed.owner.publish(Ts(COMMIT_TS + 9))
    feed.owner.publish(Ts(COMMIT_TS + 8))
    said = [[m.value for m in part if b"WATERMARK" in (m.value or b"") or b'"t":3' in (m.key or b"")]
            for part in broker.messages(topic)]  # fmt: skip
    assert [len(part) for part in said] == [1, 1, 1]


def test_a_protocol_without_resolved_ts_says_nothing_of_it(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=canal-json"))
    feed.batch(0, 10)
    found = [json.loads(m.value or b"") for part in broker.messages(topic) for m in part]
    assert [each["type"] for each in found] == ["INSERT"] * 10


@pytest.mark.parametrize(
    ("protocol", "partitions"), [("open-protocol", [1, 1, 1]), ("canal-json", [1, 0, 0])], ids=["everywhere", "first"]
)
def test_where_a_ddl_goes(broker: Broker, topic: str, protocol: str, partitions: list[int]) -> None:
    feed = Feed(broker.uri(topic, f"protocol={protocol}"))
    feed.owner.ddl(ddl(ITEM, 3))
    assert [sum(b"ddl 3" in (m.value or b"") for m in part) for part in broker.messages(topic)] == partitions


def test_tables_have_topics_by_expression_and_all_hear_of_the_resolved_ts(broker: Broker, topic: str) -> None:
    rules = (Dispatch(("shop.*",), topic=f"{topic}_{{schema}}_{{table}}"),)
    feed = Feed(broker.uri(topic), rules)
    item, idle = table("item"), table("idle", table_id=109)
    feed.owner.know([item, idle])
    feed.batch(0, 10, item)
    names = [topic, f"{topic}_shop_idle", f"{topic}_shop_item"]
    assert sorted(name for name in broker.topics() if name.startswith(topic)) == names
    for name in names:
        log = log_of(broker, name)
        assert (len(log.partitions), log.resolved_ts) == (3, COMMIT_TS + 9)
    assert ids(log_of(broker, names[2])) == list(range(10))
    # A rename goes where readers of the old name look; a DDL of a database to the default topic.
    feed.owner.ddl(ddl(table("new"), 20, ActionType.RENAME_TABLE, pre_schema="shop", pre_table="item"))
    database = ddl(ITEM, 21, ActionType.CREATE_SCHEMA)
    feed.owner.ddl(DdlEvent(database.finished_ts, database.start_ts, 0, 1, 1, "ddl 21", "shop", "", None))
    assert log_of(broker, names[2]).queries() == ["ddl 20"]
    assert log_of(broker, topic).queries() == ["ddl 21"]


def test_a_topic_that_grows_gets_rows_where_they_were(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic), BY_KEY)
    feed.batch(0, 100)
    broker.grow(topic, 7)
    feed = Feed(broker.uri(topic), BY_KEY, feed.saved)
    feed.batch(0, 200)  # those that came before are copies, in the same partitions
    log = log_of(broker, topic)
    assert [len(part) for part in log.partitions[3:]] == [0, 0, 0, 0]
    assert log.copies == 100
    log.partitions = log.partitions[:3]
    assert sorted(ids(log)) == list(range(200))


def test_a_topic_that_grows_before_anything_is_saved_changes_nothing(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    feed = Feed(broker.uri(topic), BY_KEY)
    saved = feed.owner.know([ITEM])  # before the first row
    feed.target().write(inserts(0, 100))  # and now it is killed
    broker.grow(topic, 5)
    feed = Feed(broker.uri(topic), BY_KEY, saved)
    feed.batch(0, 100)
    log = log_of(broker, topic)
    assert (log.copies, [len(part) for part in log.partitions[2:]]) == (100, [0, 0, 0])


def test_a_later_table_is_spread_as_was_saved_with_its_ddl(broker: Broker, topic: str) -> None:
    rules = (Dispatch(("shop.*",), partition="index-value", topic=f"{topic}_{{schema}}_{{table}}"),)
    later = table("later", table_id=300)
    feed = Feed(broker.uri(topic), rules)
    saved = feed.owner.ddl(ddl(later, 3, ActionType.CREATE_TABLE))
    assert saved is not None
    assert feed.owner.ddl(ddl(later, 4)) is None  # nothing new
    feed.target(of=later).write(inserts(10, 110, later))  # and now it is killed
    broker.grow(f"{topic}_shop_later", 5)
    feed = Feed(broker.uri(topic), rules, saved)
    feed.batch(10, 110, later)
    log = log_of(broker, f"{topic}_shop_later")
    assert (log.copies, [sum(e.kind == ROW for e in part) for part in log.partitions[3:]]) == (100, [0, 0])


def test_a_later_table_whose_topic_grows_before_its_first_row_stays_where_that_went(broker: Broker, topic: str) -> None:
    rules = (Dispatch(("shop.*",), partition="index-value", topic=f"{topic}_{{schema}}_{{table}}"),)
    later = table("later", table_id=300)
    feed = Feed(broker.uri(topic), rules)
    promised = feed.owner.ddl(ddl(later, 3, ActionType.CREATE_TABLE))
    broker.grow(f"{topic}_shop_later", 5)
    elsewhere = Feed(broker.uri(topic), rules, client_id="elsewhere")  # where nobody has heard of the topic yet
    receipt = elsewhere.target(of=later).write(inserts(10, 110, later))
    saved = feed.owner.take(elsewhere.writer.commit(Ts(COMMIT_TS + 110), [receipt]))
    assert promised is not None
    assert (promised["topics"][f"{topic}_shop_later"], saved["topics"][f"{topic}_shop_later"]) == (3, 5)
    feed = Feed(broker.uri(topic), rules, saved, client_id="elsewhere")
    feed.batch(10, 210, later)
    log = log_of(broker, f"{topic}_shop_later")
    assert (log.copies, sorted(ids(log))) == (100, list(range(10, 210)))


def test_a_topic_whose_tables_are_gone_hears_once_more_and_then_no_more(broker: Broker, topic: str) -> None:
    rules = (Dispatch(("shop.*",), topic=f"{topic}_{{schema}}_{{table}}"),)
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=1"), rules)
    names = ("item", "gone", "old")
    feed.saved = feed.owner.know([table(name, table_id=200 + n) for n, name in enumerate(names)])
    feed.batch(0, 10, table("gone", table_id=201))
    feed.owner.ddl(ddl(table("gone", table_id=201), 20, ActionType.DROP_TABLE))
    renamed = ddl(table("new", table_id=202), 21, ActionType.RENAME_TABLE, pre_schema="shop", pre_table="old")
    feed.owner.ddl(renamed)
    feed.owner.publish(Ts(COMMIT_TS + 19))
    feed.owner.publish(Ts(COMMIT_TS + 30))
    feed.owner.publish(Ts(COMMIT_TS + 40))
    found = {name: log_of(broker, f"{topic}_shop_{name}").resolved_ts - COMMIT_TS for name in (*names, "new")}
    assert found == {"item": 40, "gone": 30, "old": 30, "new": 40}
    broker.delete(f"{topic}_shop_gone")
    Feed(broker.uri(topic, "protocol=open-protocol&partition-num=1"), rules, feed.saved).owner.publish(
        Ts(COMMIT_TS + 50)
    )


def test_a_broadcast_does_not_wait_for_each_partition(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=100"))
    flushes = 0

    def counted(self: Sending, *_: object) -> None:
        nonlocal flushes
        flushes += 1
        wait(self, *_)  # type: ignore[arg-type]

    wait = Sending._wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sending, "_wait", counted)
        feed.owner.publish(Ts(COMMIT_TS + 1))
    assert flushes == 1
    assert log_of(broker, topic).resolved_ts == COMMIT_TS + 1


def test_avro_s_topics_have_one_table_each(broker: Broker, topic: str) -> None:
    with StandInRegistry() as registry:
        uri = broker.uri(topic, f"protocol=avro&schema-registry={registry.uri}")
        feed = Feed(uri)
        with pytest.raises(ConfigError, match=r"shop\.item and shop\.more would share topic .* Give each a topic"):
            feed.owner.know([ITEM, table("more", table_id=7)])
        Feed(uri, (Dispatch(("*.*",), topic="{schema}_{table}"),)).owner.know([ITEM, table("more", table_id=7)])


@pytest.mark.parametrize(
    ("there", "asked", "used"),
    [(4, "", 4), (4, "&partition-num=2", 2), (None, "&partition-num=5", 5), (None, "", 3)],
    ids=["all that are there", "some", "made as asked", "made"],
)
def test_how_many_partitions_are_used(broker: Broker, topic: str, there: int | None, asked: str, used: int) -> None:
    if there is not None:
        broker.create(topic, there)
    feed = Feed(broker.uri(topic, f"protocol=open-protocol{asked}"))
    feed.batch(0, 1)
    resolved = [sum(event.kind == RESOLVED for event in part) for part in log_of(broker, topic).partitions]
    assert resolved == [1] * used + [0] * ((there or used) - used)
    assert feed.saved["topics"] == {topic: used}


def test_fewer_partitions_than_asked_for_are_refused(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    with pytest.raises(SinkError, match=f"topic '{topic}' has 2 partitions, where 3 are wanted"):
        Feed(broker.uri(topic, "protocol=open-protocol&partition-num=3"))


def test_a_topic_that_is_missing_is_refused_where_none_is_to_be_made(broker: Broker, topic: str) -> None:
    with pytest.raises(SinkError, match=f"topic '{topic}' is not there, and auto-create-topic is false"):
        Feed(broker.uri(topic, "protocol=open-protocol&auto-create-topic=false"))
    assert topic not in broker.topics()


def test_more_replicas_than_brokers_are_refused(broker: Broker, topic: str) -> None:
    with pytest.raises(SinkError, match="Change replication-factor") as raised:
        Feed(broker.uri(topic, "protocol=open-protocol&replication-factor=3"))
    assert not raised.value.retryable


def test_another_cluster_is_refused(broker: Broker, topic: str) -> None:
    state = {"format": 1, "kafka_cluster": "other", "topics": {topic: 3}}
    with pytest.raises(SinkError, match="has sent to the Kafka cluster 'other'"):
        Feed(broker.uri(topic), state=state)


def test_a_topic_that_was_deleted_is_an_error(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic))
    feed.batch(0, 1)
    admin = broker.admin()
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(SinkError, match="is not there any more"):
        Feed(broker.uri(topic), state=feed.saved)


def test_a_rule_that_does_not_fit_a_table_is_refused_at_the_start(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic), (Dispatch(("*.*",), "columns", columns=("nope",)),))
    with pytest.raises(ConfigError, match=r"shop\.item has no column 'nope'"):
        feed.owner.know([ITEM])


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_the_limit_of_messages_is_the_topics(broker: Broker, topic: str, protocol: str, compression: str) -> None:
    broker.create(topic, 1, max_message_bytes="3000")
    feed = Feed(broker.uri(topic, f"protocol={protocol}&compression={compression}"))
    feed.batch(0, 400)  # many more bytes than fit into one batch of the broker
    assert feed.target().topic.most_bytes == 3000 - 128
    with pytest.raises(SinkError, match=r"a row of table shop.item becomes a message of \d+ bytes, above") as raised:
        feed.target().write(inserts(400, 401, text="x" * 3000))
    assert not raised.value.retryable
    feed.batch(400, 410)  # the producer is none the worse for it
    count = sum((m.value or b"").count(b'"id"') for m in broker.partition(topic, 0))
    assert count >= 410


def test_the_default_limit_is_the_uris(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&max-message-bytes=900"))
    assert feed.target().topic.most_bytes == 900
    feed.batch(0, 100)
    assert max(len(m.key or b"") + len(m.value or b"") for part in broker.messages(topic) for m in part) <= 900
