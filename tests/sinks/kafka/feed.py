"""Both halves of the sink without Spark: rows in, messages in a topic."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.flow.encoder.samples import COMMIT_TS, KEY, column, rows_of, table_of
from tests.kafka import Broker
from tests.open_topic import Log, read_log
from tidemill.flow.dispatcher import Dispatching
from tidemill.model.changefeed import Dispatch
from tidemill.model.progress import Checkpoints
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import read_sink_uri
from tidemill.sinks.kafka import KafkaOptions
from tidemill.sinks.kafka.sink import KafkaOwner, KafkaWriter
from tidemill.sinks.kafka.target import KafkaTarget

HASTY = "write-timeout=2s&dial-timeout=3s&read-timeout=3s"
BY_KEY = (Dispatch(("*.*",), "index-value"),)


def table(name: str = "item", **more: Any) -> TableInfo:
    return table_of(
        column("id", ColumnType.LONGLONG, KEY, flen=20), column("v", ColumnType.VARCHAR, flen=20), name=name, **more
    )


ITEM = table()


def inserts(first: int, end: int, of: TableInfo = ITEM, text: str = "") -> Iterator[RowBatch]:
    """Row ``n`` at COMMIT_TS + n, some in a batch."""
    for start in range(first, end, 50):
        numbers = range(start, min(start + 50, end))
        rows = ((None, {"id": n, "v": text or str(n)}) for n in numbers)
        yield rows_of(of, *rows, ts=[COMMIT_TS + n for n in numbers])


class Feed:
    """A changefeed of one process: what is saved, and both halves."""

    def __init__(self, uri: str, dispatchers: tuple[Dispatch, ...] = (), state: Any = None, **more: Any) -> None:
        options = read_sink_uri(uri, dispatching=Dispatching(dispatchers)).named("feed", 7)
        assert isinstance(options, KafkaOptions)
        self.options = replace(options, **more)
        self.saved = state
        self.owner = KafkaOwner(self.options, state)
        self.owner.begin()
        self.writer = self.another("main")

    def another(self, name: str) -> KafkaWriter:
        writer = KafkaWriter(self.options, name)
        writer.recover(Checkpoints(Ts(COMMIT_TS)), None, self.saved, None, self.owner.term)
        return writer

    def target(self, end: int = 1 << 20, of: TableInfo = ITEM, writer: KafkaWriter | None = None) -> KafkaTarget:
        return (writer or self.writer).target(of, of.id, (Ts(COMMIT_TS), Ts(COMMIT_TS + end)))

    def batch(self, first: int, end: int, of: TableInfo = ITEM) -> None:
        receipt = self.target(end, of).write(inserts(first, end, of))
        self.saved = self.owner.take(self.writer.commit(Ts(COMMIT_TS + end), [receipt]))
        self.owner.publish(Ts(COMMIT_TS + end - 1))


def ids(log: Log) -> list[int]:
    """Of first appearances, in order within each partition."""
    found: dict[str, int] = {}
    for event in log.events(1):
        found.setdefault(event.identity, event.columns["id"]["v"])
    return list(found.values())


def log_of(broker: Broker, topic: str) -> Log:
    return read_log(broker, topic)
