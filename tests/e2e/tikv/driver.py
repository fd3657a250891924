"""What the official ``tikv-client`` is made to do, one scenario a process.

    python -m tests.e2e.tikv.driver SCENARIO PD [JSON]

Exit code 0 if everything the client saw was right, 1 with a traceback otherwise. The process ends
without shutting the interpreter down: the client's native threads crash in it.
"""

import asyncio
import json
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable

import tikv_client
from tikv_client import asynchronous

SCENARIOS: dict[str, Callable[..., None]] = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def raises(function, *args) -> str:
    """The text of what the call raises; it must raise."""
    try:
        function(*args)
    except Exception as error:
        return str(error).lower()
    raise AssertionError(f"{function} returned")


def pairs(found) -> list[tuple[bytes, bytes]]:
    return [(bytes(k), bytes(v)) for k, v in found]


# RawKV


@scenario
def raw_points(pd: str) -> None:
    client = tikv_client.RawClient.connect([pd])
    client.put(b"k", b"v")
    client.put(b"empty", b"")
    assert client.get(b"k") == b"v"
    assert client.get(b"empty") == b""
    assert client.get(b"missing") is None
    client.put(b"k", b"again")
    assert client.get(b"k") == b"again"
    client.delete(b"k")
    client.delete(b"k")
    assert client.get(b"k") is None


@scenario
def raw_batches(pd: str) -> None:
    client = tikv_client.RawClient.connect([pd])
    client.batch_put({b"c": b"3", b"a": b"1", b"b": b"2"})
    assert pairs(client.batch_get([b"c", b"missing", b"a", b"b"])) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    client.batch_delete([b"c", b"a", b"missing"])
    assert pairs(client.batch_get([b"a", b"b", b"c"])) == [(b"b", b"2")]


@scenario
def raw_scans(pd: str) -> None:
    """The regions are cut at k3 and k6."""
    client = tikv_client.RawClient.connect([pd])
    rows = {b"k%d" % i: b"v%d" % i for i in range(10)}
    client.batch_put(rows)
    everything = sorted(rows.items())
    assert pairs(client.scan(b"k", None, 100)) == everything
    assert pairs(client.scan(b"k1", b"k8", 100)) == everything[1:8]
    assert pairs(client.scan(b"k1", b"k8", 4)) == everything[1:5]
    assert pairs(client.scan(b"k1", b"k8", 100, include_start=False, include_end=True)) == everything[2:9]
    assert [bytes(k) for k in client.scan_keys(b"k", None, 100)] == sorted(rows)
    assert pairs(client.scan(b"k", None, 0)) == []
    client.delete_range(b"k2", b"k7")
    assert pairs(client.scan(b"k", None, 100)) == everything[:2] + everything[7:]
    client.delete_range(b"k8")
    assert pairs(client.scan(b"k", None, 100)) == everything[:2] + everything[7:8]


@scenario
def raw_families(pd: str) -> None:
    client = tikv_client.RawClient.connect([pd])
    client.put(b"k", b"default")
    client.put(b"k", b"write", cf="write")
    assert (client.get(b"k"), client.get(b"k", cf="write"), client.get(b"k", cf="lock")) == (b"default", b"write", None)
    client.delete(b"k")
    assert client.get(b"k", cf="write") == b"write"


@scenario
def raw_large_values(pd: str) -> None:
    client = tikv_client.RawClient.connect([pd])
    client.put(b"fits", b"x" * 3_900_000)
    assert client.get(b"fits") == b"x" * 3_900_000
    client.put(b"too-big", b"x" * 5_000_000)
    raises(client.get, b"too-big")  # the client's own limit; the server goes on
    assert client.get(b"missing") is None


@scenario
def raw_model(pd: str, seed: int, steps: int) -> None:
    """Random operations of the asynchronous client against a map, several tasks on keys of their own."""

    async def work(client, worker: int) -> None:
        rng = random.Random(f"{seed}-{worker}")
        model: dict[bytes, bytes] = {}
        low, high = b"w%d/" % worker, b"w%d0" % worker

        def key() -> bytes:
            return low + b"%03d" % rng.randrange(60)

        for _ in range(steps):
            match rng.randrange(8):
                case 0 | 1:
                    k, v = key(), rng.randbytes(rng.choice([0, 5, 400]))
                    await client.put(k, v)
                    model[k] = v
                case 2:
                    k = key()
                    assert await client.get(k) == model.get(k), k
                case 3:
                    k = key()
                    await client.delete(k)
                    model.pop(k, None)
                case 4:
                    batch = {key(): rng.randbytes(9) for _ in range(rng.randrange(1, 12))}
                    await client.batch_put(batch)
                    model |= batch
                case 5:
                    wanted = {key() for _ in range(12)}
                    expected = sorted((k, model[k]) for k in wanted if k in model)
                    assert pairs(await client.batch_get(sorted(wanted))) == expected
                case 6:
                    start, end = sorted((key(), key()))
                    limit = rng.choice([3, 1000])
                    expected = sorted((k, v) for k, v in model.items() if start <= k < end)[:limit]
                    assert pairs(await client.scan(start, end, limit)) == expected
                case 7 if rng.random() < 0.2:
                    start, end = sorted((key(), key()))
                    await client.delete_range(start, end)
                    model = {k: v for k, v in model.items() if not start <= k < end}
        assert pairs(await client.scan(low, high, 1000)) == sorted(model.items())

    async def run() -> None:
        client = await asynchronous.RawClient.connect([pd])
        await asyncio.gather(*(work(client, worker) for worker in range(8)))

    asyncio.get_event_loop().run_until_complete(run())


