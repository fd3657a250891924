"""Where a changefeed writes, as its options say: the sink, its place in the state, and the zone of its times."""

from dataclasses import dataclass

from tidemill.capture.options import RunOptions
from tidemill.config.changefeed import sink_parameters
from tidemill.errors import ConfigError
from tidemill.flow.dispatcher import Dispatching
from tidemill.flow.pipeline import Pipeline
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.sinks import SinkOptions, Traits, place_of, read_sink_uri


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
        return cls(sink, place_of(options.sink_uri, from_file), sink.traits.zone or options.zone, options.config)

    @property
    def traits(self) -> Traits:
        return self.sink.traits

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.zone, self.config, self.traits.splits_updates, self.traits.splits_large)
