"""Sink URIs: where changes go and in which form, read once into a config that cannot be wrong.

    blackhole://
    file:///data/out?protocol=canal-json&enable-tidb-extension=true&date-separator=day

Names, words and defaults are TiCDC's, with two exceptions. What TiCDC keeps in a changefeed's
configuration file (csv options, date separator, …) is a parameter here too. And ``flush-interval``
defaults to 0s, as fast as batches become durable: a batch is durable as soon as its files are, so
waiting gains nothing but fewer files; TiCDC's 5s buys just that. A parameter that we do not know,
or know and cannot honour, is refused: an option that silently does nothing is worse.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidemill.config.sink_uri import SHOWN, safe_uri, split_uri
from tidemill.config.values import boolean_of, number_from, seconds_of, sentence, unescaped, word_of
from tidemill.errors import SinkUriError, suggestion
from tidemill.flow.encoder import FOR_FILES, FOR_QUEUES, FileProtocol, Messages, RawJson, read_protocol
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.port import OwnerSink, Rescan, Sharing, SinkWriter, Traits

if TYPE_CHECKING:
    from tidemill.sinks.files.storage import StorageOptions


class Scheme(Enum):
    BLACKHOLE = "blackhole"
    FILE = "file"


class DateSeparator(Enum):
    NONE = "none"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """A checked sink URI. Small and picklable: it travels to executors."""

    scheme: Scheme
    path: str = ""  # of file: the absolute folder
    storage: "StorageOptions | None" = None  # a bucket in place of a folder
    protocol: FileProtocol | None = None  # None (blackhole only): rows are counted, not encoded
    terminator: bytes = b"\r\n"  # of messages
    flush_interval_seconds: float = 0.0  # at least so long between two batches
    file_size: int = 64 << 20  # bytes; a file is closed at the first transaction's end past it
    date_separator: DateSeparator = DateSeparator.DAY
    file_index_digits: int = 20
    output_raw_change_event: bool = False
    output_column_id: bool = False
    worker_count: int = 16  # at most so many tables are written at the same time
    changefeed: str = ""  # whose folder it is; see ``named``
    cluster_id: str = ""
    safe_uri: str = field(default="", compare=False)  # for logs and messages: no secrets

    @property
    def splits_updates(self) -> bool:
        """Whether an update that changes a key goes out as a delete and an insert."""
        return self.scheme is not Scheme.BLACKHOLE and not self.output_raw_change_event

    @property
    def extension(self) -> str:
        return self.protocol.extension if self.protocol else ""

    def header(self, table: TableInfo) -> bytes:
        """What opens each file."""
        return self.protocol.header(table, self.terminator) if self.protocol else b""

    @property
    def messages(self) -> Messages:
        return Messages(self.protocol, self.terminator)

    @property
    def traits(self) -> Traits:
        return Traits(
            self.flush_interval_seconds,
            self.worker_count,
            self.splits_updates,
            sharing=Sharing.ALWAYS if self.scheme is Scheme.BLACKHOLE else Sharing.NEVER,
            least_sharers=4,
        )

    def named(self, changefeed: str, cluster_id: int) -> "SinkConfig":
        return replace(self, changefeed=changefeed, cluster_id=str(cluster_id))

    def answers(self, seconds: float) -> bool:
        return True  # folders and buckets are not asked

    def open_owner(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> OwnerSink:
        from tidemill.sinks.blackhole import BlackholeOwner
        from tidemill.sinks.files.sink import FileOwner

        if self.scheme is Scheme.BLACKHOLE:
            return BlackholeOwner(state)
        return FileOwner(self, state, start_ts=start_ts, zone=zone, rescan=rescan, is_resumed=is_resumed)

    def open_writer(self, name: str, *, zone: tzinfo = UTC) -> SinkWriter:
        from tidemill.sinks.blackhole import BlackholeWriter
        from tidemill.sinks.files.sink import FileWriter

        return (
            BlackholeWriter(name, self.messages)
            if self.scheme is Scheme.BLACKHOLE
            else FileWriter(self, name, zone=zone)
        )


def parse_sink_uri(uri: str) -> SinkConfig:
    """Raises SinkUriError, which names what is wrong and never shows a secret of the URI."""
    parts = split_uri(uri)
    scheme = _scheme(parts.scheme, uri)
    given = _given(parts.query)
    own = {
        name: _read(name, given.pop(name), scheme) for name in list(given) if name in _PARAMETERS or name in _REFUSED
    }
    name = own.pop("protocol", None)
    path = ""
    if scheme is Scheme.FILE:
        path = _path(parts.netloc, parts.path)
        if name is None:
            choices = " or ".join(f"'protocol={each}'" for each in _OF_TABLES)
            for each in given:
                if alike := suggestion(each, ["protocol"]):
                    raise SinkUriError(f"sink URI parameter {each!r} is unknown.{alike}")
            raise SinkUriError(
                f"the sink URI of files needs a protocol. Add {choices} to its parameters, or 'protocol=parquet' for "
                "tables of a lake."
            )
    protocol = read_protocol(FOR_FILES, name, given, _PARAMETERS)
    fields = {_FIELDS[name]: value for name, value in own.items() if name in _FIELDS}
    return SinkConfig(scheme, path, protocol=protocol, **fields, safe_uri=safe_uri(uri))


def is_bucket_uri(uri: str) -> bool:
    return uri.partition("://")[0].lower() == "s3"


def parse_bucket_uri(uri: str) -> SinkConfig:
    """Files in a bucket are files: what is said of the storage is read by itself, the rest as of any folder."""
    from tidemill.sinks.files.storage import is_storage_parameter, parse_storage

    storage = parse_storage(uri)
    pairs = [pair for pair in urlsplit(uri).query.split("&") if not is_storage_parameter(pair.partition("=")[0])]
    config = parse_sink_uri(f"file:///{quote(storage.root)}?" + "&".join(pairs))
    return replace(config, path=storage.root, storage=storage, safe_uri=safe_uri(uri))


@dataclass(frozen=True, slots=True)
class ParameterHelp:
    """One parameter, for the reference page."""

    name: str
    default: str
    help: str
    protocols: tuple[str, ...]  # those that have it; all have what is the sink's own
    is_for_blackhole: bool = True


def known_parameters() -> list[ParameterHelp]:
    own = [ParameterHelp(name, p.default, p.help, (*FOR_FILES,), p.is_for_blackhole) for name, p in _PARAMETERS.items()]
    options = [
        ParameterHelp(name, option.default, option.help, (protocol,))
        for protocol, kind in FOR_FILES.items()
        for name, option in kind.options.items()
    ]
    return own[:1] + options + own[1:]


def refused_parameters() -> Mapping[str, str]:
    """Parameters of TiCDC that are not honoured, each with the reason."""
    return _REFUSED


# Reading a value. Each reader raises ValueError with what it wants.


def _clamped(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise ValueError("a whole number")
        return min(max(int(text), lowest), highest)

    return read


def _index_digits(text: str) -> int:
    digits = _clamped(-(10**9), 10**9)(text)
    return digits if 6 <= digits <= 20 else 20


_LONGEST_FLUSH_INTERVAL = 600.0


def _flush_interval(text: str) -> float:
    return min(seconds_of(text), _LONGEST_FLUSH_INTERVAL)


def _word(kind: type[Enum]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        words = [str(member.value) for member in kind]
        if text.lower() in words:
            return kind(text.lower())
        wanted = ", ".join(words[:-1]) + " or " + words[-1]
        raise ValueError(f"{wanted}.{suggestion(text.lower(), words)}")

    return read


_OTHER_PROTOCOLS = (*FOR_QUEUES, "default", "canal", "avro", "flat-avro", "maxwell", "craft", "debezium", "simple")


_OF_TABLES = tuple(name for name in FOR_FILES if name != RawJson.name)  # which people who write tables choose from


def _protocol(text: str) -> str:
    if text.lower() in _OTHER_PROTOCOLS and text.lower() not in FOR_FILES:
        raise ValueError(f"{' or '.join(_OF_TABLES)}: TiCDC's other protocols are for message queues")
    return text.lower() if text.lower() == RawJson.name else word_of(*_OF_TABLES)(text)


def _terminator(text: str) -> bytes:
    if not text:
        raise ValueError("the end of a line, such as %0D%0A or \\n")
    return unescaped(text).encode()


def _always(wanted: bool, why: str) -> Callable[[str], bool]:
    def read(text: str) -> bool:
        if boolean_of(text) is not wanted:
            raise ValueError(f"{str(wanted).lower()}: {why}")
        return wanted

    return read


def _atomicity(text: str) -> str:
    # Both hold: a table's transaction is never cut into two files.
    if text not in ("none", "table"):
        raise ValueError("none or table")
    return text


@dataclass(frozen=True, slots=True)
class _Parameter:
    """``default`` and ``help`` are for people: the reference page is made of them."""

    read: Callable[[str], Any]
    default: str
    help: str
    is_for_blackhole: bool = True


_PARAMETERS: Mapping[str, _Parameter] = {
    "protocol": _Parameter(
        _protocol,
        "",
        "The form of messages: `canal-json` or `csv`; `rawkv-json` for keys of RawKV. Files need one. "
        "With `parquet` they are [tables of a lake](../how-to/write-to-a-lake.md).",
    ),
    "terminator": _Parameter(_terminator, "`\\r\\n`", "What ends a message in a file."),
    "flush-interval": _Parameter(
        _flush_interval, "0s", "Minimum time between batches, up to 10m. Longer: fewer and larger files."
    ),
    "file-size": _Parameter(
        _clamped(1 << 10, 512 << 20),
        "67108864",
        "Bytes after which a file is closed, at the end of a transaction; from 1 KiB to 512 MiB.",
        is_for_blackhole=False,
    ),
    "date-separator": _Parameter(
        _word(DateSeparator),
        "day",
        "Folders by the date of the batch: `none`, `year`, `month` or `day`.",
        is_for_blackhole=False,
    ),
    "enable-partition-separator": _Parameter(
        _always(True, "rows of several partitions would stand in one folder out of commit order"),
        "true",
        "Each table partition has a folder of its own. Only `true` is possible.",
        is_for_blackhole=False,
    ),
    "file-index-digit": _Parameter(
        _index_digits, "20", "Digits of the number in a file's name, 6 to 20.", is_for_blackhole=False
    ),
    "output-raw-change-event": _Parameter(
        boolean_of,
        "false",
        "An update that changes a key stays one message. Otherwise it becomes a delete and an insert.",
        is_for_blackhole=False,
    ),
    "output-column-id": _Parameter(
        boolean_of, "false", "Schema files carry the ids of columns.", is_for_blackhole=False
    ),
    "worker-count": _Parameter(
        number_from(1, most=512), "16", "How many tables are written at the same time, at most."
    ),
    "transaction-atomicity": _Parameter(
        _atomicity, "table", "`none` or `table`; a table's transaction is never cut into two files either way."
    ),
}

# The fields of SinkConfig that parameters set; what is not here can have one value only.
_FIELDS: Mapping[str, str] = {
    "terminator": "terminator",
    "flush-interval": "flush_interval_seconds",
    "file-size": "file_size",
    "date-separator": "date_separator",
    "file-index-digit": "file_index_digits",
    "output-raw-change-event": "output_raw_change_event",
    "output-column-id": "output_column_id",
    "worker-count": "worker_count",
}

_REFUSED: Mapping[str, str] = {
    "flush-concurrency": "a file is written in one piece",
    "file-expiration-days": "files are kept until you delete them",
    "file-cleanup-cron-spec": "files are kept until you delete them",
    "output-handle-key": "csv records have no such column",
    "use-table-id-as-path": "folders carry the table's name",
    "spool-disk-quota": "batches are kept in the changefeed's own data folder",
    "spool-base-dir": "batches are kept in the changefeed's own data folder",
    "max-message-bytes": "it is for message queues",
    "max-batch-size": "it is for message queues",
    "large-message-handle-option": "it is for message queues",
    "partition-num": "it is for message queues",
    "compression": "files are written as they are",
}

_OTHER_SCHEMES = (
    "pulsar", "pulsar+ssl", "gcs", "gs", "azblob", "azure",
)  # fmt: skip

# Schemes whose URIs others of this package read.
_ELSEWHERE = (
    "kafka",
    "kafka+ssl",
    "mysql",
    "mysql+ssl",
    "tidb",
    "tidb+ssl",
    "s3",
    "iceberg",
    "iceberg+s3",
    "delta",
    "delta+s3",
    "tikv",
)
_EXAMPLES = (
    "Write mysql://user@host:3306/, file:///folder?protocol=canal-json, s3://bucket/prefix?protocol=csv, "
    "kafka://host:9092/topic?protocol=open-protocol, iceberg:///warehouse, delta:///lake, tikv://pd:2379, or blackhole://."
)


def _scheme(text: str, uri: str) -> Scheme:
    known = [scheme.value for scheme in Scheme]
    if text.lower() in known:
        return Scheme(text.lower())
    if text.lower() in _OTHER_SCHEMES:
        raise SinkUriError(f"sinks of scheme {text!r} are not supported. {_EXAMPLES}")
    if not text:
        raise SinkUriError(f"the sink URI {safe_uri(uri)} has no scheme. {_EXAMPLES}")
    raise SinkUriError(
        f"unknown scheme {text!r} in the sink URI.{suggestion(text.lower(), [*known, *_ELSEWHERE])} {_EXAMPLES}"
    )


def _given(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise SinkUriError(f"sink URI parameter {name!r} is given twice. Keep one of them.")
        given[name] = text
    return given


def _read(name: str, text: str, scheme: Scheme) -> Any:
    if name in _REFUSED:
        raise SinkUriError(f"sink URI parameter {name!r} is not supported: {_REFUSED[name]}. Take it out.")
    parameter = _PARAMETERS[name]
    if scheme is Scheme.BLACKHOLE and not parameter.is_for_blackhole:
        raise SinkUriError(
            f"sink URI parameter {name!r} means nothing to a blackhole, which writes no files. Take it out."
        )
    try:
        return parameter.read(text)
    except ValueError as wanted:
        shown = repr(text) if name in SHOWN else "this value"
        raise SinkUriError(f"sink URI parameter {name!r} is {shown}; it must be {sentence(wanted)}") from None


def _path(host: str, path: str) -> str:
    if host not in ("", "localhost"):
        raise SinkUriError(
            f"the sink URI of files names {host!r} where a host would stand. Give an absolute folder: file:///folder/…"
        )
    path = unquote(path)
    if not path.strip("/") or "\0" in path:
        raise SinkUriError("the sink URI of files names no folder. Give an absolute one: file:///folder/…")
    return "/" + path.strip("/")
