"""Who may write: of all generations of a writer, only the newest; and of all owners of a changefeed, only the last.

A process that was killed may leave a task behind that still writes, and a write of an old batch after a newer one would
stand. So every start and every recovery of a writer begins a new generation, and each transaction proves, within
itself, that its own has not ended:

    tidb_cdc.tidemill_generation_v4    (changefeed, cluster, writer) → the mark of the newest generation
    tidb_cdc.tidemill_writer_v4        one row per session that writes: its slot

A session notes its slot first and asks then whose turn it is. A new generation puts its mark first and deletes the
slots of the older ones then. So either it finds the slot, or the session finds the mark. Each transaction updates its
slot before anything else, and fails where that is gone: the new generation waits for the open ones, or ends the session
of one that does not move (the slot notes its number), and what comes later finds no slot. No two sessions share a row,
no lock is held but within those transactions, and the update travels with the rows: no round trip is added. To end a
writer for good is to replace its mark by one that says so, for as long as the owner's term lasts, and to delete its
slots then. So one that has yet to begin finds that it is ended, or that there is another term.

The owner is a writer without a name, and its terms are the generations. DDL commits by itself, so it cannot be within
such a transaction. It runs under a named lock of the server instead (``ddl_turn``), one for each session that is at
DDLs. A new term takes all of them once after it has put its mark: an older one's DDLs are over by then, or their
sessions are ended, and a later one is refused before it begins.
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from tidemill.errors import SupersededError
from tidemill.sinks.mysql import failures

SCHEMA = "tidb_cdc"
_GENERATIONS, _SLOTS = f"`{SCHEMA}`.`tidemill_generation_v4`", f"`{SCHEMA}`.`tidemill_writer_v4`"
_TABLES = (
    f"CREATE DATABASE IF NOT EXISTS `{SCHEMA}`",
    f"CREATE TABLE IF NOT EXISTS {_GENERATIONS} (changefeed VARCHAR(255) NOT NULL, cluster VARCHAR(64) NOT NULL, "
    "writer VARCHAR(128) NOT NULL, generation VARCHAR(32) NOT NULL, PRIMARY KEY (changefeed, cluster, writer)) "
    "DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
    f"CREATE TABLE IF NOT EXISTS {_SLOTS} (slot VARCHAR(32) NOT NULL PRIMARY KEY, changefeed VARCHAR(255) NOT NULL, "
    "cluster VARCHAR(64) NOT NULL, writer VARCHAR(128) NOT NULL, generation VARCHAR(32) NOT NULL, "
    "session BIGINT UNSIGNED NOT NULL, "
    "beat BIGINT UNSIGNED NOT NULL, KEY of_changefeed (changefeed, cluster)) "
    "DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
)
_OURS = "changefeed = %s AND cluster = %s"
_MINE = f"{_OURS} AND writer = %s"
OWNER: Final = ""  # where a writer's name would stand
_LONGEST_NAME: Final = 128  # what is longer is shortened to a digest
_LOCK_WAIT: Final = frozenset({1205, 3572})
_NO_SUCH_SESSION: Final = 1094
_OUT_OF_RANGE: Final = 1690
_LOCK_WAIT_SECONDS = 1
MOST_DDL_SESSIONS: Final = 4  # of an owner, at the same time
_SLOTS_A_STATEMENT = 500  # each session leaves one behind, and a statement has to fit into a packet

# Fails (1690) unless the statement before it has changed exactly one row.
ASSERTION = "SELECT ~0 + (ROW_COUNT() <> 1)"

Session = Any  # a connection of PyMySQL


class TakenOverError(SupersededError):
    """A newer generation writes, or this one was ended: it has to stop."""

    code = "sink-taken-over"


@dataclass(frozen=True, slots=True)
class Slot:
    """A session's right to write. ``guard`` goes first in each of its transactions, ``ASSERTION`` behind it."""

    name: str

    @property
    def guard(self) -> str:
        return f"UPDATE {_SLOTS} SET beat = beat + 1 WHERE slot = '{self.name}'"

    def is_lost(self, session: Session) -> bool:
        """Whether a transaction failed because of the slot. Outside of a transaction."""
        with session.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {_SLOTS} WHERE slot = %s", (self.name,))
            return cursor.fetchone() is None


def is_assertion(error: BaseException) -> bool:
    """Whether an error may come from the ``ASSERTION``; a row's own arithmetic may fail alike."""
    return failures.number_of(error) == _OUT_OF_RANGE


