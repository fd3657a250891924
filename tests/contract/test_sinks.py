"""What every sink keeps, whatever its kind: one test for each line of the contract, once for each sink.

``docs/design/flow.md`` has the table of it, which is checked here. Nothing of Spark is needed.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.contract.places import (
    Blackhole,
    BucketFiles,
    Files,
    Found,
    Keys,
    LakeFiles,
    Line,
    MakePlace,
    Place,
    Server,
    Topics,
    changes,
    numbered,
)
from tests.flow.encoder.samples import COMMIT_TS, column
from tests.kafka import Broker, running
from tests.mariadb import MariaDb, need_mariadb
from tests.sinks.files.storage.buckets import Bucket, bucket
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import SinkError, SinkUriError, SupersededError
from tidemill.flow.pipeline import Target
from tidemill.flow.rawkv import is_raw
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.progress import Checkpoints
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import OwnerSink, SinkWriter, read_sink_uri

SINKS = {
    "files, canal-json": "file",
    "files, csv": "csv",
    "files in a bucket": "bucket",
    "Parquet": "parquet",
    "Iceberg": "iceberg",
    "Delta": "delta",
    "MySQL, TiDB": "mysql",
    "Kafka": "kafka",
    "TiKV": "tikv",
    "blackhole": "blackhole",
}
ALWAYS = "yes"
SHARED = "shared"  # a server has the tables of several changefeeds: each has marks of its own there
COPIES = "copies"  # Kafka keeps everything; what is late adds exact copies, which readers skip
DEADLINE = "deadline"  # TiKV knows no fence: what is late ends by itself, and whoever takes over waits for that
ASKED = "asked"  # the sink cannot tell: a data-dir keeps others out, and in a cluster whoever makes a unit asks etcd
NOTHING = "–"  # nothing is kept, so there is nothing to be kept

# Each line of the contract, by the test that holds sinks to it, and where it is another one.
LINES: dict[str, tuple[str, dict[str, str]]] = {
    "crash": ("Whoever dies at whatever step, each change is there once", {}),
    "late": (
        "A late task lands nothing, a late commit is refused",
        {"blackhole": NOTHING, "kafka": COPIES, "tikv": DEADLINE},
    ),
    "unbegun": (
        "A writer that is fenced, or whose owner is replaced, before it begins never does",
        {"blackhole": NOTHING, "kafka": COPIES, "tikv": ASKED},
    ),
    "together": ("Writers of different tables work at the same time, and hand tables over", {}),
    "killed": (
        "The table of a writer that was killed goes on with another",
        {"blackhole": NOTHING, "tikv": DEADLINE},
    ),
    "owner": (
        "An owner that was replaced changes nothing",
        {"blackhole": NOTHING, "kafka": COPIES, "tikv": NOTHING},
    ),
    "foreign": (
        "Another changefeed's target is refused by name",
        {"blackhole": NOTHING, "mysql": SHARED, "kafka": SHARED, "tikv": SHARED},
    ),
    "outage": ("An outage is told from a refusal, and passes", {"blackhole": NOTHING}),
    "ddl": ("The same DDL twice is one", {"blackhole": NOTHING, "tikv": NOTHING}),
    "beside": ("A DDL runs while other tables are written", {"blackhole": NOTHING, "tikv": NOTHING}),
    "parameter": ("An unknown parameter is refused by name", {}),
}


def kept_by(line: str) -> list[str]:
    return [sink for sink in SINKS.values() if LINES[line][1].get(sink, ALWAYS) in (ALWAYS, COPIES)]


def table_of_contract() -> str:
    """As the page shows it."""
    rows = [["", *SINKS], ["---"] * (len(SINKS) + 1)]
    rows += [[said, *(others.get(sink, ALWAYS) for sink in SINKS.values())] for said, others in LINES.values()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_page_shows_what_every_sink_keeps() -> None:
    page = Path(__file__).parents[2] / "docs/design/flow.md"
    assert table_of_contract() in page.read_text()


# Places

_schemas = count(1)


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with bucket() as made:
        yield made


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with MariaDb(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def store() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(api_version=2) as cluster:
        yield cluster


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakePlace]:
    """Makes places of the kind that the test is for, each empty."""
    kind: str = request.param
    numbers = iter(range(1000))
    line: Line | None = None

    def make() -> Place:
        root = f"{tmp_path}/{next(numbers)}"
        match kind:
            case "file" | "csv":
                protocol = "canal-json" if kind == "file" else "csv"
                return Files(f"file://{root}?protocol={protocol}&date-separator=none")
            case "bucket":
                made: Bucket = request.getfixturevalue("s3")
                name = f"{tmp_path.name}-{root.rpartition('/')[2]}"
                uri = f"s3://{made.name}/{name}?protocol=canal-json&date-separator=none&{made.parameters}"
                return BucketFiles(uri, bucket=made)
            case "parquet":
                return LakeFiles(f"file://{root}?protocol=parquet")
            case "iceberg" | "delta":
                return LakeFiles(f"{kind}://{root}?flush-interval=0s")
            case "mysql":
                nonlocal line
                server: MariaDb = request.getfixturevalue("mariadb")
                line = line or Line(server.port)
                found = Server(server.uri("worker-count=1"), f"shop{next(_schemas)}", server=server, line=line)
                server.query(f"CREATE DATABASE {found.schema}")
                for name in "ab":
                    server.query(f"CREATE TABLE {found.schema}.{name} (id BIGINT PRIMARY KEY, v BIGINT)")
                return found
            case "kafka":
                broker: Broker = request.getfixturevalue("kafka")
                hasty = "write-timeout=2s&dial-timeout=2s&read-timeout=2s"
                topic = f"contract-{next(_schemas)}"
                return Topics(broker.uri(topic, f"protocol=open-protocol&{hasty}"), broker=broker)
            case "tikv":
                cluster: EmbeddedUpstream = request.getfixturevalue("store")
                return Keys(f"tikv://{cluster.pd_address}?concurrency=2", cluster=cluster).emptied()
            case _:
                return Blackhole("blackhole://?protocol=canal-json")

    yield make
    if line is not None:
        line.close()


def over(line: str) -> Any:
    return pytest.mark.parametrize("places", kept_by(line), indirect=True)


# A changefeed of two tables, whose changes are inserts of (n, n) at COMMIT_TS + n.


class Died(Exception):
    pass


class Feed:
    """What outlives a process: what is saved, and where each table is then."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.a, self.b = place.table("a"), place.table("b")
        self.saved: Any = None
        self.at = {"a": COMMIT_TS, "b": COMMIT_TS}
        self.written_ts: Ts | None = None
        self.lock = threading.Lock()
        self.owner: OwnerSink
        self.start()

    def start(self) -> None:
        """A new process of the owner."""
        has_run = self.written_ts is not None
        self.owner = self.place.open_owner(self.saved, start_ts=Ts(min(self.at.values())), is_resumed=has_run)
        self.owner.begin()
        self.owner.fence()

    def writer(self, name: str, tables: Sequence[TableInfo] | None = None) -> SinkWriter:
        """A new process of a writer, which gets these tables, or all."""
        writer = self.place.open_writer(name)
        self.recover(writer, tables)
        return writer

    def recover(self, writer: SinkWriter, tables: Sequence[TableInfo] | None = None) -> None:
        writer.recover(self.checkpoints, tables, self.saved, self.written_ts, self.owner.term)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(Ts(COMMIT_TS), {{"a": 101, "b": 102}[name]: Ts(ts) for name, ts in self.at.items()})

    def target(self, writer: SinkWriter, table: TableInfo, to: int) -> Target:
        to_ts = Ts(COMMIT_TS + to)
        self.written_ts = max(self.written_ts or to_ts, to_ts)
        return writer.target(table, table.id, (Ts(self.at[table.name]), to_ts))

    def batch(
        self, writer: SinkWriter, table: TableInfo, to: int, reach: Callable[[str], None] = lambda step: None
    ) -> None:
        """All changes of the table up to ``to``; ``reach`` is told of each step before it is taken."""
        reach("target")
        target = self.target(writer, table, to)
        reach("write")
        receipt = target.write(iter(changes(table, self.at[table.name] - COMMIT_TS, to)))
        reach("commit")
        commit = json.loads(json.dumps(writer.commit(Ts(COMMIT_TS + to), [receipt])))
        with self.lock:
            reach("take")
            state = json.loads(json.dumps(self.owner.take(commit)))
            reach("save")
            self.saved, self.at[table.name] = state, COMMIT_TS + to
            reach("publish")
            self.owner.publish(Ts(min(self.at.values())))

    def finish(self) -> None:
        self.owner.publish(Ts(max(self.at.values())))

    def found(self, table: TableInfo) -> Found:
        return self.place.read(table, self.saved)


