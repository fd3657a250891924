"""Writes the rows of one unit: runs on executors, over several connections at a time.

    RowBatches ─► windows (cut between transactions) ─► plan ─► lanes, each on a connection ─► durable

A window is merged and written as a whole before the next one begins, so the memory used does not grow with the unit. A
transaction of the upstream that is larger than a window comes by itself, deletes before updates before inserts: it is
cut into windows, which with ``transaction-atomicity=table`` stand in one transaction downstream. A
transaction that fails for a reason that passes (deadlock, lost connection, a server that restarts) is run again, as
REPLACE where it may have gone through unnoticed. One that fails for good stops the unit; the row to blame is named.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, count
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pymysql

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, sliced
from tidemill.model.table import ColumnType, TableInfo
from tidemill.retry import Policy
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.generation import ASSERTION, Generation, is_assertion
from tidemill.sinks.mysql.literals import Literals, shown_key
from tidemill.sinks.mysql.plan import Lane, Limits, Plan, Statement, Transaction, make_plan
from tidemill.sinks.mysql.session import (
    POOL,
    Connection,
    Flavor,
    SessionSettings,
    Writer,
    ask,
    closed,
    drain,
    mode_statement,
)
from tidemill.sinks.mysql.statement import Shapes

log = get_logger("mysql")

_WINDOW_ROWS = 200_000
_WINDOW_BYTES = 128 << 20
_STATEMENT_BYTES = 4 << 20
_FOREVER = float("inf")
_RETRY: Final = Policy(0.02, 2.0)


@dataclass(frozen=True, slots=True)
class MysqlTarget:
    """Where one unit's rows go and how. Small and picklable: it is sent to an executor."""

    settings: SessionSettings
    table: TableInfo
    generation: Generation
    is_safe: bool  # rows of the unit may have been written before
    patience_seconds: float = 120.0  # how long one transaction is tried again while the server answers
    away_seconds: float = 5.0  # and while it does not: then the driver waits, who can be stopped meanwhile
    window_rows: int = _WINDOW_ROWS
    plain_columns: frozenset[str] = frozenset()  # generated upstream, and written here; in small letters

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors."""
        return write_rows(self, rows)

    def share(self, number: int) -> "MysqlTarget":
        return self


def write_rows(target: MysqlTarget, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
    """Write all rows and return once they are durable. Running it again leaves the same rows."""
    writer = UnitWriter(target)
    for window in windows(rows, target.window_rows):
        if isinstance(window, LargeRows):
            writer.write_large(window)
        else:
            writer.write(window)
    return Receipt(target.table.full_name, 0, 0, writer.rows, writer.bytes)


def windows(
    rows: Iterator[RowBatch | LargeRows], most_rows: int = _WINDOW_ROWS, most_bytes: int = _WINDOW_BYTES
) -> Iterator[RowBatch | LargeRows]:
    """The same rows in pieces that fit into memory, each ending with a transaction. Large ones are left as they are."""
    waiting: list[RowBatch] = []
    count = size = 0
    for batch in rows:
        if isinstance(batch, LargeRows):
            if waiting:
                yield _joined(waiting)
            waiting, count, size = [], 0, 0
            yield batch
            continue
        if not len(batch):
            continue
        waiting.append(batch)
        count += len(batch)
        size += batch.new.nbytes + batch.old.nbytes
        if count >= most_rows or size >= most_bytes:
            whole = _joined(waiting)
            cut = int(np.searchsorted(whole.commit_ts, whole.commit_ts[-1]))
            if cut:
                yield sliced(whole, 0, cut)
                whole = sliced(whole, cut, len(whole))
            waiting, count, size = [whole], len(whole), whole.new.nbytes + whole.old.nbytes
    if waiting:
        yield _joined(waiting)


def pieces(
    rows: Iterator[RowBatch], most_rows: int = _WINDOW_ROWS, most_bytes: int = _WINDOW_BYTES
) -> Iterator[RowBatch]:
    """The same rows in pieces that fit into memory, cut anywhere."""
    waiting: list[RowBatch] = []
    count = size = 0
    for batch in rows:
        waiting.append(batch)
        count += len(batch)
        size += batch.new.nbytes + batch.old.nbytes
        if count >= most_rows or size >= most_bytes:
            yield _joined(waiting)
            waiting, count, size = [], 0, 0
    if count:
        yield _joined(waiting)


def _joined(batches: list[RowBatch]) -> RowBatch:
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    return RowBatch(
        first.table,
        first.physical_id,
        np.concatenate([b.op for b in batches]),
        np.concatenate([b.start_ts for b in batches]),
        np.concatenate([b.commit_ts for b in batches]),
        _one([b.new for b in batches]),
        _one([b.old for b in batches]),
    )


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches)


class UnitWriter:
    """Of the rows of one table."""

    def __init__(self, target: MysqlTarget) -> None:
        if not target.table.handle_key:
            raise SinkError(
                f"cannot write table {target.table.full_name}: it has neither a primary key nor a unique key that is "
                "NOT NULL, so its rows cannot be told apart. Give it one, or take the table out of the changefeed."
            )
        options, downstream = target.settings.options, target.settings.downstream
        packet = downstream.max_allowed_packet if downstream else 4 << 20
        rows = options.max_txn_row if options.batch_dml else 1
        self._target = target
        self._literals = Literals(target.table, target.plain_columns)
        is_tidb = downstream is not None and downstream.flavor is Flavor.TIDB
        self.shapes = Shapes.of(target.table, target.plain_columns, is_tidb=is_tidb)
        self._limits = Limits(
            rows=rows,
            update_rows=min(options.max_multi_update_row, rows),
            bytes=max(min(_STATEMENT_BYTES, packet // 2) - 4096, 1024),
            lanes=options.worker_count,
        )
        self.packet = packet
        self.rows = self.bytes = 0

    @property
    def is_safe(self) -> bool:
        return self._target.is_safe or self._target.settings.options.safe_mode

    def write(self, rows: RowBatch) -> None:
        self._write(rows, is_atomic=self._target.settings.options.is_atomic)

    def write_large(self, rows: LargeRows) -> None:
        if not self._target.settings.options.is_atomic:
            for piece in pieces(rows.read(), self._target.window_rows):
                self._write(piece, is_atomic=False)
            return
        with Worker(self._target, lambda _: self.shapes, self.packet, threading.Event()) as worker:
            written = worker.stream(lambda is_safe: self.plans(rows.read(), is_safe), self.is_safe)
        self.rows += written[0]
        self.bytes += written[1]

    def plans(self, rows: Iterator[RowBatch], is_safe: bool) -> Iterator[tuple[Plan, int]]:
        """The pieces of one transaction, each with its number of rows."""
        for piece in pieces(rows, self._target.window_rows):
            yield make_plan(piece, self._limits, self._literals, is_safe=is_safe, is_atomic=False), len(piece)

    def _write(self, rows: RowBatch, *, is_atomic: bool) -> None:
        plan = make_plan(rows, self._limits, self._literals, is_safe=self.is_safe, is_atomic=is_atomic)
        for lanes in plan.phases:
            self._run(plan, lanes, self.is_safe)
        self.rows += len(rows)
        self.bytes += plan.text.payload.size

    def _run(self, plan: Plan, lanes: list[Lane], is_safe: bool) -> None:
        queue: SimpleQueue[Lane] = SimpleQueue()
        for lane in lanes:
            queue.put(lane)
        stop = threading.Event()

        def work() -> None:
            with Worker(self._target, lambda _: self.shapes, self.packet, stop) as worker:
                while not stop.is_set():
                    try:
                        lane = queue.get_nowait()
                    except Empty:
                        return
                    for transaction in lane:
                        worker.execute(plan, transaction, is_safe)

        workers = min(self._target.settings.options.worker_count, len(lanes))
        if workers == 1:
            work()
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="mysql") as threads:
            running = [threads.submit(work) for _ in range(workers)]
            wait(running, return_when=FIRST_EXCEPTION)
            if any(future.done() and future.exception() for future in running):
                stop.set()
        for future in running:
            future.result()


class Worker:
    """One connection at a time, and what it takes to get a transaction through."""

    def __init__(
        self, target: MysqlTarget, shapes: Callable[[TableInfo], Shapes], packet: int, stop: threading.Event
    ) -> None:
        self._target, self._shapes, self._packet, self._stop = target, shapes, packet, stop
        self._writer: Writer | None = None
        self._at: tuple[Plan, Transaction] | None = None  # what is being written
        self._is_lenient = False  # for what is being written: a generated column does not hold its value otherwise

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._writer is not None:
            if kind is None:
                POOL.give_back(self._target.settings, self._target.generation, self._writer)
            else:
                closed(self._writer.connection)

    def execute(self, plan: Plan, transaction: Transaction, is_safe: bool) -> None:
        """Run one transaction until it is committed."""
        self._at, self._is_lenient = (plan, transaction), False
        self._persist(lambda safe: self._try(plan, transaction, safe), is_safe)

    def stream(self, plans: Callable[[bool], Iterator[tuple[Plan, int]]], is_safe: bool) -> tuple[int, int]:
        """Run plan after plan in one transaction until it is committed; returns how many rows and bytes that were."""
        rows = size = 0

        def attempt(safe: bool) -> None:
            nonlocal rows, size
            rows = size = 0
            connection = self._begun()
            for plan, number in plans(safe):
                for lane in chain.from_iterable(plan.phases):
                    for statement in chain.from_iterable(lane):
                        self._at = plan, (statement,)
                        self._run(connection, plan, statement, safe)
                rows, size = rows + number, size + plan.text.payload.size
            connection.commit()

        self._persist(attempt, is_safe)
        return rows, size

    def _persist(self, attempt: Callable[[bool], None], is_safe: bool) -> None:
        """Again and again, as long as what stops it may pass."""
        began: float | None = None
        for tries in count(1):
            try:
                attempt(is_safe)
                return
            except (pymysql.err.MySQLError, OSError) as error:
                if failures.number_of(error) == failures.DUPLICATE and not is_safe:
                    # Some of it is there already: an earlier try, or somebody's own rows.
                    is_safe = True
                    self._roll_back()
                    continue
                if self._may_be_lenient(error):
                    self._is_lenient = True
                    self._roll_back()
                    continue
                began = began or SYSTEM_CLOCK.monotonic()
                self._check(self._at, is_safe, error, SYSTEM_CLOCK.monotonic() - began)
                is_safe = is_safe or failures.is_lost(error)  # nobody knows whether it was committed
                self._recover(error)
            self._stop.wait(_RETRY.pause_seconds(tries))

    def _may_be_lenient(self, error: BaseException) -> bool:
        """What a session that was not strict has put into a generated column, a strict one refuses to work out."""
        if self._at is None or self._is_lenient or not failures.is_about_a_value(error):
            return False
        return any(column.is_generated for column in self._at[0].table.columns)

    def _connected(self) -> Writer:
        if self._writer is None:
            self._writer = POOL.take(self._target.settings, self._target.generation)
        return self._writer

    def _begun(self) -> Connection:
        """In a transaction that holds the slot, so that no newer generation begins before it ends."""
        writer = self._connected()
        connection, guard = writer.connection, writer.slot.guard
        if self._target.settings.has_multi_statements:
            connection.query(f"{guard};{ASSERTION}")
            drain(connection)
        elif connection.query(guard) != 1:
            raise self._target.generation.taken_over()
        return connection

    def _try(self, plan: Plan, transaction: Transaction, is_safe: bool) -> None:
        texts = [self._shapes(plan.table).text(plan, statement, is_safe=is_safe) for statement in transaction]
        size = sum(len(part) for text in texts for part in text)
        is_small = size + 1024 < (self._packet if len(texts) == 1 else min(self._packet // 2, 8 << 20))
        is_plain = plan.has_zero is None and not self._is_lenient
        if self._target.settings.has_multi_statements and is_small and is_plain:
            writer = self._connected()
            parts: list[Any] = [f"{writer.slot.guard};{ASSERTION};".encode()]
            for text in texts:
                parts += [*text, b";"]
            writer.connection.query(b"".join([*parts, b"COMMIT"]))
            drain(writer.connection)
            return
        connection = self._begun()
        for statement in transaction:
            self._run(connection, plan, statement, is_safe)
        connection.commit()

    def _run(self, connection: Connection, plan: Plan, statement: Statement, is_safe: bool) -> None:
        for piece, has_zero in plan.cut_at_zeros(statement):
            text = b"".join(self._shapes(plan.table).text(plan, piece, is_safe=is_safe))
            if has_zero or self._is_lenient:
                self._run_leniently(connection, plan.table, text, has_zero=has_zero)
            else:
                connection.query(text)

    def _run_leniently(self, connection: Connection, table: TableInfo, text: bytes, *, has_zero: bool) -> None:
        """Rows with an ENUM of index 0, or a generated column that cannot hold what its expression gives: a strict
        session refuses them. A lenient one keeps them, and would cut other values that do not fit as well: its
        warnings must be of those columns alone."""
        settings = self._target.settings
        plain = self._target.plain_columns
        generated = (c.name for c in table.columns if c.is_generated and c.name.lower() not in plain)
        excused = set(generated) if self._is_lenient else set()
        enums = {column.name for column in table.columns if column.type is ColumnType.ENUM and has_zero}
        connection.query(mode_statement(settings, is_lenient=True))
        try:
            connection.query(text)
            warnings = ask(connection, "SHOW WARNINGS")
        finally:
            if connection.open:
                connection.query(mode_statement(settings, is_lenient=False))
        for level, number, said in warnings:
            if not (
                failures.is_harmless(level, number)
                or (number == failures.TRUNCATED and failures.column_of(said) in enums)
                or (excused and failures.is_number_of_a_value(number) and failures.column_of(said) in {"", *excused})
            ):
                raise pymysql.err.DataError(number, said)

    def _check(self, at: tuple[Plan, Transaction] | None, is_safe: bool, error: BaseException, seconds: float) -> None:
        """Raise if there is no use in trying again, after so many seconds of it. ``at``: None before the first row."""
        target = self._target
        place, table = target.settings.options.place, (at[0] if at is not None else target).table.full_name
        if failures.is_passing(error) or failures.number_of(error) == failures.DUPLICATE:
            patience = min(target.patience_seconds, target.away_seconds if failures.is_lost(error) else _FOREVER)
            if seconds < patience and not (self._stop.is_set() or POOL.is_closed(target.generation)):
                return
            raise failures.DownstreamUnavailableError(
                f"gave up writing table {table} to {place} after {seconds:.0f} s of trying: "
                f"{failures.text_of(error)} (error {failures.number_of(error)}). Nothing was skipped; see that the "
                "server answers and is not overloaded. The changefeed continues from its checkpoint."
            ) from error
        self._roll_back()
        if is_assertion(error) and self._has_lost_slot():
            raise target.generation.taken_over() from error
        key = None
        if at is not None and failures.is_about_one_row(error):
            plan, transaction = at
            number = self._find_row(plan, transaction, is_safe)
            key = (lambda: shown_key(plan.table, plan.row(number))) if number is not None else None
        raise failures.refused(place, table, error, key) from error

    def _find_row(self, plan: Plan, transaction: Transaction, is_safe: bool) -> int | None:
        """The row of the plan's text that the downstream refuses; None if it does not do so again. Nothing is kept."""
        for statement in transaction:
            if self._is_refused(plan, statement, is_safe):
                first, last = statement.first, statement.last
                while last - first > 1:
                    half = (first + last) // 2
                    if self._is_refused(plan, Statement(statement.form, first, half), is_safe):
                        last = half
                    else:
                        first = half
                return first
        return None

    def _has_lost_slot(self) -> bool:
        return self._writer is None or self._writer.slot.is_lost(self._writer.connection)

    def _is_refused(self, plan: Plan, statement: Statement, is_safe: bool) -> bool:
        if self._writer is None:
            return False
        try:
            self._run(self._writer.connection, plan, statement, is_safe)
        except (pymysql.err.MySQLError, OSError) as error:
            return not failures.is_passing(error)
        finally:
            self._roll_back()
        return False

    def _recover(self, error: BaseException) -> None:
        if failures.is_lost(error):
            self._lose()
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        if self._writer is None:
            return
        try:
            drain(self._writer.connection)
            self._writer.connection.rollback()
        except (pymysql.err.MySQLError, OSError):
            self._lose()

    def _lose(self) -> None:
        if self._writer is not None:
            closed(self._writer.connection)
            self._writer = None
