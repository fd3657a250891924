"""How Spark's own Python processes ask the processor: a loopback socket, a call and an answer.

Spark runs the driver side of a stream source in a Python process of its own, so the source cannot
simply hold the processor. It calls ``offer`` (how far may the next batch go?) and ``units`` (what does
it consist of?) here. Only a peer that knows the key is answered; the key travels in the source's options,
which Spark redacts.

    source (Spark's process) ── EndpointClient ──► Endpoint (thread) ── run_coroutine_threadsafe ──► Processor

Any process of the machine may connect. Each connection has a thread of its own, in which it has to prove within
seconds that it knows the key; peers that hang up, say nothing or talk nonsense bother nobody else.
"""

import asyncio
import os
import pickle
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidemill.errors import SupersededError, TidemillError, UpstreamError
from tidemill.log import get_logger
from tidemill.model.ts import Ts

if TYPE_CHECKING:
    # Spark's process for the source imports this module, and needs none of what the pipeline brings along.
    from tidemill.flow.pipeline import Pipeline, Unit

log = get_logger("spark.endpoint")

T = TypeVar("T")

_AUTHENTICATE_SECONDS = 10.0  # that a peer has to prove that it knows the key
_MOST_STRANGERS = 32  # connections that have not yet; one more ends the oldest of them
_ACCEPT_PAUSE_SECONDS = 0.1  # after a refusal of the system: too many open files, for instance
_CLOSE_SECONDS = 1.0
_BACKLOG = 64


class Served(Protocol):
    """The side of the processor that Spark's source sees."""

    async def offer(self, generation: int, from_ts: Ts, wait_seconds: float) -> Ts: ...

    async def units(self, generation: int, from_ts: Ts, to_ts: Ts) -> "list[Unit]": ...

    async def available_now(self) -> Ts: ...


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    key: str  # hex; never logged

    def options(self) -> dict[str, str]:
        return {"host": self.host, "port": str(self.port), "token": self.key}

    @classmethod
    def of(cls, options: dict[str, str]) -> "Address":
        return cls(options["host"], int(options["port"]), options["token"])


class _RefusedError(Exception):
    pass


