"""The stream source of a changefeed: its offset is a ts, its rows are groups of units.

    {"ts": "470489262527873024"}     everything with commit-ts ≤ this has been taken

Planning runs on the driver, in a process of Spark's own, and asks the processor. A partition carries one
group of units; reading it only hands the group on to the fused pipeline of the next stage, so rows never
cross into the JVM. A ts is kept as text since JSON readers may turn numbers beyond 2^53 into doubles.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidemill.spark.endpoint import Address, EndpointClient

FORMAT = "tidemill-changefeed"
_FOREVER_SECONDS = 10.0**9
_GROUP_SCHEMA = pa.schema([pa.field("units", pa.binary())])


class Group(InputPartition):
    """The work of one task, pickled: the end of its batch, and a group for ``run_groups``."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob


class ChangefeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs on the driver (offsets, partitions) and on executors (read)."""

    def __init__(self, address: Address, generation: int, start_ts: int, wait_seconds: float) -> None:
        self._generation = generation
        self._start_ts = start_ts
        self._wait_seconds = wait_seconds
        self._address = address
        self._client: EndpointClient | None = None

    def initialOffset(self) -> dict[str, str]:
        return {"ts": str(self._start_ts)}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        # How much a batch takes is decided by the processor, by rows and bytes: Spark's limits count rows only.
        return {"ts": str(self._ask.offer(int(start["ts"]), self._wait_seconds))}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return [Group(blob) for blob in self._ask.units(int(start["ts"]), int(end["ts"]))]

    def prepareForTriggerAvailableNow(self) -> None:
        self._ask.available_now()
        # The query ends at the first offer that has nothing new, so an offer now waits for the end.
        self._wait_seconds = _FOREVER_SECONDS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Group)
        yield pa.record_batch([pa.array([partition.blob], pa.binary())], schema=_GROUP_SCHEMA)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def _ask(self) -> EndpointClient:
        if self._client is None:
            self._client = EndpointClient(self._address, self._generation)
        return self._client


class ChangefeedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "units binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChangefeedReader(
            Address.of({name: self.options[name] for name in ("host", "port", "token")}),
            int(self.options["generation"]),
            int(self.options["start-ts"]),
            float(self.options["wait-seconds"]),
        )
