"""An initial copy whose sink is away for a while, or whose Spark fails: its batch is taken back and begun again."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import BothHalves
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Totals
from tidemill.capture.copying import InitialCopy
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import EngineError, SinkError, SinkUnavailableError
from tidemill.flow.filter import ColumnSelector, TableFilter
from tidemill.flow.pipeline import Unit
from tidemill.flow.schema.loader import load_schema
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt, Traits
from tidemill.source.port import TABLES
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


class MoodySink(BothHalves):
    """Raises what it is told to, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[Exception]] = {}
        self.did: list[str] = []

    def recover(self, *words: Any) -> None:
        self._do("recover")

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._do("commit")
        return super().commit(to_ts, receipts)

    def publish(self, checkpoint_ts: Ts) -> None:
        self._do("publish")

    def _do(self, name: str) -> None:
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        self.did.append(name)


class HastyClock:
    """Time passes as soon as somebody looks."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 60.0
        return self._now

    def now(self) -> float:
        return SYSTEM_CLOCK.now()

    async def sleep(self, seconds: float) -> None:
        await SYSTEM_CLOCK.sleep(0)


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        session = SqlSession(SqlNodes(started.cluster, 1, lease_seconds=3600).nodes[0])
        session.execute("create database shop")
        session.execute("create table shop.t (id int primary key)")
        session.execute("insert into shop.t values (1), (2)")
        session.close()
        yield started


def copy_into(sink: MoodySink, upstream: EmbeddedUpstream, data_dir: DataDir) -> InitialCopy:
    async def plan() -> InitialCopy:
        async with PdClient(upstream.pd_address) as pd:
            ts = await pd.get_ts()
            reader = SnapshotReader(pd, RegionCache(pd))
            schema = await load_schema(reader, ts, ts, {})
            await reader.close()
            config = ChangefeedConfig()
            state = ChangefeedState(pd.cluster_id, "blackhole:", ts, ts, ts, 0, {}, None, {})
            wanted, selector = TableFilter(config), ColumnSelector(config)
            copy = InitialCopy(
                pd,
                TABLES,
                schema,
                wanted,
                sink,
                sink,
                Traits(),
                selector,
                state,
                data_dir,
                "UTC",
                Totals(),
                clock=HastyClock(),
            )
            await copy.plan()
            return copy

    return asyncio.run(plan())


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[DataDir]:
    data_dir = DataDir(tmp_path / "data")
    data_dir.acquire()
    yield data_dir
    data_dir.release()


class Spark:
    """Writes nothing; raises what it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self, units: list[Unit]) -> list[Receipt]:
        if self.errors:
            raise self.errors.pop(0)
        return [Receipt("", 0, 0, 2, 0) for _ in units]


def away(what: str) -> SinkUnavailableError:
    return SinkUnavailableError(f"cannot {what}: nobody answers. Wait.")


@pytest.mark.parametrize(
    ("errors", "spark"),
    [
        pytest.param({}, Spark(away("write"), away("write")), id="tasks cannot write"),
        pytest.param({"commit": [away("commit")]}, Spark(), id="nor the driver commit"),
        pytest.param({"recover": [away("recover")]}, Spark(away("write")), id="nor take it back"),
        pytest.param({"publish": [away("publish")]}, Spark(), id="nor tell readers at the end"),
        pytest.param({}, Spark(EngineError("a worker died")), id="a worker dies"),
    ],
)
def test_what_is_lost_comes_again(
    upstream: EmbeddedUpstream, data_dir: DataDir, errors: dict[str, list[Exception]], spark: Spark
) -> None:
    sink = MoodySink()
    sink.errors = errors
    copy = copy_into(sink, upstream, data_dir)
    is_sinks = bool(errors) or isinstance(spark.errors[0], SinkError)
    stages = to_the_end(copy, spark)
    assert copy.state.rows == 2
    assert copy.state.sink_state is not None
    assert copy.state.sink_state["rows"] == 2
    assert copy.state.copied is None
    assert sink.did[-1] == "publish"
    assert "recover" in sink.did  # as often as a batch was lost: the task that wrote it may still be there
    assert any(stage.startswith("waiting for the sink since") for stage in stages) == is_sinks


def to_the_end(copy: InitialCopy, spark: Spark) -> list[str]:
    """What it says on the way."""
    stages = []
    while copy.step(spark):
        stages.append(copy.stage)
    return stages


def test_what_does_not_pass_ends_the_copy(upstream: EmbeddedUpstream, data_dir: DataDir) -> None:
    copy = copy_into(MoodySink(), upstream, data_dir)
    with pytest.raises(SinkError, match="access is denied"):
        copy.step(Spark(SinkError("access is denied")))
    spark = Spark(*[EngineError("a worker died")] * 10)
    with pytest.raises(EngineError):
        to_the_end(copy, spark)
    assert len(spark.errors) > 3  # it was not tried for ever
