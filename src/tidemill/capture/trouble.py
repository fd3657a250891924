"""Why a sink is waited for, and since when, for whoever asks what holds a changefeed up."""

from tidemill.clock import Clock
from tidemill.errors import SinkError
from tidemill.log import get_logger


class SinkTrouble:
    """``reason`` is None while the sink is there, as far as is known."""

    def __init__(self, part: str, clock: Clock) -> None:
        """``part``: whose log says so."""
        self._log, self._clock = get_logger(part), clock
        self._since = 0.0
        self.reason: str | None = None

    def note(self, error: SinkError) -> None:
        """The sink is away for a reason that passes."""
        if self.reason is None:
            self._since = self._clock.monotonic()
            self._log.warning("the sink is away; waiting for it", reason=str(error))
        self.reason = str(error)

    def clear(self) -> None:
        self.reason = None

    @property
    def seconds(self) -> float:
        """How long the sink has been away."""
        return self._clock.monotonic() - self._since if self.reason is not None else 0.0