def is_there(feed: Feed, table: TableInfo, to: int) -> bool:
    """Each change up to ``to`` once, in order."""
    if isinstance(feed.place, Blackhole):
        return len(feed.found(table)) == to  # it counts
    return feed.found(table) == numbered(to)


# The contract


STEPS = ("target", "write", "commit", "take", "save", "publish")


@over("crash")
def test_whoever_dies_at_whatever_step_each_change_is_there_once(places: MakePlace) -> None:
    def die_at(step: str, reached: str) -> None:
        if reached == step:
            raise Died

    feed, to = Feed(places()), 2
    writer = feed.writer("main")
    feed.batch(writer, feed.a, to)
    for step in STEPS:
        with pytest.raises(Died):
            feed.batch(writer, feed.a, to + 3, partial(die_at, step))
        feed.start()
        writer = feed.writer("main")
        for end in (to + 2, to + 5):  # what comes again is cut elsewhere
            if COMMIT_TS + end > feed.at["a"]:
                feed.batch(writer, feed.a, end)
        to += 5
    feed.at["b"] = feed.at["a"]
    feed.finish()
    assert is_there(feed, feed.a, to)


@over("late")
def test_a_late_task_lands_nothing_and_a_late_commit_is_refused(places: MakePlace) -> None:
    feed = Feed(places())
    writer = feed.writer("main")
    feed.batch(writer, feed.a, 2)
    late = feed.target(writer, feed.a, 5)

    def meanwhile() -> None:
        feed.recover(writer)
        for to in (3, 4, 7):
            feed.batch(writer, feed.a, to)

    with pytest.raises(SupersededError):
        late.write(changes(feed.a, 2, 5, meanwhile))
    with pytest.raises(SupersededError):  # nor does one that begins only now
        late.write(changes(feed.a, 2, 5))
    receipt = feed.target(writer, feed.a, 9).write(changes(feed.a, 7, 9))
    feed.owner.fence(["main"])
    for act in (lambda: writer.commit(Ts(COMMIT_TS + 9), [receipt]), lambda: feed.recover(writer)):
        with pytest.raises(SupersededError):
            act()
    feed.batch(feed.writer("heir"), feed.a, 9)
    feed.finish()
    assert is_there(feed, feed.a, 9)


