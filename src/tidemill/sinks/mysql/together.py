"""DDLs that have nothing to do with each other, run over several sessions at a time.

    wave ─► noted as begun, all at once ─► sessions, each in a turn of its own ─► noted as done, one by one
                                                 └── what stopped there is left to the caller, who runs it by itself

What a crash leaves behind is what it leaves of one DDL: some have begun, and may have run. None of a wave looks at what
another one does, so each can be judged alone.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

import pymysql

from tidemill.log import get_logger
from tidemill.model.ddl import DdlEvent
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.carry import Carrier
from tidemill.sinks.mysql.ddl import note_executed
from tidemill.sinks.mysql.generation import MOST_DDL_SESSIONS
from tidemill.sinks.mysql.notes import Notes
from tidemill.sinks.mysql.session import Connection, Downstream, closed, open_session
from tidemill.sinks.mysql.sessions import Turn

log = get_logger("mysql")


class Team:
    """The sessions of an owner's term, beside its own. Its methods are called one at a time, but for ``close``."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._idle: SimpleQueue[Connection] = SimpleQueue()

    def run(self, wave: Sequence[DdlEvent], saved_ts: Ts, on_done: Callable[[DdlEvent], None]) -> list[DdlEvent]:
        """Returns those that are still to be run, by themselves: they were begun before, or something has stopped
        them. ``on_done`` is told of the others, from any thread. Below ``saved_ts`` no DDL comes again."""
        turn = self._turn
        assert turn.downstream is not None
        done: list[DdlEvent] = []  # by several threads
        lost: list[int] = []

        def note(event: DdlEvent) -> None:
            done.append(event)
            on_done(event)

        try:
            session = turn.opened()
            with turn.generation.ddl_turn(session, turn.patience.until):
                notes = Notes(session, turn.options)
                notes.prepare()
                known = notes.of(wave)
                new = [event for event in wave if (event.finished_ts, event.seq) not in known]
                if new:
                    notes.begin(new, saved_ts=saved_ts)
                lost = self._carry_out(new, turn.downstream, note)
        except (pymysql.err.MySQLError, OSError) as error:
            if failures.is_lost(error):
                turn.lose()
        if lost:
            turn.patiently(lambda: self._wait_for(lost), "see what became of DDLs")
        ended = {(event.finished_ts, event.seq) for event in done}
        return [event for event in wave if (event.finished_ts, event.seq) not in ended]

    def close(self) -> None:
        with suppress(Empty):
            while True:
                closed(self._idle.get_nowait())

    def _carry_out(
        self, events: Sequence[DdlEvent], downstream: Downstream, on_done: Callable[[DdlEvent], None]
    ) -> list[int]:
        """Returns the numbers of the sessions that were lost. Raises what is no matter of the server's alone."""
        queue: SimpleQueue[DdlEvent] = SimpleQueue()
        for event in events:
            queue.put(event)
        number = min(len(events), MOST_DDL_SESSIONS - 1)
        with ThreadPoolExecutor(max(1, number), thread_name_prefix="ddl") as threads:
            running = [threads.submit(self._work, each + 1, queue, downstream, on_done) for each in range(number)]
        return [number for number, future in enumerate(running, 1) if not future.result()]

    def _wait_for(self, lost: Sequence[int]) -> None:
        """The server may not have noticed that a session is lost, nor have begun with what it was sent last. Run again,
        that would be done twice, the second time behind later rows."""
        for number in lost:
            with self._turn.generation.ddl_turn(self._turn.opened(), self._turn.patience.until, number):
                pass

    def _work(
        self, number: int, queue: "SimpleQueue[DdlEvent]", downstream: Downstream, on_done: Callable[[DdlEvent], None]
    ) -> bool:
        """False: its session was lost."""
        turn, session = self._turn, None
        try:
            session = self._session()
            with turn.generation.ddl_turn(session, turn.patience.until, number), suppress(Empty):
                while True:
                    event = queue.get_nowait()
                    if self._is_carried_out(session, event, downstream):
                        on_done(event)
                        note_executed(event)
        except (pymysql.err.MySQLError, OSError) as error:
            log.warning("a session for DDLs is lost; others go on", reason=failures.text_of(error))
            if session is not None:
                closed(session)
                session = None
            return False
        finally:
            if session is not None:
                self._idle.put(session)
        return True

    def _is_carried_out(self, session: Connection, event: DdlEvent, downstream: Downstream) -> bool:
        turn = self._turn
        carrier = Carrier(session, event, turn.ddl_settings(), downstream, turn.lines, None, is_new=True)
        try:
            carrier.carry_out(has_run=False)
            Notes(session, turn.options).end(event)
        except (pymysql.err.MySQLError, OSError) as error:
            if failures.is_lost(error):
                raise
            log.warning("DDL did not go through beside others", query=event.query, reason=failures.text_of(error))
            return False
        return True

    def _session(self) -> Connection:
        try:
            return self._idle.get_nowait()
        except Empty:
            return open_session(self._turn.ddl_settings(), self._turn.lines)
