"""The stores' servers: how they come, go, die and come back.

    stop    its leaders move first, calls in progress end, then it goes
    kill    its connections are cut at once; it goes on leading, dead, until others have noticed
    start   at the address it had, or at another that PD then tells

All stores share one engine, so what a killed store had been asked and not answered may have
happened or not, and is never half. One lock serialises these changes; the cluster's mutex is
not held while servers come and go.
"""

import socket
import threading
from collections.abc import Callable

from tidebox.cluster import Cluster
from tidebox.rpc import Server
from tidebox.timers import Later
from tidemill.errors import UpstreamUnavailableError, UsageError
from tidemill.log import get_logger

ELECTION_SECONDS = 0.2  # how long a dead store is taken for alive
_GRACE_SECONDS = 0.5  # for calls in progress when a store stops
PORT_SECONDS = 10.0  # how long a port that is not free yet is asked for again
_RESERVE_TRIES = 50
_RETRY_SECONDS = 0.005

log = get_logger("store")


class Stores:
    def __init__(self, cluster: Cluster, later: Later, make: Callable[[int], Server]) -> None:
        """``make`` gives the server of a store, not started yet."""
        self._cluster = cluster
        self._later = later
        self._make = make
        self._lock = threading.RLock()
        self._running: dict[int, Server] = {}
        self._dead: list[Server] = []
        self._reserved: dict[int, socket.socket] = {}
        self._patience = threading.Event()
        self._is_closed = False

    def start_all(self) -> None:
        with self._lock:
            for store_id in self._cluster.stores:
                self._serve(store_id, 0)

    def stop(self, store_id: int) -> None:
        with self._lock:
            server = self._leave(store_id)
            self._cluster.move_leaders_from(store_id)
            self._cluster.set_down(store_id)
            self._end_streams(store_id, "store is stopping")
            server.stop(_GRACE_SECONDS)
            self._reserve(store_id)
        log.info("store stopped", store=store_id)

    def kill(self, store_id: int, election_seconds: float = ELECTION_SECONDS) -> None:
        with self._lock:
            server = self._leave(store_id)
            self._cluster.set_down(store_id)
            server.kill()
            self._end_streams(store_id, "connection reset")
            self._dead.append(server)
            self._reserve(store_id)
        log.info("store killed", store=store_id)
        if election_seconds > 0:
            self._later.call(election_seconds, "an election", self._cluster.elect)
        else:
            self._cluster.elect()

    def start(self, store_id: int, *, elsewhere: bool = False) -> str:
        """Returns the address. Nothing happens to a store that is up."""
        with self._lock:
            state = self._cluster.store(store_id)
            if self._is_closed:
                raise UpstreamUnavailableError("the upstream is stopping: no store starts any more")
            if store_id in self._running:
                if elsewhere:
                    raise UsageError(f"store {store_id} is up, at {state.address}: stop it before it moves")
                return state.address
            port = 0 if elsewhere else int(state.address.rsplit(":", 1)[1])
            self._serve(store_id, port)
            self._cluster.set_up(store_id)
        log.info("store started", store=store_id, address=state.address)
        return state.address

    def close(self) -> None:
        """Stop all, wait for every thread."""
        with self._lock:
            self._is_closed = True
            servers = [*self._running.values(), *self._dead]
            self._running.clear()
            self._dead.clear()
            for store_id in list(self._reserved):
                self._reserved.pop(store_id).close()
        for server in servers:
            server.stop()

    def _serve(self, store_id: int, port: int) -> None:
        server = self._make(store_id)
        self._cluster.store(store_id).address = server.start(port, PORT_SECONDS if port else 0)
        self._running[store_id] = server
        reserved = self._reserved.pop(store_id, None)
        if reserved is not None:
            reserved.close()

    def _reserve(self, store_id: int) -> None:
        """Keep the port of a store that is down from being given to somebody else. Nobody is answered there."""
        port = int(self._cluster.store(store_id).address.rsplit(":", 1)[1])
        reserved = socket.socket()
        # Whoever listens later on the same port says so, too: then both may have it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for _ in range(_RESERVE_TRIES):
            try:
                reserved.bind(("127.0.0.1", port))
            except OSError:  # the server that goes still listens
                self._patience.wait(_RETRY_SECONDS)
            else:
                self._reserved[store_id] = reserved
                return
        reserved.close()
        log.warning("the port of a store that is down is not reserved", store=store_id, port=port)

    def _leave(self, store_id: int) -> Server:
        self._cluster.store(store_id)
        if store_id not in self._running:
            raise UsageError(f"store {store_id} is down already")
        return self._running.pop(store_id)

    def _end_streams(self, store_id: int, why: str) -> None:
        with self._cluster.mutex:
            streams = [stream for stream in self._cluster.streams if stream.store_id == store_id]
        for stream in streams:
            stream.close(failure=why)