@over("unbegun")
def test_a_writer_that_is_fenced_or_whose_owner_is_replaced_before_it_begins_never_does(places: MakePlace) -> None:
    feed = Feed(places())
    by_name, by_term = feed.place.open_writer("capture-1/0"), feed.place.open_writer("capture-2/0")
    earlier = feed.owner.term
    feed.owner.fence(["capture-1/0"])
    for writer in (by_name, feed.place.open_writer("capture-1/0")):  # also in another process of that capture
        with pytest.raises(SupersededError):
            feed.recover(writer, [feed.a])
    heir = feed.writer("capture-3/0", [feed.a])
    feed.batch(heir, feed.a, 2)
    feed.start()  # another owner, who has never heard of the other writer
    heir = feed.writer("capture-3/1", [feed.a])
    for writer in (by_term, by_name):
        with pytest.raises(SupersededError):
            writer.recover(feed.checkpoints, [feed.a], feed.saved, feed.written_ts, earlier)
    feed.batch(heir, feed.a, 5)
    again = feed.writer("capture-1/0", [feed.b])  # which only says what was so in the term before
    feed.batch(again, feed.b, 5)
    feed.finish()
    assert is_there(feed, feed.a, 5)
    assert is_there(feed, feed.b, 5)


@over("unbegun")
def test_a_writer_that_is_fenced_while_it_begins_does_not_get_through(places: MakePlace) -> None:
    """At whatever step: either it finds that it is fenced, or it is found."""
    feed = Feed(places())
    for number in range(6):
        to = 2 * (number + 1)
        late = feed.place.open_writer(f"capture-{number}/0")
        start, ended = threading.Barrier(2), list[SupersededError]()
        together([partial(begin, feed, late, to, start, ended), partial(fence, feed, f"capture-{number}/0", start)])
        if not ended:  # it was quicker in all it did, and it counts for nothing all the same
            with pytest.raises(SupersededError):
                late.commit(Ts(COMMIT_TS + to), [])
        with pytest.raises(SupersededError):
            feed.recover(late, [feed.a])
        feed.batch(feed.writer(f"heir-{number}/0", [feed.a]), feed.a, to)
    feed.at["b"] = feed.at["a"]
    feed.finish()
    assert is_there(feed, feed.a, 12)