# Transactions


def _commit(client, rows: dict[bytes, bytes | None]) -> None:
    txn = client.begin()
    for key, value in rows.items():
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)
    txn.commit()


@scenario
def txn_optimistic(pd: str) -> None:
    """The regions are cut at k3 and k6."""
    client = tikv_client.TransactionClient.connect([pd])
    before = client.current_timestamp()
    rows = {b"k%d" % i: b"v%d" % i for i in range(9)}
    _commit(client, rows)
    snapshot = client.snapshot(client.current_timestamp(), False)
    assert snapshot.get(b"k4") == b"v4"
    assert pairs(snapshot.batch_get([b"k8", b"missing", b"k1"])) == [(b"k1", b"v1"), (b"k8", b"v8")]
    assert pairs(snapshot.scan(b"k", None, 100)) == sorted(rows.items())
    assert pairs(snapshot.scan(b"k2", b"k7", 3)) == sorted(rows.items())[2:5]
    assert [bytes(k) for k in snapshot.scan_keys(b"k2", b"k7", 100)] == sorted(rows)[2:7]
    assert snapshot.key_exists(b"k1")
    assert not snapshot.key_exists(b"missing")
    assert client.snapshot(before, False).get(b"k4") is None
    middle = client.current_timestamp()
    _commit(client, {b"k4": None, b"k5": b"new"})
    late = client.snapshot(client.current_timestamp(), False)
    assert (late.get(b"k4"), late.get(b"k5")) == (None, b"new")
    assert client.snapshot(middle, False).get(b"k5") == b"v5"


@scenario
def txn_conflicts(pd: str) -> None:
    client = tikv_client.TransactionClient.connect([pd])
    first, second = client.begin(), client.begin()
    first.put(b"k", b"first")
    second.put(b"k", b"second")
    first.commit()
    assert "conflict" in raises(second.commit)
    second.rollback()
    assert client.snapshot(client.current_timestamp(), False).get(b"k") == b"first"
    again = client.begin()
    again.insert(b"k", b"x")
    assert "exist" in raises(again.commit)
    again.rollback()
    locking = client.begin(pessimistic=True)
    assert "exist" in raises(locking.insert, b"k", b"x")
    locking.rollback()


@scenario
def txn_pessimistic(pd: str) -> None:
    """The regions are cut at k3 and k6."""
    client = tikv_client.TransactionClient.connect([pd])
    _commit(client, {b"k1": b"1", b"k4": b"4"})
    txn = client.begin(pessimistic=True)
    txn.put(b"k1", b"one")
    assert txn.get_for_update(b"k4") == b"4"
    assert txn.get_for_update(b"k7") is None
    found = txn.batch_get_for_update([b"k4", b"k5", b"k8"])
    assert pairs(found) == [(b"k4", b"4")], found
    txn.insert(b"k5", b"five")
    txn.delete(b"k4")
    txn.lock_keys([b"k0"])
    other = client.begin(pessimistic=True)
    raises(other.put, b"k1", b"stolen")
    other.rollback()
    txn.commit()
    seen = client.snapshot(client.current_timestamp(), False)
    assert pairs(seen.scan(b"k", None, 100)) == [(b"k1", b"one"), (b"k5", b"five")]
    undone = client.begin(pessimistic=True)
    undone.put(b"k1", b"never")
    undone.delete(b"k5")
    undone.rollback()
    _commit(client, {b"k1": b"free again"})
    last = client.snapshot(client.current_timestamp(), False)
    assert pairs(last.scan(b"k", None, 100)) == [(b"k1", b"free again"), (b"k5", b"five")]


@scenario
def txn_large(pd: str) -> None:
    """More than 16 KiB: several prewrites, in any order."""
    client = tikv_client.TransactionClient.connect([pd])
    rows = {b"k%04d" % i: bytes([i % 251]) * (i * 3 % 700) for i in range(400)}
    _commit(client, rows)
    assert pairs(client.snapshot(client.current_timestamp(), False).scan(b"k", None, 1000)) == sorted(rows.items())


