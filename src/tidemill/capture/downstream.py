"""Where a changefeed writes, as its options say: the sink, its place in the state, and the zone of its times."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.capture.options import RunOptions
from tidemill.config.changefeed import sink_parameters
from tidemill.errors import ConfigError, UsageError
from tidemill.flow.dispatcher import Dispatching
from tidemill.flow.encoder import RawAvro, RawJson, RawJsonQueue
from tidemill.flow.filter import TableFilter
from tidemill.flow.pipeline import Pipeline
from tidemill.flow.rawkv import check_pattern, key_table
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.keys import KeyApi, overlap, shown
from tidemill.model.ts import Ts
from tidemill.sinks import SinkOptions, Traits, place_of, read_sink_uri
from tidemill.sinks.files import Scheme, SinkConfig
from tidemill.sinks.kafka import KafkaOptions
from tidemill.sinks.lake import LakeKind, LakeOptions
from tidemill.sinks.tikv import TikvOptions


@dataclass(frozen=True, slots=True)
class Downstream:
    """``place``: the sink's, without secrets, as a changefeed's state names it."""

    sink: SinkOptions
    place: str
    zone: str
    config: ChangefeedConfig

    @classmethod
    def of(cls, options: RunOptions) -> "Downstream":
        """Raises a ConfigError for what cannot be."""
        if options.config.force_replicate:
            raise ConfigError(
                "'force-replicate = true' is not supported: rows of tables without a key cannot be told apart, so a "
                "batch that comes again after a crash would be there twice. Give such tables a key, or take it out."
            )
        from_file = sink_parameters(options.config, options.sink_uri.partition("://")[0].lower())
        sink = read_sink_uri(options.sink_uri, from_file, Dispatching.of(options.config))
        check_fit(options, sink)
        return cls(sink, place_of(options.sink_uri, from_file), sink.traits.zone or options.zone, options.config)

    @property
    def traits(self) -> Traits:
        return self.sink.traits

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.zone, self.config, self.traits.splits_updates, self.traits.splits_large)


def check_fit(options: RunOptions, sink: SinkOptions) -> None:
    """Raises UsageError where the sink does not take what is captured, or it cannot be captured so."""
    keys = options.keys
    if keys is None:
        if isinstance(sink, TikvOptions) or _is_raw(sink):
            raise UsageError(
                f"{sink.safe_uri} takes keys and values of RawKV, and this changefeed captures tables. Run it by "
                "tidemill run with --start-key and --end-key (both empty: the whole keyspace), or choose another sink."
            )
        return
    if not (isinstance(sink, TikvOptions) or _is_raw(sink) or _is_parquet(sink) or _is_blackhole(sink)):
        raise UsageError(
            f"{sink.safe_uri} takes tables, and keys are captured. They go to tikv://pd-host:2379, to Kafka with "
            f"protocol={RawJson.name} or {RawAvro.name}, to files with protocol={RawJson.name} or parquet, or to "
            "blackhole://."
        )
    if keys.api is KeyApi.txn and isinstance(sink, TikvOptions):
        raise UsageError(
            f"{sink.safe_uri} takes keys of RawKV, and those of transactions are captured (--kv-api txn). They go to "
            "Kafka, to files or to blackhole://."
        )
    check_pattern(keys.filter.key_pattern, "key-pattern")
    check_pattern(keys.filter.value_pattern, "value-pattern")
    if options.config.event_filters or not TableFilter(options.config).captures(key_table(keys.api, "any", Ts(0))):
        raise UsageError(
            "the changefeed's file has filters, which are for tables, and keys of RawKV are captured. Take them out "
            "and choose keys by --start-key and --end-key."
        )


def check_overlaps(options: RunOptions, others: Sequence[RunOptions]) -> None:
    """Raises UsageError where another changefeed writes some of the same keys into the same TiKV: each would bring back
    what the other one has passed."""
    keys, sink = options.keys, _sink_of(options)
    if keys is None or not isinstance(sink, TikvOptions):
        return
    for other in others:
        try:
            theirs = _sink_of(other)
        except UsageError:  # a sink that this version cannot read: nobody here writes to it
            continue
        if other.keys is None or not isinstance(theirs, TikvOptions):
            continue
        is_one_place = set(sink.pd.split(",")) & set(theirs.pd.split(",")) and sink.keyspace == theirs.keyspace
        common = overlap(keys, other.keys)
        if is_one_place and common is not None:
            raise UsageError(
                f"changefeed {other.name!r} writes keys of {shown(*common)} (in hex) into {theirs.safe_uri} already. "
                "Two that write the same keys would bring older values back: choose ranges that do not overlap, or "
                "another target."
            )


def _sink_of(options: RunOptions) -> SinkOptions:
    return read_sink_uri(
        options.sink_uri, sink_parameters(options.config, options.sink_uri.partition("://")[0].lower())
    )


def _is_raw(sink: SinkOptions) -> bool:
    if isinstance(sink, KafkaOptions):
        return isinstance(sink.protocol, RawJsonQueue | RawAvro)
    return isinstance(sink, SinkConfig) and isinstance(sink.protocol, RawJson)


def _is_parquet(sink: SinkOptions) -> bool:
    return isinstance(sink, LakeOptions) and sink.kind is LakeKind.PARQUET


def _is_blackhole(sink: SinkOptions) -> bool:
    return isinstance(sink, SinkConfig) and sink.scheme is Scheme.BLACKHOLE and sink.protocol is None
