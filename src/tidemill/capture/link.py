"""How a processor reaches the owner of its changefeed: here or on another machine."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidemill.model.orders import Assignment, Orders, Report
from tidemill.model.progress import Checkpoints

Tell = Callable[[Orders], None]


class OwnerLink(Protocol):
    """What comes back are ``Orders``, which name the reports that are durable."""

    @property
    def orders(self) -> Orders:
        """The newest."""

    async def admit(
        self, name: str, assignment: Assignment, at: Checkpoints, tell: Tell, *, replaces: str | None = None
    ) -> Orders:
        """Begin with these tables, where they are ``at``, perhaps in place of a processor that is gone. ``tell`` is
        called with all orders that come later, which may be before this returns. A name is used once."""

    def report(self, report: Report) -> None:
        """Say how far the tables are. Returns at once. Reports are heard in the order in which they are made."""

    async def sink_state(self) -> Mapping[str, Any] | None:
        """What the owner has saved of the sink, for a writer that recovers."""
