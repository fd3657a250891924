"""A session that answers as it is told, and remembers what it was asked."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidebox.sql.wire.columns import Column
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.session import Affected, Client, Prepared, Result, Rows, Status
from tidemill.model.table import ColumnType

Outcome = Result | list[Result] | Exception
Answer = Outcome | Callable[[Sequence[object] | None], Outcome]

DEADLINE_SECONDS = 30


@dataclass
class Script:
    """Shared by all sessions of a server: what to answer, and what has happened."""

    answers: dict[str, Answer] = field(default_factory=dict)
    prepared: dict[str, Prepared] = field(default_factory=dict)
    databases: set[str] = field(default_factory=lambda: {"shop"})
    asked: list[tuple[str, Sequence[object] | None]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    status: Status = field(default_factory=Status)
    is_running: threading.Event = field(default_factory=threading.Event)
    is_interrupted: threading.Event = field(default_factory=threading.Event)
    is_closed: threading.Event = field(default_factory=threading.Event)

    def make_session(self) -> "ScriptedSession":
        return ScriptedSession(self)

    def hang(self, parameters: Sequence[object] | None) -> Outcome:
        """A statement that runs until it is interrupted."""
        self.is_running.set()
        if not self.is_interrupted.wait(DEADLINE_SECONDS):
            return RuntimeError("nobody interrupted the statement")
        return sql_error(Errno.QUERY_INTERRUPTED)


class ScriptedSession:
    def __init__(self, script: Script) -> None:
        self._script = script

    @property
    def status(self) -> Status:
        return self._script.status

    def connect(self, client: Client) -> None:
        self._script.clients.append(client)

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> Result | list[Result]:
        self._script.asked.append((statement, parameters))
        answer = self._script.answers.get(statement)
        if answer is None:
            answer = usual_answer(statement)
        outcome = answer(parameters) if callable(answer) else answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def prepare(self, statement: str) -> Prepared:
        found = self._script.prepared.get(statement)
        return found if found is not None else Prepared(statement.count("?"))

    def use(self, database: str) -> None:
        if database not in self._script.databases:
            raise sql_error(Errno.BAD_DB_ERROR, database)
        self._script.events.append(f"use {database}")

    def reset(self) -> None:
        self._script.events.append("reset")

    def interrupt(self) -> None:
        self._script.events.append("interrupt")
        self._script.is_interrupted.set()

    def close(self) -> None:
        self._script.events.append("close")
        self._script.is_closed.set()


# What clients ask on their own account when they connect, by a word of the question.
USUAL = {"VERSION()": "8.0.11-TiDB-v8.5.0", "lower_case_table_names": "2", "transaction_isolation": "REPEATABLE-READ"}


def usual_answer(statement: str) -> Result:
    """A text for what clients want to know, and no change for the rest."""
    if not statement.upper().startswith(("SELECT", "SHOW")):
        return Affected()
    known = next((value for word, value in USUAL.items() if word in statement), "")
    return Rows((Column("answer", ColumnType.VARSTRING),), [(known,)])
