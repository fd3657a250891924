"""Keys without SQL as a data source: a range of them as it is, or, as a stream, what is done to it.

    read        key, value                                          RawKV: as they are now; of transactions: as of a ts
    readStream  key, value, expire_seconds, _op, _commit_ts         put or delete; its offset is a ts: {"ts": "4704…"}

RawKV tells the newest change of each key. So a stream misses versions that others have followed, and never the last
one. Each of its batches lets the stores go through all keys of the range.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidemill.errors import UsageError
from tidemill.model.ts import LOGICAL_BITS, Ts
from tidemill.source.keyrange import plan_keys
from tidemill.source.scan import ScanClient
from tidemill.source.scan.keys import CHANGES, PAIRS, KeyChanges, KeyPairs, KeyScan
from tidemill.spark.library.options import KeyReadOptions, Now, parse_key_options

Offset = dict[str, str]


@dataclass(frozen=True, slots=True)
class KeyReads:
    options: KeyReadOptions

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "KeyReads":
        return cls(parse_key_options(given))

    def schema(self) -> StructType:
        return from_arrow_schema(PAIRS if self.options.starting_ts is None else CHANGES)

    def reader(self) -> DataSourceReader:
        if self.options.starting_ts is not None:
            raise UsageError("startingTs is for a stream of changes of keys: use readStream, or leave it out.")
        return KeyReader(self.options)

    def stream_reader(self) -> DataSourceStreamReader:
        if self.options.starting_ts is None:
            raise UsageError(
                "a stream needs to know where it begins: give the option startingTs, a TSO, a time, or 'now'."
            )
        return KeyStreamReader(self.options)


class KeyPart(InputPartition):
    """None stands for a read without any."""

    def __init__(self, part: KeyPairs | KeyChanges | None) -> None:
        self.part = part


def _scans(client: ScanClient, options: KeyReadOptions, ts: Ts) -> list[KeyScan]:
    return client.ask(lambda pd: plan_keys(pd, options.keys, ts))


class KeyReader(DataSourceReader):
    def __init__(self, options: KeyReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with ScanClient(options.pd, options.security) as client:
            as_of = options.as_of
            ts = client.now() if as_of is None or isinstance(as_of, Now) else as_of
            return [KeyPart(KeyPairs(scan)) for scan in _scans(client, options, ts)] or [KeyPart(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KeyPart)
        if partition.part is not None:
            yield from partition.part.read()


class KeyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: KeyReadOptions) -> None:
        self._options = options
        self._client: ScanClient | None = None  # only where it is asked: what travels to executors has none
        self._end_ts: Ts | None = None  # of a stream that takes what there is now

    def initialOffset(self) -> Offset:
        start = self._options.starting_ts
        return {"ts": str(self._now() if start is None or isinstance(start, Now) else start)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        from_ts, to_ts = Ts(int(start["ts"])), self._end_ts or self._now()
        seconds = self._options.max_interval_seconds
        if seconds is not None:
            to_ts = Ts(min(to_ts, from_ts + (seconds * 1000 << LOGICAL_BITS)))
        return {"ts": str(max(from_ts, to_ts))}

    def prepareForTriggerAvailableNow(self) -> None:
        self._end_ts = self._ask.now()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        from_ts, to_ts = Ts(int(start["ts"])), Ts(int(end["ts"]))
        if from_ts >= to_ts:
            return []
        return [KeyPart(KeyChanges(scan, from_ts)) for scan in _scans(self._ask, self._options, to_ts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KeyPart)
        if partition.part is not None:
            yield from partition.part.read()

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _now(self) -> Ts:
        """Stores stamp keys of RawKV by clocks that may be behind; below this none is stamped any more."""
        return self._options.keys.before(self._ask.now())

    @property
    def _ask(self) -> ScanClient:
        if self._client is None:
            self._client = ScanClient(self._options.pd, self._options.security)
        return self._client
