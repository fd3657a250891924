"""What a changefeed is asked to do, and how it says that it stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.capture.batches import Totals
from tidemill.capture.metadata import DEFAULT_NAME, DataDir
from tidemill.clock import SYSTEM_CLOCK
from tidemill.flow.skew import LEAST_BYTES
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.keys import KeyRange
from tidemill.model.security import Security
from tidemill.model.ts import MAX_TS, Ts, lag_seconds, physical_ms

_GC_TTL_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class RunOptions:
    pd: str
    sink_uri: str = field(repr=False)  # may hold a password
    data_dir: Path
    start_ts: Ts | None = None  # default: now
    target_ts: Ts | None = None  # default: go on until stopped
    spark_master: str | None = None  # default: of the session that is there, of Spark's own settings, or local[2]
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # settings of Spark; may hold secrets
    zone: str = "UTC"
    tasks: int | None = None  # how many Spark tasks a batch is cut into at most; default: as many as Spark has cores
    available_now: bool = False  # take what the upstream has at the start, then end: Spark's trigger of that name
    config: ChangefeedConfig = field(default_factory=ChangefeedConfig)
    least_shared_bytes: int = LEAST_BYTES  # of a table in a batch, before several tasks share it
    initial_copy: bool = False  # a new changefeed first copies the rows as of its start-ts
    ends_at_start: bool = False  # and then it is over: its target-ts is its start-ts
    security: Security | None = None  # to PD and TiKV; None: as the config says
    name: str = DEFAULT_NAME  # of the changefeed, for people
    keys: KeyRange | None = None  # that are captured; None: as the config says, and without it tables are
    gc_ttl_seconds: int = _GC_TTL_SECONDS  # for which the upstream keeps what a changefeed that is away still needs

    def __post_init__(self) -> None:
        if self.keys is None and self.config.keys is not None:
            object.__setattr__(self, "keys", self.config.keys)


@dataclass(frozen=True, slots=True)
class LagParts:
    """Of what the lag is made, in seconds. ``upstream``: of the slowest region's resolved-ts as it is known here, with
    its way here and what is taken back of it. ``sorter``: of what is resolved, up to what a batch has taken.
    ``sink``: of what a batch has taken, up to what is durable."""

    upstream: float
    sorter: float
    sink: float


def parts_of_lag(now: float, frontier_ts: Ts, taken_ts: Ts, checkpoint_ts: Ts) -> LagParts:
    """``now``: in Unix seconds. Together they are the checkpoint's lag. A frontier at the end of time is that of no
    table yet: nothing is resolved then."""
    frontier_ts = checkpoint_ts if frontier_ts >= MAX_TS else max(frontier_ts, checkpoint_ts)
    taken_ts = min(max(taken_ts, checkpoint_ts), frontier_ts)
    ends = [physical_ms(ts) / 1000 for ts in (frontier_ts, taken_ts, checkpoint_ts)]
    return LagParts(max(0.0, now - ends[0]), ends[0] - ends[1], ends[1] - ends[2])


@dataclass(frozen=True, slots=True)
class Status:
    """How the changefeed stands, for the progress line."""

    stage: str
    checkpoint_ts: Ts
    lag_seconds: float
    lag: LagParts | None  # of which it is made; None: nothing is followed yet
    latency_p50: float | None  # from commit to durable, of the latest batches' first rows, in seconds
    latency_p99: float | None
    totals: Totals
    pending_rows: int
    memory_bytes: int  # of changes that wait in memory
    disk_bytes: int  # and in the data folder
    most_disk_bytes: int  # that have waited there at one time, in this run
    disk_quota: int
    pulled_rows: int  # that came from the upstream in this run
    regions: int
    left_out: tuple[str, ...]  # tables that the filter asks for, and whose rows are not captured for want of a key


def status_at_rest(options: RunOptions, doing: str = "not started") -> Status:
    """How a changefeed stands that has not started; at 0 where nothing says where it would begin."""
    state = DataDir(options.data_dir).load()
    at_ts = state.checkpoint_ts if state is not None else options.start_ts or Ts(0)
    lag = lag_seconds(at_ts, SYSTEM_CLOCK.now())
    return Status(doing, at_ts, lag, None, None, None, Totals(), 0, 0, 0, 0, 0, 0, 0, left_out=())
