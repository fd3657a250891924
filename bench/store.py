"""store.*: what the embedded upstream's change stream costs, to those who read it and to those who write.

    store.scan_events                  versions/s of an incremental scan, to a client that drops them;
                                       floor: the same bytes from a list, by a bare gRPC stream
    store.raw_put_with_capture         ms of a RawPut on average with a change stream attached; floor: without
    store.raw_put_with_capture_p99     the same for one put of a hundred

Server and client are processes of their own. Ours and the floor take turns, so that what else happens on
the machine meets both. Whoever follows the puts is a third process and drops what it gets.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any

import grpc
import numpy as np

from bench.data import grow
from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2, pdpb_pb2, pdpb_pb2_grpc, tikvpb_pb2_grpc
from tidemill.errors import UpstreamUnavailableError

Result = dict[str, Any]

VERSIONS = 1_000_000
ROUNDS = 5
PUTS_PER_TURN = 250
TURNS = 60  # with a stream and without
VALUE_BYTES = 100
_START_SECONDS = 180.0
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_FEED = "/cdcpb.ChangeData/EventFeedV2"
_FEATURES = (("features", "stream-multiplexing"),)
_KEYSPACE = b"r\x00\x00\x00"


def bench_scan() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        history = grow("bench-narrow", VERSIONS, folder / "history")
        with running_upstream(folder, "--load", str(history)) as pd_address, _Cluster(pd_address) as cluster:
            messages, versions = _scanned(cluster)
            sizes = np.array(list(map(len, messages)), np.int64)
            sizes.tofile(folder / "sizes")
            (folder / "messages").write_bytes(b"".join(messages))
            # The last message of a scan may be cut otherwise from run to run, so both stop just short of it.
            wanted = int(sizes.sum() * 0.98)
            del messages
            with _bare_server(folder) as bare_address, _channel(bare_address) as bare:
                seconds, floors = [], []
                for _ in range(ROUNDS):
                    seconds.append(_drop(cluster.open_feed, cluster.registrations, wanted))
                    floors.append(_drop(lambda requests: _open(bare, requests), [], wanted))
    value, floor = (versions * 0.98 / median(measured) for measured in (seconds, floors))
    return [_result("store.scan_events", value, "versions/s", floor, value / floor)]


def bench_raw_put() -> list[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name,
        running_upstream(Path(name), "--api-version", "2") as pd_address,
        _Cluster(pd_address, raw=True) as cluster,
        _following(pd_address) as follow,
    ):
        put = _putting(cluster)
        for _ in range(4 * PUTS_PER_TURN):
            put()
        alone: list[float] = []
        attached: list[float] = []
        for turn in range(TURNS):
            for is_attached in (True, False) if turn % 2 else (False, True):
                with follow() if is_attached else contextlib.nullcontext():
                    (attached if is_attached else alone).extend(put() for _ in range(PUTS_PER_TURN))
    results = []
    for suffix, figure in (("", fmean), ("_p99", _p99)):
        value, floor = figure(attached) * 1000, figure(alone) * 1000
        results.append(_result(f"store.raw_put_with_capture{suffix}", value, "ms", floor, floor / value))
    return results


def _p99(seconds: Sequence[float]) -> float:
    return float(np.percentile(seconds, 99))


def _result(name: str, value: float, unit: str, floor: float, ratio: float) -> Result:
    digits = 0 if value >= 1000 else 4
    return {
        "name": name,
        "value": round(value, digits),
        "unit": unit,
        "floor": round(floor, digits),
        "ratio": round(ratio, 3),
    }


class _Cluster:
    """PD, the one store and its regions, as a plain client sees them."""

    def __init__(self, pd_address: str, *, raw: bool = False) -> None:
        self._channels = contextlib.ExitStack()
        pd = pdpb_pb2_grpc.PDStub(  # type: ignore[no-untyped-call]  # generated without types
            self._channels.enter_context(_channel(pd_address))
        )
        self.id = pd.GetMembers(pdpb_pb2.GetMembersRequest()).header.cluster_id
        header = pdpb_pb2.RequestHeader(cluster_id=self.id)
        self.regions = list(pd.ScanRegions(pdpb_pb2.ScanRegionsRequest(header=header)).regions)
        store = pd.GetStore(pdpb_pb2.GetStoreRequest(header=header, store_id=1)).store
        self._channel = self._channels.enter_context(_channel(store.address))
        self.kv = tikvpb_pb2_grpc.TikvStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._api = cdcpb_pb2.ChangeDataRequest.RawKV if raw else cdcpb_pb2.ChangeDataRequest.TiDB

    @property
    def registrations(self) -> list[cdcpb_pb2.ChangeDataRequest]:
        return [
            cdcpb_pb2.ChangeDataRequest(
                header=cdcpb_pb2.Header(cluster_id=self.id, ticdc_version="8.5.0"),
                region_id=region.region.id,
                region_epoch=region.region.region_epoch,
                request_id=1,
                kv_api=self._api,
            )
            for region in self.regions
        ]

    def open_feed(self, requests: Iterator[cdcpb_pb2.ChangeDataRequest]) -> Any:
        return _open(self._channel, requests)

    def __enter__(self) -> "_Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._channels.close()


@contextlib.contextmanager
def _channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        yield channel


def _open(channel: grpc.Channel, requests: Iterator[cdcpb_pb2.ChangeDataRequest]) -> Any:
    """A change stream of messages that nobody parses."""
    method = channel.stream_stream(_FEED, cdcpb_pb2.ChangeDataRequest.SerializeToString, None)
    return method(requests, metadata=_FEATURES)


def _endless(requests: Sequence[cdcpb_pb2.ChangeDataRequest]) -> Iterator[cdcpb_pb2.ChangeDataRequest]:
    """The requests, and then none: a stream that is half-closed ends."""
    yield from requests
    while True:
        time.sleep(3600)


# Scans


def _scanned(cluster: _Cluster) -> tuple[list[bytes], int]:
    """Every message of a scan of all regions, and how many versions are in them."""
    feed = cluster.open_feed(_endless(cluster.registrations))
    messages, versions, left = [], 0, {region.region.id for region in cluster.regions}
    for message in feed:
        messages.append(message)
        for event in cdcpb_pb2.ChangeDataEvent.FromString(message).events:
            rows = event.entries.entries
            done = len(rows) > 0 and rows[-1].type == cdcpb_pb2.Event.INITIALIZED
            versions += len(rows) - done
            if done:
                left.discard(event.region_id)
        if not left:
            break
    feed.cancel()
    return messages, versions


def _drop(open_feed: Callable[[Any], Any], requests: Sequence[cdcpb_pb2.ChangeDataRequest], wanted: int) -> float:
    """Seconds until ``wanted`` bytes have come."""
    begin = time.perf_counter()
    feed = open_feed(_endless(requests))
    received = 0
    while received < wanted:
        received += len(next(feed))
    seconds = time.perf_counter() - begin
    feed.cancel()
    return seconds


@contextlib.contextmanager
def _bare_server(folder: Path) -> Iterator[str]:
    with _process([sys.executable, "-m", "bench.store", "serve", str(folder)]) as process:
        yield _line(process)


def serve(folder: Path) -> None:
    """The floor: a gRPC server that has all its messages in a list."""
    data = (folder / "messages").read_bytes()
    ends = np.cumsum(np.fromfile(folder / "sizes", np.int64)).tolist()
    messages = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    del data
    handler = grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(messages))
    service, method = _FEED[1:].split("/")
    server = grpc.server(ThreadPoolExecutor(8), options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()  # until our parent goes
    server.stop(grace=0)


# Puts


def _putting(cluster: _Cluster) -> Callable[[], float]:
    """A function that puts one key and returns how many seconds that took."""
    region = cluster.regions[-1]
    context = kvrpcpb_pb2.Context(
        region_id=region.region.id,
        region_epoch=region.region.region_epoch,
        peer=metapb_pb2.Peer(id=region.leader.id, store_id=region.leader.store_id),
        api_version=kvrpcpb_pb2.V2,
    )
    chance = np.random.default_rng(7)
    value = chance.bytes(VALUE_BYTES)

    def put() -> float:
        key = _KEYSPACE + b"%016d" % int(chance.integers(100_000))
        request = kvrpcpb_pb2.RawPutRequest(context=context, key=key, value=value)
        begin = time.perf_counter()
        answer = cluster.kv.RawPut(request)
        seconds = time.perf_counter() - begin
        if answer.error or answer.HasField("region_error"):
            raise UpstreamUnavailableError(f"a RawPut failed: {answer}")
        return seconds

    return put


@contextlib.contextmanager
def _following(pd_address: str) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    with _process([sys.executable, "-m", "bench.store", "follow", pd_address]) as process:
        assert process.stdin is not None
        commands = process.stdin

        @contextlib.contextmanager
        def follow() -> Iterator[None]:
            for command in ("attach", None):
                commands.write(f"{command or 'detach'}\n")
                commands.flush()
                if _line(process) != "ok":
                    raise UpstreamUnavailableError("the change stream of the raw puts could not be opened")
                if command:
                    yield

        yield follow


def follow(pd_address: str) -> None:
    """Attach a change stream and detach it, as told line by line."""
    with _Cluster(pd_address, raw=True) as cluster:
        for command in sys.stdin:
            if command.strip() == "attach":
                feed = cluster.open_feed(_endless(cluster.registrations))
                reader = threading.Thread(target=_read_all, args=[feed])
                while cdcpb_pb2.ChangeDataEvent.FromString(next(feed)).events[-1].entries.entries[-1].type != 5:
                    pass
                reader.start()
            else:
                feed.cancel()
                reader.join()
            print("ok", flush=True)


def _read_all(feed: Any) -> None:
    with contextlib.suppress(grpc.RpcError):
        for _ in feed:
            pass


# Processes


@contextlib.contextmanager
def running_upstream(folder: Path, *options: str) -> Iterator[str]:
    ready = folder / "ready.json"
    command = [sys.executable, "-c", "from tidemill.cli import main; main()", "upstream", "--stores", "1"]
    command += ["--pd-port", "0", "--ready-file", str(ready), *options]
    with _process(command) as process:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise UpstreamUnavailableError(
                    f"the embedded upstream did not start (exit code {process.poll()}). Try: {' '.join(command)}"
                )
            time.sleep(0.05)
        yield json.loads(ready.read_text())["pd"]


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


if __name__ == "__main__":
    {"serve": lambda of: serve(Path(of)), "follow": follow}[sys.argv[1]](sys.argv[2])
