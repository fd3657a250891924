"""A server: one capture after the other, until it is told to stop."""

import asyncio
import shutil
import threading
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tidemill.capture.cluster.capture import Capture, ShouldStop
from tidemill.capture.cluster.options import ServerOptions
from tidemill.capture.etcd.client import EtcdClient
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.etcd.session import Session
from tidemill.capture.metadata import DataDir
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import MetadataUnavailableError, SessionLostError, TidemillError
from tidemill.log import get_logger
from tidemill.model.cluster import CaptureInfo
from tidemill.model.schedule import CaptureId
from tidemill.retry import Policy

log = get_logger("server")

_RETRY = Policy(0.5, 5.0)
_OURS = ("changefeeds", "spark.log")  # what a capture keeps in its folder


@dataclass(slots=True)
class Serving:
    """What of a server others may look at. ``capture`` is None while it begins anew."""

    options: ServerOptions
    client: EtcdClient
    keys: Keys
    capture: Capture | None = None


class Server:
    """Runs on one loop. ``at_work`` is entered once, around everything: the API, say."""

    def __init__(self, options: ServerOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._clock = options, clock
        self._data_dir = DataDir(options.data_dir, of_capture=_OURS)
        client = EtcdClient(options.etcd or options.pd, security=options.security, user=options.etcd_user, clock=clock)
        self.serving = Serving(options, client, Keys(options.cluster))

    async def run(self, should_stop: ShouldStop, on_ready: Callable[[Serving], Awaitable[None]]) -> None:
        """``on_ready`` is called once, when the first capture is registered."""
        self._data_dir.acquire()
        is_ready, failures = False, 0
        async with AsyncExitStack() as steps:
            steps.callback(self._data_dir.release)
            steps.callback(self.serving.client.close)
            remove_leftovers(self._options.data_dir)
            await asyncio.to_thread(_load_modules)
            spark = _Spark(self._options, should_stop)
            steps.push_async_callback(asyncio.to_thread, spark.close)
            while not should_stop():
                try:
                    session = await asyncio.to_thread(
                        Session, self.serving.client, self._options.session_ttl_seconds, clock=self._clock
                    )
                    try:
                        await self._live(session, should_stop, None if is_ready else on_ready)
                    finally:
                        is_ready = is_ready or self.serving.capture is not None
                        self.serving.capture = None
                        await asyncio.to_thread(session.close)
                    failures = 0
                except (SessionLostError, MetadataUnavailableError) as error:
                    if not is_ready and isinstance(error, MetadataUnavailableError):
                        raise
                    failures += 1
                    log.warning("the capture begins anew", reason=str(error))
                    await self._clock.sleep(_RETRY.pause_seconds(failures))

    async def _live(
        self, session: Session, should_stop: ShouldStop, on_ready: Callable[[Serving], Awaitable[None]] | None
    ) -> None:
        options = self.serving.options
        name = CaptureId(str(uuid.uuid4()))
        started = datetime.fromtimestamp(int(self._clock.now()), UTC)
        info = CaptureInfo(name, options.address, False, options.cluster, f"v{version('tidemill')}", started)
        capture = Capture(name, options, self.serving.client, self.serving.keys, session, info, self._clock)
        try:
            await capture.open()
            self.serving.capture = capture
            log.info("capture registered", capture=name, address=options.address)
            if on_ready is not None:
                await on_ready(self.serving)
            await capture.run(should_stop)
            await capture.drain()
        finally:
            await capture.close()


def remove_leftovers(data_dir: Path) -> None:
    """What a server that was killed has pulled: it is pulled again, from the checkpoint."""
    for folder in data_dir.glob("changefeeds/*/*"):
        for name in ("segments", "scratch"):
            shutil.rmtree(folder / name, ignore_errors=True)


class _Spark:
    """The session of this process, as long as it lives: no changefeed waits for a JVM, but perhaps the first."""

    def __init__(self, options: ServerOptions, should_stop: ShouldStop) -> None:
        """Returns at once; what is wrong with it, the first changefeed will tell."""
        from tidemill.spark.session import borrow_session

        log_file = options.data_dir / "spark.log"
        self._lease = borrow_session(
            options.spark_master, conf=options.spark_conf, log=log_file, should_stop=should_stop
        )
        self._starting = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._starting.start()

    def _start(self) -> None:
        try:
            self._lease.session()
        except TidemillError as error:
            log.warning("Spark has not started", reason=str(error))

    def close(self) -> None:
        self._starting.join()
        self._lease.release()


def _load_modules() -> None:
    """What changefeeds need takes seconds to load. Nothing waits for it on the loop later."""
    import tidemill.flow.encoder
    import tidemill.flow.filter
    import tidemill.sinks.files.sink
    import tidemill.spark.engine  # noqa: F401
