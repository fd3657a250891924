"""How Spark's workers get at the segments of this process's changefeeds: one Arrow Flight server for all of them.

It is there as long as one needs it, which none does whose workers are processes of this machine. It listens where
Spark's driver does (``spark.driver.bindAddress``), and workers find it where they find the driver
(``spark.driver.host``): an address that is good for one is good for the other.
"""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from tidemill.certificates import SelfSigned, self_signed
from tidemill.errors import EngineError, UsageError
from tidemill.flow.sorter.fetching import SERVER_NAME, SegmentSupply
from tidemill.flow.sorter.shelf import Shelf
from tidemill.spark.settings import FLIGHT, FLIGHT_PORT, is_local

if TYPE_CHECKING:
    from tidemill.flow.sorter.serving import SegmentServer

_LARGEST_PORT = 65535
_lock = threading.Lock()


@dataclass(slots=True)
class _Shared:
    """The server, and how many changefeeds it has."""

    server: "SegmentServer"
    certificate: SelfSigned
    users: int = 0


_shared: _Shared | None = None


class Serving:
    """One changefeed's share of the server. ``close`` it in any case; once is enough."""

    def __init__(self, supply: SegmentSupply) -> None:
        self.supply = supply
        self._is_open = True

    def close(self) -> None:
        global _shared
        with _lock:
            if not self._is_open or _shared is None:
                return
            self._is_open = False
            _shared.server.revoke(self.supply.token)
            _shared.users -= 1
            if _shared.users:
                return
            ending, _shared = _shared, None
        ending.server.stop()


def serve(session: SparkSession, shelf: Shelf) -> Serving | None:
    """Let workers ask for the segments on the shelf; None where they see them without."""
    global _shared
    context = session.sparkContext
    conf = context._conf  # not a copy: that would ask the JVM for each of its settings
    if is_local(context.master) and conf.get(FLIGHT, "false").lower() != "true":
        return None
    host = conf.get("spark.driver.host").strip("[]")
    with _lock:
        if _shared is None:
            _shared = _start(conf.get("spark.driver.bindAddress", host).strip("[]"), conf.get(FLIGHT_PORT, "0"))
        token = _shared.server.admit(shelf)
        _shared.users += 1
        shown = f"[{host}]" if ":" in host else host
        supply = SegmentSupply(f"{shown}:{_shared.server.port}", token, _shared.certificate.certificate)
    return Serving(supply)


def _start(address: str, port: str) -> _Shared:
    from tidemill.flow.sorter.serving import SegmentServer  # takes a while, and most need none

    if not (port.isascii() and port.isdecimal() and int(port) <= _LARGEST_PORT):
        raise UsageError(f"{FLIGHT_PORT} is {port!r}, which is no port. Give a number up to {_LARGEST_PORT}, or none.")
    certificate = self_signed(SERVER_NAME)
    try:
        return _Shared(SegmentServer(address, int(port), certificate), certificate)
    except Exception as error:  # whatever pyarrow makes of it
        raise EngineError(
            f"cannot serve segments to Spark's workers at {address}, port {port}: the address is not of this machine, "
            f"or the port is taken. Set spark.driver.bindAddress, or {FLIGHT_PORT}, by --spark-conf."
        ) from error
