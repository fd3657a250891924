"""Connections to the downstream, set up so that what we write means there what it meant upstream.

Sessions never guess: names and text are utf8mb4, a backslash is a backslash, 0 is a value of an AUTO_INCREMENT column,
zero dates pass, values that do not fit are errors, foreign keys are not checked (tables are written in any order), and
times are in the zone in which rows were decoded. Connecting costs tens of milliseconds, so a process keeps
its connections from unit to unit (``Pool``).
"""

import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

import pymysql
from pymysql.constants import CLIENT

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkError
from tidemill.sinks.mysql.failures import number_of, remedy, text_of
from tidemill.sinks.mysql.generation import Generation, Slot
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.uri import MysqlOptions, decoded_password

Connection = Any  # of PyMySQL, which ships no types

_SQL_MODE = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES"
# With the second one an unsigned column less a number may be negative, as in a generated column upstream it was.
_LENIENT_SQL_MODE = _SQL_MODE.replace("STRICT_TRANS_TABLES,", "") + ",NO_UNSIGNED_SUBTRACTION"
_DDL_SQL_MODE = "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
_IDLE_SECONDS = 120.0
_CLOSED_KEPT = 64  # generations, of which something may still be at work in this process
_CANNOT_CONNECT = 2003
_DDL_TIMEOUT_SECONDS = 30 * 86400  # a DDL runs as long as it runs
_WRITER_DIAL_SECONDS = 5.0  # on executors nobody can interrupt it; the driver waits for a server that is away
_IDLE_TRANSACTION_SECONDS = 120  # then the server ends a writer that stands still within a transaction


class Flavor(Enum):
    MYSQL = "MySQL"
    MARIADB = "MariaDB"
    TIDB = "TiDB"


@dataclass(frozen=True, slots=True)
class Downstream:
    """What kind of server it is, asked once by the driver."""

    flavor: Flavor
    version: tuple[int, ...]
    max_allowed_packet: int
    has_write_source: bool = False

    @property
    def has_vectors(self) -> bool:
        return self.flavor is Flavor.TIDB and self.version >= (8, 4)

    @property
    def has_plain_keys(self) -> bool:
        """Whether a generated column of a primary key is plain there: MariaDB has none (1903)."""
        return self.flavor is Flavor.MARIADB


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """All a process needs to open a session; picklable."""

    options: MysqlOptions
    downstream: Downstream | None = None  # None: not asked yet
    time_zone: str = ""  # empty: the server's own
    is_for_ddl: bool = False
    is_for_rows: bool = False  # nothing is committed but by COMMIT; several statements a request, where wanted

    @property
    def has_multi_statements(self) -> bool:
        """Only where all text is ours: a DDL of the upstream's must not smuggle in another statement."""
        return self.is_for_rows and self.options.multi_statements


def open_session(settings: SessionSettings, lines: Lines | None = None) -> Connection:
    """A connection ready for use, in autocommit unless it is for rows. Raises PyMySQL's errors, or OSError.
    ``lines`` can interrupt it, from now on."""
    options = settings.options
    try:
        connection = _connect(settings, options.password, lines)
    except pymysql.err.OperationalError as error:
        decoded = decoded_password(options.password)
        if number_of(error) != 1045 or decoded is None:
            raise
        connection = _connect(settings, decoded, lines)
    try:
        for statement in _preparations(settings):
            connection.query(statement)
    except BaseException:
        closed(connection)
        raise
    return connection


def answers(options: MysqlOptions, seconds: float) -> bool:
    """Whether the server takes a session within so many seconds."""
    hasty = replace(options, dial_timeout_seconds=seconds, read_timeout_seconds=seconds, write_timeout_seconds=seconds)
    try:
        closed(open_session(SessionSettings(hasty)))
    except (pymysql.err.MySQLError, OSError):
        return False
    return True


def ask(connection: Connection, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments)
        return list(cursor.fetchall())


