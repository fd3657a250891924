"""One client, from its greeting to its end: reads commands, hands statements to the session, writes answers.

    read_command ──► Connection ── text, or a prepared statement with values ──► Session
    write, flush ◄──            ◄── results or SqlError ──

Every command but three gets one answer, and an error is an answer: a statement that fails, even in
a way nobody foresaw, leaves the connection as usable as it was. Only what makes the following bytes
meaningless ends it.
"""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from tidebox.sql.wire import handshake
from tidebox.sql.wire.answers import Answers, unforeseen
from tidebox.sql.wire.channel import Channel, Disconnected, OutOfOrder
from tidebox.sql.wire.columns import definition
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.handshake import Login, Verdict
from tidebox.sql.wire.packets import Capability, Reader, eof
from tidebox.sql.wire.prepared import PreparedStatements, prepare_answer
from tidebox.sql.wire.rows import binary_encoder, text_encoder
from tidebox.sql.wire.session import Affected, Client, Result, Session
from tidemill.log import get_logger
from tidemill.tidb.lexer import NO_BACKSLASH_ESCAPES, quoted, split_statements

log = get_logger("sql")

_KILL = re.compile(r"KILL\s+(?:TIDB\s+)?(?:(QUERY|CONNECTION)\s+)?(\d+)\Z", re.IGNORECASE)
_LOAD_LOCAL = re.compile(r"LOAD\s+DATA\s+(?:(?:LOW_PRIORITY|CONCURRENT)\s+)?LOCAL\s", re.IGNORECASE)


