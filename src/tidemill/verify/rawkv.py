"""Whether a range of RawKV keys is the same in two clusters: checksums that the stores reckon, range by range.

    the range ─► parts, cut where the upstream's regions end ─► RawChecksum of each, on both sides ─► equal?
                                  ▲ again, while there is time ◄── those that differ

RawKV cannot be read as of a ts. While keys are written, the downstream lags behind and a part may differ for that
alone; so parts that differ are compared again for a while. A part found equal was equal when it was read; what is said
of the whole is sure where nothing is written meanwhile.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import UsageError
from tidemill.model.keys import KeyRange
from tidemill.model.security import Security
from tidemill.model.words import counted
from tidemill.source.keyrange import find_keyspace, open_keys
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import Checksum, RawClient
from tidemill.upstream.regions import RegionCache

_PAUSE_SECONDS = 0.5
_PARTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where PD is, and how to speak to it."""

    pd: str
    security: Security


@dataclass(frozen=True, slots=True)
class Part:
    """``[start, end)``, in the user's keys; an empty end: to the last one."""

    start: bytes
    end: bytes
    upstream: Checksum
    downstream: Checksum

    @property
    def is_equal(self) -> bool:
        return self.upstream == self.downstream

    def document(self) -> dict[str, Any]:
        sides = {"upstream": self.upstream, "downstream": self.downstream}
        return {"start_key": self.start.hex(), "end_key": self.end.hex()} | {
            name: {"crc64_xor": f"{side.crc64_xor:016x}", "pairs": side.pairs, "bytes": side.bytes}
            for name, side in sides.items()
        }


@dataclass(frozen=True, slots=True)
class KeyReport:
    parts: Sequence[Part]

    @property
    def is_equal(self) -> bool:
        return all(part.is_equal for part in self.parts)

    def document(self) -> dict[str, Any]:
        different = [part.document() for part in self.parts if not part.is_equal]
        return {"equal": self.is_equal, "ranges": len(self.parts), **_total(self.parts), "different": different}

    def lines(self) -> Iterator[str]:
        for part in self.parts:
            if not part.is_equal:
                up, down = part.upstream, part.downstream
                first, last = part.start.hex() or "the first", part.end.hex() or "the last"
                yield (
                    f"Different: keys from {first} to {last} (in hex): "
                    f"{up.pairs:,} pairs of checksum {up.crc64_xor:016x} upstream, "
                    f"{down.pairs:,} of {down.crc64_xor:016x} downstream."
                )
        total = _total(self.parts)
        if self.is_equal:
            yield f"Equal: {total['pairs']:,} pairs, {total['bytes']:,} bytes, in {counted(len(self.parts), 'range')}."
        else:
            different = sum(not part.is_equal for part in self.parts)
            verb = "differ" if different > 1 else "differs"
            yield (
                f"{different} of {counted(len(self.parts), 'range')} {verb}. Where keys are being written, compare "
                "again once they are not, or give a longer --wait."
            )


def _total(parts: Sequence[Part]) -> dict[str, int]:
    return {"pairs": sum(p.upstream.pairs for p in parts), "bytes": sum(p.upstream.bytes for p in parts)}


def compare_keys(
    source: Cluster,
    target: Cluster,
    keys: KeyRange,
    target_keyspace: str,
    wait_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
) -> KeyReport:
    """Blocks. Raises a UsageError for what cannot be compared."""
    return asyncio.run(_compare(source, target, keys, target_keyspace, wait_seconds, clock))


async def _compare(
    source: Cluster, target: Cluster, keys: KeyRange, target_keyspace: str, wait_seconds: float, clock: Clock
) -> KeyReport:
    async with (
        PdClient(source.pd, security=source.security) as upstream,
        PdClient(target.pd, security=target.security) as downstream,
    ):
        if upstream.cluster_id == downstream.cluster_id:
            raise UsageError(
                f"upstream and downstream are one cluster, {upstream.cluster_id}. Give the PD of another in --sink-uri."
            )
        chosen = await open_keys(upstream, keys)
        if await find_keyspace(downstream, target_keyspace) != chosen.keyspace:
            raise UsageError(
                "the keyspaces of upstream and downstream have different numbers, which are part of what a store's "
                "checksum covers. Keyspaces of one number can be compared."
            )
        ours, theirs = (RawClient(RegionCache(pd), keyspace=chosen.keyspace) for pd in (upstream, downstream))
        try:
            parts = await _compared(ours, theirs, await chosen.by_region(upstream))
            give_up = clock.monotonic() + wait_seconds
            while any(not part.is_equal for part in parts) and clock.monotonic() < give_up:
                await clock.sleep(_PAUSE_SECONDS)
                open_ones = await _compared(ours, theirs, [(p.start, p.end) for p in parts if not p.is_equal])
                again = {part.start: part for part in open_ones}
                parts = [again.get(part.start, part) for part in parts]
        finally:
            await ours.close()
            await theirs.close()
    return KeyReport(parts)


async def _compared(ours: RawClient, theirs: RawClient, parts: Sequence[tuple[bytes, bytes]]) -> list[Part]:
    turns = asyncio.Semaphore(_PARTS_AT_ONCE)

    async def compared(start: bytes, end: bytes) -> Part:
        async with turns:
            return Part(start, end, *await asyncio.gather(ours.checksum(start, end), theirs.checksum(start, end)))

    return list(await asyncio.gather(*(compared(start, end) for start, end in parts)))
