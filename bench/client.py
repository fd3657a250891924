"""``client.receive``: a store's change stream made into Arrow batches, against receiving and dropping it.

An embedded upstream in a process of its own serves a grown history. Both ways register the same regions
over the same kind of channel and take the same incremental scan: ours through the puller to a receiver
that counts; the floor reads the messages and looks at nothing but their length.

The store takes longer to make a scan than either side to receive it, so the ratio of the two speeds says
mostly that we do not slow it down. ``client.receive_cpu`` counts the processor time of this process alone,
which no slow store can flatter.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import pyarrow as pa

from bench.data import TABLE_ID, grow
from tidemill._pb import cdcpb_pb2
from tidemill.errors import UpstreamUnavailableError
from tidemill.flow.puller import Puller
from tidemill.model.span import end_to_wire
from tidemill.model.ts import Ts
from tidemill.tidb.keys import record_span
from tidemill.upstream.channel import open_channel
from tidemill.upstream.feed.stream import SPOKEN_VERSION
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache

ROWS = 300_000
ROUNDS = 5
_START_SECONDS = 120.0


def bench_client_receive() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        history = grow("bench-narrow", ROWS, Path(folder) / "history")
        with serving(history, Path(folder) / "ready.json") as pd_address:
            return asyncio.run(_measure(pd_address))


async def _measure(pd_address: str) -> list[dict[str, Any]]:
    async with PdClient(pd_address) as pd:
        await _pull(pd)  # compiles, warms the store's cache
        ours, floors = [], []
        for _ in range(ROUNDS):
            cpu = [time.process_time()]
            rows, size, seconds = await _pull(pd)
            cpu.append(time.process_time())
            # The last message of a scan may be split otherwise from run to run, so the floor stops just short of it.
            dropped_rows = rows * 0.98
            dropping_seconds = await _drop(pd, int(size * 0.98))
            cpu.append(time.process_time())
            ours.append((rows / seconds, rows / (cpu[1] - cpu[0])))
            floors.append((dropped_rows / dropping_seconds, dropped_rows / (cpu[2] - cpu[1])))
    return [
        _result("client.receive", "rows/s", [a for a, _ in ours], [a for a, _ in floors]),
        _result("client.receive_cpu", "rows/cpu-s", [b for _, b in ours], [b for _, b in floors]),
    ]


def _result(name: str, unit: str, values: list[float], floors: list[float]) -> dict[str, Any]:
    value, floor = median(values), median(floors)
    return {"name": name, "value": round(value), "unit": unit, "floor": round(floor), "ratio": round(value / floor, 3)}


class _Counting:
    """Takes the batches and is done when the frontier moves: then the whole scan has come."""

    def __init__(self) -> None:
        self.rows = 0
        self.done = asyncio.Event()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        self.rows += changes.num_rows
        self.last = time.perf_counter()

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        self.done.set()


async def _pull(pd: PdClient) -> tuple[int, int, float]:
    """Rows, bytes, and the seconds from the subscription to the last row."""
    receiver = _Counting()
    puller = Puller(pd, receiver)
    running = asyncio.create_task(puller.run())
    begin = time.perf_counter()
    puller.subscribe(1, record_span(TABLE_ID), Ts(0))
    await asyncio.wait_for(receiver.done.wait(), _START_SECONDS)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return receiver.rows, puller.stats().received_bytes, receiver.last - begin


async def _drop(pd: PdClient, size: int) -> float:
    """Seconds to receive ``size`` bytes of the same scan."""
    begin = time.perf_counter()
    span = record_span(TABLE_ID)
    regions = await RegionCache(pd).load(span)
    store = await pd.get_store(1)
    received = 0
    async with open_channel(store.address) as channel:
        feed = channel.stream_stream(
            "/cdcpb.ChangeData/EventFeedV2",
            request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString,
            response_deserializer=None,
        )(metadata=(("features", "stream-multiplexing"),))
        for region in regions:
            part = region.span.intersect(span)
            if part is not None:
                await feed.write(
                    cdcpb_pb2.ChangeDataRequest(
                        header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version=SPOKEN_VERSION),
                        region_id=region.id,
                        region_epoch=region.epoch(),
                        start_key=part.start,
                        end_key=end_to_wire(part.end),
                        request_id=1,
                    )
                )
        while received < size:
            message = await feed.read()
            if message is grpc.aio.EOF:
                raise UpstreamUnavailableError(f"the stream ended after {received} of {size} bytes")
            received += len(message)
        seconds = time.perf_counter() - begin
        feed.cancel()
    return seconds


@contextlib.contextmanager
def serving(history: Path, ready: Path) -> Iterator[str]:
    command = [sys.executable, "-c", "from tidemill.cli import main; main()", "upstream", "--stores", "1"]
    command += ["--pd-port", "0", "--load", str(history), "--ready-file", str(ready), "--resolved-interval", "50ms"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise UpstreamUnavailableError(
                    f"the embedded upstream did not start (exit code {process.poll()}). Try: {' '.join(command)}"
                )
            time.sleep(0.05)
        yield json.loads(ready.read_text())["pd"]
    finally:
        process.terminate()
        process.wait(timeout=30)
