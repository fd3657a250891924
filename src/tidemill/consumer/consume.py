"""A consumer in the foreground: from the partitions of a topic to a sink.

    poll ─► read ─► stage rows, tell the alignment ─┐
         ◄───────── what may be done next ──────────┴─► beside it: a batch on Spark, a DDL, then the state is saved

Messages are read on while a batch is being written. The state is saved once the sink has a batch; it says up to where
each partition is written, and from which message on it has to be read again. So whatever dies, nothing is lost, and
what comes twice is written once. The next batch begins right behind that; its thread tells readers of the one before.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tidemill.clock import SYSTEM_CLOCK
from tidemill.config.sink_uri import place_of
from tidemill.consumer.alignment import (
    NEVER,
    Alignment,
    Consistency,
    Due,
    Repartition,
    RunDdl,
    Write,
)
from tidemill.consumer.applying import Applying
from tidemill.consumer.catalog import Catalog
from tidemill.consumer.ddl import event_of
from tidemill.consumer.intake import Intake
from tidemill.consumer.listening import BEGINNING, Listening
from tidemill.consumer.patience import Patience
from tidemill.consumer.staging import Plan, Staging
from tidemill.consumer.state import ConsumerDir, ConsumerState, StateHome
from tidemill.consumer.tables import Tables
from tidemill.consumer.topic import parse_topic
from tidemill.errors import UpstreamUnavailableError, UsageError
from tidemill.flow.encoder import CanalJson
from tidemill.log import get_logger
from tidemill.model.ddl import DdlEvent
from tidemill.model.event import AdminSeen
from tidemill.model.ts import Ts
from tidemill.sinks import SinkOptions, read_sink_uri
from tidemill.sinks.kafka import KafkaOptions

log = get_logger("consumer")

_MESSAGES_A_POLL = 20_000
_POLL_SECONDS = 0.05
# Of a batch; all of one transaction in any case. What is one transaction downstream is kept smaller.
_MOST_ROWS = {Consistency.TRANSACTION: 100_000, Consistency.ROW: 400_000}
_DDLS_IN_FIRST_ONLY = frozenset({"canal-json", "canal"})
_LOOK_SECONDS = 30.0  # how often the topic is asked how many partitions it has
_IDLE_SAVE_SECONDS = 2.0  # how often a position that moves without rows is written down

Finish = Callable[[], None]  # what is left to do when something has been done beside


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    kafka_uri: str = field(repr=False)
    sink_uri: str = field(repr=False)
    data_dir: Path
    consistency: Consistency = Consistency.TRANSACTION
    partitions: int | None = None  # None: as many as the topic has
    name: str = "default"
    zone: str = "UTC"
    group: str | None = None  # of processes that share the work; None: this one is alone
    disk_bytes: int = 8 << 30
    spark_master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    stage: str
    rows: int
    ddls: int
    staged_rows: int
    staged_bytes: int
    applied_ts: Ts
    resolved_ts: Ts


@dataclass(frozen=True, slots=True)
class Shared:
    """What a consumer has of its group while it has the group's work."""

    home: StateHome
    tell: Callable[[Mapping[int, int]], None]  # Kafka's tools, of offsets


