"""Both halves of the Kafka sink.

    writer:     recover ─► target, one a unit ─► (executors: dispatch, encode, send, confirm) ─► commit ─► topics
    owner:      begin, fence ─► ddl, take ─► state (caller) ─► publish: resolved-ts to every partition

There is nothing to take back: a batch that comes again is sent again, as copies. The state holds which topics are in
use, each with the number of partitions that rows are spread over: a topic may grow, and the rows of a table must stay
where they are all the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import InvariantError, SinkError
from tidemill.flow.dispatcher.partition import Kind
from tidemill.flow.encoder import Message
from tidemill.flow.encoder.port import BootstrapProtocol
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.kafka.generations import NEWEST, OWNER, Generation
from tidemill.sinks.kafka.producer import POOL, send_everywhere
from tidemill.sinks.kafka.speaking import check
from tidemill.sinks.kafka.target import KafkaTarget
from tidemill.sinks.kafka.topics import Topic, Topics
from tidemill.sinks.kafka.uri import KafkaOptions
from tidemill.sinks.port import NoSyncPoints, Rescan

_STATE_FORMAT = 1
_MOST_NAMED = 10

log = get_logger("kafka")


class KafkaOwner(NoSyncPoints):
    """The owner's half: DDLs and resolved-ts, into every partition."""

    def __init__(self, options: KafkaOptions, state: Mapping[str, Any] | None, *, rescan: Rescan | None = None) -> None:
        """Without ``rescan`` rows that were there before a table got its key are left out."""
        self._options, self._rescan = options, rescan
        self._rules = options.rules
        self._known = _Known(options, state)
        self._cluster = str((state or {}).get("kafka_cluster", ""))
        self._refilled = (state or {}).get("refilled")  # the last DDL that brought rows: its ts and number
        self._term: Generation | None = None
        self._told_ts = Ts(0)

    def begin(self) -> None:
        if self._term is not None:
            NEWEST.meet(self._term)
        found = self._known.topics.cluster_id()
        if self._cluster not in ("", found):
            raise SinkError(
                f"this changefeed has sent to the Kafka cluster {self._cluster!r}, and {self._options.place} is of "
                f"{found!r}. Give brokers of the former, or begin a new changefeed, with another --data-dir."
            )
        self._cluster = found
        check(self._options.protocol)
        self._known.topic(self._options.topic)
        self._term = NEWEST.begin((self._options.changefeed, self._options.cluster_id, OWNER))

    def know(self, tables: Iterable[TableInfo]) -> None:
        """Their topics hear of the resolved-ts from the start, rows or not."""
        loose = []
        for table in tables:
            destination = self._rules.destination(table)
            self._rules.check(table)
            self._known.topic(destination.topic)
            self._bootstrap(table, destination.topic)
            if destination.rule.kind is Kind.INDEX_VALUE and not destination.rule.keeps_row_order(table):
                loose.append(table.full_name)
        if loose:
            log.warning(
                "tables with several unique keys are spread by one of them; readers have to go by the resolved-ts to "
                "apply changes that meet in another one in their order",
                tables=", ".join(loose[:_MOST_NAMED]), count=len(loose),
            )  # fmt: skip

    def _bootstrap(self, table: TableInfo, topic: str) -> None:
        """The table's schema, where the protocol wants those of all tables told at the start."""
        protocol = self._options.protocol
        wanted = protocol.bootstraps if isinstance(protocol, BootstrapProtocol) else None
        if wanted is not None and wanted.all_at_start and isinstance(protocol, BootstrapProtocol):
            message = protocol.bootstrap(table, _now_ms())
            self._send(replace(message, partition=None if wanted.to_all_partitions else 0), [topic])

    def fence(self, writers: Collection[str] | None = None) -> None:
        self._check()
        names = None if writers is None else frozenset(writers)
        NEWEST.end(self._options.changefeed, self._options.cluster_id, names)

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Send it; again the same is a copy."""
        term = self._check()
        message = self._options.protocol.ddl(event, _now_ms())
        if message is not None:
            self._send(message, {self._topic_of(event): 0})
        if self._rescan is None or event.table_info is None or not event.gives_key:
            return None
        at = [int(event.finished_ts), event.seq]
        if self._refilled != at:
            self._refill(event.table_info, event.finished_ts, self._rescan, term)
            self._refilled = at
        return self._state()

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        self._known.learn(commit)
        return self._state()

    def publish(self, checkpoint_ts: Ts) -> None:
        """All up to it has been confirmed. Told once, to every partition that rows go to."""
        self._check()
        if checkpoint_ts <= self._told_ts:
            return
        message = self._options.protocol.resolved(checkpoint_ts, _now_ms())
        if message is not None:
            self._send(message, {self._options.topic: 0, **self._known.counts})
        self._told_ts = checkpoint_ts

    def close(self) -> None:
        """Producers are the process's own."""

    def _refill(self, table: TableInfo, ts: Ts, rescan: Rescan, term: Generation) -> None:
        """All rows as of ``ts``. They come behind the DDL and are of its new form, so their commit-ts is the next one:
        what has the DDL's own belongs before it. No higher resolved-ts has been told yet. Runs in the owner."""
        target, behind_ts = self._known.target(table, term), Ts(ts + 1)
        for physical_id in table.physical_ids:
            rows = rescan(table, [physical_id], ts)
            target.write(replace(batch, commit_ts=np.full_like(batch.commit_ts, behind_ts)) for batch in rows)

    def _topic_of(self, event: DdlEvent) -> str:
        if event.type == ActionType.RENAME_TABLE and event.pre_table:
            return self._rules.topic(event.pre_schema, event.pre_table)
        return self._rules.topic(event.schema, event.table)

    def _send(self, message: Message, names: Collection[str]) -> None:
        topics = [self._known.topic(name) for name in names]
        parts = {"value": message.value} | ({"key": message.key} if message.key is not None else {})
        with POOL.sending(self._options, min(topic.most_bytes for topic in topics)) as sending:
            if message.partition is None:
                send_everywhere(sending, {topic.name: topic.partitions for topic in topics}, parts)
            else:
                for topic in topics:
                    sending.send(topic.name, message.partition, [dict(parts)])
            sending.confirm(topics[0].name)

    def _check(self) -> Generation:
        if self._term is None:
            raise InvariantError("the owner's term has not begun")
        NEWEST.meet(self._term)
        return self._term

    def _state(self) -> dict[str, Any]:
        more = {"refilled": self._refilled} if self._refilled else {}
        return {
            "format": _STATE_FORMAT,
            "kafka_cluster": self._cluster,
            "epoch": 0,
            "topics": dict(sorted(self._known.counts.items())),
            **more,
        }


