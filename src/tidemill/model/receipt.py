"""What an executor made durable, on its way back to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Undecodable:
    """One change that did not go out. One that its table's schema does not explain is as it came; of one that is too
    large for a message, ``key`` and ``value`` are those of the message. Picklable."""

    table: str
    physical_id: int
    key: bytes
    start_ts: int
    commit_ts: int
    value: bytes
    old_value: bytes
    column: str | None
    reason: str

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "table": self.table,
                "physical_id": self.physical_id,
                "key": self.key.hex(),
                "start_ts": self.start_ts,
                "commit_ts": self.commit_ts,
                "value": self.value.hex(),
                "old_value": self.old_value.hex(),
                "column": self.column,
                "reason": self.reason,
            }
        )

    @classmethod
    def from_json(cls, line: bytes) -> "Undecodable":
        fields = orjson.loads(line)
        raw = {name: bytes.fromhex(fields[name]) for name in ("key", "value", "old_value")}
        return cls(**{**fields, **raw})


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
    aside: tuple[Undecodable, ...] = ()  # changes that were left out