def examine(connection: Connection) -> Downstream:
    ((version, packet),) = ask(connection, "SELECT VERSION(), @@max_allowed_packet")
    text = str(version)
    if "TiDB" in text:
        flavor, digits = Flavor.TIDB, text.partition("TiDB-v")[2]
    else:
        flavor, digits = (Flavor.MARIADB if "MariaDB" in text else Flavor.MYSQL), text.removeprefix("5.5.5-")
    has_source = flavor is Flavor.TIDB and bool(ask(connection, "SHOW VARIABLES LIKE 'tidb_cdc_write_source'"))
    return Downstream(flavor, _version(digits), int(packet), has_source)


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.partition("-")[0].split(".")[:3]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _connect(settings: SessionSettings, password: str, lines: Lines | None) -> Connection:
    options = settings.options
    dial_seconds = options.dial_timeout_seconds
    if settings.is_for_rows:
        dial_seconds = min(dial_seconds, _WRITER_DIAL_SECONDS)
    connection = pymysql.connect(
        host=options.host,
        port=options.port,
        user=options.user,
        password=password,
        charset="utf8mb4",
        autocommit=not settings.is_for_rows,
        client_flag=CLIENT.MULTI_STATEMENTS if settings.has_multi_statements else 0,
        connect_timeout=max(1, int(dial_seconds)),
        read_timeout=_DDL_TIMEOUT_SECONDS if settings.is_for_ddl else max(1, int(options.read_timeout_seconds)),
        write_timeout=max(1, int(options.write_timeout_seconds)),
        ssl=_tls(options),
        program_name="tidemill",
        defer_connect=True,
    )
    lines = lines if lines is not None else Lines()
    lines.add(connection)
    try:
        dialled = lines.dial(options.host, options.port, dial_seconds)
    except OSError as error:
        raise pymysql.err.OperationalError(_CANNOT_CONNECT, f"cannot connect to {options.place} ({error})") from error
    # A server that vanished without a word must not be waited for for ever.
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.connect(dialled)
    return connection


class _EncryptedError(Exception):
    pass


def _no_password() -> str:
    """OpenSSL would ask for it at the terminal, and wait."""
    raise _EncryptedError("the key is encrypted, which is not supported")


def _tls(options: MysqlOptions) -> ssl.SSLContext | None:
    if not options.is_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.ssl_ca or None)
        if not options.ssl_ca:  # as TiCDC: without a CA the line is encrypted and the server believed
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if options.ssl_cert:
            context.load_cert_chain(options.ssl_cert, options.ssl_key, password=_no_password)
    except (OSError, ssl.SSLError, _EncryptedError) as error:
        raise SinkError(
            f"cannot use the TLS files of the sink URI for {options.place}: {error}. Check ssl-ca, ssl-cert and "
            "ssl-key."
        ) from error
    return context


def _preparations(settings: SessionSettings) -> Iterator[str]:
    downstream = settings.downstream
    mode = _DDL_SQL_MODE if settings.is_for_ddl else _SQL_MODE
    fields = [f"sql_mode='{_completed(mode, downstream)}'", "foreign_key_checks=0"]
    if settings.time_zone:
        fields.append(f"time_zone='{settings.time_zone}'")
    if downstream is not None and downstream.flavor is Flavor.MARIADB:
        # A list of keys is looked up, not joined; the upstream has checked its rows, and drops checks without a word.
        fields += ["in_predicate_conversion_threshold=0", "check_constraint_checks=0"]
        if settings.is_for_rows and downstream.version >= (10, 3):
            fields.append(f"idle_transaction_timeout={_IDLE_TRANSACTION_SECONDS}")
    yield "SET SESSION " + ", ".join(fields)
    if downstream is None or downstream.flavor is not Flavor.TIDB:
        yield "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        return
    yield f"SET SESSION tidb_txn_mode='{settings.options.tidb_txn_mode}'"
    yield (
        "SET SESSION allow_auto_random_explicit_insert=1, tidb_placement_mode='IGNORE', "
        "tidb_enable_external_ts_read=OFF"
    )
    if downstream.has_write_source:
        yield f"SET SESSION tidb_cdc_write_source={settings.options.write_source}"


def mode_statement(settings: SessionSettings, *, is_lenient: bool) -> str:
    """Turns a session for rows to what follows: lenient, where a server keeps what it would refuse by default."""
    mode = _LENIENT_SQL_MODE if is_lenient else _SQL_MODE
    shown = ", max_error_count=65535" if is_lenient else ""
    return f"SET SESSION sql_mode='{_completed(mode, settings.downstream)}'{shown}"


