"""Reading leaves stderr alone: gRPC complains there of an event loop that was closed under it."""

import subprocess
import sys

from tests.histories import load
from tidebox.upstream import EmbeddedUpstream

PATIENCE_SECONDS = 300
SCRIPT = """
import gc, sys, threading
from tidemill.source.scan import ReadHold, ScanClient, TableName, read_part
from tidemill.model.ts import Ts

pd, ts = sys.argv[1], Ts(int(sys.argv[2]))

def read():
    for at in range(8):
        with ScanClient(pd) as client:
            client.now()
            if at % 4 == 0:
                table = client.find_table(TableName("bench", "sbtest"), ts)
                for part in client.plan_scan(table, ts, hold=ReadHold.new(ts))[:1]:
                    next(read_part(part))
        gc.collect()

readers = [threading.Thread(target=read) for _ in range(4)]
for reader in readers: reader.start()
for reader in readers: reader.join()
"""

# Every now and then none of the two is connected, while the loop of one is still being closed.
TWO_AT_A_TIME = """
import sys, threading
from tidemill.source.scan import ScanClient

def ask():
    for _ in range(100):
        with ScanClient(sys.argv[1]) as client:
            client.now()

clients = [threading.Thread(target=ask) for _ in range(2)]
for client in clients: client.start()
for client in clients: client.join()
"""


def test_readers_that_come_and_go_at_the_same_time_print_nothing() -> None:
    history = load("bench-narrow").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=history, resolved_interval_seconds=0.02) as upstream:
        for script in (SCRIPT, TWO_AT_A_TIME):
            done = subprocess.run(
                [sys.executable, "-c", script, upstream.pd_address, str(upstream.tso())],
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