def begin(feed: Feed, late: SinkWriter, to: int, start: threading.Barrier, ended: list[SupersededError]) -> None:
    start.wait()
    try:
        feed.recover(late, [feed.a])
        receipt = feed.target(late, feed.a, to).write(changes(feed.a, to - 2, to))
        late.commit(Ts(COMMIT_TS + to), [receipt])
    except SupersededError as error:
        ended.append(error)


def fence(feed: Feed, name: str, start: threading.Barrier) -> None:
    start.wait()
    feed.owner.fence([name])


@over("together")
def test_writers_of_different_tables_work_at_the_same_time_and_hand_tables_over(places: MakePlace) -> None:
    feed = Feed(places())
    first, second = feed.writer("capture-1/0", [feed.a]), feed.writer("capture-2/0", [feed.b])
    hands = [(first, feed.a), (second, feed.b)]
    to = 0
    for _ in range(3):
        together([partial(run_to, feed, writer, table, [to + 1, to + 3]) for writer, table in hands])
        to += 3
        hands = [(hands[1][0], hands[0][1]), (hands[0][0], hands[1][1])]
        for writer, table in hands:
            feed.recover(writer, [table])
    feed.finish()
    if isinstance(feed.place, Blackhole):
        assert len(feed.found(feed.a)) == 2 * to
    else:
        assert feed.found(feed.a) == feed.found(feed.b) == numbered(to)


def run_to(feed: Feed, writer: SinkWriter, table: TableInfo, ends: Sequence[int]) -> None:
    for to in ends:
        feed.batch(writer, table, to)


