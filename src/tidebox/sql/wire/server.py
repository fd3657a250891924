"""``SqlServer``: the MySQL port of the embedded TiDB.

    server = SqlServer(make_session)
    address = server.start(4000)

Each connection has a thread of its own, on which its session executes; see the package's title page
for why. One more thread takes connections in and looks after the busy ones: when a client has gone
in the middle of a statement, the statement is interrupted instead of running on for nobody.
"""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidebox.sql.wire.connection import Connection, Surroundings
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.packets import err
from tidebox.sql.wire.session import Session
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import UsageError
from tidemill.log import get_logger

log = get_logger("sql")

MAX_PACKET_BYTES: Final = 64 << 20  # max_allowed_packet of TiDB
MAX_CONNECTIONS: Final = 1024
STALL_SECONDS: Final = 10.0  # for a login, and for the rest of a packet that has begun
_WATCH_MILLISECONDS: Final = 250
_BREATHER_MILLISECONDS: Final = 1000
_STOP_SECONDS: Final = 10.0
_BACKLOG: Final = 512
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


class SqlServer:
    """Serves MySQL clients on 127.0.0.1 from ``start`` to ``stop``; a session is made for each that logs in."""

    def __init__(
        self,
        make_session: Callable[[], Session],
        *,
        max_connections: int = MAX_CONNECTIONS,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        stall_seconds: float = STALL_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._surroundings = Surroundings(make_session, self.kill, self._describe, max_packet_bytes, stall_seconds)
        self._max_connections = max_connections
        self._clock = clock
        self._mutex = threading.Lock()  # guards the three below
        self._connections: dict[int, tuple[Connection, threading.Thread]] = {}
        self._last_id = 0
        self._past_questions = 0
        self._listener: socket.socket | None = None
        self._bell, self._bell_rope = socket.socketpair()  # wakes the doorkeeper when the server stops
        self._doorkeeper = threading.Thread(target=self._keep_door, name="sql-door", daemon=True)
        self._is_stopped = False
        self._started = 0.0
        self.address = ""

    def start(self, port: int) -> str:
        """Serve on ``port``, or with 0 on a free one; return the address."""
        try:
            self._listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on 127.0.0.1:{port}: the port is taken or not allowed. "
                "Choose another --sql-port, or 0 for any."
            ) from error
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._started = self._clock.monotonic()
        self._doorkeeper.start()
        log.info("sql serving", address=self.address)
        return self.address

    def stop(self) -> None:
        """Take nobody in any more, end every connection and wait for their sessions. A second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._bell_rope.close()
        if self._doorkeeper.is_alive():
            self._doorkeeper.join()
        self._bell.close()
        if self._listener is not None:
            self._listener.close()
        with self._mutex:
            served = list(self._connections.values())
        for connection, _ in served:
            connection.shut()
        deadline = self._clock.monotonic() + _STOP_SECONDS
        for connection, thread in served:
            thread.join(max(0.0, deadline - self._clock.monotonic()))
            if thread.is_alive():
                log.warning("a statement does not end, left behind", connection=connection.id)

    @property
    def connection_count(self) -> int:
        with self._mutex:
            return len(self._connections)

    def kill(self, connection_id: int, is_statement_only: bool = False) -> None:
        """End a connection, or only the statement it runs. Raises 1094 if there is no such connection."""
        with self._mutex:
            found = self._connections.get(connection_id)
        if found is None:
            raise sql_error(Errno.NO_SUCH_THREAD, connection_id)
        if is_statement_only:
            found[0].interrupt()
        else:
            found[0].shut()

    def _keep_door(self) -> None:
        assert self._listener is not None
        door = select.poll()
        door.register(self._listener, select.POLLIN)
        door.register(self._bell, select.POLLIN)
        breather = select.poll()
        breather.register(self._bell, select.POLLIN)
        bell = self._bell.fileno()
        while True:
            ready = {number for number, _ in door.poll(_WATCH_MILLISECONDS)}
            if bell in ready:
                return
            if ready and not self._take_in(self._listener) and breather.poll(_BREATHER_MILLISECONDS):
                return
            self._look_after_busy()

    def _take_in(self, listener: socket.socket) -> bool:
        """Whether the machine let us; without files or threads to spare there is no use in trying again at once."""
        try:
            client, _ = listener.accept()
        except OSError as error:
            log.warning("connection not taken in, trying again soon", error=error)
            return False
        with self._mutex:
            is_full = len(self._connections) >= self._max_connections
            self._last_id += 1
            connection_id = self._last_id
        if is_full:
            self._turn_away(client)
            return True
        connection = Connection(client, connection_id, self._surroundings)
        thread = threading.Thread(target=self._serve, args=(connection,), name=f"sql-{connection_id}", daemon=True)
        with self._mutex:
            self._connections[connection_id] = (connection, thread)
        try:
            thread.start()
        except RuntimeError as error:  # the machine gives no more threads
            log.warning("connection not served, dropped", error=error)
            connection.close()
            with self._mutex:
                del self._connections[connection_id]
            return False
        return True

    def _turn_away(self, client: socket.socket) -> None:
        packet = err(sql_error(Errno.CON_COUNT_ERROR), has_state=False)
        with client, suppress(OSError):
            client.sendall(len(packet).to_bytes(4, "little") + packet)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._mutex:
                del self._connections[connection.id]
                self._past_questions += connection.questions

    def _look_after_busy(self) -> None:
        with self._mutex:
            busy = [connection for connection, _ in self._connections.values() if connection.is_busy]
        if not busy:
            return
        watch = select.poll()
        by_number = {}
        for connection in busy:
            number = connection.fileno()
            if number >= 0:  # else it has ended meanwhile
                by_number[number] = connection
                watch.register(number, _GONE)
        for number, _ in watch.poll(0):
            by_number[number].interrupt()

    def _describe(self) -> str:
        with self._mutex:
            threads = len(self._connections)
            questions = self._past_questions + sum(c.questions for c, _ in self._connections.values())
        uptime = int(self._clock.monotonic() - self._started)
        return f"Uptime: {uptime}  Threads: {threads}  Questions: {questions}"