class Consume:
    """One topic into one sink. ``close`` it in any case. One thread, but for what runs beside it."""

    def __init__(
        self, options: ConsumeOptions, say: Callable[[str], None] = lambda text: None, shared: Shared | None = None
    ) -> None:
        """``say`` is told what people should know while it starts. ``shared``: where this one is part of a group, which
        has its folder then."""
        self._options, self._say, self._shared = options, say, shared
        self._kafka = parse_topic(options.kafka_uri)
        self._sink_options = sink_of(options)
        self._keeps_tables = keeps_tables(self._sink_options)
        self._dir = ConsumerDir(options.data_dir)
        self._home: StateHome = shared.home if shared is not None else self._dir
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="consumer")
        self._doing: Future[Finish | None] | None = None
        self._saved_at = self._looked_at = SYSTEM_CLOCK.monotonic()
        self._stopping = threading.Event()
        self._is_open = False
        self._is_untold = False  # readers have not heard of what was saved last
        self._ddls = 0
        self._listening: Listening | None = None
        self._applying: Applying | None = None
        self.last = ConsumerStatus("stopped", 0, 0, 0, 0, NEVER, NEVER)  # when it was closed
        self.state: ConsumerState
        self._tables: Tables
        self._catalog: Catalog
        self._alignment: Alignment
        self._staging: Staging
        self._intake: Intake

    # How it begins and ends.

    def start(self, should_stop: Callable[[], bool]) -> None:
        if self._shared is None:
            self._dir.acquire()
        consumer_id = self._home.consumer_id()
        self._listening = listening = Listening(replace(self._kafka, changefeed=consumer_id))
        patiently = Patience(self._say, lambda: should_stop() or self._stopping.is_set())
        there = patiently(listening.partitions)
        cluster_id = patiently(listening.cluster_id)
        state = _loaded(self._home, f"{cluster_id}/{self._kafka.topic}", self._sink_options.safe_uri)
        partitions = _partitions(self._options, self._kafka, state, there)
        self.state, self._tables = state, Tables(state.ids)
        self._catalog = _catalog_for(self._sink_options).loaded(state.catalog)
        self._alignment = Alignment(
            partitions, state.position, self._options.consistency,
            ddls_in_first_only=self._kafka.protocol.name in _DDLS_IN_FIRST_ONLY,
        )  # fmt: skip
        self._staging = Staging(self._dir.staged)
        self._intake = Intake(
            self._kafka, self._tables, self._alignment, self._staging, state.schemas, state.meeting
        )  # fmt: skip
        number = int.from_bytes(sha256(cluster_id.encode()).digest()[:7])  # sinks know clusters by numbers
        named = self._sink_options.named(consumer_id, number)
        options, at_ts = self._options, state.position.lowest_ts
        self._applying = Applying(named, options.consistency, options.zone, at_ts, state.sink_state)
        log_path = self._dir.path / "spark.log"

        def confirm() -> None:
            """Of a group: that nobody else has its work by now. What is saved proves it."""
            if self._shared is not None:
                self._home.save(state)

        self._sink.start(options.name, options.spark_master, options.spark_conf, log_path, should_stop, confirm)
        offsets = {
            p: state.offsets.get(p, BEGINNING)
            for p in {*partitions, *state.offsets, *_counted(self._options, self._kafka, there)}
        }
        patiently(lambda: self._listen(offsets))
        self._is_open = True

    @property
    def _sink(self) -> Applying:
        assert self._applying is not None, "it has not been started"
        return self._applying

    def _look_for_more(self) -> None:
        assert self._listening is not None
        self._looked_at = SYSTEM_CLOCK.monotonic()
        try:
            there = self._listening.partitions()
        except UpstreamUnavailableError:
            return  # another time
        if not set(self._intake.partitions) >= set(_counted(self._options, self._kafka, there)):
            log.info("the topic has more partitions", partitions=there)
            self._listen_also(_counted(self._options, self._kafka, there))

    def _listen_also(self, partitions: Iterable[int]) -> None:
        """Those that are read go on where they are."""
        at = {p: self._intake.next_offset(p) for p in {*self._intake.partitions, *partitions}}
        self._listen({p: BEGINNING if offset is None else offset for p, offset in at.items()})

    def stop(self) -> None:
        """Begin nothing new, and give up the batch at hand: it comes again. From any thread."""
        self._stopping.set()
        if self._applying is not None:
            self._applying.stop()

    def drain(self) -> None:
        """Wait for what is under way. ``StoppedError`` where it was given up."""
        while self._doing is not None or self._is_untold:
            if self._doing is None:
                self._do(self._sink.publish)
            else:
                self._settle(self._doing)

    def close(self) -> None:
        self.stop()
        self._thread.shutdown()
        if self._is_open:
            self.last = self.status()
        if self._applying is not None:
            self._applying.close()
        if self._listening is not None:
            self._listening.close()
        if self._shared is None:
            self._dir.release()

    # How it moves.

    def poll(self) -> None:
        """Read some, and do what may be done, beside reading on. Raises what has stopped it."""
        assert self._listening is not None
        if SYSTEM_CLOCK.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._look_for_more()
        for heard in self._listening.poll(_MESSAGES_A_POLL, _POLL_SECONDS):
            self._intake.take(heard)
        if self._doing is not None:
            if not self._doing.done():
                self._hold_back()
                return
            self._settle(self._doing)
        if self._intake.needs_togetherness or self._catalog.has_several_keys(self._intake.silent):
            self._alignment.hold_together()
        if self._doing is None and not self._stopping.is_set():
            self._begin()
        self._hold_back()

    def _settle(self, done: "Future[Finish | None]") -> None:
        self._doing = None
        finish = done.result()
        if finish is not None:
            finish()

    def is_at(self, ts: Ts) -> bool:
        """Whether everything up to ``ts`` is written, its DDLs included, and nothing is under way."""
        is_idle = self._doing is None and not self._is_untold and self._alignment.position.lowest_ts >= ts
        return is_idle and all(due.ddl.ts > ts for due in self._alignment.pending)

    def status(self) -> ConsumerStatus:
        staging, alignment = self._staging, self._alignment
        assert self._listening is not None
        trouble = self._listening.trouble
        if self._sink.trouble is not None:
            stage = f"waiting for the sink ({self._sink.trouble.partition('. ')[0]})"
        elif self._doing is not None:
            stage = "writing"
        else:
            stage = f"waiting for Kafka ({trouble})" if trouble else "waiting for resolved-ts"
        return ConsumerStatus(
            stage, self.state.rows, self._ddls, staging.rows, staging.bytes, alignment.position.lowest_ts,
            alignment.lowest_frontier_ts,
        )  # fmt: skip

    def _listen(self, offsets: Mapping[int, int]) -> None:
        assert self._listening is not None
        self._listening.listen(offsets)
        self._intake.listen({p: self._listening.positions[p] for p in offsets})

    def _hold_back(self) -> None:
        """Read no further ahead than the disk allows. While there is something to write nothing is read then; after
        that only the partitions that the others wait for."""
        assert self._listening is not None
        partitions = self._intake.partitions
        if self._staging.bytes < self._options.disk_bytes:
            self._listening.pause(())
        elif self._doing is not None:
            self._listening.pause(partitions)
        else:
            slowest = self._alignment.lowest_frontier_ts
            self._listening.pause([p for p in partitions if self._alignment.frontier_ts(p) > slowest])

    # What is done about it, beside. Only this thread looks at the alignment and the staged rows.

    def _begin(self) -> None:
        while self._doing is None and self._step():
            pass
        is_due = SYSTEM_CLOCK.monotonic() - self._saved_at >= _IDLE_SAVE_SECONDS
        if self._doing is None and is_due and self._alignment.position != self.state.position:
            self._save(None, 0)
        if self._doing is None and self._is_untold:
            self._do(self._sink.publish)

    def _step(self) -> bool:
        """Whether there was anything to do."""
        match self._alignment.step():
            case Write(to):
                plan = self._plan(to)
                if plan.parts:
                    self._announce(plan)
                    self._do(self._write, self._formed(plan), self._is_untold)
                else:
                    self._alignment.written(plan.to)
                return bool(plan.to)
            case RunDdl() if self._is_untold:
                self._do(self._sink.publish)
            case RunDdl(due, nth):
                self._begin_ddl(due, nth)
            case Repartition(admin):
                self._repartition(admin)
            case None:
                return False
        return True

    def _plan(self, to: Mapping[int, Ts]) -> Plan:
        """What may have been written before, as whole transactions, comes again as it was, or not at all: a part of it
        would show readers a moment that never was."""
        applied, how = self._alignment.position.applied, self._options.consistency
        windows = {p: (applied[p], ts) for p, ts in to.items()}
        begun_ts = self.state.begun_ts
        if begun_ts > self._alignment.position.lowest_ts:
            if min(to.values()) < begun_ts:
                return Plan({}, (), 0)  # more has to be read
            again = {p: (low, begun_ts) for p, (low, _) in windows.items()}
            return self._staging.plan(again, sys.maxsize, is_whole=True, most_bytes=sys.maxsize)
        return self._staging.plan(windows, _MOST_ROWS[how], is_whole=how is Consistency.TRANSACTION)

    def _announce(self, plan: Plan) -> None:
        """Where readers see whole transactions as they are committed: up to where, before they may."""
        joins = self._sink_options.traits.joins_transactions
        end_ts = max(plan.to.values())
        if joins and self._options.consistency is Consistency.TRANSACTION and end_ts > self.state.begun_ts:
            self.state = replace(self.state, begun_ts=end_ts)
            self._home.save(self.state)

    def _do(self, work: Callable[..., "Finish | None"], *given: Any) -> None:
        """Readers are told by it, where they have to be."""
        self._is_untold = False
        self._doing = self._thread.submit(work, *given)

    def _write(self, plan: Plan, is_untold: bool) -> "Finish":
        """Beside: returns what is left to do here. First readers hear of the batch before, where they have not yet."""
        if is_untold:
            self._sink.publish()
        written = self._sink.write(plan, f"{plan.rows:,} rows of {self._kafka.topic}")

        def finish() -> None:
            sink_state = self._sink.take(written)
            self._alignment.written(plan.to)
            self._save(sink_state, written.rows)

        return finish

    def _formed(self, plan: Plan) -> Plan:
        """With the tables as the sink knows them."""
        if not self._keeps_tables:
            return plan
        parts = []
        for part in plan.parts:
            form, self._catalog = self._catalog.form_of(part.table, part.first_ts)
            parts.append(replace(part, form=form))
        return replace(plan, parts=tuple(parts))

    def _begin_ddl(self, due: Due, nth: int) -> None:
        """Where the sink goes by messages alone, what the statement says of the table is of use to the consumer
        itself."""
        event, behind = self._catalog.after(due.ddl, nth)
        if not self._keeps_tables:
            event = event_of(due.ddl, nth)
        self._do(self._run_ddl, due, event, behind)

    def _run_ddl(self, due: Due, event: DdlEvent, behind: Catalog) -> "Finish":
        state = self._sink.ddl(event)

        def finish() -> None:
            self._alignment.ran(due)
            self._catalog = behind
            self._ddls += 1
            self._save(state, 0)

        return finish

    def _repartition(self, admin: AdminSeen) -> None:
        """All partitions are read on where they are, also those that are not in use any more: they may be again. New
        ones are read from where they begin."""
        log.info("partitions changed", partitions=admin.partitions, epoch=admin.epoch, at=admin.ts)
        self._alignment.repartitioned(admin)
        if not self._alignment.partitions <= set(self._intake.partitions):
            self._listen_also(self._alignment.partitions)
        self._save(None, 0)

    # What is saved.

    def _save(self, sink_state: dict[str, Any] | None, rows: int) -> None:
        position = self._alignment.position
        self.state = replace(
            self.state,
            position=position,
            offsets={p: self._intake.restart_offset(p, position) for p in self._intake.partitions},
            ids=dict(self._tables.ids),
            rows=self.state.rows + rows,
            sink_state=self.state.sink_state if sink_state is None else sink_state,
            catalog=self._catalog.document,
            schemas=self._intake.schemas,
            meeting=self._intake.meeting,
        )
        self._home.save(self.state)
        assert self._listening is not None
        tell = self._listening.tell if self._shared is None else self._shared.tell
        tell(self.state.offsets)
        self._sink.saved(position.lowest_ts, self.state.sink_state)
        self._is_untold = True
        self._saved_at = SYSTEM_CLOCK.monotonic()
        self._staging.release({p: self._alignment.applied_ts(p) for p in self._intake.partitions})