def together(works: Sequence[Callable[[], None]]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@over("killed")
def test_the_table_of_a_writer_that_was_killed_goes_on_with_another(places: MakePlace) -> None:
    feed = Feed(places())
    killed, other = feed.writer("capture-1/0", [feed.a]), feed.writer("capture-2/0", [feed.b])
    feed.batch(killed, feed.a, 2)
    feed.batch(other, feed.b, 1)
    late = feed.target(killed, feed.a, 6)
    lost = feed.target(killed, feed.a, 6).write(changes(feed.a, 2, 6))
    others = feed.target(other, feed.b, 3)

    def meanwhile() -> None:
        feed.owner.fence(["capture-1/0"])
        receipt = others.write(changes(feed.b, 1, 3))  # the other is left alone by it
        commit = other.commit(Ts(COMMIT_TS + 3), [receipt])
        feed.saved, feed.at["b"] = feed.owner.take(commit), COMMIT_TS + 3
        feed.recover(other, [feed.a])
        for to in (3, 5, 7):
            feed.batch(other, feed.a, to)
        feed.batch(other, feed.b, 5)

    with pytest.raises(SupersededError):
        late.write(changes(feed.a, 2, 6, meanwhile))
    for act in (
        lambda: killed.commit(Ts(COMMIT_TS + 6), [lost]),
        lambda: feed.recover(killed, [feed.a]),
    ):
        with pytest.raises(SupersededError):
            act()
    feed.finish()
    assert is_there(feed, feed.a, 7)
    assert is_there(feed, feed.b, 5)


def wider(place: Place, finished: int) -> tuple[TableInfo, DdlEvent]:
    """Table a with one column more, and the DDL that gives it that."""
    ts = COMMIT_TS + finished
    after = place.table("a", columns=[column("w", ColumnType.LONGLONG, flen=20)], version_ts=ts)
    kind, query = ActionType.ADD_COLUMN, f"ALTER TABLE {after.full_name} ADD COLUMN w BIGINT"
    before = place.table("a")
    return after, DdlEvent(Ts(ts), Ts(ts - 1), 0, kind, kind, query, after.schema, after.name, after, "", "", before)


@over("owner")
def test_an_owner_that_was_replaced_changes_nothing(places: MakePlace) -> None:
    feed = Feed(places())
    writer = feed.writer("main")
    feed.batch(writer, feed.a, 2)
    before, earlier = feed.place.forms(feed.a), feed.owner
    feed.owner = feed.place.open_owner(feed.saved, start_ts=Ts(COMMIT_TS), is_resumed=True)
    feed.owner.begin()
    _, event = wider(feed.place, 3)
    for act in (lambda: earlier.ddl(event), lambda: earlier.fence(["main"]), earlier.begin):
        with pytest.raises(SupersededError):
            act()
    feed.batch(writer, feed.a, 4)  # who is not fenced goes on under the next owner
    feed.at["b"] = feed.at["a"]
    feed.finish()
    assert is_there(feed, feed.a, 4)
    assert feed.place.forms(feed.a) == before


@over("foreign")
def test_another_changefeeds_target_is_refused_by_name(places: MakePlace) -> None:
    feed = Feed(places())
    feed.batch(feed.writer("main"), feed.a, 2)
    with pytest.raises(SinkError, match="belongs to changefeed 'feed' of cluster 7, and this is changefeed 'other'"):
        feed.place.open_owner(None, "other").begin()
    feed.finish()
    assert is_there(feed, feed.a, 2)


@pytest.mark.parametrize("places", ["mysql"], indirect=True)
def test_changefeeds_that_share_a_server_leave_each_other_alone(places: MakePlace) -> None:
    feed = Feed(places())
    writer = feed.writer("main")
    target = feed.target(writer, feed.a, 2)
    other = feed.place.open_owner(None, "other")
    other.begin()
    other.fence()
    receipt = target.write(changes(feed.a, 0, 2))
    writer.commit(Ts(COMMIT_TS + 2), [receipt])
    assert is_there(feed, feed.a, 2)


@over("outage")
def test_an_outage_is_told_from_a_refusal_and_passes(places: MakePlace) -> None:
    feed = Feed(places())
    place = feed.place
    writer = feed.writer("main")
    feed.batch(writer, feed.a, 2)
    target = place.hasty(feed.target(writer, feed.a, 4))
    acts: list[Callable[[], object]] = [lambda: target.write(changes(feed.a, 2, 4))]
    if not is_raw(feed.a):
        _, event = wider(place, 9)
        acts.append(lambda: feed.owner.ddl(event))
    with place.away():
        for act in acts:
            with pytest.raises(SinkError) as raised:
                act()
            assert raised.value.retryable
    feed.recover(writer)  # on the same objects
    feed.batch(writer, feed.a, 5)
    feed.finish()
    assert is_there(feed, feed.a, 5)


@over("ddl")
def test_the_same_ddl_twice_is_one(places: MakePlace) -> None:
    forms = []
    for times in (1, 2, 3):
        feed = Feed(places())
        writer = feed.writer("main")
        feed.batch(writer, feed.a, 2)
        after, event = wider(feed.place, 3)
        feed.at["a"] = feed.at["b"] = COMMIT_TS + 3
        for number in range(times):
            if number == 2:  # and by a new process
                feed.start()
                writer = feed.writer("main")
            feed.owner.ddl(event)
        feed.batch(writer, after, 5)
        feed.at["b"] = feed.at["a"]
        feed.finish()
        assert feed.found(after) == [*numbered(2), (4, 4), (5, 5)]
        forms.append([str(form).replace(feed.place.schema, "shop") for form in feed.place.forms(after)])
    assert forms[0] == forms[1] == forms[2]
    assert len(forms[0]) > 1


@over("beside")
def test_a_ddl_runs_while_other_tables_are_written(places: MakePlace) -> None:
    feed = Feed(places())
    first, second = feed.writer("capture-1/0", [feed.a]), feed.writer("capture-2/0", [feed.b])
    feed.batch(first, feed.a, 2)
    feed.batch(second, feed.b, 1)
    after, event = wider(feed.place, 3)
    target = feed.target(second, feed.b, 4)
    receipt = target.write(changes(feed.b, 1, 4, lambda: feed.owner.ddl(event)))
    feed.saved = feed.owner.take(second.commit(Ts(COMMIT_TS + 4), [receipt]))
    feed.at |= {"a": COMMIT_TS + 3, "b": COMMIT_TS + 4}
    together([partial(run_to, feed, first, after, [5, 6]), partial(run_to, feed, second, feed.b, [5, 6])])
    feed.recover(second, [after])  # which had not heard of the DDL
    feed.batch(second, after, 8)
    feed.at["b"] = feed.at["a"]
    feed.finish()
    assert feed.found(after) == [*numbered(2), *numbered(8)[3:]]
    assert feed.found(feed.b) == numbered(6)


@over("parameter")
def test_an_unknown_parameter_is_refused_by_name(places: MakePlace) -> None:
    with pytest.raises(SinkUriError, match="unknown sink URI parameter 'no-such-thing'"):
        read_sink_uri(f"{places().uri}&no-such-thing=1")


@pytest.mark.parametrize("places", ["file", "csv", "bucket", "kafka"], indirect=True)
def test_rows_that_a_ddl_brings_come_before_those_of_writers(places: MakePlace) -> None:
    """A table that gets its key: no change tells of the rows that it had."""
    feed = Feed(places())
    after, event = wider(feed.place, 3)
    keyed = replace(event, type=ActionType.ADD_PRIMARY_KEY, pre_table_info=replace(feed.a, columns=after.columns[1:]))
    feed.owner = feed.place.open_owner(None, rescan=lambda table, ids, ts: changes(table, 0, 2))
    feed.owner.begin()
    writer = feed.writer("main")
    for _ in range(2):
        feed.saved = feed.owner.ddl(keyed)
    feed.owner.publish(Ts(COMMIT_TS + 3))
    feed.at["a"] = COMMIT_TS + 3
    feed.batch(writer, after, 5)
    feed.start()
    feed.batch(feed.writer("main"), after, 6)
    feed.finish()
    assert feed.found(after) == [*numbered(2), (4, 4), (5, 5), (6, 6)]
    if isinstance(feed.place, Topics):
        feed.place.log().check()  # readers take what has the DDL's own ts for rows before it