@scenario
def txn_idle(pd: str) -> None:
    """Longer than the pause between two heart-beats, and longer than an optimistic lock would live."""
    client = tikv_client.TransactionClient.connect([pd])
    txn = client.begin(pessimistic=True)
    txn.put(b"k", b"v")
    asyncio.get_event_loop().run_until_complete(asyncio.sleep(11))
    txn.commit()
    assert client.snapshot(client.current_timestamp(), False).get(b"k") == b"v"


@scenario
def txn_reads_past_expired_lock(pd: str) -> None:
    client = tikv_client.TransactionClient.connect([pd])
    assert client.snapshot(client.current_timestamp(), False).get(b"orphan") == b"before"
    _commit(client, {b"orphan": b"after"})
    assert client.snapshot(client.current_timestamp(), False).get(b"orphan") == b"after"


@scenario
def txn_waits_for_live_lock(pd: str) -> None:
    client = tikv_client.TransactionClient.connect([pd])
    snapshot = client.snapshot(client.current_timestamp(), False)
    assert "lock" in raises(snapshot.get, b"alive")
    assert snapshot.get(b"other") is None


@scenario
def timestamps(pd: str) -> None:
    async def run() -> None:
        client = await asynchronous.TransactionClient.connect([pd])
        found = await asyncio.gather(*(client.current_timestamp() for _ in range(64)))
        numbers = [getattr(ts, "version", ts) for ts in found]
        assert len({str(n) for n in numbers}) == 64, numbers

    asyncio.get_event_loop().run_until_complete(run())


@scenario
def txn_model(pd: str, seed: int, steps: int) -> None:
    """Eight writers on the same keys: transfers that keep a total, and counters that count the commits."""
    accounts = [b"acc%02d" % i for i in range(12)]
    counters = [b"cnt%02d" % i for i in range(12)]
    committed: Counter[bytes] = Counter()
    refused = 0

    async def transfer(client, rng: random.Random) -> None:
        nonlocal refused
        is_pessimistic = rng.random() < 0.5
        source, target = rng.sample(accounts, 2)
        counted = rng.sample(counters, rng.randrange(1, 4))
        amount = rng.randrange(1, 9)
        txn = await client.begin(pessimistic=is_pessimistic)
        read = txn.get_for_update if is_pessimistic else txn.get
        try:
            balance = {key: int(await read(key)) for key in sorted((source, target))}
            await txn.put(source, b"%d" % (balance[source] - amount))
            await txn.put(target, b"%d" % (balance[target] + amount))
            for key in sorted(counted):
                await txn.put(key, b"%d" % (int(await read(key)) + 1))
            if rng.random() < 0.1:
                await txn.rollback()
                return
            await txn.commit()
        except Exception as error:
            if "undetermined" in str(error).lower():
                raise
            refused += 1
            await txn.rollback()
            return
        committed.update(counted)

    async def total(client) -> None:
        """In every snapshot the same."""
        seen = 0
        for _ in range(200):
            snapshot = client.snapshot(await client.current_timestamp(), False)
            try:
                found = pairs(await snapshot.scan(b"acc", b"acd", 100))
            except Exception as error:
                # A lock that stays; or a region that is gone, which this client does not look up anew when
                # it resolves a lock there: the next scan does.
                if not any(reason in str(error).lower() for reason in ("lock", "region error")):
                    raise
                continue
            assert sum(int(v) for _, v in found) == 100 * len(accounts), found
            assert len(found) == len(accounts)
            seen += 1
            if seen == 20:
                return
        assert seen > 0

    async def work(client, worker: int) -> None:
        rng = random.Random(f"{seed}-{worker}")
        for _ in range(steps):
            await transfer(client, rng)

    async def run() -> None:
        client = await asynchronous.TransactionClient.connect([pd])
        txn = await client.begin()
        for key in accounts:
            await txn.put(key, b"100")
        for key in counters:
            await txn.put(key, b"0")
        await txn.commit()
        await asyncio.gather(total(client), *(work(client, worker) for worker in range(8)))
        await asyncio.sleep(1)  # the client commits secondaries behind our back
        snapshot = client.snapshot(await client.current_timestamp(), False)
        found = dict(pairs(await snapshot.scan(b"", None, 1000)))
        assert {k: int(found[k]) for k in counters} == {k: committed[k] for k in counters}
        assert sum(int(found[k]) for k in accounts) == 100 * len(accounts)
        assert sum(committed.values()) > 0
        print(f"{sum(committed.values())} counted, {refused} refused")

    asyncio.get_event_loop().run_until_complete(run())


def main() -> int:
    name, pd, *rest = sys.argv[1:]
    asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        SCENARIOS[name](pd, **json.loads(rest[0]) if rest else {})
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
