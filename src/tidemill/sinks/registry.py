"""Which sink a URI means. The only place that knows all of them."""

from collections.abc import Callable, Mapping
from urllib.parse import quote, urlsplit

from tidemill.config.sink_uri import split_uri
from tidemill.flow.dispatcher import Dispatching
from tidemill.sinks import files, kafka, lake, mysql, tikv
from tidemill.sinks.port import SinkOptions

# The first whose schemes include the URI's, and which takes it, reads it. The last one names what is unknown.
_SINKS: tuple[tuple[Callable[[str], bool], Callable[[str], SinkOptions]], ...] = (
    (mysql.is_mysql_uri, mysql.parse_mysql_uri),
    (kafka.is_kafka_uri, kafka.parse_kafka_uri),
    (tikv.is_tikv_uri, tikv.parse_tikv_uri),
    (lake.is_lake_uri, lake.parse_lake_uri),
    (files.is_bucket_uri, files.parse_bucket_uri),
    (lambda uri: True, files.parse_sink_uri),
)


def read_sink_uri(
    uri: str, from_file: Mapping[str, str] | None = None, dispatching: Dispatching | None = None
) -> SinkOptions:
    """``from_file`` are parameters that hold where the URI says nothing; ``dispatching`` is for message queues. Raises
    SinkUriError, and ConfigError where ``dispatching`` makes no sense."""
    split_uri(uri)
    uri = _completed(uri, from_file or {})
    options = next(parse for takes, parse in _SINKS if takes(uri))(uri)
    if dispatching is not None and isinstance(options, kafka.KafkaOptions):
        return options.dispatched(dispatching)
    return options


def _completed(uri: str, from_file: Mapping[str, str]) -> str:
    """The URI with the file's parameters behind its own, except those that it gives itself."""
    try:
        given = {pair.partition("=")[0] for pair in urlsplit(uri).query.split("&")}
    except ValueError:
        return uri  # whoever reads it says what is wrong
    missing = "&".join(f"{name}={quote(text, safe='')}" for name, text in from_file.items() if name not in given)
    if not missing:
        return uri
    return uri + ("&" if "?" in uri else "?") + missing
