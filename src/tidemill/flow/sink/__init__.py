"""Rows in, downstream out; and back: what is durable.

choice      which sink a URI means: read_sink_uri, open_sink (driver), write (executor)
place       what of a URI may be seen, and what of it says where the sink is
surface     what every sink offers to the driver
uri         the URIs of files and of the blackhole
files, blackhole, mysql/, lake/, parquet/       the sinks
"""

from tidemill.flow.sink.blackhole import BlackholeSink, BlackholeTarget, drop_messages
from tidemill.flow.sink.choice import (
    Sharing,
    SinkOptions,
    Target,
    Traits,
    answers,
    named,
    open_sink,
    read_sink_uri,
    traits,
    write,
)
from tidemill.flow.sink.files import FileSink, FileTarget, write_files
from tidemill.flow.sink.place import differences, place_of, safe_uri
from tidemill.flow.sink.receipt import Receipt
from tidemill.flow.sink.surface import Sink
from tidemill.flow.sink.uri import DateSeparator, Scheme, SinkConfig, parse_sink_uri

__all__ = [
    "BlackholeSink",
    "BlackholeTarget",
    "DateSeparator",
    "FileSink",
    "FileTarget",
    "Receipt",
    "Scheme",
    "Sharing",
    "Sink",
    "SinkConfig",
    "SinkOptions",
    "Target",
    "Traits",
    "answers",
    "differences",
    "drop_messages",
    "named",
    "open_sink",
    "parse_sink_uri",
    "place_of",
    "read_sink_uri",
    "safe_uri",
    "traits",
    "write",
    "write_files",
]
