"""How Spark's own Python processes ask the processor: a loopback socket, a call and an answer.

Spark runs the driver side of a stream source in a Python process of its own, so the source cannot
simply hold the processor. It calls ``offer`` (how far may the next batch go?) and ``units`` (what does
it consist of?) here. Only who knows the key is answered; the key travels in the source's options,
which Spark redacts.

    source (Spark's process) ── EndpointClient ──► Endpoint (thread) ── run_coroutine_threadsafe ──► Processor
"""

import asyncio
import os
import pickle
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidemill.errors import TidemillError, UpstreamError
from tidemill.log import get_logger
from tidemill.model.ts import Ts

if TYPE_CHECKING:
    # Spark's process for the source imports this module, and needs none of what the pipeline brings along.
    from tidemill.flow.pipeline import Pipeline, Unit

log = get_logger("spark.endpoint")

T = TypeVar("T")


class Served(Protocol):
    """The side of the processor that Spark's source sees."""

    async def offer(self, from_ts: Ts, wait_seconds: float) -> Ts: ...

    async def units(self, from_ts: Ts, to_ts: Ts) -> "list[Unit]": ...

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


class Endpoint:
    """Serves one processor. Calls block a thread of their own and run on the processor's loop."""

    def __init__(self, served: Served, loop: asyncio.AbstractEventLoop, pipeline: "Pipeline", tasks: int) -> None:
        self._served = served
        self._loop = loop
        self._pipeline = pipeline
        self._tasks = tasks
        self.failure: TidemillError | None = None  # what a call has ended with: Spark would tell it as a traceback
        key = os.urandom(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=key)
        host, port = self._listener.address
        self.address = Address(str(host), int(port), key.hex())
        self._thread = threading.Thread(target=self._accept, name="endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # closed
            except Exception as error:  # a stranger without the key, or one that hung up
                log.warning("refused a caller", reason=type(error).__name__)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="endpoint-call", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    name, arguments = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    return
                try:
                    answer = (True, self._call(name, arguments))
                except TidemillError as error:
                    self.failure = error
                    answer = (False, error)
                except CancelledError:
                    return  # the changefeed is being closed; the caller sees the connection end
                try:
                    connection.send_bytes(pickle.dumps(answer))
                except OSError:
                    return  # the caller did not live to hear it

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        match name:
            case "offer":
                return self._run(self._served.offer(**arguments))
            case "available_now":
                return self._run(self._served.available_now())
            case "units":
                units = self._run(self._served.units(**arguments))
                return [pickle.dumps((self._pipeline, group)) for group in balance(units, self._tasks)]
        raise UpstreamError(f"unknown call {name!r}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise CancelledError from error


class EndpointClient:
    """The caller's side. Connects when first used; one call at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
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
        self._connection.send_bytes(pickle.dumps((name, arguments)))
        is_good, answer = pickle.loads(self._connection.recv_bytes())
        if not is_good:
            raise answer
        return answer


def balance(units: "list[Unit]", tasks: int) -> "list[list[Unit]]":
    """Share units among at most ``tasks`` groups of about equal bytes: the biggest first, each to the lightest."""
    groups: list[list[Unit]] = [[] for _ in range(min(tasks, len(units)))]
    weights = [0] * len(groups)
    for unit in sorted(units, key=lambda u: u.weight, reverse=True):
        lightest = weights.index(min(weights))
        groups[lightest].append(unit)
        weights[lightest] += unit.weight
    return groups
