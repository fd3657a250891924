"""Files of messages in TiCDC's storage layout: in a folder, or in a bucket that speaks S3.

uri          what their URIs may say (and the blackhole's, which takes the same messages)
sink         the owner's half and the writer's: index files and the checkpoint; data files by way of ``target``
place        what both do in the folder
target       the executor's half
generation   whose folder it is, and which generation may write
storage      the one port for both places: ``durable`` (folders), ``objects`` over ``bucket`` and ``s3`` (buckets)
layout, schema_file       where everything lies, and what the documents beside the data say
"""

from tidemill.sinks.files.sink import FileOwner, FileWriter
from tidemill.sinks.files.target import FileTarget, write_files
from tidemill.sinks.files.uri import (
    DateSeparator,
    Scheme,
    SinkConfig,
    is_bucket_uri,
    parse_bucket_uri,
    parse_sink_uri,
)

__all__ = [
    "DateSeparator",
    "FileOwner",
    "FileTarget",
    "FileWriter",
    "Scheme",
    "SinkConfig",
    "is_bucket_uri",
    "parse_bucket_uri",
    "parse_sink_uri",
    "write_files",
]
