"""Running the commands of transactions: each waits its turn, decides, applies at once, tells the change stream.

    prewrite   lock on each key, long values in ``default``       → PREWRITE rows
    commit     lock becomes a commit record at commit-ts          → COMMIT rows
    rollback   lock goes, a rollback record stays at start-ts     → ROLLBACK rows
    one phase  commit records without locks before them           → COMMITTED rows

What may be done is decided in ``txn``; here it is done, each command in one atomic write. A step
that was done before is done again without harm: that is how a restarted client or replay goes on.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidebox.engine import Batch, Engine, Family
from tidebox.inflight import InFlight, Latch
from tidebox.mvcc import (
    SHORT_VALUE_MAX_BYTES,
    Lock,
    LockTable,
    LockType,
    Reader,
    Write,
    WriteType,
    physical_key,
    version_key,
)
from tidebox.regions import RegionMap
from tidebox.subscriptions import LiveRow, Subscriptions, commit_row, committed_row, prewrite_row, rollback_row
from tidebox.txn import finish, pessimistic, prewrite
from tidebox.txn.errors import (
    CommittedError,
    KeyLockedError,
    LockNotFoundError,
    PrewriteRefusedError,
    Wait,
    WriteConflictError,
)
from tidebox.txn.finish import Status, StatusQuery
from tidebox.txn.pessimistic import Locked, LockRequest
from tidebox.txn.prewrite import Intent, KeyMutation, Prewrite, Prewritten
from tidebox.txn.records import Committed, KeyState, Records
from tidebox.txn.steps import Commit, CommitAtOnce, PutLock, Release, Renew, RollBack, Step
from tidebox.txn.waits import LockWaits
from tidemill.clock import Clock
from tidemill.errors import UsageError
from tidemill.model.change import Op
from tidemill.model.ts import MAX_TS

__all__ = [
    "DEFAULT_TTL_MS",
    "KeyLockedError",
    "LockNotFoundError",
    "Mutation",
    "Transactions",
    "WriteConflictError",
]

DEFAULT_TTL_MS = 3000
MAX_KEY_BYTES = 8192  # TiKV's max-key-size
MAX_WAIT_SECONDS = 1.0  # for a lock, whatever the client asks: TiKV's wait-for-lock-timeout

_BEHIND_ALL = b"\xff" * (2 * MAX_KEY_BYTES)  # no stored key is as long

Check = Callable[[], object]  # raises if the request may not be served any more


def _no_check() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Mutation:
    op: Op
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Secondaries:
    """How an asynchronous commit stands: all keys locked, or committed, or (neither) rolled back for good."""

    locks: tuple[tuple[bytes, Lock], ...] = ()
    commit_ts: int = 0


class Transactions:
    """The caller holds the cluster's mutex around every call; a call may let go of it while it waits.

    ``check`` is called whenever the command gets its turn, and again if it had to wait after deciding.
    """

    def __init__(
        self,
        engine: Engine,
        mutex: threading.RLock,
        clock: Clock,
        regions: RegionMap,
        locks: LockTable,
        subscriptions: Subscriptions,
        in_flight: InFlight,
        pass_by: Callable[[int], None],
    ) -> None:
        """``pass_by`` tells PD a ts that everything it gives out from then on must lie above."""
        self._engine = engine
        self._clock = clock
        self._regions = regions
        self._locks = locks
        self._subscriptions = subscriptions
        self._in_flight = in_flight
        self._pass_by = pass_by
        self.waits = LockWaits(mutex)

    # First phase

    def prewrite(
        self,
        mutations: Sequence[Mutation],
        start_ts: int,
        *,
        primary: bytes | None = None,
        for_update_ts: int = 0,
        ttl_ms: int = DEFAULT_TTL_MS,
        txn_source: int = 0,
        is_free_of_conflict: bool = False,
    ) -> None:
        """Lock every key, or none and raise.

        With ``for_update_ts`` the keys count as checked when they were locked. A caller who knows
        that no other transaction is in the way, and that this one has not ended, may say so.
        """
        primary = mutations[0].key if primary is None else primary
        if is_free_of_conflict:
            with self._in_flight.latch(m.key for m in mutations) as latch:
                steps = [
                    PutLock(m.key, _plain_lock(m, primary, start_ts, ttl_ms, for_update_ts, len(mutations)), m.value)
                    for m in mutations
                    if self._locks.get(m.key) is None
                ]
                self._finish(latch, steps, _no_check)
            return
        txn = Prewrite(
            start_ts,
            primary,
            ttl_ms,
            for_update_ts=for_update_ts,
            txn_size=len(mutations),
            txn_source=txn_source,
            is_retry=True,  # it may be one: a repetition must not come after its own end
        )
        intents = {Op.PUT: Intent.PUT, Op.DELETE: Intent.DELETE}
        try:
            self.prewrite_keys(txn, [KeyMutation(intents[m.op], m.key, m.value) for m in mutations])
        except PrewriteRefusedError as refused:
            raise refused.reasons[0] from refused

    def prewrite_keys(self, txn: Prewrite, mutations: Sequence[KeyMutation], check: Check = _no_check) -> Prewritten:
        """All mutations or none: ``PrewriteRefusedError`` says why."""
        with self._in_flight.latch(m.key for m in mutations) as latch:
            check()
            if any(m.intent.needs_absence for m in mutations):
                self._in_flight.observe(txn.start_ts)  # to find nothing is to have read
            decided = prewrite.decide(txn, mutations, self._look(), self._in_flight.max_ts)
            if settled := decided.min_commit_ts or decided.one_phase_commit_ts:
                # It lies above all that was read, so one who reads ahead of PD must not make it lie there too.
                self._pass_by(settled)
            self._finish(latch, decided.steps, check, shown=decided.shown)
            return decided

    def lock_keys(
        self,
        request: LockRequest,
        keys: Mapping[bytes, bool],
        *,
        wait_seconds: float = 0,
        check: Check = _no_check,
    ) -> dict[bytes, tuple[Locked, bytes | None]]:
        """Lock keys before their values are known; by key: what was found there, and its value.

        ``keys`` tells of each whether it must not exist. Where another transaction has locked one,
        it is waited for: ``KeyLockedError`` when the time is up, ``DeadlockError`` if that would
        be in vain. All keys are locked or none.
        """
        give_up = self._clock.monotonic() + min(wait_seconds, MAX_WAIT_SECONDS)
        while True:
            try:
                return self._lock_keys(request, keys, check)
            except KeyLockedError as error:
                left = give_up - self._clock.monotonic()
                if left <= 0:
                    raise
                self.waits.wait(Wait(request.start_ts, error.lock.start_ts, error.key), left)

    def _lock_keys(
        self, request: LockRequest, keys: Mapping[bytes, bool], check: Check
    ) -> dict[bytes, tuple[Locked, bytes | None]]:
        with self._in_flight.latch(keys) as latch:
            check()
            if any(keys.values()):
                self._in_flight.observe(request.for_update_ts)
            look, reader = self._look(), Reader(self._engine.live())
            steps: list[Step] = []
            answers: dict[bytes, tuple[Locked, bytes | None]] = {}
            for key, should_not_exist in keys.items():
                locked, step = pessimistic.decide(look(key), request, should_not_exist=should_not_exist)
                if step is not None:
                    steps.append(step)
                answers[key] = (locked, reader.value(key, locked.found[1]) if locked.found else None)
            self._finish(latch, steps, check)
            return answers

    # Second phase

    def commit(
        self,
        keys: Iterable[bytes],
        start_ts: int,
        commit_ts: int,
        *,
        batch: Batch | None = None,
        check: Check = _no_check,
    ) -> None:
        """Make the transaction visible on ``keys``. ``batch`` may hold writes that must happen with it."""
        if commit_ts <= start_ts or commit_ts >= MAX_TS:
            raise UsageError(
                f"cannot commit at {commit_ts} what started at {start_ts}: commit-ts must be greater, and less than "
                "the greatest number"
            )
        keys = list(keys)
        with self._in_flight.latch(keys) as latch:
            check()
            steps = self._commits(self._look(), keys, start_ts, commit_ts)
            self._finish(latch, steps, check, batch=batch)

    def _commits(
        self, look: Callable[[bytes], KeyState], keys: Iterable[bytes], start_ts: int, commit_ts: int
    ) -> list[Step]:
        steps: list[Step] = []
        for key in keys:
            step = finish.commit(look(key), start_ts, commit_ts)
            if isinstance(step, Commit) and step.lock.writes_data:
                self._check_promise(key, commit_ts)
            if step is not None:
                steps.append(step)
        return steps

    def rollback(self, keys: Iterable[bytes], start_ts: int, *, check: Check = _no_check) -> None:
        """Undo a prewrite. A rollback record keeps a late prewrite of the same transaction out."""
        keys = list(keys)
        with self._in_flight.latch(keys) as latch:
            check()
            self._in_flight.observe(start_ts)  # so that no commit record takes the place of the rollback's
            look = self._look()
            steps = [step for key in keys if (step := finish.roll_back(look(key), start_ts)) is not None]
            self._finish(latch, steps, check)

    def clean_up(self, key: bytes, start_ts: int, current_ts: int, *, check: Check = _no_check) -> int:
        """Roll back one key, if its time is up or ``current_ts`` is 0; return the commit-ts if it is too late, or 0."""
        with self._in_flight.latch([key]) as latch:
            check()
            self._in_flight.observe(start_ts)
            try:
                step = finish.roll_back(self._look()(key), start_ts, protect=True, current_ts=current_ts)
            except CommittedError as error:
                return error.commit_ts
            self._finish(latch, [step] if step is not None else [], check)
            return 0

    def release(self, keys: Sequence[bytes], start_ts: int, for_update_ts: int, *, check: Check = _no_check) -> None:
        """Give pessimistic locks back, as far as they are not newer than ``for_update_ts``."""
        with self._in_flight.latch(keys) as latch:
            check()
            look = self._look()
            steps = [step for key in keys if (step := finish.release(look(key), start_ts, for_update_ts)) is not None]
            self._finish(latch, steps, check)

    def prolong(
        self, key: bytes, start_ts: int, ttl_ms: int, min_commit_ts: int = 0, *, check: Check = _no_check
    ) -> Lock:
        """The owner of a lock is alive; return the lock as it is now."""
        with self._in_flight.latch([key]) as latch:
            check()
            lock, step = finish.prolong(self._look()(key), start_ts, ttl_ms, min_commit_ts)
            self._finish(latch, [step] if step is not None else [], check)
            return lock

    # How does it stand?

    def check_status(self, key: bytes, query: StatusQuery, *, check: Check = _no_check) -> Status:
        """Ask a transaction's primary key; an expired transaction is rolled back by asking."""
        with self._in_flight.latch([key]) as latch:
            check()
            for ts in (query.start_ts, query.current_ts, query.caller_start_ts):
                self._in_flight.observe(ts)
            status, steps = finish.check_status(self._look()(key), query)
            self._finish(latch, steps, check)
            return status

    def check_secondaries(self, keys: Sequence[bytes], start_ts: int, *, check: Check = _no_check) -> Secondaries:
        """Ask the other keys of an asynchronous commit. The first that is not locked decides, for good."""
        with self._in_flight.latch(keys) as latch:
            check()
            self._in_flight.observe(start_ts)
            look = self._look()
            locks: list[tuple[bytes, Lock]] = []
            steps: list[Step] = []
            answer = None
            for key in keys:
                found, step = finish.check_secondary(look(key), start_ts)
                if step is not None:
                    steps.append(step)
                if isinstance(found, Lock):
                    locks.append((key, found))
                    continue
                answer = Secondaries(commit_ts=found.commit_ts if isinstance(found, Committed) else 0)
                break
            self._finish(latch, steps, check)
            return answer or Secondaries(tuple(locks))

    def resolve(
        self, fates: Mapping[int, int], keys: Sequence[bytes] | None, start: bytes, end: bytes, check: Check = _no_check
    ) -> None:
        """End transactions: ``fates`` gives the commit-ts of each by its start-ts, 0 to roll it back.

        On ``keys``, all of the one transaction there is; or with None wherever they hold locks in
        ``[start, end)``.
        """
        if keys is None:
            wanted = [(key, lock.start_ts) for key, lock in self._locks.within(start, end) if lock.start_ts in fates]
        else:
            wanted = [(key, start_ts) for start_ts in fates for key in keys]
        with self._in_flight.latch(key for key, _ in wanted) as latch:
            check()
            look = self._look()
            steps: list[Step] = []
            for key, start_ts in wanted:
                state = look(key)
                if keys is None and state.lock_of(start_ts) is None:
                    continue  # gone while this waited for its turn
                if fates[start_ts]:
                    steps += self._commits(look, [key], start_ts, fates[start_ts])
                elif (step := finish.roll_back(state, start_ts)) is not None:
                    self._in_flight.observe(start_ts)
                    steps.append(step)
            self._finish(latch, steps, check)

    def locks_within(self, start: bytes, end: bytes, max_ts: int, limit: int = 0) -> list[tuple[bytes, Lock]]:
        """Locks of transactions that began at or before ``max_ts``; raises if one is on its way."""
        self._in_flight.observe(max_ts)
        for key, lock in self._in_flight.locks():
            if lock.start_ts <= max_ts and start <= key and (not end or key < end):
                raise KeyLockedError(key, lock)
        found = [(key, lock) for key, lock in self._locks.within(start, end) if lock.start_ts <= max_ts]
        return found[:limit] if limit else found

    def destroy(self, start: bytes, end: bytes, *, check: Check = _no_check) -> None:
        """Delete all versions and locks of ``[start, end)``, whoever holds them. The change stream is not told."""
        self._in_flight.wait_idle(start, end)
        check()
        batch = self._engine.batch()
        for key, _ in self._locks.within(start, end):
            self._locks.remove(batch, key)
        low, high = physical_key(start) if start else b"", physical_key(end) if end else _BEHIND_ALL
        for family in (Family.DEFAULT, Family.WRITE):
            batch.delete_range(family, low, high)
        self._engine.write(batch)
        self.waits.release()

    # Reading what is there, and writing what was decided

    def _look(self) -> Callable[[bytes], KeyState]:
        reader = Reader(self._engine.live())
        return lambda key: KeyState(key, self._locks.get(key), Records(reader.writes(key)))

    def _check_promise(self, key: bytes, commit_ts: int) -> None:
        """A client that takes its commit-ts when it should never fails here."""
        region = self._regions.of_key(physical_key(key))
        promised = self._subscriptions.promised_on(region.id, key)
        if commit_ts <= promised:
            raise UsageError(
                f"cannot commit at {commit_ts}: region {region.id} has promised up to {promised} to its subscribers. "
                "Take the commit-ts after the prewrite."
            )

    def _finish(
        self,
        latch: Latch,
        steps: Sequence[Step],
        check: Check,
        *,
        shown: Iterable[tuple[bytes, Lock]] = (),
        batch: Batch | None = None,
    ) -> None:
        """Let the delay pass, if there is one and something to do; then do it."""
        if steps:
            latch.delay(locks=dict(shown), recheck=check)
        if steps or batch is not None:
            self._apply(steps, batch)

    def _apply(self, steps: Sequence[Step], batch: Batch | None = None) -> None:
        batch = batch or self._engine.batch()
        rows: dict[int, list[LiveRow]] = defaultdict(list)
        reader = Reader(self._engine.live())
        is_released = False
        for step in steps:
            region_id = self._regions.of_key(physical_key(step.key)).id
            if self._subscriptions.is_observed(region_id):
                row = self._row(reader, step)
                if row is not None:
                    rows[region_id].append(row)
            match step:
                case PutLock(key, lock, value):
                    if lock.type is LockType.PUT and lock.short_value is None:
                        batch.put(Family.DEFAULT, version_key(key, lock.start_ts), value)
                    self._locks.put(batch, key, lock)
                case Renew(key, lock):
                    self._locks.put(batch, key, lock)
                case Release(key):
                    self._locks.remove(batch, key)
                    is_released = True
                case Commit(key, lock, commit_ts):
                    batch.put(Family.WRITE, version_key(key, commit_ts), self._record(key, lock, commit_ts).encode())
                    self._locks.remove(batch, key)
                    is_released = True
                case CommitAtOnce(key, lock, value, commit_ts, held):
                    if lock.type is LockType.PUT and lock.short_value is None:
                        batch.put(Family.DEFAULT, version_key(key, lock.start_ts), value)
                    batch.put(Family.WRITE, version_key(key, commit_ts), self._record(key, lock, commit_ts).encode())
                    if held:
                        self._locks.remove(batch, key)
                        is_released = True
                case RollBack():
                    self._roll_back(batch, step)
                    is_released = True
        self._engine.write(batch)
        for region_id, changed in rows.items():
            self._subscriptions.on_rows(region_id, changed)
        if is_released:
            self.waits.release()

    def _record(self, key: bytes, lock: Lock, commit_ts: int) -> Write:
        overlaps = False
        if lock.use_async_commit:
            # This commit-ts is not from the TSO, so it may be the start-ts of another transaction.
            found = self._engine.get(Family.WRITE, version_key(key, commit_ts))
            overlaps = found is not None and Write.decode(found).type is WriteType.ROLLBACK
        return Write(WriteType(lock.type), lock.start_ts, lock.short_value, lock.txn_source, overlaps)

    def _roll_back(self, batch: Batch, step: RollBack) -> None:
        if step.forget is not None:
            batch.delete(Family.WRITE, version_key(step.key, step.forget))
        if step.lock is not None:
            if step.lock.type is LockType.PUT and step.lock.short_value is None:
                batch.delete(Family.DEFAULT, version_key(step.key, step.start_ts))
            self._locks.remove(batch, step.key)
        if step.record is not None:
            batch.put(Family.WRITE, version_key(step.key, step.start_ts), step.record.encode())

    def _row(self, reader: Reader, step: Step) -> LiveRow | None:
        """What the change stream is told."""
        match step:
            case PutLock(key, lock, value) if lock.writes_data:
                return prewrite_row(reader, self._engine.get, key, lock, value)
            case Commit(key, lock, commit_ts) if lock.writes_data:
                return commit_row(key, lock, commit_ts)
            case CommitAtOnce(key, lock, value, commit_ts) if lock.writes_data:
                return committed_row(reader, key, lock, value, commit_ts)
            case RollBack(key, start_ts):
                return rollback_row(key, start_ts)
            case _:
                return None


def _plain_lock(
    mutation: Mutation, primary: bytes, start_ts: int, ttl_ms: int, for_update_ts: int, txn_size: int
) -> Lock:
    kind = LockType.PUT if mutation.op is Op.PUT else LockType.DELETE
    is_short = kind is LockType.PUT and len(mutation.value) <= SHORT_VALUE_MAX_BYTES
    short = mutation.value if is_short else None
    return Lock(kind, primary, start_ts, ttl_ms, short_value=short, for_update_ts=for_update_ts, txn_size=txn_size)
