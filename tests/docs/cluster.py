"""Commands that ask a capture, as the pages show them: on a cluster in memory that is as its reader's would be."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

from tests.api.servers import serving
from tests.docs.generate import CLUSTER
from tidemill.cli.commands import application
from tidemill.model.cluster import AdminJob, FeedState, Liveness, NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.testing.operations import FakeCluster

ORDERS = ChangefeedKey("default", "orders")
_OF_PAUSED = ("resume", "update")

__all__ = ["CLUSTER", "Reader"]


class Reader:
    """What a page calls CAPTURE is the second capture, and its table 112 is one of ours. In this process: to start one
    for each command would take longer than all else."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        self._cluster, self._address = cluster, address
        self._table = cluster.add_table("shop", "orders")
        cluster.add_table("shop", "items")

    @classmethod
    @contextmanager
    def of_a_cluster(cls) -> Iterator["Reader"]:
        cluster = FakeCluster(captures=2)
        with serving(cluster) as addresses:
            yield cls(cluster, addresses[1])

    def follow(self, place: Path, words: list[str]) -> None:
        self._prepare(words)
        config = place / "orders.toml"
        config.write_text('[filter]\nrules = ["shop.*"]\n')
        stands_for = {"CAPTURE": "capture-1", "112": str(self._table), "orders.toml": str(config)}
        said = [stands_for.get(word, word) for word in words]
        if "--server" in said:
            at = said.index("--server")
            del said[at : at + 2]
        said += ["--server", self._address] if words[0] != "metrics" and "convert" not in words else []
        said += ["--lines", "1"] if "statistics" in words else []
        said += ["--no-confirm"] if _is_of_paused(words) else []
        with redirect_stdout(io.StringIO()) as printed:
            application((words[0],))(said, standalone_mode=False)
        assert printed.getvalue().strip(), f"{' '.join(words)} shows nothing"

    def _prepare(self, words: list[str]) -> None:
        self._cluster.feeds.clear()
        self._cluster.elect(0)
        for each in self._cluster.captures:
            each.liveness = Liveness.ALIVE
        if "create" not in words:
            self._cluster.create(NewChangefeed(ORDERS, "blackhole://"))
        if _is_of_paused(words):
            feed = self._cluster.feeds[ORDERS]
            feed.info = replace(feed.info, state=FeedState.STOPPED, admin_job=AdminJob.STOP)


def _is_of_paused(words: list[str]) -> bool:
    return any(each in words for each in _OF_PAUSED)
