"""A changefeed in the foreground, from its start to its end: what ``tidemill run`` does."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tidemill.capture.changefeed import Changefeed, ShouldStop
from tidemill.capture.options import RunOptions, Status
from tidemill.errors import EngineError, StoppedError
from tidemill.log import get_logger

log = get_logger("changefeed")

_TELLING_SECONDS = 0.25


def run_changefeed(
    options: RunOptions,
    should_stop: ShouldStop,
    on_ready: Callable[[Changefeed], None],
    on_tick: Callable[[Status], None],
    at_hand: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[bool, Status]:
    """Run until the target is reached (True) or ``should_stop`` says so (False); and how it stood then.

    ``at_hand`` is entered while there is a batch at hand that it would finish.
    """
    feed = Changefeed(options)
    finished = False
    try:
        with _stopped_quietly(should_stop):
            with _told_meanwhile(lambda: on_tick(feed.status_at_start())):
                feed.start(should_stop)
            on_ready(feed)
            while not (finished or should_stop()):
                with at_hand() if feed.is_copying else nullcontext():
                    finished = feed.poll(on_wait=lambda: on_tick(feed.status()))
                on_tick(feed.status())
            if not finished:
                with at_hand():
                    feed.drain()
        return finished, feed.status()
    finally:
        feed.close(is_finished=finished)


def end_spark() -> None:
    """Kill whatever of Spark this process has started, in any phase: for a process that is about to end at once."""
    if "tidemill.spark.session" in sys.modules:  # else there is nothing, and importing takes its time
        from tidemill.spark.jvm import kill_all

        kill_all()


@contextmanager
def _stopped_quietly(should_stop: ShouldStop) -> Iterator[None]:
    """Whoever stops us may have stopped Spark as well, with the same signal: that is no failure then."""
    try:
        yield
    except StoppedError:
        return
    except EngineError as error:
        if not should_stop():
            raise
        log.warning("Spark ended before the changefeed; the batch at hand comes again", reason=str(error))


@contextmanager
def _told_meanwhile(tell: Callable[[], None]) -> Iterator[None]:
    """``tell`` is called now and then by another thread, and not any more when this is left."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(_TELLING_SECONDS):
            tell()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
