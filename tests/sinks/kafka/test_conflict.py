"""``partition = "conflict"``: where meetings stand in a topic, and what it is refused for."""

import pyarrow as pa
import pytest

from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tests.kafka import Broker
from tests.open_topic import ROW
from tests.sinks.kafka.feed import Feed, log_of
from tidemill.errors import ConfigError
from tidemill.flow.encoder import OpenProtocol
from tidemill.flow.reader import Received
from tidemill.flow.reader.registry import reader_for
from tidemill.model.changefeed import Dispatch
from tidemill.model.event import MeetSeen
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

BY_CONFLICT = (Dispatch(("*.*",), "conflict"),)
SEATS = table_of(
    column("id", ColumnType.LONGLONG, KEY, flen=20), column("a", ColumnType.LONGLONG, NOT_NULL, flen=20),
    name="seats", uniques=[["a"]],
)  # fmt: skip


def test_a_meeting_stands_in_every_partition_between_the_rows_before_and_behind(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=3"), BY_CONFLICT)
    swap = [({"id": n, "a": n}, None) for n in range(10)] + [(None, {"id": n, "a": 9 - n}) for n in range(10)]
    first = [(None, {"id": n, "a": n}) for n in range(10)]
    stamps = [COMMIT_TS + n for n in range(10)] + [COMMIT_TS + 20] * 20
    receipt = feed.target(of=SEATS).write(iter([rows_of(SEATS, *first, *swap, ts=stamps)]))
    assert receipt.rows == 30
    for part in log_of(broker, topic).partitions:
        at = [i for i, event in enumerate(part) if event.kind == 4]
        assert [part[i].ts - COMMIT_TS for i in at] == [-1, 19]
        assert at[0] == 0
        assert all(event.ts <= COMMIT_TS + 19 for event in part[: at[1]])
        assert all(event.ts > COMMIT_TS + 19 for event in part[at[1] + 1 :] if event.kind == ROW)
        assert any(event.kind == ROW for event in part[at[1] :])


def test_a_meeting_is_read_back() -> None:
    message = OpenProtocol().meet(Ts(COMMIT_TS))
    received = Received(pa.array([message.key], pa.binary()), pa.array([message.value], pa.binary()))
    events = reader_for(OpenProtocol()).read(received)
    assert list(events.marks) == [(0, MeetSeen(Ts(COMMIT_TS)))]


def test_a_protocol_that_has_no_meetings_is_refused(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=canal-json"), BY_CONFLICT)
    with pytest.raises(ConfigError, match=r"shop\.seats is dispatched by conflict, and protocol canal-json"):
        feed.owner.know([SEATS])
    with pytest.raises(ConfigError, match="Use open-protocol"):
        feed.target(of=SEATS)
