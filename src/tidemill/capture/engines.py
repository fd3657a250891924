"""What a changefeed runs its batches on: the Spark session of this process, and an engine for each of its lanes."""

from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.capture.batches import Admission
from tidemill.capture.options import RunOptions
from tidemill.config.sink_uri import loopbacks
from tidemill.flow.sorter import Shelf
from tidemill.sinks import Traits

if TYPE_CHECKING:  # PySpark takes its time to be imported, and is not needed by who only looks
    from collections.abc import Callable

    from tidemill.spark.engine import Engine
    from tidemill.spark.session import Lease


class Engines:
    """Any thread but the loop's: calls to Spark block. ``close`` it in any case."""

    def __init__(self, options: RunOptions, place: str, traits: Traits, log: Path) -> None:
        """``place``: the sink's, which may be an address that leads each machine to itself. ``log``: Spark's."""
        self._options, self._place, self._traits, self._log = options, place, traits, log
        self._lease: Lease | None = None
        self._copying: Engine | None = None
        self.doing = ""  # that takes its time
        self.shelf = Shelf()  # of segments, for workers on other hosts

    @property
    def is_up(self) -> bool:
        return self._lease is not None

    def start(self, should_stop: "Callable[[], bool]") -> None:
        """With the session running: what is wrong with it is to be told at the start."""
        from tidemill.spark.session import borrow_session

        if self._lease is None:
            options = self._options
            self.doing = "starting Spark"
            self._lease = borrow_session(
                options.spark_master, conf=options.spark_conf, log=self._log, should_stop=should_stop
            )
            self._lease.session()
            self.doing = ""

    def open(self, lane: str, *also_local: str) -> "Engine":
        """``also_local``: addresses in its units, beside the sink's, that may lead each machine to itself."""
        from tidemill.spark.engine import Engine

        assert self._lease is not None, "it has not been started"
        engine = Engine(
            self._lease,
            f"{self._options.name}-{lane.replace('/', '-')}",
            self._options.tasks,
            most_tasks=self._traits.most_tasks,
            shelf=self.shelf,
            loopbacks=loopbacks(self._place, *also_local),
            does_small=self._traits.does_small,
        )
        engine.start()
        return engine

    def of_copy(self) -> "Engine":
        """For the initial copy, whose units name PD."""
        if self._copying is None:
            self._copying = self.open("copy", self._options.pd)
        return self._copying

    def admission(self, engine: "Engine | None") -> Admission:
        """How much a batch may take that runs on ``engine``."""
        return Admission(
            flush_interval_seconds=self._traits.flush_interval_seconds,
            tasks=(lambda: engine.tasks) if engine is not None else (lambda: 1),
            least_shared=self._options.least_shared_bytes,
        )

    def close(self) -> None:
        """The session ends with the last changefeed of this process that uses it."""
        if self._copying is not None:
            self._copying.close()
        if self._lease is not None:
            self._lease.release()
