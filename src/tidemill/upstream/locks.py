"""Locks in a reader's way: wait for their transaction, or finish what it left behind.

The fate of a transaction lies with its primary key. While the transaction lives, a reader makes it
commit above the reader's ts where TiKV can, and else waits. Once its time is up, the primary is
asked (and rolled back if nobody has committed it), and the lock in the way follows that fate. A
transaction with asynchronous commit has no such single key: there all its keys together decide.
"""

from collections.abc import Sequence
from typing import Any

from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import IncompatibleUpstreamError, UpstreamError, UpstreamUnavailableError
from tidemill.model.ts import Ts, physical_ms
from tidemill.upstream.feed.bounds import plain_bound
from tidemill.upstream.kv import KvClient, decoder
from tidemill.upstream.pd import PdClient
from tidemill.upstream.topology import Region

WAIT_SECONDS = 60.0  # for transactions in the way of one read; a lock lives 20 s unless its owner renews it
_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.5

_status = decoder(kvrpcpb_pb2.CheckTxnStatusResponse)
_secondaries = decoder(kvrpcpb_pb2.CheckSecondaryLocksResponse)
_resolved = decoder(kvrpcpb_pb2.ResolveLockResponse)


class LockWaiter:
    """The locks in the way of one read at one ts. ``bypass`` are transactions known not to matter to it."""

    def __init__(self, kv: KvClient, pd: PdClient, ts: Ts, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._kv = kv
        self._pd = pd
        self._ts = ts
        self._clock = clock
        self._give_up = clock.monotonic() + WAIT_SECONDS
        self._pause = _FIRST_PAUSE_SECONDS
        self.bypass: set[int] = set()

    async def clear(self, locks: Sequence[kvrpcpb_pb2.LockInfo]) -> None:
        """Get these locks out of the way, or wait a little for them; the reader then tries again."""
        is_waiting = False
        fates: dict[int, int | None] = {}
        for lock in locks:
            if lock.lock_version not in fates:
                fates[lock.lock_version] = await self._fate(lock)
            fate = fates[lock.lock_version]
            if fate is not None:
                await self._resolve(lock, fate)
            elif lock.lock_version not in self.bypass:
                is_waiting = True
        if is_waiting:
            await self._wait(locks[0])

    async def _wait(self, lock: kvrpcpb_pb2.LockInfo) -> None:
        if self._clock.monotonic() >= self._give_up:
            raise UpstreamUnavailableError(
                f"cannot read at {self._ts}: key {lock.key.hex()} is locked by the transaction that started at "
                f"{lock.lock_version}, which has neither ended nor expired for {WAIT_SECONDS:.0f} s. "
                "End that transaction, or read at another ts."
            )
        await self._clock.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    async def _fate(self, lock: kvrpcpb_pb2.LockInfo) -> int | None:
        """The transaction's commit-ts, 0 if it was rolled back, None while it lives."""
        now = await self._pd.get_ts()
        is_expired = physical_ms(lock.lock_version) + lock.lock_ttl < physical_ms(now)

        def request(region: Region) -> kvrpcpb_pb2.CheckTxnStatusRequest:
            return kvrpcpb_pb2.CheckTxnStatusRequest(
                primary_key=lock.primary_lock,
                lock_ts=lock.lock_version,
                caller_start_ts=self._ts,
                current_ts=now,
                rollback_if_not_exist=is_expired,
                verify_is_primary=True,
            )

        try:
            _, status = await self._kv.send("KvCheckTxnStatus", lock.primary_lock, request, _status)
        except IncompatibleUpstreamError:
            return None  # a store that is only read: whoever writes to it ends its transactions
        if status.HasField("error"):
            if status.error.HasField("txn_not_found") or status.error.HasField("primary_mismatch"):
                return None  # its primary is not written yet; when the lock has expired this ends
            raise _refused("KvCheckTxnStatus", status.error)
        if status.commit_version:
            return int(status.commit_version)
        if not status.lock_ttl:
            return 0
        primary = status.lock_info
        if primary.use_async_commit and physical_ms(lock.lock_version) + status.lock_ttl < physical_ms(now):
            return await self._fate_of_all(primary)
        if status.action == kvrpcpb_pb2.MinCommitTSPushed:
            self.bypass.add(lock.lock_version)
        return None

    async def _fate_of_all(self, primary: kvrpcpb_pb2.LockInfo) -> int:
        """Of an expired transaction with asynchronous commit: committed if and only if all its keys are locked."""
        commit_ts, todo = primary.min_commit_ts, sorted(primary.secondaries)
        while todo:
            asked: list[bytes] = []

            def request(region: Region, asked: list[bytes] = asked) -> kvrpcpb_pb2.CheckSecondaryLocksRequest:
                end = plain_bound(region.span.end)
                asked[:] = [key for key in todo if end is None or key < end]  # noqa: B023  # used before the next round
                return kvrpcpb_pb2.CheckSecondaryLocksRequest(keys=asked, start_version=primary.lock_version)

            _, answer = await self._kv.send("KvCheckSecondaryLocks", todo[0], request, _secondaries)
            if answer.HasField("error"):
                raise _refused("KvCheckSecondaryLocks", answer.error)
            if len(answer.locks) < len(asked):
                return int(answer.commit_ts)  # one key is committed, or one is missing and will stay so: 0
            commit_ts = max(commit_ts, *(lock.min_commit_ts for lock in answer.locks))
            todo = todo[len(asked) :]
        return int(commit_ts)

    async def _resolve(self, lock: kvrpcpb_pb2.LockInfo, commit_ts: int) -> None:
        def request(region: Region) -> kvrpcpb_pb2.ResolveLockRequest:
            return kvrpcpb_pb2.ResolveLockRequest(
                start_version=lock.lock_version, commit_version=commit_ts, keys=[lock.key]
            )

        _, answer = await self._kv.send("KvResolveLock", lock.key, request, _resolved)
        if answer.HasField("error"):
            raise _refused("KvResolveLock", answer.error)


def _refused(method: str, error: Any) -> UpstreamError:
    set_fields = [field.name for field, _ in error.ListFields()]
    return UpstreamError(f"TiKV refuses {method} while a lock was in a reader's way: {', '.join(set_fields)}")