def _completed(mode: str, downstream: Downstream | None) -> str:
    if downstream is not None and downstream.flavor is Flavor.MARIADB and downstream.version >= (10, 4, 1):
        mode += ",TIME_ROUND_FRACTIONAL"  # as TiDB and MySQL do: a DDL may take digits from a column of times
    return mode


def drain(connection: Connection) -> None:
    """Read the answers to all statements of a request; raises the error of the first that failed."""
    while connection._result is not None and connection._result.has_next:
        connection.next_result()


def closed(connection: Connection) -> None:
    """Close it, whatever state it is in."""
    with suppress(pymysql.err.MySQLError, OSError):
        connection.close()


@dataclass(frozen=True, slots=True)
class Writer:
    """A session for rows, and its right to write."""

    connection: Connection
    slot: Slot


class Pool:
    """Idle writers of this process, by their settings and generation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[SessionSettings, Generation], list[tuple[float, Writer]]] = {}
        self._taken: WeakKeyDictionary[Connection, Generation] = WeakKeyDictionary()
        self._closed: deque[Generation] = deque(maxlen=_CLOSED_KEPT)

    def take(self, settings: SessionSettings, generation: Generation) -> Writer:
        """An idle one, or a new one that has checked in. Raises ConnectionAbortedError where the generation's writer is
        closed in this process."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            self._refuse_closed(generation)
            self._drop_outdated(generation, now)
            idle = self._idle.get((settings, generation), [])
            if idle:
                writer = idle.pop()[1]
                self._taken[writer.connection] = generation
                return writer
        connection = open_session(settings)
        try:
            with self._lock:
                self._refuse_closed(generation)
                self._taken[connection] = generation
            return Writer(connection, generation.check_in(connection))
        except BaseException:
            closed(connection)
            raise

    def give_back(self, settings: SessionSettings, generation: Generation, writer: Writer) -> None:
        with self._lock:
            self._taken.pop(writer.connection, None)
            if generation in self._closed:
                closed(writer.connection)
                return
            self._idle.setdefault((settings, generation), []).append((SYSTEM_CLOCK.monotonic(), writer))

    def is_closed(self, generation: Generation) -> bool:
        """Whether its writer is, in this process, so that nobody waits for what it still does."""
        with self._lock:
            return generation in self._closed

    def close(self, generation: Generation | None = None) -> None:
        """Those of one generation's writer, or all. What is at work in that generation ends."""
        with self._lock:
            if generation is not None:
                self._closed.append(generation)
                for connection in [each for each, whose in self._taken.items() if whose == generation]:
                    with suppress(OSError, AttributeError):  # closed already, or not dialled yet
                        connection._sock.shutdown(socket.SHUT_RDWR)
            for key in [key for key in self._idle if generation is None or key[1].is_of(generation)]:
                for _, writer in self._idle.pop(key):
                    closed(writer.connection)

    def _refuse_closed(self, generation: Generation) -> None:
        if generation in self._closed:
            raise ConnectionAbortedError("the writer was closed meanwhile")

    def _drop_outdated(self, generation: Generation, now: float) -> None:
        """Those of earlier generations, and those that nobody has asked for in a while: their writer may be gone."""
        for key, idle in list(self._idle.items()):
            is_older = key[1] != generation and key[1].is_of(generation)
            kept = [(since, writer) for since, writer in idle if not is_older and now - since < _IDLE_SECONDS]
            for _, writer in [each for each in idle if each not in kept]:
                closed(writer.connection)
            if kept:
                self._idle[key] = kept
            else:
                del self._idle[key]


POOL = Pool()


@contextmanager
def driver_session(settings: SessionSettings, doing: str) -> Iterator[Connection]:
    """A session of the driver's own; errors that pass through become SinkError, which says what was being done."""
    try:
        connection = open_session(settings)
        try:
            yield connection
        finally:
            closed(connection)
    except (pymysql.err.MySQLError, OSError) as error:
        raise SinkError(
            f"cannot {doing} at {settings.options.place}: {text_of(error)} (error {number_of(error)}). "
            f"{remedy(error, 'SELECT')}"
        ) from error
