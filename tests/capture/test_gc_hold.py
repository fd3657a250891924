"""A changefeed's hold on the upstream's garbage collection: whose it is, what it claims, for how long.

No Spark: a changefeed whose initial copy nobody polls has done everything but copy.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import wait_until
from tests.e2e.sqlclient import Client
from tests.sinks.around import OptionsAround
from tidebox.safepoints import Barrier
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.metadata import DataDir
from tidemill.capture.options import RunOptions
from tidemill.errors import FilterError, SinkError, StartTsCollectedError
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

TTL_SECONDS = 2
Start = Callable[..., Changefeed]


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, resolved_interval_seconds=0.05) as upstream:
        with Client(upstream.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run("create table shop.item (id int primary key)")
        yield upstream


def holds(upstream: EmbeddedUpstream) -> dict[str, Barrier]:
    with upstream.cluster.mutex:
        return {b.service.decode(): b for b in upstream.cluster.safepoints.state().barriers}


@pytest.fixture
def start(upstream: EmbeddedUpstream) -> Iterator[Start]:
    """A changefeed that is about to copy; whatever it holds is gone after the test."""
    feeds: list[Changefeed] = []

    def started(folder: Path, start_ts: Ts, **more: object) -> Changefeed:
        options = RunOptions(
            upstream.pd_address, "blackhole://", folder, start_ts=start_ts, initial_copy=True, **more  # type: ignore[arg-type]
        )  # fmt: skip
        feeds.append(Changefeed(options))
        feeds[-1].start()
        return feeds[-1]

    yield started
    for feed in feeds:
        feed.close(is_finished=True)
    for service in holds(upstream):
        with upstream.cluster.mutex:
            upstream.cluster.safepoints.delete_barrier(service.encode())


def test_two_changefeeds_whose_folders_have_the_same_path_hold_apart(
    upstream: EmbeddedUpstream, start: Start, tmp_path: Path
) -> None:
    """As in two containers: each sees its folder at the same path."""
    first_ts, second_ts = upstream.tso(), upstream.tso()
    start(tmp_path / "data", first_ts).close()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    start(tmp_path / "data", second_ts).close()
    assert sorted(hold.ts for hold in holds(upstream).values()) == [first_ts - 1, second_ts - 1]


def test_a_start_that_dies_before_its_state_is_saved_is_the_same_changefeed_when_it_starts_again(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    """Its id is in the target by then, which would refuse any other."""
    names: list[str] = []

    class Dying(OptionsAround):
        def named(self, changefeed: str, cluster_id: int) -> OptionsAround:
            names.append(changefeed)
            return super().named(changefeed, cluster_id)

        def open_owner(self, *words: Any, **more: Any) -> Any:
            raise SinkError("dead")

    for _ in range(2):
        options = RunOptions(upstream.pd_address, "mysql://127.0.0.1:1/", tmp_path / "data")
        feed = Changefeed(options, sink=Dying)  # type: ignore[arg-type]
        with pytest.raises(SinkError, match="dead"):
            feed.start()
        feed.close()
    assert names[0] == names[1] != ""
    assert DataDir(tmp_path / "data").load() is None


def test_a_changefeed_keeps_its_name_wherever_its_folder_goes(
    upstream: EmbeddedUpstream, start: Start, tmp_path: Path
) -> None:
    start_ts = upstream.tso()
    start(tmp_path / "data", start_ts).close()
    before = set(holds(upstream))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    start(tmp_path / "elsewhere", start_ts).close()
    assert set(holds(upstream)) == before
    state = DataDir(tmp_path / "elsewhere").load()
    assert state is not None
    assert {state.changefeed_id} == before


def test_a_folder_from_before_changefeeds_had_ids_keeps_the_name_it_had(
    upstream: EmbeddedUpstream, start: Start, tmp_path: Path
) -> None:
    start_ts = upstream.tso()
    start(tmp_path / "data", start_ts).close(is_finished=True)
    folder = DataDir(tmp_path / "data")
    state = folder.load()
    assert state is not None
    folder.save(replace(state, changefeed_id=""))
    start(tmp_path / "data", start_ts).close()
    assert set(holds(upstream)) == {folder.former_name}
    kept = folder.load()
    assert kept is not None
    assert kept.changefeed_id == folder.former_name


def test_a_copy_longer_than_the_ttl_keeps_its_hold(upstream: EmbeddedUpstream, start: Start, tmp_path: Path) -> None:
    start_ts = upstream.tso()
    start(tmp_path / "data", start_ts, gc_ttl_seconds=TTL_SECONDS)
    (first,) = holds(upstream).values()

    def has_outlived_its_first_ttl() -> bool:
        upstream.set_gc_safepoint(upstream.tso())  # collects whatever nobody holds
        return upstream.cluster.safepoints.now > first.expires_at + TTL_SECONDS

    wait_until(has_outlived_its_first_ttl, "the end of two times to live")
    (now,) = holds(upstream).values()
    assert (now.service, now.ts) == (first.service, start_ts - 1)


def test_the_saved_checkpoint_is_claimed_and_not_one_in_memory(
    upstream: EmbeddedUpstream, start: Start, tmp_path: Path
) -> None:
    start_ts = upstream.tso()
    feed = start(tmp_path / "data", start_ts, gc_ttl_seconds=TTL_SECONDS)
    saved = feed.owner.owned
    feed.owner.owned = replace(saved, at={"main/0": Checkpoints(upstream.tso())})
    (first,) = holds(upstream).values()
    wait_until(lambda: upstream.cluster.safepoints.now > first.expires_at, "renewals")
    feed.owner.owned = saved
    assert [hold.ts for hold in holds(upstream).values()] == [start_ts - 1]


def test_a_hold_that_was_lost_ends_the_copy(upstream: EmbeddedUpstream, start: Start, tmp_path: Path) -> None:
    feed = start(tmp_path / "data", upstream.tso(), gc_ttl_seconds=TTL_SECONDS)
    (service,) = holds(upstream)
    with upstream.cluster.mutex:
        upstream.cluster.safepoints.delete_barrier(service.encode())
    upstream.set_gc_safepoint(upstream.tso())

    wait_until(lambda: feed.failure is not None, "the loss to be noticed")
    with pytest.raises(StartTsCollectedError, match="garbage-collected"):
        feed.poll()


def test_a_refused_start_leaves_neither_hold_nor_state(
    upstream: EmbeddedUpstream, start: Start, tmp_path: Path
) -> None:
    with Client(upstream.sql_addresses[0]) as client:
        client.run("create table shop.keyless (v int)")
        start_ts = upstream.tso()
        client.run("drop table shop.keyless")
    with pytest.raises(FilterError, match=r"shop\.keyless"):
        start(tmp_path / "data", start_ts, config=ChangefeedConfig(ignore_ineligible_table=False))
    assert DataDir(tmp_path / "data").load() is None
