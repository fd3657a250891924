"""Transactions of our own: optimistic, in two phases.

    begin ──► put, delete (kept here) ──► commit: prewrite everywhere ─► commit the primary ─► the rest

Up to the primary's commit the transaction can be undone, by us or, once its locks expire, by
anybody; with it everything is committed, whatever happens to the rest: a reader who meets a lock
asks the primary. While the prewrites of a large transaction go on, heart-beats keep it alive.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import (
    InvariantError,
    ProtocolViolationError,
    TransactionConflictError,
    TransactionEndedError,
    UndeterminedError,
    UpstreamError,
)
from tidemill.log import get_logger
from tidemill.model.ts import Ts
from tidemill.upstream.keyspace import TXN_V1, Keyspace
from tidemill.upstream.kv import MAX_CALLS, KvClient, UnansweredError, decoder
from tidemill.upstream.locks import WAIT_SECONDS, LockWaiter
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

LOCK_TTL_MS = 3000
KEYS_PER_CALL = 1024
PREWRITE_BYTES_PER_CALL = 512 << 10  # TiKV's log takes no entry above 8 MiB
LONGEST_LIFE_SECONDS = 3600.0  # a transaction that takes longer is not kept alive any more

_prewritten = decoder(kvrpcpb_pb2.PrewriteResponse)
_committed = decoder(kvrpcpb_pb2.CommitResponse)
_rolled_back = decoder(kvrpcpb_pb2.BatchRollbackResponse)
_beaten = decoder(kvrpcpb_pb2.TxnHeartBeatResponse)

log = get_logger("txn")


class TxnClient:
    """For one event loop; ``close`` when done. Keys are the user's own, without a keyspace's prefix."""

    def __init__(
        self,
        pd: PdClient,
        regions: RegionCache,
        *,
        keyspace: Keyspace = TXN_V1,
        lock_ttl_ms: int = LOCK_TTL_MS,
        lock_wait_seconds: float = WAIT_SECONDS,
        max_calls: int = MAX_CALLS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.pd = pd
        self.keyspace = keyspace
        self.lock_ttl_ms = lock_ttl_ms
        self.lock_wait_seconds = lock_wait_seconds
        self.max_calls = max_calls
        self.clock = clock
        self.kv = KvClient(regions, keyspace=keyspace, clock=clock)
        self.reader = SnapshotReader(pd, regions, keyspace=keyspace, clock=clock)

    async def close(self) -> None:
        await self.kv.close()
        await self.reader.close()

    async def begin(self) -> "Transaction":
        """A transaction that reads the upstream as it is now. Nothing is to be cleaned up before ``commit``."""
        return Transaction(self, await self.pd.get_ts())


class _State(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDETERMINED = "undetermined"


class Transaction:
    """Reads at ``start_ts``, writes at its commit-ts or not at all. For one task at a time."""

    def __init__(self, client: TxnClient, start_ts: Ts) -> None:
        self.start_ts = start_ts
        self._client = client
        self._keyspace = client.keyspace
        self._began_at = client.clock.monotonic()
        self._writes: dict[bytes, bytes | None] = {}  # by logical key; None: deleted
        self._state = _State.OPEN
        self._waiting = 0  # requests that a lock of somebody else is in the way of

    async def get(self, key: bytes) -> bytes | None:
        """The value as this transaction sees it; None if there is none."""
        logical = self._touch(key)
        if logical in self._writes:
            return self._writes[logical]
        return await self._client.reader.get(logical, self.start_ts)

    async def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one, as this transaction sees them."""
        logical = {self._touch(key) for key in keys}
        found = await self._client.reader.batch_get(logical - self._writes.keys(), self.start_ts)
        found |= {key: value for key in logical if (value := self._writes.get(key)) is not None}
        return {self._keyspace.user(key): value for key, value in found.items()}

    def put(self, key: bytes, value: bytes) -> None:
        self._writes[self._touch(key)] = value

    def delete(self, key: bytes) -> None:
        self._writes[self._touch(key)] = None

    async def commit(self) -> Ts:
        """Write everything at once; return the commit-ts (the start-ts if there was nothing to write).

        Raises ``TransactionConflictError`` if somebody else has written one of the keys since the
        transaction began, ``TransactionEndedError`` if it took so long that somebody has rolled it
        back: then nothing is written. ``UndeterminedError``: the answer to the commit was lost, it
        may or may not be written. After any other error nothing is written, but locks may stay until
        they expire. Cancelled in the middle it leaves its locks to expire too.
        """
        self._check_open()
        if not self._writes:
            self._state = _State.COMMITTED
            return self.start_ts
        keys = sorted(self._writes)
        primary = keys[0]
        async with self._kept_alive(primary):
            try:
                await self._prewrite(keys, primary)
                commit_ts = await self._commit_primary(primary)
            except (UndeterminedError, asyncio.CancelledError):
                self._state = _State.UNDETERMINED
                raise
            except Exception:
                await self._undo(keys)
                raise
        self._state = _State.COMMITTED
        await self._commit_rest(keys[1:], commit_ts)
        return commit_ts

    async def rollback(self) -> None:
        """Forget the writes. Once ``commit`` was tried it has undone itself, and this does nothing."""
        if self._state is _State.OPEN:
            self._state = _State.ROLLED_BACK
            self._writes.clear()

    async def _prewrite(self, keys: Sequence[bytes], primary: bytes) -> None:
        client = self._client
        waiter = LockWaiter(
            client.kv,
            client.pd,
            self.start_ts,
            is_writing=True,
            wait_seconds=client.lock_wait_seconds,
            clock=client.clock,
        )

        def request(some: Sequence[bytes]) -> kvrpcpb_pb2.PrewriteRequest:
            return kvrpcpb_pb2.PrewriteRequest(
                mutations=[self._mutation(key) for key in some],
                primary_lock=primary,
                start_version=self.start_ts,
                lock_ttl=self._ttl_ms(),
                txn_size=len(keys),
            )

        async def ask(some: Sequence[bytes]) -> int:
            has_met_locks = False  # from then on until they are all gone: no heart-beat between two attempts
            try:
                while True:
                    count, answer = await client.kv.send_some("KvPrewrite", some, request, _prewritten)
                    if not answer.errors:
                        return count
                    if not has_met_locks:
                        has_met_locks = True
                        self._waiting += 1
                    await waiter.clear([self._lock_of(error) for error in answer.errors])
            finally:
                if has_met_locks:
                    self._waiting -= 1

        await client.kv.spread(
            keys,
            ask,
            max_keys=KEYS_PER_CALL,
            max_bytes=PREWRITE_BYTES_PER_CALL,
            size_of=lambda key: len(key) + len(self._writes[key] or b""),
            max_calls=client.max_calls,
        )

    async def _commit_primary(self, primary: bytes) -> Ts:
        while True:
            # Only now, with every lock in place: whoever reads above this ts has met them.
            commit_ts = await self._client.pd.get_ts()
            try:
                error = await self._commit([primary], commit_ts)
            except (UnansweredError, ProtocolViolationError) as lost:
                raise UndeterminedError(
                    f"nobody knows whether the transaction that started at {self.start_ts} is committed: the answer "
                    f"to the commit of its primary key {primary.hex()} was lost. Read the key, then decide."
                ) from lost
            if error is None:
                return commit_ts
            if not error.HasField("commit_ts_expired"):  # a reader has asked for a later one
                raise self._refused("KvCommit", error)

    async def _commit_rest(self, keys: Sequence[bytes], commit_ts: Ts) -> None:
        """What fails here does no harm: the primary tells whoever meets the lock. It only costs them time."""

        async def ask(some: Sequence[bytes]) -> int:
            count, answer = await self._send_commit(some, commit_ts)
            if answer.HasField("error"):
                raise self._refused("KvCommit", answer.error)
            return count

        try:
            await self._client.kv.spread(keys, ask, max_keys=KEYS_PER_CALL, max_calls=self._client.max_calls)
        except UpstreamError as error:
            log.warning("locks left to their readers", start_ts=self.start_ts, commit_ts=commit_ts, error=error)

    async def _commit(self, keys: Sequence[bytes], commit_ts: Ts) -> kvrpcpb_pb2.KeyError | None:
        _, answer = await self._send_commit(keys, commit_ts)
        return answer.error if answer.HasField("error") else None

    async def _send_commit(self, keys: Sequence[bytes], commit_ts: Ts) -> tuple[int, Any]:
        def request(some: Sequence[bytes]) -> kvrpcpb_pb2.CommitRequest:
            return kvrpcpb_pb2.CommitRequest(start_version=self.start_ts, keys=some, commit_version=commit_ts)

        return await self._client.kv.send_some("KvCommit", keys, request, _committed)

    async def _undo(self, keys: Sequence[bytes]) -> None:
        """Take the locks back, and keep prewrites that are still under way from landing."""
        self._state = _State.ROLLED_BACK

        def request(some: Sequence[bytes]) -> kvrpcpb_pb2.BatchRollbackRequest:
            return kvrpcpb_pb2.BatchRollbackRequest(start_version=self.start_ts, keys=some)

        async def ask(some: Sequence[bytes]) -> int:
            count, answer = await self._client.kv.send_some("KvBatchRollback", some, request, _rolled_back)
            if answer.HasField("error"):
                raise self._refused("KvBatchRollback", answer.error)
            return count

        try:
            await self._client.kv.spread(keys, ask, max_keys=KEYS_PER_CALL, max_calls=self._client.max_calls)
        except UpstreamError as error:
            log.warning("locks left to expire", start_ts=self.start_ts, error=error)

    @asynccontextmanager
    async def _kept_alive(self, primary: bytes) -> AsyncIterator[None]:
        beating = asyncio.ensure_future(self._beat(primary))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _beat(self, primary: bytes) -> None:
        """Renew the primary's lock, well before it expires, until cancelled. Others look there alone.

        Not while it waits for somebody else's lock: two that wait for each other would keep each other
        waiting. Without it the one whose lock expires first has to go.
        """

        def request(some: Sequence[bytes]) -> kvrpcpb_pb2.TxnHeartBeatRequest:
            return kvrpcpb_pb2.TxnHeartBeatRequest(
                primary_lock=primary, start_version=self.start_ts, advise_lock_ttl=self._ttl_ms()
            )

        clock = self._client.clock
        while clock.monotonic() - self._began_at < LONGEST_LIFE_SECONDS:
            await clock.sleep(self._client.lock_ttl_ms / 3000)
            if self._waiting:
                continue
            try:
                _, answer = await self._client.kv.send_some("KvTxnHeartBeat", [primary], request, _beaten)
            except UpstreamError as error:
                log.warning("heart-beat not answered", start_ts=self.start_ts, error=error)
                continue
            if answer.HasField("error"):
                # The primary is not written yet, or the transaction is over: its commit will tell.
                log.debug("heart-beat without lock", start_ts=self.start_ts)

    def _ttl_ms(self) -> int:
        """Locks live from the start-ts on, so what has passed since then is added."""
        passed = self._client.clock.monotonic() - self._began_at
        return self._client.lock_ttl_ms + int(passed * 1000)

    def _mutation(self, key: bytes) -> kvrpcpb_pb2.Mutation:
        value = self._writes[key]
        if value is None:
            return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Del, key=key)
        return kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Put, key=key, value=value)

    def _lock_of(self, error: kvrpcpb_pb2.KeyError) -> kvrpcpb_pb2.LockInfo:
        if not error.HasField("locked"):
            raise self._refused("KvPrewrite", error)
        return error.locked

    def _refused(self, method: str, error: kvrpcpb_pb2.KeyError) -> UpstreamError:
        if error.HasField("conflict"):
            conflict = error.conflict
            if conflict.reason != kvrpcpb_pb2.WriteConflict.SelfRolledBack:
                written_ts = conflict.conflict_commit_ts or conflict.conflict_ts
                return TransactionConflictError(conflict.key, self.start_ts, written_ts)
        if error.HasField("conflict") or error.HasField("txn_lock_not_found") or error.HasField("txn_not_found"):
            return TransactionEndedError(
                f"the transaction that started at {self.start_ts} was rolled back by somebody who met its locks: they "
                "had expired. Nothing is written; begin a new transaction, with a longer lock-ttl if this repeats."
            )
        names = ", ".join(field.name for field, _ in error.ListFields())
        if not names:
            return ProtocolViolationError(f"TiKV refuses {method} with an empty error. Check the store's log.")
        text = error.abort or error.retryable
        return UpstreamError(
            f"TiKV refuses {method} of the transaction that started at {self.start_ts}: {names}"
            f"{f' ({text})' if text else ''}. Nothing is written; begin a new transaction."
        )

    def _touch(self, key: bytes) -> bytes:
        self._check_open()
        return self._keyspace.logical(key)

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            raise InvariantError(f"the transaction that started at {self.start_ts} is {self._state.value} already")
