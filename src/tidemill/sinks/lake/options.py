"""URIs of lakes, read once into options that cannot be wrong.

iceberg:///data/warehouse?namespace=prod           delta:///data/lake
iceberg+s3://bucket/prefix?catalog=http://…        delta+s3://bucket/prefix?endpoint=http://…
file:///data/out?protocol=parquet                  s3://bucket/prefix?protocol=parquet
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from tidemill.config.sink_uri import safe_uri, split_uri
from tidemill.config.values import number_from, seconds_of, sentence, word_of
from tidemill.errors import SinkUriError, suggestion
from tidemill.model.ts import Ts
from tidemill.sinks.files.storage import StorageOptions, is_storage_parameter, parse_storage
from tidemill.sinks.files.uri import DateSeparator
from tidemill.sinks.port import OwnerSink, Rescan, Sharing, SinkWriter, Traits

if TYPE_CHECKING:
    from tidemill.sinks.lake.backend import OpenBackend

CHECKPOINT: Final = "_tidemill/checkpoint.json"


class LakeKind(Enum):
    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"


@dataclass(frozen=True)
class LakeOptions:
    """A checked URI of a lake. Small and picklable."""

    kind: LakeKind
    storage: StorageOptions
    changefeed: str = ""  # under which the tables' own transactions know us; see ``named``
    changefeed_id: str = ""  # of its state: the same unless the sink URI gives it a name
    cluster_id: str = ""
    namespace: tuple[str, ...] = ()  # of Iceberg: above the schemas' own
    catalog: str = field(default="", repr=False)  # of Iceberg; empty: SQLite in the warehouse. May hold a password
    flush_interval_seconds: float = 5.0  # each batch is a commit and its files; fewer are cheaper to read
    file_size: int = 128 << 20
    row_group_rows: int = 1 << 18
    compression: str = "zstd"
    keep_snapshots: int = 100  # of Iceberg: at least so many a table
    date_separator: DateSeparator = DateSeparator.NONE  # of Parquet: folders by date
    worker_count: int = 16
    safe_uri: str = field(default="", compare=False)

    @property
    def traits(self) -> Traits:
        return Traits(
            self.flush_interval_seconds,
            self.worker_count,
            keeps_partitions=True,
            zone="UTC",
            copies_at_once=True,
            sharing=Sharing.ALWAYS,
        )

    def named(self, changefeed: str, cluster_id: int) -> "LakeOptions":
        name = self.changefeed or changefeed  # the sink URI may have one
        return replace(self, changefeed=name, changefeed_id=changefeed, cluster_id=str(cluster_id))

    def answers(self, seconds: float) -> bool:
        return True  # folders, buckets and catalogs are not asked

    def open_owner(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> OwnerSink:
        from tidemill.sinks.lake.sink import LakeOwner

        return LakeOwner(self, state, self.backend(zone), start_ts=start_ts, rescan=rescan, is_resumed=is_resumed)

    def open_writer(self, name: str, *, zone: tzinfo = UTC) -> SinkWriter:
        from tidemill.sinks.lake.sink import LakeWriter

        return LakeWriter(self, name, self.backend(zone))

    def backend(self, zone: tzinfo = UTC) -> "OpenBackend":
        """What knows the format. ``zone``: in which a ts has its date. Each brings a library of its own, which nobody
        else should have to wait for."""
        match self.kind:
            case LakeKind.ICEBERG:
                from tidemill.sinks.lake.iceberg import Iceberg

                return partial(Iceberg, self)
            case LakeKind.DELTA:
                from tidemill.sinks.lake.delta import Delta

                return partial(Delta, self)
            case LakeKind.PARQUET:
                from tidemill.sinks.parquet import ParquetLayout

                return partial(ParquetLayout, self, zone)


def is_lake_uri(uri: str) -> bool:
    """Whether ``parse_lake_uri`` is the one to read it."""
    scheme, _, rest = uri.partition("://")
    if scheme.lower() in _SCHEMES:
        return True
    given = dict(parse_qsl(uri.partition("?")[2].partition("#")[0]))
    return scheme.lower() in ("file", "s3") and given.get("protocol", "").lower() == "parquet" and bool(rest)


def parse_lake_uri(uri: str) -> LakeOptions:
    """Raises SinkUriError, which names what is wrong and never shows a secret of the URI."""
    parts = split_uri(uri)
    scheme = parts.scheme.lower()
    kind = _SCHEMES.get(scheme, LakeKind.PARQUET if is_lake_uri(uri) else None)
    if kind is None:
        raise SinkUriError(
            f"the sink URI {safe_uri(uri)} is no lake. Write iceberg:///folder, delta:///folder, or "
            "file:///folder?protocol=parquet; with iceberg+s3://, delta+s3:// and s3:// for buckets."
        )
    values: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name in values:
            raise SinkUriError(f"sink URI parameter {name!r} is given twice. Keep one of them.")
        if not is_storage_parameter(name) and not (name == "protocol" and kind is LakeKind.PARQUET):
            values[name] = _read(name, text, kind)
    storage = parse_storage(uri)
    if kind is LakeKind.ICEBERG and storage.is_s3 and "catalog" not in values:
        raise SinkUriError(
            "an Iceberg warehouse in a bucket needs a catalog. Add 'catalog=' with the URI of a REST catalog "
            "(http://…) or of a database (postgresql+psycopg2://…, sqlite:////folder/catalog.db)."
        )
    given = {_FIELDS[name]: value for name, value in values.items()}
    return replace(LakeOptions(kind, storage, **given), safe_uri=safe_uri(uri))


_SCHEMES = {
    "iceberg": LakeKind.ICEBERG,
    "iceberg+s3": LakeKind.ICEBERG,
    "delta": LakeKind.DELTA,
    "delta+s3": LakeKind.DELTA,
}
_FIELDS = {
    "changefeed": "changefeed",
    "namespace": "namespace",
    "catalog": "catalog",
    "flush-interval": "flush_interval_seconds",
    "file-size": "file_size",
    "compression": "compression",
    "keep-snapshots": "keep_snapshots",
    "date-separator": "date_separator",
    "worker-count": "worker_count",
}
_ONLY = {
    "namespace": LakeKind.ICEBERG,
    "catalog": LakeKind.ICEBERG,
    "keep-snapshots": LakeKind.ICEBERG,
    "date-separator": LakeKind.PARQUET,
}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _flush_interval(text: str) -> float:
    seconds = seconds_of(text)
    if seconds > 600:
        raise ValueError("at most 10m")
    return seconds


def _size(text: str) -> int:
    if not _is_number(text) or not 1 << 10 <= int(text) <= 1 << 30:
        raise ValueError("a number of bytes from 1024 to 1073741824")
    return int(text)


def _count(text: str) -> int:
    if not _is_number(text) or not 1 <= int(text) <= 10_000:
        raise ValueError("a number from 1 to 10000")
    return int(text)


def _filled(text: str) -> str:
    if not text:
        raise ValueError("not empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split("."))
    if not all(names):
        raise ValueError("names with a dot between them")
    return names


def _catalog(text: str) -> str:
    try:
        is_uri = bool(urlsplit(_filled(text)).scheme)
    except ValueError:
        is_uri = False
    if not is_uri:
        raise ValueError("the URI of a catalog, such as http://host:8181 or sqlite:////folder/catalog.db")
    return text


_READERS: dict[str, Callable[[str], Any]] = {
    "changefeed": _filled,
    "namespace": _names,
    "catalog": _catalog,
    "flush-interval": _flush_interval,
    "file-size": _size,
    "compression": word_of("zstd", "snappy", "gzip", "lz4", "none"),
    "keep-snapshots": _count,
    "date-separator": lambda text: DateSeparator(word_of("none", "year", "month", "day")(text)),
    "worker-count": number_from(1, most=512),
}


def _read(name: str, text: str, kind: LakeKind) -> Any:
    if name not in _READERS:
        hint = suggestion(name, _READERS) or f" Known are {', '.join(sorted(_READERS))}."
        raise SinkUriError(f"unknown sink URI parameter {name!r}.{hint}")
    if _ONLY.get(name, kind) is not kind:
        raise SinkUriError(f"sink URI parameter {name!r} is for {_ONLY[name].value} only. Take it out.")
    try:
        return _READERS[name](text)
    except ValueError as wanted:
        shown = "this value" if name == "catalog" else repr(text)
        raise SinkUriError(f"sink URI parameter {name!r} is {shown}; it must be {sentence(wanted)}") from None
