"""A small, obvious transactional client: moves money in every way there is, dies in the middle now and then.

It does what a client owes: retries where regions moved, clears locks of dead transactions out of its
way, and never commits what it could not lock.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence

from tests.tidebox.percolator import Percolator, pessimistic, put
from tidebox.mvcc import physical_key
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.ts import MAX_TS, physical_ms

TTL_MS = 40
EXPECT_LOCK = kvrpcpb_pb2.PrewriteRequest.DO_PESSIMISTIC_CHECK
MODES = ("two phases", "asynchronous", "one phase", "pessimistic")


class Failed(Exception):
    """The transaction is over and has changed nothing."""


class Died(Exception):
    """The client is gone; others will find what it left."""


class Teller:
    def __init__(self, kv: Percolator, seed: str) -> None:
        self._kv = kv
        self._random = random.Random(seed)
        self._pause = threading.Event()
        self.done = dict.fromkeys(MODES, 0)

    # Reading

    def balance(self, key: bytes, ts: int) -> int:
        bypass: set[int] = set()
        while True:
            context = {"resolved_locks": bypass}
            answer = self._call("KvGet", key, context, key=key, version=ts)
            if not answer.HasField("error"):
                return int(answer.value)
            self._clear(answer.error.locked, ts, bypass)

    def sweep(self, keys: Sequence[bytes]) -> None:
        """End what the dead have left; readers may just have passed it by."""
        for key in keys:
            while locks := self._call("KvScanLock", key, start_key=key, end_key=key + b"\0", max_version=MAX_TS).locks:
                self._clear(locks[0], 0, set())

    def _clear(self, lock: kvrpcpb_pb2.LockInfo, reader_ts: int, bypass: set[int]) -> None:
        now = self._kv.tso()
        is_expired = physical_ms(lock.lock_version) + lock.lock_ttl < physical_ms(now)
        status = self._call(
            "KvCheckTxnStatus",
            lock.primary_lock,
            primary_key=lock.primary_lock,
            lock_ts=lock.lock_version,
            caller_start_ts=reader_ts,
            current_ts=now,
            rollback_if_not_exist=is_expired,
        )
        commit_ts = status.commit_version
        if status.HasField("error") or status.lock_ttl:
            if status.action == kvrpcpb_pb2.MinCommitTSPushed:
                bypass.add(lock.lock_version)
                return
            if not (status.lock_info.use_async_commit and is_expired):
                self._pause.wait(0.002)
                return
            commit_ts = self._fate(status.lock_info)
        fields = {"start_version": lock.lock_version, "commit_version": commit_ts, "keys": [lock.key]}
        assert not self._call("KvResolveLock", lock.key, **fields).HasField("error")

    def _fate(self, primary: kvrpcpb_pb2.LockInfo) -> int:
        commit_ts = primary.min_commit_ts
        for key in primary.secondaries:
            answer = self._call("KvCheckSecondaryLocks", key, keys=[key], start_version=primary.lock_version)
            if not answer.locks:
                return answer.commit_ts
            commit_ts = max(commit_ts, answer.locks[0].min_commit_ts)
        return commit_ts

    # Writing

    def transfer(self, accounts: Sequence[bytes]) -> None:
        """One transaction between two accounts. It may fail or die; money stays."""
        mode = self._random.choice(MODES)
        source, target = self._random.sample(list(accounts), 2)
        start_ts = self._kv.tso()
        try:
            self._transfer(mode, start_ts, source, target)
            self.done[mode] += 1
        except Failed:
            for _ in self._each("KvBatchRollback", [source, target], lambda keys: {"start_version": start_ts}):
                pass
        except Died:
            pass

    def _transfer(self, mode: str, start_ts: int, source: bytes, target: bytes) -> None:
        fields = {}
        if mode == "pessimistic":
            balances, for_update_ts = self._lock(start_ts, source, target)
            fields = {"for_update_ts": for_update_ts, "pessimistic_actions": [EXPECT_LOCK] * 2}
        else:
            balances = {key: self.balance(key, start_ts) for key in (source, target)}
        amount = self._random.randrange(10)
        values = {source: balances[source] - amount, target: balances[target] + amount}
        keys = [source, target]
        if mode == "asynchronous":
            fields = {"use_async_commit": True}
        elif mode == "one phase" and self._share_region(keys):
            fields = {"try_one_pc": True}
        else:
            fields["min_commit_ts"] = start_ts + 1
        self._die_sometimes()
        settled = self._prewrite(start_ts, source, values, fields)
        if settled is None:
            return
        self._die_sometimes()
        self._commit(start_ts, settled or self._kv.tso(), keys, is_settled=bool(settled))

    def _lock(self, start_ts: int, *keys: bytes) -> tuple[dict[bytes, int], int]:
        balances: dict[bytes, int] = {}
        for_update_ts = start_ts
        for key in keys:
            for _ in range(50):
                for_update_ts = self._kv.tso()
                answer = self._call(
                    "KvPessimisticLock",
                    key,
                    mutations=[pessimistic(key)],
                    primary_lock=keys[0],
                    start_version=start_ts,
                    for_update_ts=for_update_ts,
                    lock_ttl=TTL_MS,
                    wait_timeout=20,
                    return_values=True,
                )
                if not answer.errors:
                    balances[key] = int(answer.values[0])
                    break
                if answer.errors[0].HasField("locked"):
                    self._clear(answer.errors[0].locked, 0, set())
                elif not answer.errors[0].HasField("conflict"):
                    raise Failed  # a deadlock, or rolled back by somebody
            else:
                raise Failed
        return balances, for_update_ts

    def _prewrite(self, start_ts: int, primary: bytes, values: dict[bytes, int], fields: dict) -> int | None:
        """The settled commit-ts, 0 if there is none, None if all is done."""
        settled = []
        todo = list(values)
        while todo:
            group = self._group(todo)
            answer = self._kv.send(
                "KvPrewrite",
                group[0],
                mutations=[put(key, b"%d" % values[key]) for key in group],
                primary_lock=primary,
                secondaries=[key for key in values if key != primary],
                start_version=start_ts,
                lock_ttl=TTL_MS,
                txn_size=len(values),
                **({**fields, "try_one_pc": False} if len(group) < len(values) else fields),
            )
            if answer.HasField("region_error"):
                continue
            if answer.errors:
                if not answer.errors[0].HasField("locked"):
                    raise Failed
                self._clear(answer.errors[0].locked, 0, set())
                continue
            if answer.one_pc_commit_ts:
                return None
            settled.append(answer.min_commit_ts)
            todo = [key for key in todo if key not in group]
            self._die_sometimes()
        return max(settled) if all(settled) else 0

    def _commit(self, start_ts: int, commit_ts: int, keys: list[bytes], *, is_settled: bool) -> None:
        build = {"start_version": start_ts, "commit_version": commit_ts}
        for group, answer in self._each("KvCommit", keys, lambda keys: build):
            if answer.HasField("error"):
                # All its locks were there when the commit-ts was settled: from then on it is committed.
                assert not is_settled, answer
                assert keys[0] in group, answer
                raise Failed
            self._die_sometimes()

    # Talking to regions

    def _die_sometimes(self) -> None:
        if self._random.random() < 0.03:
            raise Died

    def _call(self, method: str, at: bytes, context=None, **fields):
        while True:
            answer = self._kv.send(method, at, context, **fields)
            if not answer.HasField("region_error"):
                return answer

    def _each(self, method: str, keys: Sequence[bytes], build: Callable[[list[bytes]], dict]) -> Iterator[tuple]:
        todo = list(keys)
        while todo:
            group = self._group(todo)
            answer = self._kv.send(method, group[0], keys=group, **build(group))
            if not answer.HasField("region_error"):
                yield group, answer
                todo = [key for key in todo if key not in group]

    def _group(self, keys: Sequence[bytes]) -> list[bytes]:
        region = self._kv.upstream.region_of(keys[0])
        return [key for key in keys if region.contains(physical_key(key))]

    def _share_region(self, keys: Sequence[bytes]) -> bool:
        return len(self._group(keys)) == len(keys)
