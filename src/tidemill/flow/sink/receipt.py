"""What an executor made durable, on its way back to the driver."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Receipt:
    """For one target: ``files`` files from ``first_index`` on; none where no row came or none is kept."""

    directory: str
    first_index: int
    files: int
    rows: int
    bytes: int
    detail: Mapping[str, Any] = field(default_factory=dict)  # what the sink itself wants to hear, as JSON has it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Receipt":
        return cls(**fields)
