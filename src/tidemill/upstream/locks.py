"""Locks that others have left: wait for their transaction, or finish what it left behind.

    reader, writer ── a lock in the way ──► LockWaiter ──┐
                                                         ├──► Fates ── the primary's word ──► TiKV
    puller ── a region stands still ──► LockResolver ────┘

The fate of a transaction lies with its primary key. While the transaction lives, a reader makes it
commit above the reader's ts where TiKV can, and else waits; nobody ends it. Once its time is up, the
primary is asked (and rolled back if nobody has committed it), and its other locks follow that fate.
A transaction with asynchronous commit has no such single key: there all its keys together decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import IncompatibleUpstreamError, UpstreamError, UpstreamUnavailableError
from tidemill.model.ts import Ts, physical_ms
from tidemill.retry import Policy
from tidemill.upstream.keyspace import earlier
from tidemill.upstream.kv import KvClient, decoder
from tidemill.upstream.pd import PdClient
from tidemill.upstream.topology import Region

WAIT_SECONDS = 60.0  # for transactions in the way of one read or write; a lock that is not renewed lives 20 s
LOCKS_PER_SCAN = 1024
KEYS_PER_RESOLVE = 256
_RETRY: Final = Policy(0.005, 0.5, jitter=0.0)
# Of these alone a region's resolved-ts takes notice.
_DATA_LOCKS = (kvrpcpb_pb2.Put, kvrpcpb_pb2.Del, kvrpcpb_pb2.Insert)

_status = decoder(kvrpcpb_pb2.CheckTxnStatusResponse)
_secondaries = decoder(kvrpcpb_pb2.CheckSecondaryLocksResponse)
_resolved = decoder(kvrpcpb_pb2.ResolveLockResponse)
_locks = decoder(kvrpcpb_pb2.ScanLockResponse)


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction is over: committed at ``commit_ts``, or rolled back if that is 0."""

    commit_ts: int


@dataclass(frozen=True, slots=True)
class Alive:
    """It may still commit. ``is_pushed``: then above the caller's ts."""

    is_pushed: bool = False


Fate = Ended | Alive


class Fates:
    """Asks what became of transactions, and lets locks follow. Never ends one whose time is not up."""

    def __init__(self, kv: KvClient, pd: PdClient) -> None:
        self._kv = kv
        self._pd = pd

    async def of(self, lock: kvrpcpb_pb2.LockInfo, caller_ts: int) -> Fate:
        """A reader at ``caller_ts`` wants the transaction, if it lives, to commit above that; 0: nobody reads."""
        return await self._of(lock, caller_ts, is_sync=False)

    async def _of(self, lock: kvrpcpb_pb2.LockInfo, caller_ts: int, *, is_sync: bool) -> Fate:
        now = await self._pd.get_ts()
        is_expired = physical_ms(lock.lock_version) + lock.lock_ttl < physical_ms(now)

        def request(region: Region) -> kvrpcpb_pb2.CheckTxnStatusRequest:
            return kvrpcpb_pb2.CheckTxnStatusRequest(
                primary_key=lock.primary_lock,
                lock_ts=lock.lock_version,
                caller_start_ts=caller_ts,
                current_ts=now,
                rollback_if_not_exist=is_expired,
                force_sync_commit=is_sync,
                verify_is_primary=True,
            )

        _, status = await self._kv.send("KvCheckTxnStatus", lock.primary_lock, request, _status)
        if status.HasField("error"):
            if status.error.HasField("txn_not_found") or status.error.HasField("primary_mismatch"):
                return Alive()  # its primary is not written yet; when the lock has expired this ends
            raise _refused("KvCheckTxnStatus", status.error)
        if status.commit_version:
            return Ended(status.commit_version)
        if not status.lock_ttl:
            return Ended(0)
        primary = status.lock_info
        if primary.use_async_commit and physical_ms(lock.lock_version) + status.lock_ttl < physical_ms(now):
            whole = await self._of_all(primary)
            if whole is not None:
                return whole
            if not is_sync:
                return await self._of(lock, caller_ts, is_sync=True)
        return Alive(is_pushed=status.action == kvrpcpb_pb2.MinCommitTSPushed)

    async def _of_all(self, primary: kvrpcpb_pb2.LockInfo) -> Ended | None:
        """Of an expired transaction with asynchronous commit: committed if and only if all its keys are locked.

        None: one of its locks is of an ordinary commit, so the primary alone decides after all.
        """
        commit_ts, todo = primary.min_commit_ts, sorted(primary.secondaries)
        while todo:
            asked, answer = await self._kv.send_some(
                "KvCheckSecondaryLocks",
                todo,
                lambda keys: kvrpcpb_pb2.CheckSecondaryLocksRequest(keys=keys, start_version=primary.lock_version),
                _secondaries,
            )
            if answer.HasField("error"):
                raise _refused("KvCheckSecondaryLocks", answer.error)
            if len(answer.locks) < asked:
                return Ended(answer.commit_ts)  # one key is committed, or one is missing and will stay so: 0
            if not all(lock.use_async_commit for lock in answer.locks):
                return None
            commit_ts = max(commit_ts, *(lock.min_commit_ts for lock in answer.locks))
            todo = todo[asked:]
        return Ended(commit_ts)

    async def follow(self, start_ts: int, keys: Sequence[bytes], ended: Ended) -> None:
        """Let the transaction's locks on sorted ``keys`` have its fate. Where it holds none, nothing happens."""
        while keys:
            asked, answer = await self._kv.send_some(
                "KvResolveLock",
                keys[:KEYS_PER_RESOLVE],
                lambda some: kvrpcpb_pb2.ResolveLockRequest(
                    start_version=start_ts, commit_version=ended.commit_ts, keys=some
                ),
                _resolved,
            )
            if answer.HasField("error"):
                raise _refused("KvResolveLock", answer.error)
            keys = keys[asked:]


