"""What is to happen after a while: an election after a death, the end of an outage. It ends with its owner."""

import threading
from collections.abc import Callable

from tidemill.log import get_logger

log = get_logger("store")


class Later:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timers: set[threading.Timer] = set()
        self._is_closed = False

    def call(self, seconds: float, what: str, action: Callable[[], object]) -> None:
        """Do it in ``seconds``, in a thread of its own; a failure is logged. Nothing happens once closed."""

        def run() -> None:
            try:
                action()
            except Exception as error:
                log.error("what was put off failed", what=what, error=error)
            finally:
                with self._lock:
                    self._timers.discard(timer)

        timer = threading.Timer(seconds, run)
        timer.daemon = True
        with self._lock:
            if self._is_closed:
                return
            self._timers.add(timer)
            timer.start()

    def close(self) -> None:
        """What has not begun will not happen; what has begun is waited for."""
        with self._lock:
            self._is_closed = True
            timers = list(self._timers)
        for timer in timers:
            timer.cancel()
        for timer in timers:
            if timer is not threading.current_thread():
                timer.join()
