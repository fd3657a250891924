"""Which sink a URI means, and what each kind wants of those who feed it. The only place that knows all of them.

read_sink_uri(uri) ─► SinkOptions ─► open_sink ─► Sink                                  (driver)
                           │            │ target, one a unit of a batch
                        traits          ▼
                              write(target, rows, encode) ─► Receipt                    (executor)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from tidemill.errors import InvariantError
from tidemill.flow.encoder import Encoded
from tidemill.flow.sink import lake, mysql
from tidemill.flow.sink.blackhole import BlackholeSink, BlackholeTarget, drop_messages
from tidemill.flow.sink.files import FileSink, FileTarget, write_files
from tidemill.flow.sink.mysql.uri import SCHEMES as MYSQL_SCHEMES
from tidemill.flow.sink.place import safe_uri, split_uri
from tidemill.flow.sink.receipt import Receipt
from tidemill.flow.sink.storage import is_storage_parameter, parse_storage
from tidemill.flow.sink.surface import Rescan, Sink
from tidemill.flow.sink.uri import Scheme, SinkConfig, parse_sink_uri
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

SinkOptions: TypeAlias = SinkConfig | mysql.MysqlOptions | lake.LakeOptions
Encode: TypeAlias = Callable[[Iterator[RowBatch]], Iterator[Encoded]]
Target: TypeAlias = FileTarget | BlackholeTarget | mysql.MysqlTarget | lake.LakeTarget


class Sharing(Enum):
    """Whether the changes of a table in a batch may come in several units, each those of a range of row keys."""

    NEVER = "a table's changes have one order, which readers go by"
    ONE_KEY = "only where rows of different keys cannot stand in each other's way"
    ALWAYS = "readers go by commit-ts"

    def allows(self, table: TableInfo) -> bool:
        if self is Sharing.ONE_KEY:
            is_row_key = table.pk_is_handle or table.is_common_handle
            return is_row_key and all(index.is_primary for index in table.indexes if index.is_unique)
        return self is Sharing.ALWAYS


@dataclass(frozen=True, slots=True)
class Traits:
    """What a sink wants of those who feed it."""

    flush_interval_seconds: float = 0.0  # at least so long between the starts of two batches
    most_tasks: int = 16
    splits_updates: bool = False  # an update that changes a key is to come as a delete and an insert
    splits_large: bool = False  # in large transactions it is, which come in pieces, deletes first
    joins_partitions: bool = False  # the table partitions of a table are to come as one unit
    keeps_partitions: bool = False  # rows belong to a table partition by its id, not by their values
    zone: str | None = None  # of TIMESTAMP values; None: as the changefeed says
    needs_tables: bool = False  # before an initial copy
    copies_by_region: bool = False  # an initial copy may come in many units a table, at the same time
    copies_at_once: bool = False  # an initial copy of a table has to come in one unit
    sharing: Sharing = Sharing.NEVER
    least_sharers: int = 2  # tasks; each share reads all, so where reading is much of the work, few gain nothing

    def sharing_among(self, tasks: int) -> Sharing:
        return self.sharing if tasks >= self.least_sharers else Sharing.NEVER


def answers(options: SinkOptions, seconds: float) -> bool:
    """Whether the downstream answers, as far as can be told in so many seconds. From any thread; may block as long."""
    match options:
        case mysql.MysqlOptions():
            return mysql.answers(options, seconds)
    return True  # folders and buckets are not asked


def read_sink_uri(uri: str, from_file: Mapping[str, str] | None = None) -> SinkOptions:
    """``from_file`` are parameters that hold where the URI says nothing. Raises SinkUriError."""
    split_uri(uri)
    uri = _completed(uri, from_file or {})
    if uri.partition("://")[0].lower() in MYSQL_SCHEMES:
        return mysql.parse_mysql_uri(uri)
    if lake.is_lake_uri(uri):
        return lake.parse_lake_uri(uri)
    if uri.partition("://")[0].lower() == "s3":
        return _bucket(uri)
    return parse_sink_uri(uri)


def named(options: SinkOptions, changefeed: str, cluster_id: int) -> SinkOptions:
    """With the names by which a downstream tells changefeeds apart: another one's target is refused."""
    if isinstance(options, lake.LakeOptions):
        name = options.changefeed or changefeed  # the sink URI may have one
        return replace(options, changefeed=name, changefeed_id=changefeed, cluster_id=str(cluster_id))
    if isinstance(options, mysql.MysqlOptions | SinkConfig):
        return replace(options, changefeed=changefeed, cluster_id=str(cluster_id))
    return options


