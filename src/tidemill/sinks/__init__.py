"""Rows in, downstream out; and back: what is durable.

port         what every sink offers, and what it wants of those who feed it
registry     which sink a URI means: read_sink_uri, open_sink
files/ parquet/ lake/ mysql/ blackhole       the sinks, each with its options, its driver's half and its target
"""

from tidemill.config.sink_uri import differences, place_of, safe_uri
from tidemill.model.receipt import Receipt
from tidemill.sinks.port import Rescan, Sharing, Sink, SinkOptions, Traits
from tidemill.sinks.registry import open_sink, read_sink_uri

__all__ = [
    "Receipt",
    "Rescan",
    "Sharing",
    "Sink",
    "SinkOptions",
    "Traits",
    "differences",
    "open_sink",
    "place_of",
    "read_sink_uri",
    "safe_uri",
]
