"""Money moved by many in every way there is, while regions change: no snapshot ever shows more or less of it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidebox.follower import Change, Follower
from tests.tidebox.percolator import percolator, put
from tests.tidebox.teller import MODES, Teller
from tidebox.engine import Family
from tidebox.mvcc import Reader, Write, WriteType
from tidemill.tidb.keys import split_mvcc_key

ACCOUNTS = [b"account-%d" % number for number in range(8)]
BALANCE = 100
TRANSFERS = 25


def audit(kv, seed, stop: threading.Event) -> int:
    """Read all accounts at one ts after the other, each twice, until told to stop."""
    teller, audits = Teller(kv, seed), 0
    while not stop.is_set() or audits == 0:
        ts = kv.tso()
        seen = [teller.balance(key, ts) for key in ACCOUNTS]
        assert sum(seen) == BALANCE * len(ACCOUNTS), (ts, seen)
        assert [teller.balance(key, ts) for key in ACCOUNTS] == seen
        audits += 1
    return audits


def shake(upstream, dice: random.Random) -> None:
    """Change a region or its leader."""
    regions = upstream.regions()
    at = dice.randrange(len(regions))
    match dice.randrange(3):
        case 0:
            key = dice.choice(ACCOUNTS)
            if upstream.region_of(key).raw_bounds[0] != key:
                upstream.split(key)
        case 1 if len(regions) > 1:
            upstream.merge(regions[at].id, regions[at - 1 if at else 1].id)
        case _:
            upstream.transfer_leader(regions[at].id, dice.choice(regions[at].stores))


def committed(upstream) -> dict[tuple[bytes, int], Change]:
    """All changes as they are stored."""
    reader = Reader(upstream.cluster.engine.snapshot())
    changes = {}
    for stored, record in upstream.cluster.engine.items(Family.WRITE):
        write = Write.decode(record)
        if write.is_data:
            key, commit_ts = split_mvcc_key(stored)
            old = reader.get(key, commit_ts - 1)
            kind, value = (1, reader.value(key, write)) if write.type is WriteType.PUT else (2, b"")
            changes[key, commit_ts] = Change(write.start_ts, kind, value, old.value if old else b"")
    return changes


@pytest.mark.parametrize("delay_seconds", [0, 0.003], ids=["at once", "with a delay"])
@pytest.mark.parametrize("seed", range(3))
def test_money_is_neither_made_nor_lost(seed, delay_seconds):
    with percolator(stores=3, resolved_interval_seconds=0.02) as kv, ThreadPoolExecutor(8) as pool:
        kv.write(*(put(key, b"%d" % BALANCE) for key in ACCOUNTS))
        kv.upstream.split(ACCOUNTS[4])
        kv.upstream.delay_apply(delay_seconds)
        dice, stop = random.Random(seed), threading.Event()
        tellers = [Teller(kv, f"{seed}/{number}") for number in range(4)]
        auditor = pool.submit(audit, kv, f"{seed}/audit", stop)
        work = [pool.submit(lambda t=t: [t.transfer(ACCOUNTS) for _ in range(TRANSFERS)]) for t in tellers]
        try:
            follower = Follower(kv.client)
            while not all(job.done() for job in work):
                shake(kv.upstream, dice)
                for _ in range(10):
                    follower.step()
            for job in work:
                job.result()
        finally:
            stop.set()
        assert auditor.result() > 0
        Teller(kv, "end").sweep(ACCOUNTS)
        assert sum(Teller(kv, "end").balance(key, kv.tso()) for key in ACCOUNTS) == BALANCE * len(ACCOUNTS)
        assert all(sum(teller.done[mode] for teller in tellers) for mode in MODES)
        follower.follow_until(kv.tso())
        assert follower.changes == committed(kv.upstream)
