"""Small raw changes for the sorter's tests, and the slow model it is held against."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.flow.sorter import Sorter, read_slices
from tidemill.model.change import FULL_CHANGE_SCHEMA, RAW_CHANGE_SCHEMA, Op
from tidemill.model.progress import Extent
from tidemill.model.ts import Ts

Change = tuple[int, int, int, bytes, bytes, bytes]  # as RAW_CHANGE_SCHEMA; sorts as the sorter does but for op


def change(commit_ts: int, key: bytes, start_ts: int | None = None, value: bytes | None = None) -> Change:
    """A change whose content follows from its identity, so that a second delivery is an exact copy."""
    start = commit_ts - 1 if start_ts is None else start_ts
    is_delete = (commit_ts + len(key)) % 5 == 0
    content = b"" if is_delete else b"%d:%s" % (commit_ts, key) * (1 + commit_ts % 3)
    old = b"old" * (commit_ts % 4)
    return start, commit_ts, int(Op.DELETE if is_delete else Op.PUT), key, content if value is None else value, old


def batch(changes: Iterable[Change]) -> pa.RecordBatch:
    columns = list(zip(*changes, strict=True)) or [()] * len(RAW_CHANGE_SCHEMA)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, RAW_CHANGE_SCHEMA, strict=True)],
        schema=RAW_CHANGE_SCHEMA,
    )


def full_batch(changes: Iterable[Change]) -> pa.RecordBatch:
    """The same with expiry and source, which follow from the commit-ts too."""
    plain = batch(changes)
    stamps = plain.column("commit_ts").to_numpy()
    more = {"expire_seconds": pa.array(stamps * 3), "txn_source": pa.array(stamps % 5)}
    columns = [more[name] if name in more else plain.column(name) for name in FULL_CHANGE_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=FULL_CHANGE_SCHEMA)


def rows(batches: Iterable[pa.RecordBatch]) -> list[Change]:
    return [tuple(row.values()) for each in batches for row in each.to_pylist()]


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Sorted by (commit_ts, start_ts, key), each once: plainly right, too slow to ship."""
    return sorted(set(changes), key=lambda c: (c[1], c[0], c[3]))


def read(sorter: Sorter, from_ts: int, to_ts: int, batch_rows: int = 65536) -> dict[int, list[Change]]:
    return {plan.span_id: rows(read_slices(plan, batch_rows)) for plan in sorter.plan(Extent(Ts(from_ts), Ts(to_ts)))}


@dataclass
class ModelSpan:
    since: int
    resolved: int
    until: int = 1 << 62
    changes: list[Change] = field(default_factory=list)


class Model:
    """What the sorter promises, with a list per span and a loop for everything."""

    def __init__(self) -> None:
        self.spans: dict[int, ModelSpan] = {}

    @property
    def resolved(self) -> int:
        return min((s.resolved for s in self.spans.values() if s.resolved < s.until), default=(1 << 64) - 1)

    def add(self, span_id: int, changes: Sequence[Change]) -> None:
        self.spans[span_id].changes += changes

    def read(self, from_ts: int, to_ts: int) -> dict[int, list[Change]]:
        found = {
            span_id: in_order(c for c in span.changes if max(from_ts, span.since) < c[1] <= min(to_ts, span.until))
            for span_id, span in self.spans.items()
        }
        return {span_id: changes for span_id, changes in found.items() if changes}
