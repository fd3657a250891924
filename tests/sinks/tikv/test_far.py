"""A target that is far away: the latency of the way is hidden by requests that are under way at the same time."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.e2e.hosts import Host, Network, need_namespaces
from tests.sinks.tikv.far import KEYS, delayed

DELAY_SECONDS = 0.03
BATCH = 100


@contextmanager
def cluster(host: Host) -> Iterator[list[int]]:
    """Ports of its PD and its stores."""
    words = [*host.command(), sys.executable, "-m", "tests.sinks.tikv.far", "serve"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.communicate(timeout=30)


def seconds_of(host: Host, pd_port: int, queries: Sequence[str]) -> list[float]:
    words = [*host.command(), sys.executable, "-m", "tests.sinks.tikv.far", "write", f"127.0.0.1:{pd_port}", *queries]
    said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout)
    assert said["checksum"] == KEYS
    return list(said["seconds"])


def test_concurrency_hides_the_latency_between_two_sites() -> None:
    need_namespaces()
    one_by_one, together = (f"batch-size={BATCH}&concurrency={n}" for n in (1, 16))
    large = f"batch-size={KEYS}&concurrency=1"
    with Network() as network:
        near, far = network.host(), network.host()
        with cluster(far) as ports, delayed(near, far, ports, DELAY_SECONDS):
            slow, fast, few = seconds_of(near, ports[0], [one_by_one, together, large])
    requests = KEYS // BATCH
    assert slow > requests * DELAY_SECONDS
    assert fast < slow / 2
    assert few < slow / 2
