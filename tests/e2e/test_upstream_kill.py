"""``kill -9`` of ``tidemill upstream`` under load: every write that was acknowledged is there after it, none is half.

Each round starts the command on the same folder, writes from several clients at once until the
process is killed at a moment that the seed chooses, starts it again and compares. Nothing of Spark.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.processes import Command
from tidemill.errors import TidemillError
from tidemill.upstream.keyspace import RAW_V1, TXN_V1, raw_v2, txn_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.txn import TxnClient

ROUNDS = 2
WRITERS = 4
RAW_KEYS = 20
LOCK_TTL_MS = 500  # what a killed round leaves is waited for
PER_TRANSACTION = 5  # keys written together, with one value

KEYSPACES = {1: (TXN_V1, RAW_V1), 2: (txn_v2(), raw_v2())}


@dataclass
class Written:
    """By key, or by writer for what is written together: what clients were told, and what they cannot know."""

    known: dict[object, bytes | None] = field(default_factory=dict)
    unsure: dict[object, set[bytes]] = field(default_factory=dict)
    acknowledged: int = 0

    def begin(self, what: object, value: bytes) -> None:
        self.unsure.setdefault(what, set()).add(value)

    def acknowledge(self, what: object, value: bytes) -> None:
        self.known[what] = value
        del self.unsure[what]
        self.acknowledged += 1

    def find(self, what: object, value: bytes | None) -> None:
        """After a restart. What is found is known from then on."""
        assert value in {self.known.get(what), *self.unsure.pop(what, ())}
        self.known[what] = value


@dataclass
class Clients:
    pd: PdClient
    txn: TxnClient
    raw: RawClient


@asynccontextmanager
async def connected(address: str, api_version: int) -> AsyncIterator[Clients]:
    transactional, raw = KEYSPACES[api_version]
    async with PdClient(address) as pd:
        clients = Clients(
            pd,
            TxnClient(pd, RegionCache(pd), keyspace=transactional, lock_ttl_ms=LOCK_TTL_MS),
            RawClient(RegionCache(pd), keyspace=raw),
        )
        try:
            yield clients
        finally:
            await clients.txn.close()
            await clients.raw.close()


def keys_of(writer: int) -> list[bytes]:
    """Far apart, so that a transaction spans regions."""
    return [b"%c%d" % (97 + 5 * at, writer) for at in range(PER_TRANSACTION)]


async def write(clients: Clients, written: Written, writer: int, chance: random.Random) -> None:
    """For ever. A writer has keys of its own, so that it knows what should be there."""
    at = 0
    while True:
        at += 1
        value = b"%d-%d-" % (writer, at) + chance.randbytes(chance.choice([4, 300]))
        try:
            if chance.random() < 0.5:
                key = b"raw-%d-%d" % (writer, chance.randrange(RAW_KEYS))
                written.begin(key, value)
                await clients.raw.put(key, value)
                written.acknowledge(key, value)
            else:
                transaction = await clients.txn.begin()
                for key in keys_of(writer):
                    transaction.put(key, value)
                written.begin(writer, value)
                await transaction.commit()
                written.acknowledge(writer, value)
        except TidemillError:  # it may have happened or not
            continue


async def load_until_killed(command: Command, address: str, api_version: int, written: Written, seed: int) -> None:
    goal = written.acknowledged + random.Random(seed).randrange(20, 150)
    async with connected(address, api_version) as clients:
        writers = [
            asyncio.create_task(write(clients, written, writer, random.Random(f"{seed}-{writer}")))
            for writer in range(WRITERS)
        ]
        while written.acknowledged < goal:
            await asyncio.sleep(0.001)
            assert command.is_running(), command.errors
        command.kill(alone=True)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def compare(address: str, api_version: int, written: Written) -> None:
    """What was acknowledged is there; of what was not, all or nothing."""
    async with connected(address, api_version) as clients:
        for writer in range(WRITERS):
            transaction = await clients.txn.begin()
            found = await transaction.batch_get(keys_of(writer))
            values = {found.get(key) for key in keys_of(writer)}
            assert len(values) == 1, f"half a transaction: {found}"
            written.find(writer, values.pop())
            for at in range(RAW_KEYS):
                key = b"raw-%d-%d" % (writer, at)
                written.find(key, await clients.raw.get(key))


@pytest.mark.parametrize(
    "chaos", [pytest.param(None, id="quiet", marks=pytest.mark.soak), pytest.param(5, id="with chaos")]
)
@pytest.mark.parametrize("api_version", [1, 2])
def test_what_was_acknowledged_is_there_after_kill_9_and_nothing_is_half(tmp_path: Path, api_version, chaos) -> None:
    flags = {"stores": 3, "pd_port": 0, "data_dir": tmp_path / "d", "api_version": api_version, "chaos": chaos}
    written = Written()
    for seed in range(ROUNDS):
        with Command(tmp_path, "upstream", is_serving=True, **flags) as command:
            address = command.ready()["pd"]
            asyncio.run(compare(address, api_version, written))
            asyncio.run(load_until_killed(command, address, api_version, written, seed))
    with Command(tmp_path, "upstream", is_serving=True, **flags) as command:
        asyncio.run(compare(command.ready()["pd"], api_version, written))
        assert command.terminate() == 0
    assert written.acknowledged >= 20 * ROUNDS
