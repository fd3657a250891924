"""Who may write: of all processes that ever ran a changefeed, only the newest.

A process that was killed may leave a task behind that still writes, and a write of an old batch after a newer one would
stand. So a sink that opens notes itself as the owner of its changefeed, ends the sessions of those before it, and waits
until they are gone. A session notes its own number first and asks who the owner is then: either the new owner finds the
number and ends the session, or the session finds the new owner and stops. Rows cost nothing for it.

    tidb_cdc.tidemill_owner_v1     changefeed → owner
    tidb_cdc.tidemill_session_v1   (changefeed, owner, session)
"""

import secrets
from dataclasses import dataclass
from typing import Any

import pymysql

from tidemill.errors import SinkError
from tidemill.flow.sink.mysql import failures

SCHEMA = "tidb_cdc"
_OWNERS, _SESSIONS = f"`{SCHEMA}`.`tidemill_owner_v1`", f"`{SCHEMA}`.`tidemill_session_v1`"
_TABLES = (
    f"CREATE DATABASE IF NOT EXISTS `{SCHEMA}`",
    f"CREATE TABLE IF NOT EXISTS {_OWNERS} (changefeed VARCHAR(255) PRIMARY KEY, owner VARCHAR(32) NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {_SESSIONS} (changefeed VARCHAR(255) NOT NULL, owner VARCHAR(32) NOT NULL, "
    "session BIGINT UNSIGNED NOT NULL, PRIMARY KEY (changefeed, owner, session))",
)
_NO_SUCH_SESSION = 1094

Session = Any  # a connection of PyMySQL


@dataclass(frozen=True, slots=True)
class Owner:
    """The mark of one sink object; travels with its targets."""

    changefeed: str
    mark: str

    @classmethod
    def new(cls, changefeed: str) -> "Owner":
        return cls(changefeed, secrets.token_hex(8))

    def check_in(self, session: Session) -> None:
        """For every session that is to write: note it, and stop if there is a newer owner."""
        with session.cursor() as cursor:
            cursor.execute(
                f"INSERT IGNORE INTO {_SESSIONS} VALUES (%s, %s, CONNECTION_ID())", (self.changefeed, self.mark)
            )
            cursor.execute(f"SELECT owner FROM {_OWNERS} WHERE changefeed = %s", (self.changefeed,))
            found = cursor.fetchone()
        if found is None or found[0] != self.mark:
            raise SinkError(
                f"stopped writing for changefeed {self.changefeed!r}: another process has taken it over. Nothing is "
                "lost: what this one had not committed the other writes. Run each changefeed once."
            )

    def take_over(self, session: Session) -> list[int]:
        """Become the owner; returns the sessions of earlier ones that are still to vanish."""
        with session.cursor() as cursor:
            for statement in _TABLES:
                cursor.execute(statement)
            cursor.execute(f"REPLACE INTO {_OWNERS} VALUES (%s, %s)", (self.changefeed, self.mark))
            cursor.execute(
                f"SELECT session FROM {_SESSIONS} WHERE changefeed = %s AND owner <> %s", (self.changefeed, self.mark)
            )
            earlier = {int(row[0]) for row in cursor.fetchall()} - {session.thread_id()}
            alive = sorted(earlier & self._alive(cursor))
            for number in alive:
                self._end(cursor, number)
        return alive

    def still_there(self, session: Session, numbers: list[int]) -> list[int]:
        """Of earlier sessions those that are not gone yet; once none is, their notes are dropped."""
        with session.cursor() as cursor:
            alive = sorted(set(numbers) & self._alive(cursor)) if numbers else []
            if not alive:
                cursor.execute(
                    f"DELETE FROM {_SESSIONS} WHERE changefeed = %s AND owner <> %s", (self.changefeed, self.mark)
                )
        return alive

    def _alive(self, cursor: Any) -> set[int]:
        """Our user's sessions; those of others could not be ours. A number may have passed to somebody else's."""
        cursor.execute("SHOW PROCESSLIST")
        return {int(row[0]) for row in cursor.fetchall() if row[1] == cursor.connection.user.decode()}

    def _end(self, cursor: Any, number: int) -> None:
        try:
            cursor.execute(f"KILL {number}")
        except pymysql.err.MySQLError as error:
            if failures.number_of(error) != _NO_SUCH_SESSION:
                raise