class LockWaiter:
    """The locks in the way of one read at one ts, or with ``is_writing`` of one transaction's writes.

    ``bypass`` are transactions known not to matter to a reader.
    """

    def __init__(
        self,
        kv: KvClient,
        pd: PdClient,
        ts: Ts,
        *,
        is_writing: bool = False,
        wait_seconds: float = WAIT_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._fates = Fates(kv, pd)
        self._ts = ts
        self._is_writing = is_writing
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._give_up = clock.monotonic() + wait_seconds
        self._waits = 0
        self.bypass: set[int] = set()

    async def clear(self, locks: Sequence[kvrpcpb_pb2.LockInfo]) -> None:
        """Get these locks out of the way, or wait a little for them; the caller then tries again."""
        is_waiting = False
        fates: dict[int, Fate] = {}
        for lock in locks:
            start_ts = lock.lock_version
            if start_ts not in fates:
                fates[start_ts] = await self._fate(lock)
            match fates[start_ts]:
                case Ended() as ended:
                    await self._fates.follow(start_ts, [lock.key], ended)
                case Alive(is_pushed=True) if not self._is_writing:
                    self.bypass.add(start_ts)
                case Alive():
                    is_waiting = True
        if is_waiting:
            await self._wait(locks[0])

    async def _fate(self, lock: kvrpcpb_pb2.LockInfo) -> Fate:
        try:
            return await self._fates.of(lock, 0 if self._is_writing else self._ts)
        except IncompatibleUpstreamError:
            return Alive()  # a store that is only read: whoever writes to it ends its transactions

    async def _wait(self, lock: kvrpcpb_pb2.LockInfo) -> None:
        if self._clock.monotonic() >= self._give_up:
            what = "write in the transaction begun" if self._is_writing else "read"
            raise UpstreamUnavailableError(
                f"cannot {what} at {self._ts}: key {lock.key.hex()} is locked by the transaction that started at "
                f"{lock.lock_version}, which has neither ended nor expired for {self._wait_seconds:.0f} s. "
                f"End that transaction, or {'try again later' if self._is_writing else 'read at another ts'}."
            )
        self._waits += 1
        await self._clock.sleep(_RETRY.pause_seconds(self._waits))


@dataclass(frozen=True, slots=True)
class ResolvedTransaction:
    """One transaction whose locks a ``LockResolver`` has met, and what it did with them."""

    start_ts: int
    primary: bytes
    locks: int
    fate: Fate

    @property
    def action(self) -> str:
        match self.fate:
            case Ended(commit_ts=0):
                return "rolled back"
            case Ended():
                return "committed"
            case Alive():
                return "left alone, its transaction lives"


class LockResolver:
    """Ends what dead transactions have left in a range, so that its resolved-ts can move again."""

    def __init__(self, kv: KvClient, pd: PdClient) -> None:
        self._kv = kv
        self._fates = Fates(kv, pd)

    async def resolve(self, start: bytes, end: bytes, max_ts: int) -> list[ResolvedTransaction]:
        """Look at the locks on ``[start, end)`` of transactions that started at or below ``max_ts``.

        Keys are logical; an empty ``end`` means to the last. Raises ``IncompatibleUpstreamError`` if a
        store does not know the calls that this takes.
        """
        fates: dict[int, Fate] = {}
        primaries: dict[int, bytes] = {}
        counts: dict[int, int] = {}
        at = start
        while not end or at < end:
            locks, at = await self._scan(at, end, max_ts)
            held: dict[int, list[bytes]] = {}
            for lock in locks:
                start_ts = lock.lock_version
                if start_ts not in fates:
                    fates[start_ts] = await self._fates.of(lock, 0)
                    primaries[start_ts] = lock.primary_lock
                held.setdefault(start_ts, []).append(lock.key)
                counts[start_ts] = counts.get(start_ts, 0) + 1
            for start_ts, keys in held.items():
                if isinstance(fate := fates[start_ts], Ended):
                    await self._fates.follow(start_ts, sorted(keys), fate)
            if not at:
                break
        return [ResolvedTransaction(ts, primaries[ts], counts[ts], fate) for ts, fate in sorted(fates.items())]

    async def _scan(self, at: bytes, end: bytes, max_ts: int) -> tuple[list[kvrpcpb_pb2.LockInfo], bytes]:
        """Locks on data from ``at`` on, and where to go on: empty when this was the last."""

        def request(region: Region) -> kvrpcpb_pb2.ScanLockRequest:
            border = self._kv.keyspace.bounds(region)[1]
            return kvrpcpb_pb2.ScanLockRequest(
                max_version=max_ts, start_key=at, end_key=earlier(end, border), limit=LOCKS_PER_SCAN
            )

        region, answer = await self._kv.send("KvScanLock", at, request, _locks)
        if answer.HasField("error"):
            raise _refused("KvScanLock", answer.error)
        found = list(answer.locks)
        data = [lock for lock in found if lock.lock_type in _DATA_LOCKS]
        if len(found) >= LOCKS_PER_SCAN:
            return data, max(lock.key for lock in found) + b"\0"
        border = earlier(end, self._kv.keyspace.bounds(region)[1])
        return data, b"" if border == end else border


def _refused(method: str, error: Any) -> UpstreamError:
    set_fields = [field.name for field, _ in error.ListFields()]
    return UpstreamError(f"TiKV refuses {method} while a lock was in the way: {', '.join(set_fields)}")
