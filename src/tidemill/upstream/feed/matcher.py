"""Pairs each COMMIT with its PREWRITE and hands on whole changes, for all registrations of one stream.

    wire ── rows, resolved-ts ──► Matcher ── Arrow batches, regions that moved on ──► client

TiKV sends a change in two halves: the PREWRITE has key, value and old value, the COMMIT has the
commit-ts. While a region's incremental scan runs (until INITIALIZED) the halves may come in any
order, so COMMITs and ROLLBACKs wait for the scan's end. What the scan finds committed comes whole.

State is kept per registration: a *slot*. A registration that is lost takes what waits for it along;
the next one starts empty. What waits is the upstream's open transactions and nothing else; where they are large it
waits on disk (``spill``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import InvariantError, ProtocolViolationError
from tidemill.model.change import BATCH_BYTES, FULL_CHANGE_SCHEMA, RAW_CHANGE_SCHEMA, cut_by_bytes
from tidemill.model.ts import Ts
from tidemill.upstream.feed import kernels as k
from tidemill.upstream.feed import wire
from tidemill.upstream.feed.spill import Spill
from tidemill.upstream.feed.wire import ParsedMessages

Int64s = npt.NDArray[np.int64]

_FEW_ENTRIES = 1 << 10
_FEW_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Matched:
    """What some messages amount to. Batches first: a resolved-ts vouches for the rows before it."""

    batches: list[tuple[int, pa.RecordBatch]]  # by request id
    initialized: list[int]  # slots whose incremental scan has ended
    advanced: list[tuple[int, Ts]]  # slots and the resolved-ts they have reached
    failed: list[int]  # slots that got a COMMIT without its PREWRITE; they take nothing any more


class Matcher:
    """Not for several threads at once.

    ``only_request`` is the one request of a stream that is not multiplexed: there a resolved-ts
    does not say whose it is. Batches have ``batch_bytes`` of keys and values at most, or one row.
    """

    def __init__(self, only_request: int = 0, spill: Spill | None = None, batch_bytes: int = BATCH_BYTES) -> None:
        self._spill = spill or Spill()
        self._batch_bytes = batch_bytes
        self._only_request = _signed(only_request)
        self._slots = np.zeros((16, k.SLOT_COLUMNS), dtype=np.int64)
        self._free_slots = list(range(15, -1, -1))
        self._index = np.full(64, k.NEVER_USED, dtype=np.int64)  # slots by request and region
        self._index_used = 0  # places of it that are or were in use
        self._entries = np.zeros((_FEW_ENTRIES, k.ENTRY_COLUMNS), dtype=np.int64)
        self._buckets = np.full(_FEW_ENTRIES, -1, dtype=np.int64)
        self._arena = np.zeros(_FEW_BYTES, dtype=np.uint8)
        self._counters = np.zeros(k.COUNTERS, dtype=np.int64)
        self._counters[k.C_FREE] = -1
        self._has_marks = False  # some change had an expiry or a source; what waits of others takes no room for it

    @property
    def waiting(self) -> int:
        """Changes of which only one half has come."""
        return int(self._counters[k.C_LIVE])

    def register(
        self, request_id: int, region_id: int, checkpoint_ts: Ts, lower: bytes = b"", upper: bytes | None = None
    ) -> int:
        """A new slot. Rows with plain keys outside ``[lower, upper)`` or at or below the checkpoint are dropped."""
        if self.find(request_id, region_id) is not None:
            raise InvariantError(f"region {region_id} is already registered for request {request_id} on this stream")
        if not self._free_slots:
            self._grow_slots()
        slot = self._free_slots.pop()
        self._reserve(0, len(lower) + len(upper or b""))
        row = self._slots[slot]
        row[:] = -1
        row[k.S_REQUEST], row[k.S_REGION] = _signed(request_id), _signed(region_id)
        row[k.S_CHECKPOINT] = row[k.S_RESOLVED] = checkpoint_ts
        row[k.S_STATE], row[k.S_MARK] = k.SCANNING, 0
        row[k.S_LOWER], row[k.S_LOWER_LEN] = self._keep(lower), len(lower)
        row[k.S_UPPER], row[k.S_UPPER_LEN] = self._keep(upper or b""), -1 if upper is None else len(upper)
        self._add_to_index(slot)
        return slot

    def release(self, slot: int) -> None:
        """End a registration; what waited for it is dropped."""
        k.forget(self._slots, self._entries, self._buckets, self._counters, slot)
        k.remove_from_index(self._slots, self._index, slot)
        self._slots[slot, k.S_STATE] = k.FREE
        self._free_slots.append(slot)

    def find(self, request_id: int, region_id: int) -> int | None:
        slot = int(k.find_slot(self._slots, self._index, _signed(request_id), _signed(region_id)))
        return slot if slot >= 0 else None

    def process(self, parsed: ParsedMessages) -> Matched:
        """Take rows and resolved-ts in. A broken promise of the upstream raises ``ProtocolViolationError``."""
        self._reserve(parsed.halves, parsed.halves_bytes)
        if self._only_request:
            parsed.resolved[parsed.resolved[:, wire.RESOLVED_REQUEST] == 0, wire.RESOLVED_REQUEST] = self._only_request
        counters, rows = self._counters, parsed.rows
        counters[[k.C_OUT, k.C_ADVANCED, k.C_INITIALIZED, k.C_FAILED, k.C_MARKS]] = 0
        out = np.empty((len(rows) + int(counters[k.C_CACHED]), k.OUT_COLUMNS), dtype=np.int64)
        self._has_marks |= len(parsed.rare) > 0
        marks = np.empty((len(out) if self._has_marks else 0, 3), dtype=np.int64)
        advanced, initialized, failed = (np.empty(len(self._slots), dtype=np.int64) for _ in range(3))
        outcome = k.match(
            parsed.buffer, parsed.events, rows, parsed.rare, parsed.resolved, parsed.regions,
            self._slots, self._index, self._entries, self._buckets, self._arena, counters,
            out, marks, advanced, initialized, failed,
        )  # fmt: skip
        if outcome != k.OK:
            raise self._violation(int(outcome), parsed)
        moved = advanced[: counters[k.C_ADVANCED]]
        self._slots[moved, k.S_MARK] = 0
        return Matched(
            batches=list(self._batches(parsed, out[: counters[k.C_OUT]], marks[: counters[k.C_MARKS]])),
            initialized=initialized[: counters[k.C_INITIALIZED]].tolist(),
            advanced=[
                (s, Ts(ts)) for s, ts in zip(moved.tolist(), self._slots[moved, k.S_RESOLVED].tolist(), strict=True)
            ],
            failed=failed[: counters[k.C_FAILED]].tolist(),
        )

    def _batches(self, parsed: ParsedMessages, out: Int64s, marks: Int64s) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not len(out):
            return
        requests = self._slots[out[:, k.O_SLOT], k.S_REQUEST]
        if (requests == requests[0]).all():
            parts = [np.arange(len(out))]
        else:
            order = np.argsort(requests, kind="stable")
            in_order = requests[order]
            parts = np.split(order, np.flatnonzero(in_order[1:] != in_order[:-1]) + 1)
        for of_request in parts:
            # What waited for INITIALIZED comes at once, however much it is.
            sizes = out[of_request][:, [k.O_KEY_LEN, k.O_VALUE_LEN, k.O_OLD_LEN]].sum(axis=1)
            for low, high in pairwise(cut_by_bytes(sizes, self._batch_bytes)):
                chosen = of_request[low:high]
                yield int(requests[chosen[0]]) & 0xFFFFFFFFFFFFFFFF, self._batch(parsed, out, marks, chosen)

    def _batch(self, parsed: ParsedMessages, out: Int64s, marks: Int64s, chosen: Int64s) -> pa.RecordBatch:
        n = len(chosen)
        sizes = np.zeros(3, dtype=np.int64)
        k.measure(out, chosen, sizes)
        numbers, ops = np.empty((2, n), dtype=np.int64), np.empty(n, dtype=np.uint8)
        offsets = np.zeros((3, n + 1), dtype=np.int32)
        bodies = [np.empty(size, dtype=np.uint8) for size in sizes.tolist()]
        k.gather(parsed.buffer, self._arena, out, chosen, numbers, ops, offsets, *bodies)
        stamps = [pa.Array.from_buffers(pa.uint64(), n, [None, pa.py_buffer(column)]) for column in numbers]
        texts = [
            pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(body)])
            for ends, body in zip(offsets, bodies, strict=True)
        ]
        op = pa.Array.from_buffers(pa.uint8(), n, [None, pa.py_buffer(ops)])
        rare = _rare(marks, len(out), chosen)
        schema = FULL_CHANGE_SCHEMA if rare else RAW_CHANGE_SCHEMA
        return pa.RecordBatch.from_arrays([*stamps, op, *rare, *texts], schema=schema)

    def _violation(self, outcome: int, parsed: ParsedMessages) -> ProtocolViolationError:
        row = parsed.rows[int(self._counters[k.C_ROW])]
        region = int(parsed.events[row[wire.EVENT], wire.REGION])
        place = f"region {region} sent a row of the transaction that began at {int(row[wire.START_TS])}"
        if outcome == k.BELOW_RESOLVED:
            what = f"{place} and committed at or below the region's own resolved-ts"
        elif outcome == k.NO_OPERATION:
            what = f"{place} that neither puts nor deletes"
        else:
            what = f"{place} of an unknown type {int(row[wire.TYPE])}"
        return ProtocolViolationError(
            f"{what}. Going on could lose changes, so the changefeed stops. "
            "Check that every TiKV is of a supported version, then resume from the checkpoint."
        )

    def _reserve(self, entries: int, size: int) -> None:
        """Make sure that so many more changes, of so many bytes, can wait without growing in between."""
        live = int(self._counters[k.C_LIVE])
        if live + entries > len(self._entries):
            self._grow_entries(2 * (live + entries))
        if int(self._counters[k.C_ARENA]) + size > len(self._arena):
            used = int(k.used_bytes(self._entries, self._slots, self._counters))
            arena = self._spill.zeros((max(_FEW_BYTES, 2 * (used + size)),), np.uint8)
            k.move(self._entries, self._slots, self._arena, arena, self._counters)
            self._arena = arena

    def _grow_entries(self, capacity: int) -> None:
        entries = self._spill.zeros((capacity, k.ENTRY_COLUMNS), np.int64)
        entries[: len(self._entries)] = self._entries
        self._entries = entries
        self._buckets = np.empty(1 << (capacity - 1).bit_length(), dtype=np.int64)
        k.rehash(self._entries, self._slots, self._buckets)

    def _grow_slots(self) -> None:
        old = len(self._slots)
        slots = np.zeros((2 * old, k.SLOT_COLUMNS), dtype=np.int64)
        slots[:old] = self._slots
        self._slots = slots
        self._free_slots.extend(range(2 * old - 1, old - 1, -1))

    def _add_to_index(self, slot: int) -> None:
        self._index_used += 1
        if 2 * self._index_used <= len(self._index):
            k.add_to_index(self._slots, self._index, slot)
        else:
            in_use = len(self._slots) - len(self._free_slots)
            self._index = np.empty(1 << (4 * in_use - 1).bit_length(), dtype=np.int64)
            k.build_index(self._slots, self._index)
            self._index_used = in_use

    def _keep(self, data: bytes) -> int:
        at = int(self._counters[k.C_ARENA])
        self._arena[at : at + len(data)] = np.frombuffer(data, dtype=np.uint8)
        self._counters[k.C_ARENA] = at + len(data)
        return at


def _rare(marks: Int64s, rows: int, chosen: Int64s) -> list[pa.Array]:
    """Expiry and source of the chosen rows; nothing where none has either."""
    if not len(marks):
        return []
    both = np.zeros((2, rows), dtype=np.uint64)
    both[:, marks[:, 0]] = marks[:, 1:].T.view(np.uint64)
    both = both[:, chosen]
    return [pa.array(column) for column in both] if both.any() else []


def _signed(number: int) -> int:
    """Ids as the arrays hold them: the same 64 bits, read as signed."""
    return number - (1 << 64) if number >= 1 << 63 else number
