"""The sink's epoch that a lane's writer is in, and what the lane says of itself to the owner."""

from functools import partial
from typing import TYPE_CHECKING

from tidemill.model.orders import Obeyed, Orders

if TYPE_CHECKING:
    from tidemill.capture.lane import Lane


class SinkEpoch:
    """Of one lane. Runs on its loop."""

    def __init__(self, lane: "Lane") -> None:
        self._lane = lane
        self._taken = self._wanted = 0

    @property
    def is_current(self) -> bool:
        """Whether its writer is where the owner wants it."""
        return self._taken == self._wanted

    @property
    def obeyed(self) -> Obeyed:
        lane, progress = self._lane, self._lane.progress
        # Of a table whose DDL is not known here yet nothing is resolved.
        resolved_ts = None if progress.together_ts is None else min(progress.frontier_ts, progress.schema_ts)
        return Obeyed(progress.sync_ts, self._taken, lane.written_ts, resolved_ts)

    def obey(self, orders: Orders) -> None:
        self._wanted = max(self._wanted, orders.epoch)

    async def take_on(self) -> None:
        """Nothing is written any more by what an earlier epoch of the sink said. Called between two batches."""
        lane = self._lane
        while not self.is_current:
            wanted, state = self._wanted, await lane.link.sink_state()
            term = lane.link.orders.term
            await lane.writing.wait_out(partial(lane.writing.recover, lane.progress.at, (), (), state, None, term))
            self._taken = wanted
        lane.turn()
