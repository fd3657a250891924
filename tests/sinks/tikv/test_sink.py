"""What the TiKV sink refuses, and how long a take-over waits for those who may still write."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.contract.places import Keys, changes, numbered
from tests.flow.encoder.samples import ITEM, rows_of
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import SinkError, SinkUnavailableError, UsageError
from tidemill.flow.rawkv import raw_table
from tidemill.model.progress import Checkpoints
from tidemill.model.row import RowBatch
from tidemill.model.ts import Ts
from tidemill.sinks.tikv import TikvOptions
from tidemill.sinks.tikv.sink import TikvOwner, TikvWriter

WINDOW = (Ts(1), Ts(2))
AT = Checkpoints(Ts(1))
DEADLINE_SECONDS = 1.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(api_version=2) as started:
        yield started


@pytest.fixture
def options(cluster: EmbeddedUpstream) -> TikvOptions:
    return TikvOptions(cluster.pd_address, deadline_seconds=DEADLINE_SECONDS, grace_seconds=0.1)


def test_a_task_that_is_late_writes_nothing_and_whoever_takes_over_has_waited_for_it(
    cluster: EmbeddedUpstream, options: TikvOptions
) -> None:
    place = Keys("", cluster=cluster).emptied()
    table = place.table("a")
    writer = TikvWriter(options, "main")
    late = writer.target(table, table.id, WINDOW)
    owner = TikvOwner(options, {}, is_resumed=True)
    owner.begin()

    def taken_over() -> None:
        owner.fence()
        heir = TikvWriter(options, "heir")
        heir.recover(AT, None, None, None, owner.term)
        receipt = heir.target(table, table.id, WINDOW).write(changes(table, 0, 4))
        heir.commit(Ts(2), [receipt])
        heir.close()

    def held_up() -> Iterator[RowBatch]:
        """Rows of a task that was stopped until another has its place."""
        with ThreadPoolExecutor(1) as other:
            other.submit(taken_over).result()
        yield from changes(table, 4, 9)

    with pytest.raises(SinkUnavailableError, match=r"not written within its deadline of 1.5 s.*raise 'deadline'"):
        late.write(held_up())
    assert place.read(table, None) == numbered(4)
    owner.close()
    writer.close()


def waited(owner: TikvOwner) -> float:
    began = time.monotonic()
    owner.fence()
    return time.monotonic() - began


def test_only_where_somebody_may_still_write_a_take_over_waits(options: TikvOptions) -> None:
    owner = TikvOwner(options, None, is_resumed=False)
    owner.begin()
    assert waited(owner) < DEADLINE_SECONDS  # a new changefeed: nobody has written before
    assert waited(owner) >= DEADLINE_SECONDS
    owner.close()


def test_a_deadline_that_was_longer_before_is_waited_for(options: TikvOptions) -> None:
    """What the earlier run has given out goes by what its sink URI said."""
    before = TikvOwner(options, None, is_resumed=False)
    before.begin()
    state = before.know([])
    before.close()
    owner = TikvOwner(replace(options, deadline_seconds=0.1), state, is_resumed=True)
    owner.begin()
    assert owner.know([])["deadline_seconds"] == 0.1
    assert waited(owner) >= DEADLINE_SECONDS
    assert waited(owner) < DEADLINE_SECONDS
    owner.close()


def test_a_batch_that_was_lost_is_waited_for_and_one_that_was_committed_is_not(options: TikvOptions) -> None:
    writer, table = TikvWriter(options, "main"), raw_table("DEFAULT", Ts(0))
    writer.recover(AT, None, None, None, "")
    target = writer.target(table, table.id, WINDOW)
    began = time.monotonic()
    writer.recover(AT, None, None, None, "")
    assert time.monotonic() - began >= DEADLINE_SECONDS - 0.1  # by clocks of milliseconds
    receipt = writer.target(table, table.id, WINDOW).write(iter(()))
    writer.commit(Ts(2), [receipt])
    began = time.monotonic()
    writer.recover(AT, None, None, None, "")
    assert time.monotonic() - began < DEADLINE_SECONDS
    assert target.share(1) == target
    writer.close()


def begun(options: TikvOptions, state: dict[str, object] | None = None) -> TikvOwner:
    owner = TikvOwner(options, state, is_resumed=state is not None)
    try:
        owner.begin()
    finally:
        owner.close()
    return owner


def test_the_cluster_that_is_captured_is_no_target(cluster: EmbeddedUpstream, options: TikvOptions) -> None:
    with pytest.raises(UsageError, match="would be captured again, for ever"):
        begun(options.named("feed", cluster.cluster_id))


def test_a_changefeed_stays_with_the_cluster_that_it_has_written(options: TikvOptions) -> None:
    with pytest.raises(UsageError, match=r"writes into cluster 17, and .* is cluster \d+"):
        begun(options, {"cluster_id": 17})


def test_a_keyspace_that_is_not_there_is_refused_by_name(options: TikvOptions) -> None:
    with pytest.raises(UsageError, match="has no keyspace 'nowhere'"):
        begun(replace(options, keyspace="nowhere"))


def test_a_target_of_api_v1_is_refused() -> None:
    with EmbeddedUpstream.start() as first, pytest.raises(SinkError, match="api-version") as raised:
        begun(TikvOptions(first.pd_address))
    assert not raised.value.retryable


def test_tables_are_refused_by_name(options: TikvOptions) -> None:
    owner = TikvOwner(options, None, is_resumed=False)
    for know in (owner.know, lambda tables: TikvWriter(options, "main").target(tables[0], 1, WINDOW)):
        with pytest.raises(UsageError, match=f"{ITEM.full_name} is a table. Give --start-key"):
            know([ITEM])


def test_a_target_that_is_away_is_an_outage_and_does_not_answer(cluster: EmbeddedUpstream) -> None:
    with EmbeddedUpstream.start(api_version=2) as gone:
        options = TikvOptions(gone.pd_address)
        assert options.answers(5.0)
    assert not options.answers(0.2)
    owner = TikvOwner(options, None, is_resumed=False)
    with pytest.raises(SinkUnavailableError):
        owner.begin()
    owner.close()


def test_a_task_sends_no_more_in_a_second_than_its_limit(cluster: EmbeddedUpstream, options: TikvOptions) -> None:
    place = Keys("", cluster=cluster).emptied()
    table, rows = place.table("a"), 20
    size = sum(len(key) + len(value) for key, value in ((b"r\0\0\0a/%d" % n, b"%d" % n) for n in range(1, rows + 1)))
    limited = replace(options, rate_limit=size, deadline_seconds=30.0, batch_size=2)
    writer, batch = (
        TikvWriter(limited, "main"),
        rows_of(
            table, *((None, {"key": b"a/%d" % n, "value": b"%d" % n, "expire_seconds": 0}) for n in range(1, rows + 1))
        ),
    )
    began = time.monotonic()
    writer.target(table, table.id, WINDOW).write(iter([batch]))
    assert time.monotonic() - began > 0.7  # all but the last request, and a burst of a tenth
    assert place.read(table, None) == numbered(rows)
    writer.close()