@dataclass(frozen=True, slots=True)
class Generation:
    """The mark of one generation; travels with its targets."""

    changefeed: str
    cluster: str
    writer: str
    mark: str

    @classmethod
    def new(cls, changefeed: str, cluster: str, writer: str) -> "Generation":
        return cls(changefeed, cluster, _column(writer), secrets.token_hex(8))

    @property
    def holder(self) -> tuple[str, str, str]:
        return self.changefeed, self.cluster, self.writer

    def is_of(self, other: "Generation") -> bool:
        """Whether both are generations of one writer."""
        return self.holder == other.holder

    def check_in(self, session: Session) -> Slot:
        """For every session that is to write rows: its slot. Raises TakenOverError."""
        slot = Slot(secrets.token_hex(8))
        with session.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {_SLOTS} VALUES (%s, %s, %s, %s, %s, CONNECTION_ID(), 0)",
                (slot.name, *self.holder, self.mark),
            )
            session.commit()
            self._confirm(cursor)
            session.commit()
        return slot

    @contextmanager
    def writing(self, session: Session) -> Iterator[None]:
        """A transaction of the driver's own that commits only in this generation. Raises TakenOverError."""
        slot = self.check_in(session)
        session.begin()
        try:
            with session.cursor() as cursor:
                if cursor.execute(slot.guard) != 1:
                    raise self.taken_over()
                yield
                cursor.execute(f"DELETE FROM {_SLOTS} WHERE slot = %s", (slot.name,))
            session.commit()
        except BaseException:
            with suppress(pymysql.err.MySQLError, OSError):
                session.rollback()
            raise

    @contextmanager
    def ddl_turn(
        self, session: Session, until: Callable[[Callable[[], bool], float], bool], number: int = 0
    ) -> Iterator[None]:
        """For DDLs in a session: none of another generation runs meanwhile in the session of this ``number``, below
        ``MOST_DDL_SESSIONS``. Raises TakenOverError. ``until`` asks again and again until something is so; False if it
        was interrupted."""
        lock = self._locks[number]
        with session.cursor() as cursor:
            if not until(lambda: _is_locked(cursor, lock, _LOCK_WAIT_SECONDS), 0.0):
                raise failures.DownstreamUnavailableError(
                    f"stopped while another session was at a DDL for changefeed {self.changefeed!r}. The changefeed "
                    "continues with this DDL when it is started again."
                )
            try:
                self._confirm(cursor)
                yield
            finally:
                if session.open:
                    with suppress(pymysql.err.MySQLError, OSError):
                        cursor.execute("SELECT RELEASE_LOCK(%s)", (lock,))

    def begin(self, session: Session, after: Sequence[str] = (), term: str = "") -> None:
        """Become the newest generation: who asks from here on is refused. ``end_older`` is to follow. With ``after``,
        only where one of these marks is the newest so far; for a writer's first one, only while ``term`` is its
        owner's, and where the writer has not been ended in it. Otherwise raises TakenOverError."""
        prepare(session)
        with session.cursor() as cursor:
            if not after:
                if self.writer != OWNER:
                    self._confirm_term(cursor, term)  # who is too late leaves alone who has the name now
                cursor.execute(
                    f"INSERT INTO {_GENERATIONS} VALUES (%s, %s, %s, %s) "
                    "ON DUPLICATE KEY UPDATE generation = IF(generation = %s, generation, VALUES(generation))",
                    (*self.holder, self.mark, _ended_in(term)),
                )
                if self.writer != OWNER:
                    self._confirm(cursor)
                    self._confirm_term(cursor, term)
                return
            cursor.execute(
                f"UPDATE {_GENERATIONS} SET generation = %s WHERE {_MINE} AND generation IN %s",
                (self.mark, *self.holder, (*after, self.mark)),
            )
            self._confirm(cursor)

    def end_older(self, session: Session) -> bool:
        """Whether nothing of an older generation can get through any more. False: it has been told to end; again.
        Raises TakenOverError."""
        with session.cursor() as cursor:
            self._confirm(cursor)
            is_over = end_slots(cursor, f"{_MINE} AND generation <> %s", (*self.holder, self.mark))
            return is_over and (self.writer != OWNER or self._end_older_ddl(cursor))

    def confirm(self, session: Session) -> None:
        """Raises TakenOverError unless it is still the newest."""
        with session.cursor() as cursor:
            self._confirm(cursor)

    @property
    def _locks(self) -> list[str]:
        """The names of the locks for DDLs; a server takes 64 characters."""
        first = "tidemill_" + hashlib.sha256(f"{self.cluster}\0{self.changefeed}".encode()).hexdigest()[:40]
        return [first, *(f"{first}_{number}" for number in range(1, MOST_DDL_SESSIONS))]

    def _confirm(self, cursor: Any) -> None:
        """Raises TakenOverError."""
        cursor.execute(f"SELECT generation FROM {_GENERATIONS} WHERE {_MINE}", self.holder)
        found = cursor.fetchone()
        if found is None or found[0] != self.mark:
            raise self.taken_over()

    def _confirm_term(self, cursor: Any, term: str) -> None:
        """Asked again after the mark was put: whoever begins another term from then on finds that."""
        cursor.execute(f"SELECT generation FROM {_GENERATIONS} WHERE {_MINE}", (self.changefeed, self.cluster, OWNER))
        found = cursor.fetchone()
        if found is None or found[0] != term:
            raise self.taken_over()

    def taken_over(self) -> TakenOverError:
        return TakenOverError(
            f"stopped writing for changefeed {self.changefeed!r}: another process has taken it over. Nothing is "
            "lost: what this one had not committed the other writes. Run each changefeed once."
        )

    def _end_older_ddl(self, cursor: Any) -> bool:
        return all(_is_free(cursor, lock) for lock in self._locks)


