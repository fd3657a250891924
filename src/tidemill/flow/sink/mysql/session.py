"""Connections to the downstream, set up so that what we write means there what it meant upstream.

Sessions never guess: names and text are utf8mb4, a backslash is a backslash, 0 is a value of an AUTO_INCREMENT column,
zero dates pass, values that do not fit are errors, foreign keys are not checked (tables are written in any order), and
times are in the zone in which rows were decoded. Connecting costs tens of milliseconds, so a process keeps
its connections from unit to unit (``Pool``).
"""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkError
from tidemill.flow.sink.mysql.failures import number_of, remedy, text_of
from tidemill.flow.sink.mysql.owner import Owner
from tidemill.flow.sink.mysql.uri import MysqlOptions, decoded_password

Connection = Any  # of PyMySQL, which ships no types

_SQL_MODE = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES"
_DDL_SQL_MODE = "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
_IDLE_SECONDS = 120.0
_DDL_TIMEOUT_SECONDS = 30 * 86400  # a DDL runs as long as it runs


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


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """All a process needs to open a session; picklable."""

    options: MysqlOptions
    downstream: Downstream | None = None  # None: not asked yet
    time_zone: str = ""  # empty: the server's own
    is_for_ddl: bool = False


def open_session(settings: SessionSettings) -> Connection:
    """A connection ready for use, in autocommit. Raises PyMySQL's errors."""
    options = settings.options
    try:
        connection = _connect(options, options.password, settings.is_for_ddl)
    except pymysql.err.OperationalError as error:
        decoded = decoded_password(options.password)
        if number_of(error) != 1045 or decoded is None:
            raise
        connection = _connect(options, decoded, settings.is_for_ddl)
    try:
        for statement in _preparations(settings):
            connection.query(statement)
    except BaseException:
        closed(connection)
        raise
    return connection


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


def _connect(options: MysqlOptions, password: str, is_for_ddl: bool) -> Connection:
    connection = pymysql.connect(
        host=options.host,
        port=options.port,
        user=options.user,
        password=password,
        charset="utf8mb4",
        autocommit=True,
        client_flag=CLIENT.MULTI_STATEMENTS,
        connect_timeout=max(1, int(options.dial_timeout_seconds)),
        read_timeout=_DDL_TIMEOUT_SECONDS if is_for_ddl else max(1, int(options.read_timeout_seconds)),
        write_timeout=max(1, int(options.write_timeout_seconds)),
        ssl=_tls(options),
        program_name="tidemill",
    )
    raw = getattr(connection, "_sock", None)
    if isinstance(raw, socket.socket):  # a server that vanished without a word must not be waited for for ever
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def _tls(options: MysqlOptions) -> ssl.SSLContext | None:
    if not options.is_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.ssl_ca or None)
        if not options.ssl_ca:  # as TiCDC: without a CA the line is encrypted and the server believed
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if options.ssl_cert:
            context.load_cert_chain(options.ssl_cert, options.ssl_key)
    except (OSError, ssl.SSLError) as error:
        raise SinkError(
            f"cannot use the TLS files of the sink URI for {options.place}: {error}. Check ssl-ca, ssl-cert and "
            "ssl-key."
        ) from error
    return context


def _preparations(settings: SessionSettings) -> Iterator[str]:
    downstream = settings.downstream
    mode = _DDL_SQL_MODE if settings.is_for_ddl else _SQL_MODE
    if downstream is not None and downstream.flavor is Flavor.MARIADB and downstream.version >= (10, 4, 1):
        mode += ",TIME_ROUND_FRACTIONAL"  # as TiDB and MySQL do: a DDL may take digits from a column of times
    fields = [f"sql_mode='{mode}'", "foreign_key_checks=0"]
    if settings.time_zone:
        fields.append(f"time_zone='{settings.time_zone}'")
    if downstream is not None and downstream.flavor is Flavor.MARIADB:
        # A list of keys is looked up, not joined; the upstream has checked its rows, and drops checks without a word.
        fields += ["in_predicate_conversion_threshold=0", "check_constraint_checks=0"]
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


def drain(connection: Connection) -> None:
    """Read the answers to all statements of a request; raises the error of the first that failed."""
    while connection._result is not None and connection._result.has_next:
        connection.next_result()


def closed(connection: Connection) -> None:
    """Close it, whatever state it is in."""
    with suppress(pymysql.err.MySQLError, OSError):
        connection.close()


class Pool:
    """Idle connections of this process, by their settings and owner. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[SessionSettings, Owner], list[tuple[float, Connection]]] = {}

    def take(self, settings: SessionSettings, owner: Owner) -> Connection:
        """An idle one, or a new one that has checked in."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            idle = self._idle.get((settings, owner), [])
            while idle:
                since, connection = idle.pop()
                if now - since < _IDLE_SECONDS:
                    return connection
                closed(connection)
        connection = open_session(settings)
        try:
            owner.check_in(connection)
        except BaseException:
            closed(connection)
            raise
        return connection

    def give_back(self, settings: SessionSettings, owner: Owner, connection: Connection) -> None:
        with self._lock:
            self._idle.setdefault((settings, owner), []).append((SYSTEM_CLOCK.monotonic(), connection))

    def close(self) -> None:
        with self._lock:
            for idle in self._idle.values():
                for _, connection in idle:
                    closed(connection)
            self._idle.clear()


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
