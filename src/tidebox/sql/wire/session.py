"""The boundary between the MySQL protocol and whoever executes SQL.

    client ══ MySQL protocol ══ Connection ── execute, prepare, use ──► Session
                                           ◄── Affected | Rows | SqlError ──

The wire part knows nothing about SQL beyond where a statement ends; the session knows nothing
about packets. One session belongs to one connection. Its methods are called by that connection's
thread, one at a time and never again after ``close``; only ``interrupt`` comes from elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tidebox.sql.wire.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Client:
    """Who is at the other end, and what it asked for when it came."""

    connection_id: int
    user: str
    collation: int  # of what it sends; for all of them we take UTF-8
    is_counting_matches: bool = False  # CLIENT_FOUND_ROWS: an UPDATE reports rows matched, not rows changed
    is_interactive: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """What the client is told about the transaction with each answer."""

    is_autocommit: bool = True
    is_in_transaction: bool = False
    is_without_backslash_escapes: bool = False  # sql_mode has NO_BACKSLASH_ESCAPES: ``\\`` in strings is itself


@dataclass(frozen=True, slots=True)
class Affected:
    """The outcome of a statement without rows. ``info`` is text like ``Rows matched: 1  Changed: 1  Warnings: 0``."""

    rows: int = 0
    last_insert_id: int = 0
    warnings: int = 0
    info: str = ""
    notes: tuple[tuple[str, int, str], ...] = ()  # what SHOW WARNINGS tells of a DDL: level, number, text


@dataclass(frozen=True, slots=True)
class Rows:
    """A result set. What each type's values may be says ``rows.py``; None is NULL everywhere.

    ``rows`` may be lazy: it is read once, while earlier rows are already on their way, and may
    raise. If it has a ``close``, that is called, also when the client goes away half-way.
    """

    columns: tuple[Column, ...]
    rows: "Iterable[Sequence[object]] | pa.Table"
    warnings: int = 0


Result: TypeAlias = Affected | Rows


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the client learns of a prepared statement. ``columns`` is empty where it yields no rows."""

    parameter_count: int
    columns: tuple[Column, ...] = ()


class Session(Protocol):
    """Executes the statements of one connection. Raises ``SqlError`` for what the user did wrong."""

    @property
    def status(self) -> Status: ...

    def connect(self, client: Client) -> None:
        """Called once, before anything else; and again, after ``reset``, when a client changes its user."""
        ...

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> Result | list[Result]:
        """Run one statement, without a terminating semicolon.

        The text is the client's bytes read as UTF-8 with ``surrogateescape``, so bytes that are no
        text (in a ``_binary'…'``) come back with ``encode("utf-8", "surrogateescape")``.
        ``parameters`` is None for plain text, and for a prepared statement, whose text is always the
        same object, one value each: int, float, Decimal, str, bytes or None. Dates and times are str
        in MySQL's notation, since Python's types cannot hold ``0000-00-00``.
        """
        ...

    def prepare(self, statement: str) -> Prepared:
        """Check a statement with ``?`` in it without running it."""
        ...

    def use(self, database: str) -> None:
        """Make ``database`` the current one, or raise 1049."""
        ...

    def reset(self) -> None:
        """Roll back, forget variables and settings: as if newly connected."""
        ...

    def interrupt(self) -> None:
        """End the statement now running soon, with error 1317; do nothing if none is.

        Called from any thread: after KILL, when the client has gone, when the server stops.
        """
        ...

    def close(self) -> None:
        """Roll back and let go of everything."""
        ...
