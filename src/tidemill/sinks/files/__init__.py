"""Files of messages in TiCDC's storage layout: in a folder, or in a bucket that speaks S3.

uri          what their URIs may say (and the blackhole's, which takes the same messages)
sink         the driver's half and the executor's: data files, index files, schema files, the checkpoint
generation   whose folder it is, and which generation may write
storage      the one port for both places: ``durable`` (folders), ``objects`` over ``bucket`` and ``s3`` (buckets)
layout, schema_file       where everything lies, and what the documents beside the data say
"""

from tidemill.sinks.files.sink import FileSink, FileTarget, write_files
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
    "FileSink",
    "FileTarget",
    "Scheme",
    "SinkConfig",
    "is_bucket_uri",
    "parse_bucket_uri",
    "parse_sink_uri",
    "write_files",
]