class Endpoint:
    """Serves one processor until it is closed. Calls block a thread of their own and run on the processor's loop."""

    def __init__(
        self,
        served: Served,
        loop: asyncio.AbstractEventLoop,
        pipeline: "Pipeline",
        tasks: int,
        *,
        authenticate_seconds: float = _AUTHENTICATE_SECONDS,
        most_strangers: int = _MOST_STRANGERS,
    ) -> None:
        self._served = served
        self._loop = loop
        self._pipeline = pipeline
        self._tasks = tasks
        self._authenticate_seconds = authenticate_seconds
        self._most_strangers = most_strangers
        self._failure: tuple[int, TidemillError] | None = None  # the newest generation that has one
        self._key = os.urandom(16)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        host, port = self._listener.getsockname()
        self.address = Address(str(host), int(port), self._key.hex())
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, threading.Timer] = {}  # in the order in which they came
        self._callers: set[socket.socket] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="endpoint", daemon=True)
        self._thread.start()

    def failure(self, generation: int) -> TidemillError | None:
        """What a call of that generation has ended with, which Spark would tell as a traceback; None: nothing."""
        failure = self._failure
        return failure[1] if failure is not None and failure[0] == generation else None

    def close(self) -> None:
        """End every connection, and take no more."""
        self._closed.set()
        with suppress(OSError):  # wakes up who waits for one
            socket.create_connection((self.address.host, self.address.port), _CLOSE_SECONDS).close()
        self._thread.join(_CLOSE_SECONDS)  # so that nobody is admitted any more
        self._listener.close()
        with self._lock:
            peers = [*self._strangers, *self._callers]
        for peer in peers:
            _hang_up(peer)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError as error:  # one that is gone again, or the system has no more of something
                if not self._closed.wait(_ACCEPT_PAUSE_SECONDS):
                    log.warning("could not accept a caller; trying again", reason=str(error))
                continue
            if self._closed.is_set():  # it is who wakes us up, or is too late
                peer.close()
                return
            self._admit(peer)

    def _admit(self, peer: socket.socket) -> None:
        deadline = threading.Timer(self._authenticate_seconds, _hang_up, [peer])
        deadline.daemon = True
        with self._lock:
            self._strangers[peer] = deadline
            oldest = next(iter(self._strangers)) if len(self._strangers) > self._most_strangers else None
        if oldest is not None:
            _hang_up(oldest)
        try:
            deadline.start()
            threading.Thread(target=self._attend, args=(peer,), name="endpoint-call", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads
            log.warning("could not attend to a caller", reason=str(error))
            self._strangers_end(peer)
            peer.close()

    def _attend(self, peer: socket.socket) -> None:
        """One connection from its first byte to its end."""
        with peer, suppress(_RefusedError), self._proven(peer) as connection:
            with self._lock:
                self._callers.add(peer)
            try:
                self._serve(connection)
            finally:
                with self._lock:
                    self._callers.discard(peer)

    def _proven(self, peer: socket.socket) -> Connection:
        """The connection, once the peer has shown that it knows the key."""
        connection: Connection | None = None
        try:
            connection = Connection(os.dup(peer.fileno()))
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError, ValueError) as error:
            if connection is not None:
                connection.close()
            if not self._closed.is_set():
                log.warning("refused a caller", reason=type(error).__name__)
            raise _RefusedError from None
        finally:
            self._strangers_end(peer)
        return connection

    def _strangers_end(self, peer: socket.socket) -> None:
        with self._lock:
            deadline = self._strangers.pop(peer)
        deadline.cancel()

    def _serve(self, connection: Connection) -> None:
        while not self._closed.is_set():
            try:
                name, arguments = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            try:
                answer = (True, self._call(name, arguments))
            except TidemillError as error:
                self._note(arguments["generation"], error)
                answer = (False, error)
            except CancelledError:
                return  # the changefeed is being closed; the caller sees the connection end
            try:
                connection.send_bytes(pickle.dumps(answer))
            except OSError:
                return  # the caller did not live to hear it

    def _note(self, generation: int, error: TidemillError) -> None:
        with self._lock:
            is_news = self._failure is None or generation > self._failure[0]
            if is_news and not isinstance(error, SupersededError):  # who is late is nobody's concern
                self._failure = (generation, error)

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        match name:
            case "offer":
                return self._run(self._served.offer(**arguments))
            case "available_now":
                return self._run(self._served.available_now())
            case "units":
                units = self._run(self._served.units(**arguments))
                # A batch whose changes nobody wants is one group without units, so that its end comes back, too.
                groups = balance(units, self._tasks) or [[]]
                return [pickle.dumps((arguments["to_ts"], pickle.dumps((self._pipeline, group)))) for group in groups]
        raise UpstreamError(f"unknown call {name!r}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise CancelledError from error


class EndpointClient:
    """The caller's side, for a query of one generation. Connects when first used; one call at a time."""

    def __init__(self, address: Address, generation: int) -> None:
        self._address = address
        self._generation = generation
        self._connection: Connection | None = None

    def offer(self, from_ts: int, wait_seconds: float) -> int:
        return int(self._call("offer", from_ts=from_ts, wait_seconds=wait_seconds))

    def available_now(self) -> int:
        return int(self._call("available_now"))

    def units(self, from_ts: int, to_ts: int) -> list[bytes]:
        """Groups of units, one per Spark task, each ready to be unpickled by the pipeline's task."""
        return list(self._call("units", from_ts=from_ts, to_ts=to_ts))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, name: str, **arguments: Any) -> Any:
        if self._connection is None:
            where = (self._address.host, self._address.port)
            self._connection = Client(where, authkey=bytes.fromhex(self._address.key))
        self._connection.send_bytes(pickle.dumps((name, {"generation": self._generation, **arguments})))
        is_good, answer = pickle.loads(self._connection.recv_bytes())
        if not is_good:
            raise answer
        return answer


def _hang_up(peer: socket.socket) -> None:
    """End a connection from any thread: who reads from it sees its end."""
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def balance(units: "list[Unit]", tasks: int) -> "list[list[Unit]]":
    """Share units among at most ``tasks`` groups of about equal bytes: the biggest first, each to the lightest."""
    groups: list[list[Unit]] = [[] for _ in range(min(tasks, len(units)))]
    weights = [0] * len(groups)
    for unit in sorted(units, key=lambda u: u.weight, reverse=True):
        lightest = weights.index(min(weights))
        groups[lightest].append(unit)
        weights[lightest] += unit.weight
    return groups