def traits(options: SinkOptions) -> Traits:
    match options:
        case mysql.MysqlOptions():
            return Traits(
                most_tasks=options.worker_count,
                splits_large=True,
                joins_partitions=True,
                needs_tables=True,
                copies_by_region=True,
                sharing=Sharing.NEVER if options.is_atomic else Sharing.ONE_KEY,
            )
        case lake.LakeOptions():
            flush_interval = options.flush_interval_seconds
            return Traits(
                flush_interval,
                options.worker_count,
                keeps_partitions=True,
                zone="UTC",
                copies_at_once=True,
                sharing=Sharing.ALWAYS,
            )
        case SinkConfig():
            return Traits(
                options.flush_interval_seconds,
                options.worker_count,
                options.splits_updates,
                sharing=Sharing.ALWAYS if options.scheme is Scheme.BLACKHOLE else Sharing.NEVER,
                least_sharers=4,
            )


def open_sink(
    options: SinkOptions,
    state: Mapping[str, Any] | None,
    *,
    start_ts: Ts | None = None,
    zone: tzinfo = UTC,
    rescan: Rescan | None = None,
    written_ts: Ts | None = None,
) -> Sink:
    """Runs on the driver. ``state`` is what the sink's ``commit`` returned last; None for a new changefeed.
    ``rescan`` reads a table anew where a DDL has changed rows, or brought them back, unseen. ``written_ts`` is the
    last commit-ts of which an earlier run may have written changes; None if there was none: then the sink's place
    must be empty, or end exactly at ``start_ts``."""
    match options:
        case mysql.MysqlOptions():
            return mysql.MysqlSink(options, state, start_ts=start_ts, zone=zone, rescan=rescan, written_ts=written_ts)
        case lake.LakeOptions():
            return _open_lake(
                options, state, start_ts=start_ts, zone=zone, rescan=rescan, is_resumed=written_ts is not None
            )
        case SinkConfig(scheme=Scheme.FILE):
            return FileSink(
                options,
                state,
                start_ts=start_ts,
                zone=zone,
                storage=options.storage,
                rescan=rescan,
                is_resumed=written_ts is not None,
            )
        case SinkConfig(scheme=Scheme.BLACKHOLE):
            return BlackholeSink(state)
    raise InvariantError(f"no sink for {options.safe_uri}")


def share_of(target: Target, number: int) -> Target:
    """Where the ``number``-th of several units goes that share a table."""
    return replace(target, share=number) if isinstance(target, lake.LakeTarget) else target


def write(target: Target, rows: Iterator[RowBatch | LargeRows], encode: Encode) -> Receipt:
    """Runs on executors: make all rows of a unit durable. ``encode`` turns them into messages, where those go out."""
    match target:
        case FileTarget():
            return write_files(target, encode(flat(rows)))
        case BlackholeTarget():
            return drop_messages(target, encode(flat(rows)))
        case mysql.MysqlTarget():
            return mysql.write_rows(target, rows)
        case lake.LakeTarget():
            return lake.write_rows(target, flat(rows))


def _open_lake(options: lake.LakeOptions, state: Mapping[str, Any] | None, **more: Any) -> Sink:
    # Each brings a library of its own, which nobody else should have to wait for.
    match options.kind:
        case lake.LakeKind.ICEBERG:
            from tidemill.flow.sink.lake.iceberg import IcebergSink

            return IcebergSink(options, state, **more)
        case lake.LakeKind.DELTA:
            from tidemill.flow.sink.lake.delta import DeltaSink

            return DeltaSink(options, state, **more)
        case lake.LakeKind.PARQUET:
            from tidemill.flow.sink.parquet import ParquetSink

            return ParquetSink(options, state, **more)


def _bucket(uri: str) -> SinkConfig:
    """Files in a bucket are files: what is said of the storage is read by itself, the rest as of any folder."""
    storage = parse_storage(uri)
    pairs = [pair for pair in urlsplit(uri).query.split("&") if not is_storage_parameter(pair.partition("=")[0])]
    config = parse_sink_uri(f"file:///{quote(storage.root)}?" + "&".join(pairs))
    return replace(config, path=storage.root, storage=storage, safe_uri=safe_uri(uri))


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
