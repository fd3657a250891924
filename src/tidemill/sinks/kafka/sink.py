"""Both halves of the Kafka sink.

    writer:     recover ─► target, one a unit ─► (executors: dispatch, encode, send, confirm) ─► commit ─► topics
    owner:      begin, fence ─► ddl, take ─► state (caller) ─► publish: resolved-ts to every partition

There is nothing to take back: a batch that comes again is sent again, as copies. The state holds which topics are in
use, each with the number of partitions that rows are spread over: a topic may grow, and the rows of a table must stay
where they are all the same, until the owner is told to spread them over another number. That is a new *epoch* of the
dispatch: all rows up to a cut, saved; then an admin event into every partition; then the rows behind it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import ConfigError, InvariantError, SinkError, UsageError
from tidemill.flow.dispatcher.partition import Kind
from tidemill.flow.encoder import Avro, Message
from tidemill.flow.encoder.port import AdminProtocol, BootstrapProtocol, MeetProtocol
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import AdminSeen
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.kafka.audience import Audience
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


@dataclass(frozen=True, slots=True)
class _Change:
    """The last one of the number of partitions."""

    partitions: int
    cut_ts: Ts  # all rows up to here were dispatched before
    former: dict[str, int]  # how many partitions of each topic were in use
    is_told: bool = False  # to readers, as far as is known

    @classmethod
    def read(cls, document: Mapping[str, Any] | None) -> "_Change | None":
        return cls(**document) if document else None


class KafkaOwner(NoSyncPoints):
    """The owner's half: DDLs and resolved-ts, into every partition."""

    def __init__(self, options: KafkaOptions, state: Mapping[str, Any] | None, *, rescan: Rescan | None = None) -> None:
        """Without ``rescan`` rows that were there before a table got its key are left out."""
        self._options, self._rescan = options, rescan
        self._rules = options.rules
        self._known = _Known(options, state)
        self._cluster = str((state or {}).get("kafka_cluster", ""))
        self._refilled = (state or {}).get("refilled")  # the last DDL that brought rows: its ts and number
        self._wanted: int | None = None  # partitions, from the next sync on
        self._change = _Change.read((state or {}).get("change"))
        self._audience = Audience(self._rules, options.topic, has_one_table=isinstance(options.protocol, Avro))
        self._term: Generation | None = None
        self._told_ts = Ts(0)

    @property
    def term(self) -> str:
        return self._term.term if self._term is not None else ""

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
        self._announce()

    def know(self, tables: Iterable[TableInfo]) -> dict[str, Any] | None:
        """Their topics hear of the resolved-ts from the start, rows or not. Over how many partitions each is spread
        is decided here: it is saved before a row is sent, so a topic that grows now changes nothing any more."""
        loose = []
        for table in tables:
            destination = self._rules.destination(table)
            self._rules.check(table)
            self._audience.add(table)
            if destination.rule.kind is Kind.CONFLICT and not isinstance(self._options.protocol, MeetProtocol):
                raise _cannot_meet(self._options, table)
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
        return self._state()

    def _bootstrap(self, table: TableInfo, topic: str) -> None:
        """The table's schema, where the protocol wants those of all tables told at the start."""
        protocol = self._options.protocol
        wanted = protocol.bootstraps if isinstance(protocol, BootstrapProtocol) else None
        if wanted is not None and wanted.all_at_start and isinstance(protocol, BootstrapProtocol):
            message = protocol.bootstrap(table, _now_ms())
            self._send(replace(message, partition=None if wanted.to_all_partitions else 0), [topic])

    def fence(self, writers: Collection[str] | None = None) -> None:
        term = self._check().term
        names = None if writers is None else frozenset(writers)
        NEWEST.end(self._options.changefeed, self._options.cluster_id, names, term)

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Send it; again the same is a copy. Over how many partitions the rows of a new table are spread is decided
        here, and saved before there are any: its topic may grow from now on."""
        term = self._check()
        known = self._known.counts.keys()
        before = {*known}
        message = self._options.protocol.ddl(event, _now_ms())
        if message is not None:
            self._send(message, {self._topic_of(event): 0})
        table = event.table_info
        if table is not None and not table.is_view and event.type != ActionType.DROP_TABLE:
            self._known.topic(self._rules.topic(event.schema, event.table))
        self._known.promised |= known - before
        self._audience.follow(event)
        if self._rescan is None or event.table_info is None or not event.gives_key:
            return self._state() if known - before else None
        at = [int(event.finished_ts), event.seq]
        if self._refilled != at:
            self._refill(event.table_info, event.finished_ts, self._rescan, term)
            self._refilled = at
        return self._state()

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        self._known.settle(commit.get("topics", {}))
        self._known.learn(commit)
        self._audience.use(commit.get("topics", {}))
        return self._state()

    @property
    def epoch(self) -> int:
        return self._known.epoch

    @property
    def partitions(self) -> int | None:
        found = {*self._known.counts.values()}
        return found.pop() if len(found) == 1 else None

    def prepare(self, partitions: int) -> None:
        """Topics are grown before anything is cut: what Kafka refuses changes nothing."""
        self._check()
        if not isinstance(self._options.protocol, AdminProtocol):
            raise UsageError(
                f"protocol {self._options.protocol.name} cannot tell readers that the number of partitions changes. "
                "Only open-protocol and long-form can; begin a new changefeed, into another topic."
            )
        if partitions < 1:
            raise UsageError(f"a topic cannot have {partitions} partitions. Choose 1 or more.")
        self._grow(partitions)
        self._wanted = partitions

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        self._check()
        if self._wanted is not None:
            self._grow(self._wanted)  # topics that have come since
            self._change = self._known.spread(self._wanted, checkpoint_ts)
            self._wanted = None
        return self._state()

    def _grow(self, partitions: int) -> None:
        for name in sorted({self._options.topic, *self._known.counts}):
            self._known.topics.grow(name, partitions)

    def _announce(self) -> None:
        """Tell every partition that is or was in use of the last change. It has been saved; no row that was dispatched
        by it has been sent."""
        change, protocol = self._change, self._options.protocol
        if change is None or change.is_told or not isinstance(protocol, AdminProtocol):
            return
        self._known.forget()
        message = protocol.admin(AdminSeen(change.partitions, self.epoch, change.cut_ts))
        counts = {name: max(former, change.partitions) for name, former in change.former.items()}
        self._send(message, counts, counts)
        self._change = replace(change, is_told=True)
        log.info("readers were told of partitions", partitions=change.partitions, epoch=self.epoch, at=change.cut_ts)

    def publish(self, checkpoint_ts: Ts) -> None:
        """All up to it has been confirmed. Told once, to every partition that rows go to."""
        self._check()
        self._announce()
        if checkpoint_ts <= self._told_ts:
            return
        message = self._options.protocol.resolved(checkpoint_ts, _now_ms())
        if message is not None:
            self._send(message, sorted(self._audience.topics()))
        self._audience.told(checkpoint_ts)
        self._told_ts = checkpoint_ts

    def close(self) -> None:
        """Producers are the process's own."""

    def _refill(self, table: TableInfo, ts: Ts, rescan: Rescan, term: Generation) -> None:
        """All rows as of ``ts``. They come behind the DDL and are of its new form, so their commit-ts is the next one:
        what has the DDL's own belongs before it. No higher resolved-ts has been told yet. Runs in the owner."""
        target, behind_ts = self._known.target(table, term), Ts(ts + 1)
        target = replace(target, options=replace(target.options, on_too_large="stop"))  # nobody puts these aside
        for physical_id in table.physical_ids:
            rows = rescan(table, [physical_id], ts)
            target.write(replace(batch, commit_ts=np.full_like(batch.commit_ts, behind_ts)) for batch in rows)

    def _topic_of(self, event: DdlEvent) -> str:
        if event.type == ActionType.RENAME_TABLE and event.pre_table:
            return self._rules.topic(event.pre_schema, event.pre_table)
        return self._rules.topic(event.schema, event.table)

    def _send(self, message: Message, names: Collection[str], counts: Mapping[str, int] | None = None) -> None:
        """``counts``: of partitions, where these are not those that rows go to."""
        topics = [self._known.topic(name) for name in names]
        parts = {"value": message.value} | ({"key": message.key} if message.key is not None else {})
        most_bytes, epoch = min(topic.most_bytes for topic in topics), self._known.epoch
        with POOL.sending(self._options, most_bytes, epoch) as sending:
            if message.partition is None:
                send_everywhere(sending, counts or {topic.name: topic.partitions for topic in topics}, parts)
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
        more: dict[str, Any] = {"refilled": self._refilled} if self._refilled else {}
        if self._change is not None:
            more["change"] = asdict(self._change)
        return {
            "format": _STATE_FORMAT,
            "kafka_cluster": self._cluster,
            "epoch": self._known.epoch,
            "partitions": self._known.partitions,
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
        term: str,
    ) -> None:
        """What comes next of these tables may have been sent before: it is sent again."""
        if self._generation is not None:
            NEWEST.meet(self._generation)
        self._known.forget()
        self._known.learn(state or {})
        self._generation = NEWEST.begin(self._holder, term if self._generation is None else "")

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
        self.epoch = 0  # of the last change of the number of partitions
        self.partitions: int | None = None  # since then
        self.counts: dict[str, int] = {}  # of partitions that rows are spread over
        self.promised = set[str]()  # of these nothing is committed yet
        self._found: dict[str, Topic] = {}
        self.learn(state or {})

    def learn(self, state: Mapping[str, Any]) -> None:
        """What was said first of a topic holds, until the number of partitions changes."""
        if state and state.get("format") != _STATE_FORMAT:
            raise SinkError(
                f"the state of the Kafka sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
                "Go on with the version of Tidemill that wrote it."
            )
        epoch = int(state.get("epoch", 0))
        if epoch > self.epoch:
            self._begin(epoch, int(state["partitions"]))
            self.counts.clear()
        for name, count in state.get("topics", {}).items():
            self.counts.setdefault(str(name), int(count))

    def settle(self, used: Mapping[str, int]) -> None:
        """What the first rows of a topic went by holds: it may have grown since its number was promised."""
        for name in self.promised & used.keys():
            if self.counts[name] != used[name]:
                self.counts[name] = int(used[name])
                self._found.pop(name, None)
        self.promised -= used.keys()

    def spread(self, partitions: int, cut_ts: Ts) -> "_Change":
        """Rows above the ts go to so many partitions, in whatever topic."""
        former = dict(self.counts)
        self.promised.clear()
        self._begin(self.epoch + 1, partitions)
        self.counts = dict.fromkeys(former, partitions)
        return _Change(partitions, cut_ts, former)

    def _begin(self, epoch: int, partitions: int) -> None:
        self.epoch, self.partitions = epoch, partitions
        self.topics.epoch, self.topics.partition_num = epoch, partitions
        self.forget()

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
        if destination.rule.kind is Kind.CONFLICT and not isinstance(self._options.protocol, MeetProtocol):
            raise _cannot_meet(self._options, table)
        topic = self.topic(destination.topic)
        return KafkaTarget(self._options, table.full_name, topic, destination.rule, generation)


def _cannot_meet(options: KafkaOptions, table: TableInfo) -> ConfigError:
    return ConfigError(
        f"table {table.full_name} is dispatched by conflict, and protocol {options.protocol.name} cannot tell readers "
        "to wait for each other. Use open-protocol, or another 'partition' for it."
    )


def _now_ms() -> int:
    return int(SYSTEM_CLOCK.now() * 1000)