def prepare(session: Session) -> None:
    """Make sure the tables exist. From here on ``session`` does not wait long for locks."""
    with session.cursor() as cursor:
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {_LOCK_WAIT_SECONDS}")
        for statement in _TABLES:
            cursor.execute(statement)


def end_writers(session: Session, term: Generation, writers: Collection[str] | None) -> bool:
    """End these writers in the owner's ``term``, or all that have begun. Whether nothing of theirs can get through any
    more; False: they have been told to end; again."""
    changefeed, cluster, _ = term.holder
    meant: str = f"{_OURS} AND writer <> %s"
    who: list[Any] = [changefeed, cluster, OWNER]
    if writers is not None:
        if not writers:
            return True
        meant, who = f"{_OURS} AND writer IN %s", [changefeed, cluster, [_column(writer) for writer in writers]]
    with session.cursor() as cursor:
        if writers is None:
            cursor.execute(f"DELETE FROM {_GENERATIONS} WHERE {meant}", who)
        else:
            cursor.executemany(
                f"INSERT INTO {_GENERATIONS} VALUES (%s, %s, %s, %s) "
                "ON DUPLICATE KEY UPDATE generation = VALUES(generation)",
                [(changefeed, cluster, _column(writer), _ended_in(term.mark)) for writer in writers],
            )
        return end_slots(cursor, meant, who)


def end_slots(cursor: Any, meant: str, who: Sequence[Any]) -> bool:
    cursor.execute(f"SELECT slot, session FROM {_SLOTS} WHERE {meant}", who)
    older = [(str(slot), int(number)) for slot, number in cursor.fetchall()]
    for first in range(0, len(older), _SLOTS_A_STATEMENT):
        some = older[first : first + _SLOTS_A_STATEMENT]
        try:
            cursor.execute(f"DELETE FROM {_SLOTS} WHERE slot IN %s", ([slot for slot, _ in some],))
        except pymysql.err.MySQLError as error:
            if failures.number_of(error) not in _LOCK_WAIT:
                raise
            for slot, number in some:
                _end_holder(cursor, slot, number)
            return False
    return True


def _ended_in(term: str) -> str:
    """Where a generation's mark would stand, of a writer that is not to begin in that term any more."""
    return f"-{term}"


def _column(writer: str) -> str:
    """A writer's name as the tables hold it."""
    return writer if len(writer) <= _LONGEST_NAME else hashlib.sha256(writer.encode()).hexdigest()


def _is_locked(cursor: Any, lock: str, seconds: int) -> bool:
    cursor.execute("SELECT GET_LOCK(%s, %s)", (lock, seconds))
    return bool(cursor.fetchone()[0])


def _is_free(cursor: Any, lock: str) -> bool:
    """Whether nobody holds it any more; one who does is told to end."""
    if not _is_locked(cursor, lock, 0):
        cursor.execute("SELECT IS_USED_LOCK(%s)", (lock,))
        ((number,),) = cursor.fetchall()
        if number is not None:
            _end(cursor, int(number))
        return False
    cursor.execute("SELECT RELEASE_LOCK(%s)", (lock,))
    return True


def _end_holder(cursor: Any, slot: str, number: int) -> None:
    """Delete a slot, or end the session that holds it in an open transaction. One that nobody holds may note a number
    that is a stranger's by now, since a server that is restarted counts its sessions from the beginning."""
    try:
        cursor.execute(f"DELETE FROM {_SLOTS} WHERE slot = %s", (slot,))
    except pymysql.err.MySQLError as error:
        if failures.number_of(error) not in _LOCK_WAIT:
            raise
        _end(cursor, number)


def _end(cursor: Any, number: int) -> None:
    try:
        cursor.execute(f"KILL {number}")
    except pymysql.err.MySQLError as error:
        if failures.number_of(error) != _NO_SUCH_SESSION:
            raise
