"""What of a changefeed can be checked without its cluster: its name, sink URI and config, each and together."""

import re
from collections.abc import Mapping
from typing import Any

from tidemill.config.changefeed import read_config, sink_parameters
from tidemill.config.replica import document_of
from tidemill.errors import ConfigError, UsageError
from tidemill.flow.dispatcher import Dispatching
from tidemill.flow.encoder import protocol_keys
from tidemill.flow.filter import check_filters
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.cluster import Document
from tidemill.model.schedule import CaptureId, ChangefeedKey
from tidemill.sinks import read_sink_uri

_NAME = re.compile("[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_LONGEST_NAME = 128
_CONFIG = "replica_config"


def key_of(namespace: str, changefeed_id: str) -> ChangefeedKey:
    return ChangefeedKey(checked_name(namespace, "namespace"), checked_name(changefeed_id, "changefeed_id"))


def capture_id_of(text: str) -> CaptureId:
    return CaptureId(checked_name(text, "capture_id"))


def checked_name(text: str, what: str) -> str:
    if len(text) > _LONGEST_NAME or not _NAME.fullmatch(text):
        shown = text if len(text) <= _LONGEST_NAME else f"{text[:30]}…"
        raise UsageError(
            f"{what} {shown!r} is not a name. Use letters and digits, with hyphens between them, "
            f"{_LONGEST_NAME} characters at most."
        )
    return text


def checked_config(config: Mapping[str, Any] | None) -> tuple[Document, ChangefeedConfig]:
    """The document of a client's ``replica_config``, and what it means."""
    document = document_of(config or {})
    read = read_config(document, _CONFIG, protocol_keys())
    check_filters(read)
    return document, read


def check_sink(sink_uri: str, config: ChangefeedConfig) -> None:
    """Whether there is such a sink, and the config says nothing that it cannot do."""
    if config.force_replicate:
        raise ConfigError(
            f"{_CONFIG}: 'force-replicate' is not supported as true: rows of tables without a key cannot be told "
            "apart, so a batch that comes again after a crash would be there twice. Give such tables a key, or take "
            "it out."
        )
    from_file = sink_parameters(config, sink_uri.partition("://")[0].lower())
    read_sink_uri(sink_uri, from_file, Dispatching.of(config))