def sink_of(options: ConsumeOptions) -> SinkOptions:
    """Raises UsageError for one that a topic is not read into, or not so."""
    sink = read_sink_uri(options.sink_uri)
    scheme, traits = sink.safe_uri.partition(":")[0], sink.traits
    if traits.orders_ddls:
        raise UsageError(
            "a topic is not read into another one. Use Kafka's MirrorMaker for a copy, or a changefeed of its own for "
            "other partitions or another protocol."
        )
    if keeps_tables(sink) and options.consistency is Consistency.ROW:
        raise UsageError(
            f"{scheme}:// is written by whole transactions alone: readers go by the ts up to which it is complete. "
            "Leave --consistency row out."
        )
    if traits.zone is not None and options.zone != traits.zone:
        raise UsageError(
            f"{scheme}:// holds TIMESTAMP values in {traits.zone}, and --time-zone says that the messages have them in "
            f"{options.zone}. Write the topic in {traits.zone}."
        )
    return sink


def _loaded(home: StateHome, topic: str, sink: str) -> ConsumerState:
    found = home.load()
    if found is None:
        return ConsumerState(topic, sink)
    for what, was, now in (("topic", found.topic, topic), ("sink", place_of(found.sink), place_of(sink))):
        if was != now:
            raise UsageError(f"{home.shown} belongs to {what} {was}, not to {now}. Choose another {home.another}.")
    return found


def _partitions(options: ConsumeOptions, kafka: KafkaOptions, state: ConsumerState, there: int) -> range:
    wanted = len(state.position.applied) or options.partitions or kafka.partition_num or there
    if wanted > there:
        raise UsageError(
            f"topic {kafka.topic!r} has {there} partitions, where {wanted} are to be read. Lower --partitions."
        )
    return range(wanted)


def _counted(options: ConsumeOptions, kafka: KafkaOptions, there: int) -> range:
    """Of the partitions that a topic has, those to listen to beside the ones in use: all, so that new ones are noticed,
    unless somebody has said how many count."""
    return range(0 if options.partitions or kafka.partition_num else there)


def keeps_tables(sink: SinkOptions) -> bool:
    """Whether it goes by the ids of tables and columns, and wants to know them in full: files and lakes."""
    return not sink.traits.joins_transactions and not sink.safe_uri.startswith("blackhole:")


def _catalog_for(sink: SinkOptions) -> Catalog:
    if not keeps_tables(sink):
        return Catalog()
    writes_numbers = isinstance(getattr(sink, "protocol", None), CanalJson)
    return Catalog(sees_rows_alone=sink.traits.keeps_partitions, needs_elements=not writes_numbers)
