"""Who may write: of all processes that ever ran a changefeed, only the newest.

A process that was killed may leave a task behind that still writes, and a write of an old batch after a newer one would
stand. So a sink that opens notes itself as the owner of its changefeed, ends the sessions of those before it, and waits
until they are gone. A session notes its own number first and asks who the owner is then: either the new owner finds the
number and ends the session, or the session finds the new owner and stops. Rows cost nothing for it.

    tidb_cdc.tidemill_owner_v1     changefeed → owner
    tidb_cdc.tidemill_writer_v1    (changefeed, owner, session, host)

A server that starts anew counts its sessions from the beginning, so a number alone may be a stranger's by now. The
client's address and port, as the server sees them, tell whether it is the same session.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import pymysql

from tidemill.errors import SinkError
from tidemill.flow.sink.mysql import failures

SCHEMA = "tidb_cdc"
_OWNERS, _WRITERS = f"`{SCHEMA}`.`tidemill_owner_v1`", f"`{SCHEMA}`.`tidemill_writer_v1`"
_TABLES = (
    f"CREATE DATABASE IF NOT EXISTS `{SCHEMA}`",
    f"CREATE TABLE IF NOT EXISTS {_OWNERS} (changefeed VARCHAR(255) PRIMARY KEY, owner VARCHAR(32) NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {_WRITERS} (changefeed VARCHAR(255) NOT NULL, owner VARCHAR(32) NOT NULL, "
    "session BIGINT UNSIGNED NOT NULL, host VARCHAR(255) NOT NULL, PRIMARY KEY (changefeed, owner, session))",
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
            cursor.execute("SELECT CONNECTION_ID()")  # the handshake's number is cut to 32 bits, and TiDB's are longer
            number = int(cursor.fetchone()[0])
            host = _living(cursor).get(number, "")
            cursor.execute(
                f"REPLACE INTO {_WRITERS} VALUES (%s, %s, %s, %s)", (self.changefeed, self.mark, number, host)
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
                f"SELECT session, host FROM {_WRITERS} WHERE changefeed = %s AND owner <> %s",
                (self.changefeed, self.mark),
            )
            noted, living = cursor.fetchall(), _living(cursor)
            alive = sorted(number for number, host in noted if number in living and host in ("", living[number]))
            for number in alive:
                _end(cursor, number)
        return alive

    def still_there(self, session: Session, numbers: list[int]) -> list[int]:
        """Of earlier sessions those that are not gone yet; once none is, their notes are dropped."""
        with session.cursor() as cursor:
            alive = sorted(set(numbers) & set(_living(cursor))) if numbers else []
            if not alive:
                cursor.execute(
                    f"DELETE FROM {_WRITERS} WHERE changefeed = %s AND owner <> %s", (self.changefeed, self.mark)
                )
        return alive


def _living(cursor: Any) -> dict[int, str]:
    """The sessions of our user, and from where each came; those of others could not be ours."""
    cursor.execute("SHOW PROCESSLIST")
    return {int(row[0]): str(row[2]) for row in cursor.fetchall() if row[1] == cursor.connection.user.decode()}


def _end(cursor: Any, number: int) -> None:
    try:
        cursor.execute(f"KILL {number}")
    except pymysql.err.MySQLError as error:
        if failures.number_of(error) != _NO_SUCH_SESSION:
            raise
