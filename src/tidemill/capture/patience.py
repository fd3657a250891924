"""How long a changefeed that is to stop waits for the batch at hand."""

import threading
from concurrent.futures import Future

from tidemill.clock import SYSTEM_CLOCK
from tidemill.sinks import SinkOptions

_PROBE_SECONDS = 1.0  # for a sink to answer, while the batch at hand is waited for


class Patience:
    """With the batch at hand of a changefeed that is to stop: it ends with the time, or when the sink is away."""

    def __init__(self, sink: SinkOptions, seconds: float = 60.0) -> None:
        self._sink = sink
        self._seconds = seconds
        self._deadline: float | None = None
        self._probe: Future[bool] | None = None

    def is_over(self) -> bool:
        """Asked again and again from the moment of the stop on."""
        now = SYSTEM_CLOCK.monotonic()
        self._deadline = self._deadline or now + self._seconds
        if self._probe is None:
            self._probe = Future()
            threading.Thread(target=self._ask, args=(self._probe,), name="sink-probe", daemon=True).start()
        if self._probe.done() and self._probe.result():
            self._probe = None  # it answers, so far
        is_away = self._probe is not None and self._probe.done()
        return is_away or now >= self._deadline

    def _ask(self, probe: "Future[bool]") -> None:
        probe.set_result(self._sink.answers(_PROBE_SECONDS))
