"""Where the tables of a changefeed are, for sinks that are tried without one."""

from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

START = Checkpoints(Ts(0))


def at(ts: int) -> Checkpoints:
    """All of them at the same ts."""
    return Checkpoints(Ts(ts))
