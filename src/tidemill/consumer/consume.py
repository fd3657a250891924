"""A consumer in the foreground: from the partitions of a topic to a sink.

    poll ─► read ─► stage rows, tell the alignment ─┐
         ◄───────── what may be done next ──────────┴─► beside it: a batch on Spark, a DDL, then the state is saved

Messages are read on while a batch is being written. The state is saved once the sink has a batch; it says up to where
each partition is written, and from which message on it has to be read again. So whatever dies, nothing is lost, and
what comes twice is written once.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
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
    DdlNumbers,
    Due,
    Position,
    Repartition,
    RunDdl,
    Write,
)
from tidemill.consumer.applying import Applying
from tidemill.consumer.listening import BEGINNING, Heard, Listening
from tidemill.consumer.staging import Plan, Staging, cut
from tidemill.consumer.state import ConsumerDir, ConsumerState
from tidemill.consumer.tables import Tables
from tidemill.consumer.topic import parse_topic
from tidemill.errors import CorruptDataError, UsageError
from tidemill.flow.reader import Events, Reader, RowsSeen
from tidemill.flow.reader.registry import reader_for
from tidemill.log import get_logger
from tidemill.model.event import AdminSeen, DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.ts import Ts
from tidemill.sinks import SinkOptions, read_sink_uri

log = get_logger("consumer")

_MESSAGES_A_POLL = 20_000
_POLL_SECONDS = 0.05
_MOST_ROWS = 100_000  # of a batch; all of one transaction in any case
_DDLS_IN_FIRST_ONLY = frozenset({"canal-json", "canal"})
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


class Consume:
    """One topic into one sink. ``close`` it in any case. One thread, but for what runs beside it."""

    def __init__(self, options: ConsumeOptions) -> None:
        self._options = options
        self._kafka = parse_topic(options.kafka_uri)
        self._sink_options = _sink_of(options)
        self._dir = ConsumerDir(options.data_dir)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="consumer")
        self._doing: Future[Finish | None] | None = None
        self._saved_at = SYSTEM_CLOCK.monotonic()
        self._stopping = threading.Event()
        self._is_open = False
        self._ddls = 0
        self._numbers = DdlNumbers()
        self._unsettled: dict[int, list[tuple[int, DdlSeen | AdminSeen]]] = {}  # by partition, with their offsets
        self._next_offset: dict[int, int] = {}
        self._readers: dict[int, Reader] = {}
        self._listening: Listening | None = None
        self._applying: Applying | None = None
        self.last = ConsumerStatus("stopped", 0, 0, 0, 0, NEVER, NEVER)  # when it was closed
        self.state: ConsumerState
        self._tables: Tables
        self._alignment: Alignment
        self._staging: Staging

    # How it begins and ends.

    def start(self, should_stop: Callable[[], bool]) -> None:
        self._dir.acquire()
        self._listening = listening = Listening(replace(self._kafka, changefeed=self._dir.consumer_id()))
        there = listening.partitions()
        cluster_id = listening.cluster_id()
        state = self._loaded(f"{cluster_id}/{self._kafka.topic}")
        partitions = self._partitions(state, there)
        self.state, self._tables = state, Tables(state.ids)
        self._alignment = Alignment(
            partitions, state.position, self._options.consistency,
            ddls_in_first_only=self._kafka.protocol.name in _DDLS_IN_FIRST_ONLY,
        )  # fmt: skip
        self._staging = Staging(self._dir.staged)
        number = int.from_bytes(sha256(cluster_id.encode()).digest()[:7])  # sinks know clusters by numbers
        named = self._sink_options.named(self._dir.consumer_id(), number)
        options, at_ts = self._options, state.position.lowest_ts
        self._applying = Applying(named, options.consistency, options.zone, at_ts, state.sink_state)
        log_path = self._dir.path / "spark.log"
        self._sink.start(options.name, options.spark_master, options.spark_conf, log_path, should_stop)
        self._listen({p: state.offsets.get(p, BEGINNING) for p in {*partitions, *state.offsets}})
        self._is_open = True

    @property
    def _sink(self) -> Applying:
        assert self._applying is not None, "it has not been started"
        return self._applying

    def _loaded(self, topic: str) -> ConsumerState:
        found = self._dir.load()
        sink = self._sink_options.safe_uri
        if found is None:
            return ConsumerState(topic, sink)
        for what, was, now in (("topic", found.topic, topic), ("sink", place_of(found.sink), place_of(sink))):
            if was != now:
                raise UsageError(
                    f"data-dir {self._dir.path} belongs to {what} {was}, not to {now}. Choose another --data-dir."
                )
        return found

    def _partitions(self, state: ConsumerState, there: int) -> range:
        wanted = len(state.position.applied) or self._options.partitions or self._kafka.partition_num or there
        if wanted > there:
            raise UsageError(
                f"topic {self._kafka.topic!r} has {there} partitions, where {wanted} are to be read. Lower "
                "--partitions."
            )
        return range(wanted)

    def stop(self) -> None:
        """Begin nothing new, and give up the batch at hand: it comes again. From any thread."""
        self._stopping.set()
        if self._applying is not None:
            self._applying.stop()

    def drain(self) -> None:
        """Wait for what is under way. ``StoppedError`` where it was given up."""
        while self._doing is not None:
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
        self._dir.release()

    # How it moves.

    def poll(self) -> None:
        """Read some, and do what may be done, beside reading on. Raises what has stopped it."""
        assert self._listening is not None
        for heard in self._listening.poll(_MESSAGES_A_POLL, _POLL_SECONDS):
            self._take(heard)
        if self._doing is not None:
            if not self._doing.done():
                self._hold_back()
                return
            self._settle(self._doing)
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
        is_idle = self._doing is None and self._alignment.position.lowest_ts >= ts
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
        for partition in offsets:
            self._next_offset[partition] = self._listening.positions[partition]
            self._readers.setdefault(partition, reader_for(self._kafka.protocol))

    def _hold_back(self) -> None:
        """Read no further ahead than the disk allows: of partitions that are ahead of the slowest."""
        assert self._listening is not None
        if self._staging.bytes < self._options.disk_bytes:
            self._listening.pause(())
            return
        slowest = self._alignment.lowest_frontier_ts
        self._listening.pause([p for p in self._readers if self._alignment.frontier_ts(p) > slowest])

    # What messages say.

    def _take(self, heard: Heard) -> None:
        if heard.partition not in self._readers:
            return
        events = self._readers[heard.partition].read(heard.messages)
        rows = [self._known(seen, heard) for seen in self._without_cut(heard.partition, events)]
        self._staging.add(heard.partition, heard.first_offset, rows, self._alignment.applied_ts(heard.partition))
        for place, mark in events.marks:
            self._mark(heard.partition, heard.offsets[place], mark)
        self._next_offset[heard.partition] = heard.next_offset

    def _without_cut(self, partition: int, events: Events) -> Sequence[RowsSeen]:
        """The rows but for those before an Admin event and above its cut: they come again by the new dispatch."""
        rows, epoch = events.rows, self._alignment.epoch(partition)
        for place, mark in events.marks:
            if isinstance(mark, AdminSeen) and mark.epoch > epoch:  # a copy may stand behind rows of the new dispatch
                epoch = mark.epoch
                cut_ts = self._alignment.frontier_ts(partition) if mark.ts is None else mark.ts
                rows = [cut(seen, place, cut_ts) for seen in rows]
                self._staging.drop_above(partition, cut_ts)
        return rows

    def _known(self, seen: RowsSeen, heard: Heard) -> RowsSeen:
        table = self._tables.known(seen.rows.table)
        if seen.is_partial or seen.claim:
            what = "only the key of a row" if not seen.claim else "that a row lies in external storage"
            raise CorruptDataError(
                f"a message of partition {heard.partition}, from offset {heard.first_offset} on, tells {what} of "
                f"{table.full_name}. Raise max-message-bytes where it is written, and write the topic anew."
            )
        return replace(seen, rows=replace(seen.rows, table=table, physical_id=table.id))

    def _mark(self, partition: int, offset: int, mark: Mark) -> None:
        match mark:
            case ResolvedSeen():
                self._alignment.resolve(partition, mark)
            case DdlSeen():
                self._alignment.learn(partition, mark, self._numbers.of(partition, mark))
                self._unsettled.setdefault(partition, []).append((offset, mark))
            case AdminSeen():
                self._alignment.admit(partition, mark)
                self._unsettled.setdefault(partition, []).append((offset, mark))
            case Unreadable(why):
                raise CorruptDataError(
                    f"the message at offset {offset} of partition {partition} of topic {self._kafka.topic!r} cannot be "
                    f"read: {why}. Check that protocol= is the one it was written with, and who else writes there; "
                    "tidemill check-topic names all such messages."
                )

    # What is done about it, beside. Only this thread looks at the alignment and the staged rows.

    def _begin(self) -> None:
        match self._alignment.step():
            case Write(to):
                applied = self._alignment.position.applied
                windows = {p: (applied[p], ts) for p, ts in to.items()}
                is_whole = self._options.consistency is Consistency.TRANSACTION
                plan = self._staging.plan(windows, _MOST_ROWS, is_whole=is_whole)
                if plan.parts:
                    self._do(self._write, plan)
                else:
                    self._alignment.written(plan.to)
            case RunDdl(due, nth):
                self._do(self._run_ddl, due, nth)
            case Repartition(admin):
                self._repartition(admin)
            case None:
                pass
        is_due = SYSTEM_CLOCK.monotonic() - self._saved_at >= _IDLE_SAVE_SECONDS
        if self._doing is None and is_due and self._alignment.position != self.state.position:
            self._save(None, 0)
            self._do(self._sink.publish)

    def _do(self, work: Callable[..., "Finish | None"], *given: Any) -> None:
        self._doing = self._thread.submit(work, *given)

    def _write(self, plan: Plan) -> "Finish":
        """Beside: returns what is left to do here."""
        written = self._sink.write(plan, f"{plan.rows:,} rows of {self._kafka.topic}")

        def finish() -> None:
            sink_state = self._sink.take(written)
            self._alignment.written(plan.to)
            self._save(sink_state, written.rows)
            self._do(self._sink.publish)

        return finish

    def _run_ddl(self, due: Due, nth: int) -> "Finish":
        state = self._sink.ddl(due, nth)

        def finish() -> None:
            self._alignment.ran(due)
            self._ddls += 1
            self._save(state, 0)

        return finish

    def _repartition(self, admin: AdminSeen) -> None:
        """All partitions are read on where they are, also those that are not in use any more: they may be again. New
        ones are read from where they begin."""
        log.info("partitions changed", partitions=admin.partitions, epoch=admin.epoch, at=admin.ts)
        self._alignment.repartitioned(admin)
        if not self._alignment.partitions <= self._readers.keys():
            self._listen(
                {p: self._next_offset.get(p, BEGINNING) for p in {*self._readers, *self._alignment.partitions}}
            )
        self._save(None, 0)

    # What is saved.

    def _save(self, sink_state: dict[str, Any] | None, rows: int) -> None:
        position = self._alignment.position
        self.state = replace(
            self.state,
            position=position,
            offsets={p: self._restart_offset(p, position) for p in self._readers},
            ids=dict(self._tables.ids),
            rows=self.state.rows + rows,
            sink_state=self.state.sink_state if sink_state is None else sink_state,
        )
        self._dir.save(self.state)
        self._sink.saved(position.lowest_ts, self.state.sink_state)
        self._saved_at = SYSTEM_CLOCK.monotonic()
        self._staging.release({p: self._alignment.applied_ts(p) for p in self._readers})

    def _restart_offset(self, partition: int, position: Position) -> int:
        """Where reading begins again: at the first message that has something that was not done."""
        pending = {due.ddl.ts for due in self._alignment.pending}
        left = [
            (offset, mark)
            for offset, mark in self._unsettled.get(partition, [])
            if (mark.epoch > position.epoch if isinstance(mark, AdminSeen) else mark.ts in pending)
        ]
        self._unsettled[partition] = left
        staged = self._staging.oldest_offset(partition, self._alignment.applied_ts(partition))
        first = [offset for offset in (staged, *(offset for offset, _ in left)) if offset is not None]
        return min([self._next_offset[partition], *first])


def _sink_of(options: ConsumeOptions) -> SinkOptions:
    sink = read_sink_uri(options.sink_uri)
    scheme = sink.safe_uri.partition(":")[0]
    if not sink.traits.joins_transactions and scheme != "blackhole":
        raise UsageError(
            f"a topic cannot be read into {scheme}:// yet: messages do not tell all that such a sink has to know of "
            "a table. Use mysql:// or tidb://, or a changefeed of its own for this sink."
        )
    return sink
