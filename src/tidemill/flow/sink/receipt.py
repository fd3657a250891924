"""What an executor made durable, on its way back to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.flow.deadletter import Undecodable


@dataclass(frozen=True, slots=True)
class Receipt:
    """For one target: ``files`` files from ``first_index`` on; none where no row came or none is kept."""

    directory: str
    first_index: int
    files: int
    rows: int
    bytes: int
    detail: Mapping[str, Any] = field(default_factory=dict)  # what the sink itself wants to hear, as JSON has it
    seconds: float = 0.0  # that its task worked on it
    first_ts: int = 0  # the commit-ts of the first row; 0: there was none
    aside: "tuple[Undecodable, ...]" = ()  # changes that could not be decoded and were left out
