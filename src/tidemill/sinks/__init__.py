"""Rows in, downstream out; and back: what is durable.

port         what every sink offers, and what it wants of those who feed it
registry     which sink a URI means: read_sink_uri
files/ parquet/ lake/ mysql/ kafka/ tikv/ blackhole       the sinks, each with its options, both halves and its target
"""

from tidemill.config.sink_uri import differences, place_of, safe_uri
from tidemill.model.receipt import Receipt
from tidemill.sinks.port import OwnerSink, Rescan, Sharing, SinkOptions, SinkWriter, Traits
from tidemill.sinks.registry import read_sink_uri

__all__ = [
    "OwnerSink",
    "Receipt",
    "Rescan",
    "Sharing",
    "SinkOptions",
    "SinkWriter",
    "Traits",
    "differences",
    "place_of",
    "read_sink_uri",
    "safe_uri",
]
