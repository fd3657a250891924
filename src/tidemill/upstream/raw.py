"""RawKV: keys and values without transactions, of API V1 and V2.

    sink, tests ──► RawClient ── grouped by region ──► KvClient ──► TiKV

Requests about many keys are cut by region and by size, sent several at a time, and tried again
where a region has moved. Putting or deleting twice does the same as once, so a lost answer is no
harm there; only ``compare_and_swap`` cannot be repeated and tells instead (``UndeterminedError``).
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import IncompatibleUpstreamError, ProtocolViolationError, UndeterminedError, UpstreamError
from tidemill.model.span import KEY_END
from tidemill.upstream.keyspace import RAW_V1, Keyspace, earlier
from tidemill.upstream.kv import MAX_CALLS, KvClient, UnansweredError, decoder
from tidemill.upstream.pace import Pace
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.topology import Region

KEYS_PER_CALL = 1024
PUT_BYTES_PER_CALL = 512 << 10  # TiKV's log takes no entry above 8 MiB
PAIRS_PER_SCAN = 1024

_get_answer = decoder(kvrpcpb_pb2.RawGetResponse)
_batch_get_answer = decoder(kvrpcpb_pb2.RawBatchGetResponse)
_put_answer = decoder(kvrpcpb_pb2.RawPutResponse)
_batch_put_answer = decoder(kvrpcpb_pb2.RawBatchPutResponse)
_delete_answer = decoder(kvrpcpb_pb2.RawDeleteResponse)
_batch_delete_answer = decoder(kvrpcpb_pb2.RawBatchDeleteResponse)
_delete_range_answer = decoder(kvrpcpb_pb2.RawDeleteRangeResponse)
_scan_answer = decoder(kvrpcpb_pb2.RawScanResponse)
_cas_answer = decoder(kvrpcpb_pb2.RawCASResponse)
_ttl_answer = decoder(kvrpcpb_pb2.RawGetKeyTTLResponse)
_checksum_answer = decoder(kvrpcpb_pb2.RawChecksumResponse)

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Swap:
    """What became of a ``compare_and_swap``, and what the key held before: None if nothing."""

    is_done: bool
    previous: bytes | None


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of all pairs of a range, in any order: the exclusive or of each pair's CRC-64."""

    crc64_xor: int = 0
    pairs: int = 0
    bytes: int = 0

    def with_more(self, more: "Checksum") -> "Checksum":
        return Checksum(self.crc64_xor ^ more.crc64_xor, self.pairs + more.pairs, self.bytes + more.bytes)