class Command(IntEnum):
    QUIT = 0x01
    INIT_DB = 0x02
    QUERY = 0x03
    FIELD_LIST = 0x04
    STATISTICS = 0x09
    PROCESS_KILL = 0x0C
    PING = 0x0E
    CHANGE_USER = 0x11
    STMT_PREPARE = 0x16
    STMT_EXECUTE = 0x17
    STMT_SEND_LONG_DATA = 0x18
    STMT_CLOSE = 0x19
    STMT_RESET = 0x1A
    SET_OPTION = 0x1B
    RESET_CONNECTION = 0x1F


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a connection asks of the server around it. ``kill`` raises 1094 for a connection there is not."""

    make_session: Callable[[], Session]
    kill: Callable[[int, bool], None]  # connection id, whether only its statement ends
    describe: Callable[[], str]
    max_packet_bytes: int
    stall_seconds: float


class Connection:
    """Serves one client on the calling thread. ``interrupt`` and ``shut`` may be called from any other."""

    def __init__(self, client: socket.socket, connection_id: int, surroundings: Surroundings) -> None:
        self.id = connection_id
        self.is_busy = False  # executing or answering; whoever watches may ask whether the client is still there
        self.questions = 0
        self._surroundings = surroundings
        self._channel = Channel(client, surroundings.max_packet_bytes, surroundings.stall_seconds)
        self._answers = Answers(self._channel, lambda: self._session.status)
        self._session: Session
        self._is_logged_in = False
        self._login = Login(0, 0, "", b"")
        self._salt = handshake.new_salt()
        self._is_multi = False
        self._statements = PreparedStatements(surroundings.max_packet_bytes)
        self._handlers: dict[int, Callable[[bytes], None]] = {
            Command.INIT_DB: self._init_db,
            Command.QUERY: self._query,
            Command.FIELD_LIST: self._field_list,
            Command.STATISTICS: self._statistics,
            Command.PROCESS_KILL: self._process_kill,
            Command.PING: self._ping,
            Command.CHANGE_USER: self._change_user,
            Command.STMT_PREPARE: self._prepare,
            Command.STMT_EXECUTE: self._execute,
            Command.STMT_SEND_LONG_DATA: self._statements.add_long_data,
            Command.STMT_CLOSE: self._statements.close,
            Command.STMT_RESET: self._reset_statement,
            Command.SET_OPTION: self._set_option,
            Command.RESET_CONNECTION: self._reset_connection,
        }

    def serve(self) -> None:
        """Until the client goes, or is made to. Nothing it does raises."""
        try:
            if self._log_in():
                self._channel.wait_forever()
                while self._serve_command():
                    pass
        except Disconnected:
            log.debug("client gone", connection=self.id)
        except OutOfOrder:
            self._answers.farewell(sql_error(Errno.NET_PACKETS_OUT_OF_ORDER))
        finally:
            self.close()

    def close(self) -> None:
        if self._is_logged_in:
            self._close_session()
        self._channel.close()

    def interrupt(self) -> None:
        """Make the statement now running end early."""
        if self.is_busy and self._is_logged_in:
            try:
                self._session.interrupt()
            except Exception as error:
                unforeseen(self.id, error)

    def shut(self) -> None:
        """End the connection, also in the middle of a statement."""
        self._channel.shut()
        self.interrupt()

    def fileno(self) -> int:
        return self._channel.fileno()

    # Coming in

    def _log_in(self) -> bool:
        self._channel.write(handshake.greeting(self.id, self._salt))
        self._channel.flush()
        try:
            login = handshake.read_login(self._channel.read())
            self._login = self._admit(login)
            self._answers.has_eof = not self._login.has(Capability.DEPRECATE_EOF)
            self._session = self._surroundings.make_session()
            self._is_logged_in = True
            self._connect_session()
            self._answers.done()
        except SqlError as error:
            self._answers.farewell(error)
            return False
        except (Disconnected, OutOfOrder):
            raise
        except Exception as error:
            self._answers.farewell(unforeseen(self.id, error))
            return False
        self._is_multi = self._login.has(Capability.MULTI_STATEMENTS)
        self._channel.flush()
        return True

    def _admit(self, login: Login) -> Login:
        answer = login.answer
        verdict = handshake.judge(login)
        if verdict is Verdict.SWITCH:
            self._channel.write(handshake.switch_request(self._salt))
            self._channel.flush()
            answer = self._channel.read()
            verdict = Verdict.ADMIT if handshake.is_empty_password(answer) else Verdict.REFUSE
        if verdict is Verdict.REFUSE:
            raise handshake.denied(login.user, answer)
        return login

    def _connect_session(self) -> None:
        login = self._login
        self._session.connect(
            Client(
                connection_id=self.id,
                user=login.user,
                collation=login.collation,
                is_counting_matches=login.has(Capability.FOUND_ROWS),
                is_interactive=login.has(Capability.INTERACTIVE),
            )
        )
        if login.database:
            self._session.use(login.database)

    def _close_session(self) -> None:
        try:
            self._session.close()
        except Exception as error:
            unforeseen(self.id, error)

    # Commands

    def _serve_command(self) -> bool:
        try:
            packet = self._channel.read_command()
        except SqlError as error:
            self._answers.error(error)
            return True
        if packet[:1] == b"\x01":  # COM_QUIT
            return False
        self.questions += 1
        self.is_busy = True
        try:
            self._handle(packet)
        except SqlError as error:
            self._answers.error(error)
        except Disconnected:
            raise
        except Exception as error:
            self._answers.error(unforeseen(self.id, error))
        finally:
            self.is_busy = False
        self._channel.flush()
        return True

    def _handle(self, packet: bytes) -> None:
        if not packet:
            raise sql_error(Errno.MALFORMED_PACKET)
        handler = self._handlers.get(packet[0])
        if handler is None:
            raise sql_error(Errno.UNKNOWN_COM_ERROR)
        handler(packet[1:])

    def _ping(self, body: bytes) -> None:
        self._answers.done()

    def _init_db(self, body: bytes) -> None:
        self._session.use(_text(body))
        self._answers.done()

    def _statistics(self, body: bytes) -> None:
        self._channel.write(self._surroundings.describe().encode())

    def _process_kill(self, body: bytes) -> None:
        self._surroundings.kill(Reader(body).unsigned(4), False)
        self._answers.done()

    def _set_option(self, body: bytes) -> None:
        option = Reader(body).unsigned(2)
        if option not in (0, 1):
            raise sql_error(Errno.UNKNOWN_COM_ERROR)
        self._is_multi = option == 0
        self._answers.end_rows()

    def _reset_connection(self, body: bytes) -> None:
        self._statements.clear()
        self._session.reset()
        self._is_multi = self._login.has(Capability.MULTI_STATEMENTS)
        self._answers.done()

    def _change_user(self, body: bytes) -> None:
        login = handshake.read_change_of_user(body, self._login.capabilities, self._login.collation)
        try:
            self._login = self._admit(login)
        except SqlError as error:
            # As with a login that fails, there is nobody left to serve.
            self._answers.farewell(error)
            raise Disconnected from error
        self._statements.clear()
        self._session.reset()
        self._connect_session()
        self._answers.done()

    def _field_list(self, body: bytes) -> None:
        reader = Reader(body)
        table, wild = _text(reader.until_nul()), _text(reader.rest())
        prepared = self._session.prepare(f"SELECT * FROM {quoted(table)}")
        for column in prepared.columns:
            if not wild or _like(wild).fullmatch(column.name):
                self._channel.write(definition(column, is_listed=True))
        self._answers.end_rows()

    # Statements

    def _query(self, body: bytes) -> None:
        is_plain = self._session.status.is_without_backslash_escapes
        statements = split_statements(_text(body), NO_BACKSLASH_ESCAPES if is_plain else 0)
        if len(statements) > 1 and not self._is_multi:
            raise sql_error(Errno.MULTI_STATEMENT_DISABLED)
        if not statements:
            self._answers.done()
        for index, statement in enumerate(statements):
            self._answers.results(self._run(statement), text_encoder, has_more=index + 1 < len(statements))

    def _run(self, statement: str) -> Result | list[Result]:
        if statement[0] in "kK" and (match := _KILL.match(statement)):
            self._surroundings.kill(int(match[2]), (match[1] or "").upper() == "QUERY")
            return Affected()
        if statement[0] in "lL" and _LOAD_LOCAL.match(statement):
            raise sql_error(Errno.CLIENT_LOCAL_FILES_DISABLED)
        return self._session.execute(statement, None)

    def _prepare(self, body: bytes) -> None:
        statements = split_statements(_text(body))
        if len(statements) > 1:
            raise sql_error(Errno.PREPARE_MULTI)
        if not statements:
            raise sql_error(Errno.EMPTY_QUERY)
        self._statements.check_room()
        prepared = self._session.prepare(statements[0])
        number = self._statements.add(statements[0], prepared)
        for packet in prepare_answer(number, prepared):
            # None stands for the end of a list of columns.
            if packet is not None:
                self._channel.write(packet)
            elif self._answers.has_eof:
                self._channel.write(eof(self._answers.status()))

    def _execute(self, body: bytes) -> None:
        statement, parameters = self._statements.read_execution(body)
        self._answers.results(self._session.execute(statement, parameters), binary_encoder, has_more=False)

    def _reset_statement(self, body: bytes) -> None:
        self._statements.reset(body)
        self._answers.done()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _like(pattern: str) -> re.Pattern[str]:
    """A pattern with ``%`` and ``_`` as MySQL has them."""
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(c, re.escape(c)) for c in pattern), re.IGNORECASE | re.DOTALL)
