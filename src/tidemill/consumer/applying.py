"""What a consumer does to its sink: batches on Spark, DDLs, and what readers are told. What passes is waited out.

Runs in a thread beside the one that reads messages; both halves of the sink are this consumer's.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from zoneinfo import ZoneInfo

from tidemill.config.sink_uri import loopbacks, place_of
from tidemill.consumer.alignment import Consistency
from tidemill.consumer.staging import Plan
from tidemill.errors import EngineError, SinkError, StoppedError, UsageError
from tidemill.flow.decoder import TableDecoder
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.log import get_logger
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints
from tidemill.model.table import TableInfo
from tidemill.model.ts import MAX_TS, Ts
from tidemill.retry import Policy
from tidemill.sinks import SinkOptions
from tidemill.sinks.port import JointWriter

if TYPE_CHECKING:  # PySpark takes its time to be imported
    from tidemill.spark.engine import Engine
    from tidemill.spark.session import Lease

log = get_logger("consumer")

T = TypeVar("T")
State = Mapping[str, Any] | None
_RETRY = Policy(1.0, 10.0)
_WRITER = "consumer"


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is in the sink, and what its owner is to take of it."""

    rows: int
    commit: Mapping[str, Any]


class Applying:
    """``close`` it in any case. ``stop`` and ``trouble`` are for any thread."""

    def __init__(self, options: SinkOptions, consistency: Consistency, zone: str, at_ts: Ts, state: State) -> None:
        """``options`` have their names. ``state`` is the sink's, as it was saved with ``at_ts``: up to there all is
        written."""
        self._options, self._consistency, self._zone = options, consistency, zone
        self._stopping = threading.Event()
        self._saved: tuple[Ts, State] = at_ts, state
        self._lease: Lease | None = None
        self._engine: Engine | None = None
        self.trouble: str | None = None  # why the sink takes nothing
        info = ZoneInfo(zone) if zone != "UTC" else UTC
        self._owner = options.open_owner(state, start_ts=at_ts or None, zone=info, is_resumed=bool(at_ts))
        try:
            self._writer = options.open_writer(_WRITER, zone=info)
        except BaseException:
            self._owner.close()
            raise

    def start(
        self,
        name: str,
        master: str | None,
        conf: Mapping[str, str],
        log_path: Path,
        should_stop: Callable[[], bool],
        confirm: Callable[[], None],
    ) -> None:
        """``confirm`` raises SupersededError where another process has taken over what this one is about to do. It is
        called when this one's term has begun and nothing has been done in it: whoever takes over later ends the term.
        """
        from tidemill.spark.engine import Engine
        from tidemill.spark.session import borrow_session
        from tidemill.spark.settings import resolve

        refuse_far(resolve(master, conf, log_path.parent, name).master)
        self._owner.begin()
        confirm()
        self._recover()
        self._lease = borrow_session(master, conf=conf, log=log_path, should_stop=should_stop)
        self._engine = Engine(
            self._lease, f"{name}-consumer", most_tasks=self._options.traits.most_tasks,
            loopbacks=loopbacks(place_of(self._options.safe_uri)),
        )  # fmt: skip
        self._engine.start()

    def stop(self) -> None:
        """Wait for a sink that is away no longer."""
        self._stopping.set()

    def close(self) -> None:
        """All of it, whichever part fails to."""
        with ExitStack() as stack:  # the last one first
            if self._lease is not None:
                stack.callback(self._lease.release)
            stack.callback(self._owner.close)
            stack.callback(self._writer.close)
            if self._engine is not None:
                stack.callback(self._engine.close)

    def write(self, plan: Plan, what: str) -> Written:
        """All rows of it. Returns when they are durable."""
        engine, from_ts = self._engine, self._saved[0]
        assert engine is not None
        pipeline = Pipeline(self._zone, splits_updates=self._options.traits.splits_updates)

        def attempt() -> Written:
            receipts = engine.run(pipeline, self._units(plan, from_ts), what, self._stopping.is_set)
            commit = self._writer.commit(Ts(min(plan.to.values())), receipts)
            return Written(sum(each.rows for each in receipts), commit)

        return self._patiently(attempt, recovers=True)

    def take(self, written: Written) -> dict[str, Any]:
        """The sink's state with it, which is to be saved. Never blocks."""
        return self._owner.take(written.commit)

    def saved(self, at_ts: Ts, state: State) -> None:
        """This has been saved: a batch that is lost from here on is begun again from there."""
        self._saved = at_ts, state

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        """Returns the sink's state, where it has changed."""
        log.info("running DDL", ts=event.finished_ts, schema=event.schema, table=event.table, query=event.query)
        return self._patiently(lambda: self._owner.ddl(event))

    def publish(self) -> None:
        """Tell readers what has been saved."""
        self._patiently(lambda: self._owner.publish(self._saved[0]))

    def _units(self, plan: Plan, from_ts: Ts) -> list[Unit]:
        """In the generation of the moment."""
        tables = [part.written_as for part in plan.parts]
        if self._consistency is Consistency.TRANSACTION and self._options.traits.joins_transactions:
            target = cast("JointWriter", self._writer).joint_target(tables)
            return [Unit(_decoder(tables[0]), None, target, plan.parts)]
        window = from_ts, Ts(max(plan.to.values()))
        targets = [self._writer.target(table, table.id, window) for table in tables]
        return [
            Unit(_decoder(part.written_as), None, target, (part,))
            for part, target in zip(plan.parts, targets, strict=True)
        ]

    def _recover(self) -> None:
        """Rows of any ts may be there: whoever wrote the topic may have begun with a copy of theirs."""
        at_ts, state = self._saved
        self._writer.recover(Checkpoints(at_ts), None, state, MAX_TS, self._owner.term)

    def _patiently(self, call: Callable[[], T], *, recovers: bool = False) -> T:
        """Again and again, as long as what stops it may pass."""
        tries, needs_recovery = 0, False
        while True:
            try:
                if needs_recovery:
                    self._recover()
                    needs_recovery = False
                found = call()
                self.trouble = None
                return found
            except (SinkError, EngineError) as error:
                if not error.retryable:
                    raise
                tries, needs_recovery = tries + 1, recovers
                self.trouble = str(error)
                log.warning("waiting for what passes", reason=str(error), tries=tries)
            if self._stopping.wait(_RETRY.pause_seconds(tries)):
                raise StoppedError("stopped while the sink was away; what was not written is read again.")


def refuse_far(master: str) -> None:
    """Raises UsageError where Spark's workers may be elsewhere."""
    from tidemill.spark.settings import is_local

    if not is_local(master):
        raise UsageError(
            f"a consumer's rows are staged in files of this machine, and workers of Spark's master {master!r} may be "
            "elsewhere. Leave --spark-master out, or name local[N]."
        )


def _decoder(table: TableInfo) -> TableDecoder:
    return TableDecoder(table, table.id)
