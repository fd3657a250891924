"""What a checker found in a topic."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import orjson


class Rule(StrEnum):
    """What a topic promises. The numbers are those of the protocol's design."""

    ONE_PARTITION = "1.1 all changes of a row are in one partition"
    EXACT_COPIES = "1.2 a change that appears again is an exact copy"
    COMMIT_ORDER = "1.3 changes of a row first appear in commit order"
    RESOLVED = "2.2 no row below a resolved-ts first appears behind it"
    DDL = "2.3 no row below a DDL first appears behind it"
    BROADCAST = "2.4 every partition gets every DDL and resolved-ts"
    DDL_ORDER = "2.4 DDLs first appear in commit order"
    READABLE = "every message is one of the protocol"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    partition: int
    offset: int  # of the message; -1: of none in particular
    ts: int  # of the row, the DDL or the resolved-ts
    what: str  # names no value of a row


@dataclass(frozen=True, slots=True)
class PartitionReport:
    messages: int
    rows: int
    resolved_ts: int  # the highest; 0: none was seen
    ddls: int


@dataclass(frozen=True, slots=True)
class Report:
    partitions: Mapping[int, PartitionReport]
    rows: int
    duplicates: int  # rows that had appeared before
    unverifiable: int  # rows so old that the checker no longer knows whether they had
    ddls: int  # different ones
    resolved: int
    resolved_went_back: int  # which replays do; no violation
    admin: int
    ddls_on_their_way: int  # not in every partition yet, where reading stopped
    counts: Mapping[Rule, int]  # violations by rule
    violations: Sequence[Violation]  # the first of them

    @property
    def is_ok(self) -> bool:
        return not self.counts

    def as_json(self) -> str:
        content = {**asdict(self), "is_ok": self.is_ok}
        return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
