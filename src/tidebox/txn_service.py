"""``tikvpb.Tikv`` of one store: the commands that write transactions, end them and find out about them.

Each handler turns a request into a command of ``transactions`` and its outcome into a response; what
may be done is decided in ``txn``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tidebox.cluster import Cluster
from tidebox.guard import RegionGuard, RegionRefused
from tidebox.key_errors import key_errors, lock_info
from tidebox.kv_service import clamped
from tidebox.limits import RequestLimits
from tidebox.mvcc import LockType, physical_key
from tidebox.regions import Region
from tidebox.rpc import Context
from tidebox.transactions import MAX_WAIT_SECONDS
from tidebox.txn.errors import AbortError
from tidebox.txn.finish import Action, StatusQuery
from tidebox.txn.pessimistic import Locked, LockRequest
from tidebox.txn.prewrite import AssertionLevel, Intent, KeyMutation, PessimisticAction, Prewrite
from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import TidemillError
from tidemill.model.ts import MAX_TS

_INTENTS = {
    kvrpcpb_pb2.Put: Intent.PUT,
    kvrpcpb_pb2.Del: Intent.DELETE,
    kvrpcpb_pb2.Lock: Intent.LOCK,
    kvrpcpb_pb2.Insert: Intent.INSERT,
    kvrpcpb_pb2.CheckNotExists: Intent.CHECK_NOT_EXISTS,
}
_ACTIONS = {
    Action.NONE: kvrpcpb_pb2.NoAction,
    Action.TTL_EXPIRE_ROLLBACK: kvrpcpb_pb2.TTLExpireRollback,
    Action.LOCK_NOT_EXIST_ROLLBACK: kvrpcpb_pb2.LockNotExistRollback,
    Action.MIN_COMMIT_TS_PUSHED: kvrpcpb_pb2.MinCommitTSPushed,
    Action.TTL_EXPIRE_PESSIMISTIC_ROLLBACK: kvrpcpb_pb2.TTLExpirePessimisticRollback,
    Action.LOCK_NOT_EXIST_DO_NOTHING: kvrpcpb_pb2.LockNotExistDoNothing,
}
_ASSERTIONS = {kvrpcpb_pb2.Exist: True, kvrpcpb_pb2.NotExist: False}

Check = Callable[[], Region]


class TxnService:
    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._guard = RegionGuard(cluster, store_id)
        self._limits = RequestLimits(cluster)
        self._transactions = cluster.transactions

    # First phase

    def KvPrewrite(self, request: kvrpcpb_pb2.PrewriteRequest, context: Context) -> kvrpcpb_pb2.PrewriteResponse:
        response = kvrpcpb_pb2.PrewriteResponse()
        keys = [mutation.key for mutation in request.mutations]
        stamps = (request.for_update_ts, request.min_commit_ts)
        with self._command(request, context, response, keys, request.start_version, stamps) as check:
            self._limits.check_size(request)
            done = self._transactions.prewrite_keys(_prewrite(request), _mutations(request), check)
            response.min_commit_ts = done.min_commit_ts
            response.one_pc_commit_ts = done.one_phase_commit_ts
        return response

    def KvPessimisticLock(
        self, request: kvrpcpb_pb2.PessimisticLockRequest, context: Context
    ) -> kvrpcpb_pb2.PessimisticLockResponse:
        response = kvrpcpb_pb2.PessimisticLockResponse()
        keys = [mutation.key for mutation in request.mutations]
        stamps = (request.for_update_ts, request.min_commit_ts)
        forced = request.wake_up_mode == kvrpcpb_pb2.WakeUpModeForceLock
        with self._command(request, context, response, keys, request.start_version, stamps) as check:
            answers = self._transactions.lock_keys(
                _lock_request(request, forced),
                {m.key: m.assertion == kvrpcpb_pb2.NotExist for m in request.mutations},
                wait_seconds=_wait_seconds(request.wait_timeout),
                check=check,
            )
            if forced:
                response.results.extend(_forced_result(request, *answers[key]) for key in keys)
            elif request.return_values or request.check_existence:
                for key in keys:
                    locked, value = answers[key]
                    response.not_founds.append(locked.found is None)
                    if request.return_values:
                        response.values.append(value or b"")
        if forced and response.errors:
            response.results.add(type=kvrpcpb_pb2.LockResultFailed)
        return response

    def KVPessimisticRollback(
        self, request: kvrpcpb_pb2.PessimisticRollbackRequest, context: Context
    ) -> kvrpcpb_pb2.PessimisticRollbackResponse:
        response = kvrpcpb_pb2.PessimisticRollbackResponse()
        start_ts, for_update_ts = request.start_version, request.for_update_ts
        with self._command(request, context, response, request.keys, start_ts) as check:
            keys = list(request.keys)
            if not keys:  # all that the transaction holds in the region
                found = self._cluster.locks.within(*check().raw_bounds)
                keys = [k for k, lock in found if lock.start_ts == start_ts and lock.type is LockType.PESSIMISTIC]
            self._transactions.release(keys, start_ts, for_update_ts, check=check)
        return response

    def KvTxnHeartBeat(
        self, request: kvrpcpb_pb2.TxnHeartBeatRequest, context: Context
    ) -> kvrpcpb_pb2.TxnHeartBeatResponse:
        response = kvrpcpb_pb2.TxnHeartBeatResponse()
        key, start_ts = request.primary_lock, request.start_version
        with self._command(request, context, response, [key], start_ts, (request.min_commit_ts,)) as check:
            ttl_ms, min_commit_ts = request.advise_lock_ttl, request.min_commit_ts
            lock = self._transactions.prolong(key, start_ts, ttl_ms, min_commit_ts, check=check)
            response.lock_ttl = lock.ttl_ms
        return response

    # Second phase

    def KvCommit(self, request: kvrpcpb_pb2.CommitRequest, context: Context) -> kvrpcpb_pb2.CommitResponse:
        response = kvrpcpb_pb2.CommitResponse()
        start_ts, commit_ts = request.start_version, request.commit_version
        with self._command(request, context, response, request.keys, start_ts, (commit_ts,)) as check:
            self._transactions.commit(request.keys, start_ts, commit_ts, check=check)
            response.commit_version = commit_ts
        return response

    def KvBatchRollback(
        self, request: kvrpcpb_pb2.BatchRollbackRequest, context: Context
    ) -> kvrpcpb_pb2.BatchRollbackResponse:
        response = kvrpcpb_pb2.BatchRollbackResponse()
        with self._command(request, context, response, request.keys, request.start_version) as check:
            self._transactions.rollback(request.keys, request.start_version, check=check)
        return response

    def KvCleanup(self, request: kvrpcpb_pb2.CleanupRequest, context: Context) -> kvrpcpb_pb2.CleanupResponse:
        response = kvrpcpb_pb2.CleanupResponse()
        key, start_ts = request.key, request.start_version
        with self._command(request, context, response, [key], start_ts) as check:
            response.commit_version = self._transactions.clean_up(key, start_ts, request.current_ts, check=check)
        return response

    # How does it stand?

    def KvCheckTxnStatus(
        self, request: kvrpcpb_pb2.CheckTxnStatusRequest, context: Context
    ) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        response = kvrpcpb_pb2.CheckTxnStatusResponse()
        key = request.primary_key
        with self._command(request, context, response, [key], request.lock_ts) as check:
            self._limits.check_stamps((request.caller_start_ts, request.current_ts))
            query = StatusQuery(
                request.lock_ts,
                request.caller_start_ts,
                request.current_ts,
                rollback_if_not_exist=request.rollback_if_not_exist,
                force_sync_commit=request.force_sync_commit,
                resolving_pessimistic_lock=request.resolving_pessimistic_lock,
                verify_is_primary=request.verify_is_primary,
            )
            status = self._transactions.check_status(key, query, check=check)
            response.action = _ACTIONS[status.action]
            response.commit_version = status.commit_ts
            if status.lock is not None:
                response.lock_ttl = status.lock.ttl_ms
                response.lock_info.CopyFrom(lock_info(key, status.lock))
        return response

    def KvCheckSecondaryLocks(
        self, request: kvrpcpb_pb2.CheckSecondaryLocksRequest, context: Context
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        response = kvrpcpb_pb2.CheckSecondaryLocksResponse()
        with self._command(request, context, response, request.keys, request.start_version) as check:
            found = self._transactions.check_secondaries(request.keys, request.start_version, check=check)
            response.commit_ts = found.commit_ts
            response.locks.extend(lock_info(key, lock) for key, lock in found.locks)
        return response

    def KvScanLock(self, request: kvrpcpb_pb2.ScanLockRequest, context: Context) -> kvrpcpb_pb2.ScanLockResponse:
        response = kvrpcpb_pb2.ScanLockResponse()
        with self._command(request, context, response, ()) as check:
            self._limits.check_range(request.context, request.start_key, request.end_key, request.max_version)
            start, end = clamped(request.start_key, request.end_key, check())
            if not end or start < end:
                found = self._transactions.locks_within(start, end, request.max_version, request.limit)
                response.locks.extend(lock_info(key, lock) for key, lock in found)
        return response

    def KvResolveLock(
        self, request: kvrpcpb_pb2.ResolveLockRequest, context: Context
    ) -> kvrpcpb_pb2.ResolveLockResponse:
        response = kvrpcpb_pb2.ResolveLockResponse()
        fates = {info.txn: info.status for info in request.txn_infos}
        if not fates:
            fates = {request.start_version: request.commit_version}
        keys = list(request.keys) if request.keys and not request.txn_infos else None
        with self._command(request, context, response, keys or ()) as check:
            for start_ts, commit_ts in fates.items():
                if commit_ts and not start_ts < commit_ts < MAX_TS:
                    raise AbortError(f"cannot commit at {commit_ts} what started at {start_ts}")
            self._transactions.resolve(fates, keys, *check().raw_bounds, check=check)
        return response

    # Whole ranges

    def KvDeleteRange(
        self, request: kvrpcpb_pb2.DeleteRangeRequest, context: Context
    ) -> kvrpcpb_pb2.DeleteRangeResponse:
        response = kvrpcpb_pb2.DeleteRangeResponse()
        start, end = request.start_key, request.end_key
        with self._command(request, context, response, ()) as check:
            self._limits.check_range(request.context, start, end)
            low, high = clamped(start, end, check())
            if not request.notify_only and (not high or low < high):
                self._transactions.destroy(low, high, check=check)
        return response

    def UnsafeDestroyRange(
        self, request: kvrpcpb_pb2.UnsafeDestroyRangeRequest, context: Context
    ) -> kvrpcpb_pb2.UnsafeDestroyRangeResponse:
        """Of all regions, whoever leads them: for ranges that nobody will use any more."""
        response = kvrpcpb_pb2.UnsafeDestroyRangeResponse()
        try:
            self._limits.check_range(request.context, request.start_key, request.end_key)
            with self._cluster.mutex:
                if not request.end_key or request.start_key < request.end_key:
                    self._transactions.destroy(request.start_key, request.end_key)
        except TidemillError as error:
            response.error = str(error)
        return response

    @contextmanager
    def _command(
        self,
        request: Any,
        context: Context,
        response: Any,
        keys: Iterable[bytes],
        start_ts: int | None = None,
        stamps: Iterable[int] = (),
    ) -> Iterator[Check]:
        """Run a command under the mutex; what stands against it goes into the response.

        The command calls what it gets before it decides anything: that checks the request and the region.
        """
        keys = list(keys)
        physical = [physical_key(key) for key in keys]
        if start_ts is not None:
            stamps = (*stamps, start_ts)

        def check() -> Region:
            self._limits.check_keys(request.context, keys, *stamps)
            if start_ts == 0 or MAX_TS in stamps:
                raise AbortError(f"{start_ts if start_ts == 0 else MAX_TS} cannot be a timestamp. Take one from PD.")
            return self._guard.check(request.context, context, physical)

        try:
            with self._cluster.mutex:
                yield check
        except RegionRefused as refused:
            response.region_error.CopyFrom(refused.error)
        except TidemillError as error:
            _refuse(response, error)


def _refuse(response: Any, error: TidemillError) -> None:
    wire = key_errors(error)
    if "errors" in response.DESCRIPTOR.fields_by_name:
        response.errors.extend(wire)
    elif isinstance(response.error, str):
        response.error = str(error)
    else:
        response.error.CopyFrom(wire[0])


def _prewrite(request: kvrpcpb_pb2.PrewriteRequest) -> Prewrite:
    return Prewrite(
        request.start_version,
        request.primary_lock,
        request.lock_ttl,
        for_update_ts=request.for_update_ts,
        txn_size=request.txn_size,
        min_commit_ts=request.min_commit_ts,
        max_commit_ts=request.max_commit_ts,
        txn_source=request.context.txn_source,
        assertion_level=AssertionLevel(request.assertion_level),
        skips_check=request.skip_constraint_check,
        is_retry=request.context.is_retry_request,
        # Clients may list them without asking for it.
        secondaries=tuple(request.secondaries) if request.use_async_commit else None,
        one_phase=request.try_one_pc,
    )


def _mutations(request: kvrpcpb_pb2.PrewriteRequest) -> list[KeyMutation]:
    # One entry per mutation, but perhaps of the whole transaction and not only of this request.
    actions = list(request.pessimistic_actions)
    expected = {c.index: c.expected_for_update_ts for c in request.for_update_ts_constraints}
    mutations = []
    for at, mutation in enumerate(request.mutations):
        intent = _INTENTS.get(mutation.op)
        if intent is None:
            raise AbortError(f"mutations of kind {mutation.op} are not served: put, delete, lock, insert and check are")
        mutations.append(
            KeyMutation(
                intent,
                mutation.key,
                mutation.value if intent in (Intent.PUT, Intent.INSERT) else b"",
                _ASSERTIONS.get(mutation.assertion),
                PessimisticAction(actions[at]) if at < len(actions) else PessimisticAction.SKIP_CHECK,
                expected.get(at),
            )
        )
    return mutations


def _lock_request(request: kvrpcpb_pb2.PessimisticLockRequest, forced: bool) -> LockRequest:
    if any(mutation.op != kvrpcpb_pb2.PessimisticLock for mutation in request.mutations):
        raise AbortError("only exclusive pessimistic locks are served")
    if request.lock_only_if_exists and not request.return_values:
        raise AbortError("LockIfExistsFailed: lock_only_if_exists needs return_values")
    if forced and len(request.mutations) > 1:
        raise AbortError("a lock that is taken in spite of a conflict must be asked for alone: one key per request")
    return LockRequest(
        request.start_version,
        request.primary_lock,
        request.lock_ttl,
        request.for_update_ts,
        min_commit_ts=request.min_commit_ts,
        return_values=request.return_values,
        check_existence=request.check_existence,
        lock_only_if_exists=request.lock_only_if_exists,
        allow_conflict=forced,
    )


def _wait_seconds(wait_timeout: int) -> float:
    """0 means the server's own default, less than 0 not at all."""
    return MAX_WAIT_SECONDS if wait_timeout == 0 else max(wait_timeout, 0) / 1000


def _forced_result(
    request: kvrpcpb_pb2.PessimisticLockRequest, locked: Locked, value: bytes | None
) -> kvrpcpb_pb2.PessimisticLockKeyResult:
    if locked.conflict_ts:
        return kvrpcpb_pb2.PessimisticLockKeyResult(
            type=kvrpcpb_pb2.LockResultLockedWithConflict,
            value=value or b"",
            existence=value is not None,
            locked_with_conflict_ts=locked.conflict_ts,
        )
    shown = value if request.return_values else None
    return kvrpcpb_pb2.PessimisticLockKeyResult(value=shown or b"", existence=value is not None)
