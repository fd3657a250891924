"""The bank in an Iceberg and in a Delta lake while their writers are killed: no money is lost in any snapshot."""

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.e2e.bank import TABLES, TOTAL, Bank, Row, Rows, kill_part, total
from tests.e2e.processes import Command, wait_until
from tests.rounds import rounds, seed
from tidemill.errors import UsageError
from tidemill.sinks.lake import delta, iceberg
from tidemill.sinks.lake.delta import open_table
from tidemill.sinks.lake.iceberg import identifier, open_catalog
from tidemill.sinks.lake.options import LakeKind
from tidemill.sinks.lake.query import rows_at
from tidemill.sinks.lake.reader import Lake, open_lake
from tidemill.sinks.lake.tables import LakeTable

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261117
KINDS = ("iceberg", "delta")
VICTIMS = ("worker", "capture", "jvm", "daemon")
ROUNDS = len(VICTIMS)  # in make test, each once; make soak takes as many as it is told


class Writer:
    """A changefeed into one lake."""

    def __init__(self, kind: str, bank: Bank, start_ts: int, folder: Path) -> None:
        self.uri = f"{kind}://{folder / kind}?flush-interval=300ms"
        self._folder = folder
        self._flags = {"pd": bank.pd, "sink_uri": self.uri, "start_ts": start_ts, "data_dir": folder / f"data-{kind}"}
        self.runs: list[Command] = []
        self.start()

    @property
    def run(self) -> Command:
        return self.runs[-1]

    def start(self) -> None:
        self.runs.append(Command(self._folder / "runs", "run", is_serving=True, **self._flags))

    def kill(self, victim: str, rng: random.Random) -> None:
        if victim == "capture":
            self.run.kill(alone=rng.random() < 0.5)
            self.start()
        else:
            kill_part(self.run, victim, rng)

    def wait_until_equal(self, wanted: Rows) -> None:
        looked_at = 0

        def is_equal() -> bool:
            nonlocal looked_at
            try:
                lake = open_lake(self.uri)
                if lake.checkpoint_ts == looked_at:  # reading it takes longer than anything else here
                    return False
                looked_at = lake.checkpoint_ts
                return read(lake, looked_at) == wanted
            except UsageError:  # no checkpoint or no such table yet
                return False

        wait_until(lambda: is_equal() or not self.run.is_running(), "equality", every_seconds=0.2)
        assert self.run.is_running(), self.run.errors


@pytest.mark.rounds
def test_no_money_is_lost_in_any_snapshot_of_a_lake_whoever_is_killed(tmp_path: Path) -> None:
    rng, began, count = random.Random(chosen := seed(SEED)), time.monotonic(), rounds(ROUNDS)
    victims = [victim for _ in range(count) for victim in rng.sample(VICTIMS, len(VICTIMS))][:count]
    with Bank(tmp_path, chosen) as bank:
        start_ts = bank.open()
        writers = [Writer(kind, bank, start_ts, tmp_path) for kind in KINDS]
        try:
            for writer in writers:
                writer.wait_until_equal(bank.rows())
            for number, victim in enumerate(victims):
                bank.go()
                bank.wait_for(rng.randint(1, 12))
                for writer in writers:
                    writer.kill(victim, rng)
                    lake = open_lake(writer.uri)  # whoever looks now finds a checkpoint, and no half of a transfer
                    assert total(read(lake, lake.checkpoint_ts)) == TOTAL
                bank.wait_for(rng.randint(1, 5))
                bank.hold()
                for writer in writers:
                    writer.wait_until_equal(bank.rows())
                print(f"round {number}: {victim}, {bank.transfers} transfers, {time.monotonic() - began:.1f} s")
            for writer in writers:
                assert writer.run.terminate() == 0, writer.run.errors
        finally:
            for writer in writers:
                for run in writer.runs:
                    run.kill()
        for writer in writers:
            for run in writer.runs:
                run.wait_until_gone()
            check_every_snapshot(open_lake(writer.uri), bank, count)


def read(lake: Lake, ts: int) -> Rows:
    """The bank as of ``ts``, by its accounts."""
    return {name: by_id(lake.rows_at("bank", name, ts)) for name in TABLES}


def by_id(rows: pa.Table) -> list[Row]:
    return rows.drop_columns("_unfit").sort_by("id").to_pylist()


def check_every_snapshot(lake: Lake, bank: Bank, least: int) -> None:
    """Every commit tells a ts. As of it the lake, and that snapshot, holds what was upstream; each change is once."""
    ends: set[int] = set()
    for name in TABLES:
        table = lake.table("bank", name)
        taken = resolved(lake, table)
        assert taken == sorted(set(taken))  # no batch came twice
        for ts in taken:
            assert by_id(rows_at(table, ts, lake.changes(table, ts))) == bank.rows(ts)[name]
        ends |= set(taken)
        changes = lake.changes(table)
        assert len(changes.group_by(["id", "_commit_ts", "_seq"]).aggregate([])) == len(changes)
    assert len(ends) > least
    for ts in ends:
        assert total(read(lake, ts)) == TOTAL


def resolved(lake: Lake, table: LakeTable) -> list[int]:
    """The resolved-ts that each batch in a table names, the first first. Other commits name none: they say whose turn
    it is, or add columns."""
    if lake.options.kind is LakeKind.ICEBERG:
        found = open_catalog(lake.options).load_table(identifier(lake.options, table))
        taken = sorted(found.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        told = [snapshot.summary[iceberg.RESOLVED_TS] for snapshot in taken if snapshot.summary]
        return [int(ts) for ts in told if ts is not None]
    commits = reversed(open_table(lake.options, table).history())
    return [int(commit[delta.RESOLVED_TS]) for commit in commits if delta.RESOLVED_TS in commit]
