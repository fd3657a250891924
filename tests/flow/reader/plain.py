"""Rows in plain Python: what was read, beside what should have been."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tidemill.columnar.encoded import Encoded
from tidemill.flow.encoder.port import Message
from tidemill.flow.reader import Events, Received
from tidemill.model.row import RowBatch, RowOp

Change = tuple[int, dict[str, Any] | None, dict[str, Any] | None]  # commit-ts, old row, new row


def changes(rows: RowBatch) -> list[Change]:
    rows.new.validate(full=True)
    rows.old.validate(full=True)
    new, old = iter(rows.new.to_pylist()), iter(rows.old.to_pylist())
    return [
        (ts, None if op == RowOp.INSERT else next(old), None if op == RowOp.DELETE else next(new))
        for ts, op in zip(rows.commit_ts.tolist(), rows.op.tolist(), strict=True)
    ]


def all_changes(events: Events) -> list[Change]:
    """Of all tables, in the order of their messages."""
    placed = [
        (place, change)
        for seen in events.rows
        for place, change in zip(seen.message if seen.order is None else seen.order, changes(seen.rows), strict=True)
    ]
    return [change for _, change in sorted(placed, key=lambda each: int(each[0]))]


def received(*messages: tuple[bytes | None, bytes | None]) -> Received:
    keys, values = zip(*messages, strict=True) if messages else ((), ())
    return Received(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def sent(encoded: Encoded) -> Received:
    keys: Sequence[bytes | None] = encoded.message_keys() or [None] * len(encoded)
    return received(*zip(keys, encoded.messages(), strict=True))


def sent_alone(messages: Iterable[Message]) -> Received:
    return received(*((message.key, message.value) for message in messages))
