"""``partition = "conflict"``: where meetings stand in a topic, who reads by them, and what it is refused for."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.flow.dispatcher.conflict_world import Change, Downstream, Row, changes
from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tests.kafka import Broker
from tests.open_topic import ADMIN, RESOLVED, ROW, Event, Log
from tests.sinks.kafka.feed import Feed, log_of
from tidemill.consumer.alignment import Alignment, Consistency, Position, Write
from tidemill.consumer.check_topic import check_topic
from tidemill.errors import ConfigError
from tidemill.flow.encoder import OpenProtocol
from tidemill.flow.reader import Received
from tidemill.flow.reader.registry import reader_for
from tidemill.model.changefeed import Dispatch
from tidemill.model.event import MeetSeen, ResolvedSeen
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

BY_CONFLICT = (Dispatch(("*.*",), "conflict"),)
SEATS = table_of(
    column("id", ColumnType.LONGLONG, KEY, flen=20), column("a", ColumnType.LONGLONG, NOT_NULL, flen=20),
    name="seats", uniques=[["a"]],
)  # fmt: skip
WIDE = table_of(
    *(column(n, ColumnType.LONGLONG, KEY if n == "id" else NOT_NULL, flen=20) for n in ("id", "a", "b")),
    name="wide",
    uniques=[["a"], ["b"]],
)


def test_a_meeting_stands_in_every_partition_between_the_rows_before_and_behind(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=3"), BY_CONFLICT)
    swap = [({"id": n, "a": n}, None) for n in range(10)] + [(None, {"id": n, "a": 9 - n}) for n in range(10)]
    first = [(None, {"id": n, "a": n}) for n in range(10)]
    stamps = [COMMIT_TS + n for n in range(10)] + [COMMIT_TS + 20] * 20
    receipt = feed.target(of=SEATS).write(iter([rows_of(SEATS, *first, *swap, ts=stamps)]))
    assert receipt.rows == 30
    for part in log_of(broker, topic).partitions:
        at = [i for i, event in enumerate(part) if event.kind == ADMIN]
        assert [part[i].ts - COMMIT_TS for i in at] == [-1, 19]
        assert at[0] == 0
        assert all(event.ts <= COMMIT_TS + 19 for event in part[: at[1]])
        assert all(event.ts > COMMIT_TS + 19 for event in part[at[1] + 1 :] if event.kind == ROW)
        assert any(event.kind == ROW for event in part[at[1] :])


def test_a_meeting_is_read_back() -> None:
    message = OpenProtocol().meet(Ts(COMMIT_TS), "shop", "seats")
    received = Received(pa.array([message.key], pa.binary()), pa.array([message.value], pa.binary()))
    events = reader_for(OpenProtocol()).read(received)
    assert list(events.marks) == [(0, MeetSeen(Ts(COMMIT_TS), "shop", "seats"))]


def test_a_protocol_that_has_no_meetings_is_refused(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=canal-json"), BY_CONFLICT)
    with pytest.raises(ConfigError, match=r"shop\.seats is dispatched by conflict, and protocol canal-json"):
        feed.owner.know([SEATS])
    with pytest.raises(ConfigError, match="Use open-protocol"):
        feed.target(of=SEATS)


def batch(some: list[Change]) -> Iterator[RowBatch]:
    pairs = [tuple(row and dict(zip(("id", "a", "b"), row, strict=True)) for row in each[1:]) for each in some]
    yield rows_of(WIDE, *((old, new) for old, new in pairs), ts=[COMMIT_TS + ts for ts, _, _ in some])


def send_all(uri: str, some: list[Change], rng: random.Random) -> Feed:
    """In batches, some of which are lost before they are saved: their rows come again, and batches end elsewhere."""
    feed, sent_ts = Feed(uri, BY_CONFLICT), 0
    while sent_ts < some[-1][0]:
        to_ts = sent_ts + 10 * rng.randint(5, 60)
        lost_ts = to_ts + 10 * rng.randint(-3, 10)
        if rng.random() < 0.5:
            feed.target(of=WIDE).write(batch([each for each in some if sent_ts < each[0] <= lost_ts]))
            feed = Feed(uri, BY_CONFLICT, feed.saved)
        receipt = feed.target(of=WIDE).write(batch([each for each in some if sent_ts < each[0] <= to_ts]))
        feed.saved = feed.owner.take(feed.writer.commit(Ts(COMMIT_TS + to_ts), [receipt]))
        feed.owner.publish(Ts(COMMIT_TS + to_ts))
        sent_ts = to_ts
    return feed


def change_of(event: Event) -> Change:
    columns = event.columns
    row: Row = columns["id"]["v"], columns["a"]["v"], columns["b"]["v"]
    return (event.ts, row, None) if "d" in event.value else (event.ts, None, row)


def read_by_rows(log: Log, rng: random.Random) -> tuple[Downstream, int]:
    """Partitions are read at whatever pace, and written as far as the alignment lets each. With how often one was
    ahead of another."""
    alignment = Alignment(range(4), Position(), Consistency.ROW, ddls_in_first_only=False)
    at, held, downstream, ahead = [0] * 4, [set[Change]() for _ in range(4)], Downstream(), 0
    while any(at[n] < len(log.partitions[n]) for n in range(4)) or alignment.step() is not None:
        number = rng.randrange(4)
        for event in log.partitions[number][at[number] : at[number] + rng.randint(1, 60)]:
            at[number] += 1
            if event.kind == RESOLVED:
                alignment.resolve(number, ResolvedSeen(Ts(event.ts)))
            elif event.kind == ADMIN:
                alignment.meet(Ts(event.ts))
            elif event.ts > alignment.applied_ts(number):
                held[number].add(change_of(event))
        step = alignment.step()
        if isinstance(step, Write):
            due = [{each for each in held[p] if each[0] <= ts} for p, ts in step.to.items()]
            for change in sorted(set[Change]().union(*due), key=lambda each: (each[0], each[2] is not None)):
                downstream.apply(change)
            held = [{each for each in held[p] if each[0] > step.to.get(p, 0)} for p in range(4)]
            alignment.written(step.to)
            ahead += len(set(alignment.position.applied.values())) > 1
    return downstream, ahead


def test_readers_by_rows_are_right_however_batches_are_cut_and_come_again(broker: Broker, topic: str) -> None:
    some, wanted = changes(random.Random(3), 200, rows=20)
    feed = send_all(broker.uri(topic, "protocol=open-protocol&partition-num=4"), some, random.Random(4))
    report = check_topic(feed.options, keys_stay=True, partitions=4, should_stop=lambda: False)
    assert report.is_ok, report.violations
    assert report.duplicates
    log = log_of(broker, topic)
    log.check()
    assert len({event.kind for event in log.partitions[0]} & {ROW, RESOLVED, ADMIN}) == 3
    for number in range(20):
        found, ahead = read_by_rows(log, random.Random(number))
        assert found.rows == wanted
        assert ahead