class KafkaWriter:
    """The writer's half: rows."""

    def __init__(self, options: KafkaOptions, name: str) -> None:
        if not name:
            raise InvariantError("a writer of the Kafka sink without a name")
        self._options = options
        self._holder = options.changefeed, options.cluster_id, name
        self._known = _Known(options, None)
        self._generation: Generation | None = None

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
    ) -> None:
        """What comes next of these tables may have been sent before: it is sent again."""
        if self._generation is not None:
            NEWEST.meet(self._generation)
        self._known.forget()
        self._known.learn(state or {})
        self._generation = NEWEST.begin(self._holder)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> KafkaTarget:
        return self._known.target(table, self._current())

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """All messages of the batch have been confirmed."""
        NEWEST.meet(self._current())
        used = {str(receipt.detail["topic"]): int(receipt.detail["partitions"]) for receipt in receipts}
        return {"format": _STATE_FORMAT, "topics": used}

    def close(self) -> None:
        """Producers are the process's own."""

    def _current(self) -> Generation:
        if self._generation is None:
            raise InvariantError("a writer whose first generation has not begun")
        return self._generation


class _Known:
    """Topics in use, each looked at once in a generation."""

    def __init__(self, options: KafkaOptions, state: Mapping[str, Any] | None) -> None:
        self._options, self._rules = options, options.rules
        self.topics = Topics(options)
        self.counts: dict[str, int] = {}  # of partitions that rows are spread over
        self._found: dict[str, Topic] = {}
        self.learn(state or {})

    def learn(self, state: Mapping[str, Any]) -> None:
        """What was said first of a topic holds."""
        if state and state.get("format") != _STATE_FORMAT:
            raise SinkError(
                f"the state of the Kafka sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
                "Go on with the version of Tidemill that wrote it."
            )
        for name, count in state.get("topics", {}).items():
            self.counts.setdefault(str(name), int(count))

    def forget(self) -> None:
        """Look at all of them anew."""
        self._found.clear()

    def topic(self, name: str) -> Topic:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self.topics.ensure(name, self.counts.get(name))
            self.counts.setdefault(name, found.partitions)
        return found

    def target(self, table: TableInfo, generation: Generation) -> KafkaTarget:
        destination = self._rules.destination(table)
        destination.rule.hashed_columns(table)  # refused here rather than on an executor
        topic = self.topic(destination.topic)
        return KafkaTarget(self._options, table.full_name, topic, destination.rule, generation)


def _now_ms() -> int:
    return int(SYSTEM_CLOCK.now() * 1000)