class RawClient:
    """For one event loop; ``close`` when done. Keys are the user's own, without a keyspace's prefix.

    A client whose writes meet those of ``compare_and_swap``, its own or another's, is opened with
    ``is_atomic``: TiKV then lets them take turns, which costs a little.
    """

    def __init__(
        self,
        regions: RegionCache,
        *,
        keyspace: Keyspace = RAW_V1,
        is_atomic: bool = False,
        max_calls: int = MAX_CALLS,
        keys_per_call: int = KEYS_PER_CALL,
        bytes_per_call: int = PUT_BYTES_PER_CALL,
        longest_pause_seconds: float = inf,
        pace: Pace | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """A request that fails is tried again after at most ``longest_pause_seconds``. ``pace``: of what is written in
        batches."""
        self._keys_per_call, self._bytes_per_call = keys_per_call, bytes_per_call
        self._keyspace = keyspace
        self._is_atomic = is_atomic
        self._max_calls, self._pace = max_calls, pace
        self._kv = KvClient(regions, keyspace=keyspace, longest_pause_seconds=longest_pause_seconds, clock=clock)

    async def close(self) -> None:
        await self._kv.close()

    async def get(self, key: bytes) -> bytes | None:
        logical = self._keyspace.logical(key)
        answer = await self._one("RawGet", logical, kvrpcpb_pb2.RawGetRequest(key=logical), _get_answer)
        return None if answer.not_found else bytes(answer.value)

    async def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one."""
        found: dict[bytes, bytes] = {}

        async def ask(some: Sequence[bytes]) -> int:
            count, answer = await self._kv.send_some("RawBatchGet", some, _batch_get, _batch_get_answer)
            for key, value in _pairs("RawBatchGet", answer.pairs):
                if not _is_among(some[:count], key):
                    raise ProtocolViolationError(f"TiKV answered RawBatchGet with key {key.hex()}, not asked for")
                found[self._keyspace.user(key)] = value
            return count

        await self._spread(keys, ask)
        return found

    async def put(self, key: bytes, value: bytes, *, ttl_seconds: int = 0) -> None:
        """Write; with a ``ttl_seconds`` above zero the key goes after that time."""
        logical = self._keyspace.logical(key)
        request = kvrpcpb_pb2.RawPutRequest(key=logical, value=value, ttl=ttl_seconds, for_cas=self._is_atomic)
        await self._one("RawPut", logical, request, _put_answer)

    async def batch_put(self, pairs: Mapping[bytes, bytes], *, ttl_seconds: int | Mapping[bytes, int] = 0) -> None:
        """Write all pairs, in no order. After an error any of them may be written: put them again.

        ``ttl_seconds`` is for all keys, or for each of those that it names.
        """
        values = {self._keyspace.logical(key): value for key, value in pairs.items()}
        ttls: dict[bytes, int] = {}
        if isinstance(ttl_seconds, Mapping):
            ttls = {self._keyspace.logical(key): ttl for key, ttl in ttl_seconds.items()}
        elif ttl_seconds:
            ttls = dict.fromkeys(values, ttl_seconds)

        def request(keys: Sequence[bytes]) -> kvrpcpb_pb2.RawBatchPutRequest:
            listed = [kvrpcpb_pb2.KvPair(key=key, value=values[key]) for key in keys]
            given = [ttls.get(key, 0) for key in keys] if ttls else []
            return kvrpcpb_pb2.RawBatchPutRequest(pairs=listed, ttls=given, for_cas=self._is_atomic)

        async def ask(some: Sequence[bytes]) -> int:
            if self._pace is not None:
                await self._pace.wait(sum(len(key) + len(values[key]) for key in some))
            count, answer = await self._kv.send_some("RawBatchPut", some, request, _batch_put_answer)
            _raise_refusal("RawBatchPut", answer.error)
            return count

        await self._kv.spread(
            sorted(values),
            ask,
            max_keys=self._keys_per_call,
            max_bytes=self._bytes_per_call,
            size_of=lambda key: len(key) + len(values[key]),
            max_calls=self._max_calls,
        )

    async def delete(self, key: bytes) -> None:
        logical = self._keyspace.logical(key)
        request = kvrpcpb_pb2.RawDeleteRequest(key=logical, for_cas=self._is_atomic)
        await self._one("RawDelete", logical, request, _delete_answer)

    async def batch_delete(self, keys: Iterable[bytes]) -> None:
        """Delete all, in no order. After an error any of them may be deleted: delete them again."""

        def request(some: Sequence[bytes]) -> kvrpcpb_pb2.RawBatchDeleteRequest:
            return kvrpcpb_pb2.RawBatchDeleteRequest(keys=some, for_cas=self._is_atomic)

        async def ask(some: Sequence[bytes]) -> int:
            if self._pace is not None:
                await self._pace.wait(sum(map(len, some)))
            count, answer = await self._kv.send_some("RawBatchDelete", some, request, _batch_delete_answer)
            _raise_refusal("RawBatchDelete", answer.error)
            return count

        await self._spread(keys, ask)

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete ``[start, end)``; an empty ``end`` means to the last key. The change stream tells nothing of it."""

        async def ask(first: bytes, last: bytes) -> bytes:
            def request(region: Region) -> kvrpcpb_pb2.RawDeleteRangeRequest:
                return kvrpcpb_pb2.RawDeleteRangeRequest(start_key=first, end_key=self._end_in(region, last))

            region, answer = await self._kv.send("RawDeleteRange", first, request, _delete_range_answer)
            _raise_refusal("RawDeleteRange", answer.error)
            return self._end_in(region, last)

        await self._kv.spread_range(*self._keyspace.range(start, end), ask, max_calls=self._max_calls)

    async def scan(
        self,
        start: bytes,
        end: bytes = b"",
        *,
        limit: int | None = None,
        is_reverse: bool = False,
        keys_only: bool = False,
    ) -> AsyncIterator[list[Pair]]:
        """The pairs of ``[start, end)`` in key order, or the other way round; an empty ``end`` means to the last key.

        Lists are never empty and ``limit`` counts all pairs of them together. Writes that happen
        meanwhile may or may not be seen.
        """
        first, last = self._keyspace.range(start, end)
        left = limit
        while (not last or first < last) and (left is None or left > 0):
            wanted = PAIRS_PER_SCAN if left is None else min(left, PAIRS_PER_SCAN)
            if is_reverse:
                pairs, last = await self._scan_down(first, last, wanted, keys_only)
                is_over = last <= first
            else:
                pairs, first = await self._scan_up(first, last, wanted, keys_only)
                is_over = not first
            if pairs:
                left = left - len(pairs) if left is not None else None
                yield [(self._keyspace.user(key), value) for key, value in pairs]
            if is_over:
                return

    async def compare_and_swap(
        self, key: bytes, expected: bytes | None, value: bytes | None, *, ttl_seconds: int = 0
    ) -> Swap:
        """Write ``value`` if the key holds ``expected``; None stands for no such key, before and after.

        Raises ``UndeterminedError`` when the answer is lost: look at the key before trying again.
        """
        logical = self._keyspace.logical(key)
        request = kvrpcpb_pb2.RawCASRequest(
            key=logical,
            value=value or b"",
            delete=value is None,
            previous_value=expected or b"",
            previous_not_exist=expected is None,
            ttl=ttl_seconds,
        )
        try:
            answer = await self._one("RawCompareAndSwap", logical, request, _cas_answer, is_once=True)
        except UnansweredError as error:
            raise UndeterminedError(
                f"nobody knows whether key {key.hex()} was swapped: the store's answer was lost. "
                "Read the key, then decide whether to swap again."
            ) from error
        return Swap(answer.succeed, None if answer.previous_not_exist else bytes(answer.previous_value))

    async def ttl(self, key: bytes) -> int | None:
        """Seconds until the key goes; 0: it stays; None: there is no such key."""
        logical = self._keyspace.logical(key)
        request = kvrpcpb_pb2.RawGetKeyTTLRequest(key=logical)
        answer = await self._one("RawGetKeyTTL", logical, request, _ttl_answer)
        return None if answer.not_found else int(answer.ttl)

    async def checksum(self, start: bytes, end: bytes = b"") -> Checksum:
        """Of ``[start, end)``, as the stores reckon it; an empty ``end`` means to the last key."""
        total = Checksum()

        async def ask(first: bytes, last: bytes) -> bytes:
            def request(region: Region) -> kvrpcpb_pb2.RawChecksumRequest:
                part = kvrpcpb_pb2.KeyRange(start_key=first, end_key=self._end_in(region, last))
                return kvrpcpb_pb2.RawChecksumRequest(algorithm=kvrpcpb_pb2.Crc64_Xor, ranges=[part])

            nonlocal total
            region, answer = await self._kv.send("RawChecksum", first, request, _checksum_answer)
            _raise_refusal("RawChecksum", answer.error)
            total = total.with_more(Checksum(answer.checksum, answer.total_kvs, answer.total_bytes))
            return self._end_in(region, last)

        await self._kv.spread_range(*self._keyspace.range(start, end), ask, max_calls=self._max_calls)
        return total

    async def _one(self, method: str, key: bytes, request: Any, decode: Any, *, is_once: bool = False) -> Any:
        """One request about one key, the same for whichever region holds it."""
        _, answer = await self._kv.send(method, key, lambda region: request, decode, is_once=is_once)
        _raise_refusal(method, answer.error)
        return answer

    async def _spread(self, keys: Iterable[bytes], ask: Any) -> None:
        logical = sorted({self._keyspace.logical(key) for key in keys})
        await self._kv.spread(
            logical,
            ask,
            max_keys=self._keys_per_call,
            max_bytes=self._bytes_per_call,
            max_calls=self._max_calls,
        )

    async def _scan_up(self, at: bytes, last: bytes, limit: int, keys_only: bool) -> tuple[list[Pair], bytes]:
        """Pairs from ``at`` on, and where to go on: empty when this was the last."""

        def request(region: Region) -> kvrpcpb_pb2.RawScanRequest:
            end = self._end_in(region, last)
            return kvrpcpb_pb2.RawScanRequest(start_key=at, end_key=end, limit=limit, key_only=keys_only)

        region, answer = await self._kv.send("RawScan", at, request, _scan_answer)
        pairs = _pairs("RawScan", answer.kvs)
        end = self._end_in(region, last)
        _check_scan(pairs, at, end)
        if len(pairs) >= limit:
            return pairs, pairs[-1][0] + b"\0"
        return pairs, b"" if end == last else end

    async def _scan_down(self, first: bytes, at: bytes, limit: int, keys_only: bool) -> tuple[list[Pair], bytes]:
        """Pairs below ``at``, from the highest down, and below what to go on."""

        def request(region: Region) -> kvrpcpb_pb2.RawScanRequest:
            low = max(first, self._keyspace.bounds(region)[0])
            # A store takes an empty key for the first one, also where it begins at the end.
            return kvrpcpb_pb2.RawScanRequest(
                start_key=at or KEY_END, end_key=low, limit=limit, key_only=keys_only, reverse=True
            )

        region, answer = await self._kv.send("RawScan", at, request, _scan_answer, is_below=True)
        pairs = _pairs("RawScan", answer.kvs)
        low = max(first, self._keyspace.bounds(region)[0])
        _check_scan(pairs[::-1], low, at)
        return pairs, pairs[-1][0] if len(pairs) >= limit else low

    def _end_in(self, region: Region, last: bytes) -> bytes:
        """Where a range that ends at ``last`` ends in this region."""
        return earlier(last, self._keyspace.bounds(region)[1])


def _batch_get(keys: Sequence[bytes]) -> kvrpcpb_pb2.RawBatchGetRequest:
    return kvrpcpb_pb2.RawBatchGetRequest(keys=keys)


def _is_among(keys: Sequence[bytes], key: bytes) -> bool:
    at = bisect_left(keys, key)
    return at < len(keys) and keys[at] == key


def _pairs(method: str, answered: Iterable[kvrpcpb_pb2.KvPair]) -> list[Pair]:
    pairs = []
    for pair in answered:
        if pair.HasField("error"):
            _raise_refusal(method, pair.error.abort or pair.error.retryable or "an error without words")
        pairs.append((pair.key, pair.value))
    return pairs


def _check_scan(pairs: Sequence[Pair], start: bytes, end: bytes) -> None:
    """An answer out of order would make us miss keys, one out of range would hand out somebody else's."""
    keys = [key for key, _ in pairs]
    if keys and (keys[0] < start or (end and keys[-1] >= end) or any(a >= b for a, b in pairwise(keys))):
        raise ProtocolViolationError(
            f"TiKV answered a scan of [{start.hex()}, {end.hex()}) with keys out of range or out of order"
        )


def _raise_refusal(method: str, text: str) -> None:
    if not text:
        return
    message = f"TiKV refuses {method}: {text}"
    if "api version" in text.lower() or "key mode" in text.lower():
        raise IncompatibleUpstreamError(f"{message}. Open the client with the keyspace of the store's api-version.")
    raise UpstreamError(message)
