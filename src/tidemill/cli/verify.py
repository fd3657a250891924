"""``tidemill verify``: whether the downstream is what the upstream is at a ts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer

from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.running import end_spark
from tidemill.cli import stopping
from tidemill.cli.keys import EndKey, Format, KeyspaceName, StartKey, keys_of
from tidemill.cli.options import (
    SINK_URI_VARIABLE,
    Ca,
    Cert,
    KeyFile,
    Output,
    SparkConf,
    SparkMaster,
    config_of,
    configure_log,
    parse_seconds,
    parse_ts,
    security_of,
    sink_uri_of,
    spark_conf_of,
    spark_master_of,
    zone_of,
)
from tidemill.config.changefeed import sink_parameters
from tidemill.config.sink_uri import loopbacks, place_of
from tidemill.errors import DataDirError, UsageError
from tidemill.flow.encoder import RawJson
from tidemill.flow.filter import TableFilter
from tidemill.model.keys import KeyApi, KeyRange
from tidemill.model.keytext import KeyFormat
from tidemill.model.ts import Ts, show
from tidemill.sinks import SinkOptions, read_sink_uri
from tidemill.sinks.files import Scheme, SinkConfig
from tidemill.sinks.lake import LakeOptions
from tidemill.sinks.mysql import MysqlOptions
from tidemill.sinks.tikv import TikvOptions
from tidemill.source.scan import ScanClient
from tidemill.verify import (
    Check,
    CheckOptions,
    MysqlDownstream,
    MysqlSide,
    Report,
    Side,
    chosen_tables,
    read_name,
)
from tidemill.verify.files import FileSide
from tidemill.verify.lake import LakeSide
from tidemill.verify.rawkv import Cluster, KeyReport, compare_keys


def verify(
    pd: Annotated[str, typer.Option("--pd", help="PD's addresses, comma separated: 127.0.0.1:2379.")],
    sink_uri: Annotated[
        str,
        typer.Option(
            "--sink-uri",
            help="The downstream, as it was given to tidemill run. @FILE reads it from a file.",
            envvar=SINK_URI_VARIABLE,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", help="The moment at which both are compared: a time, a TSO, or -15m. Default: the checkpoint."
        ),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table, as in shop.item; may be given again.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The changefeed's TOML file: its filters say which tables.")
    ] = None,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_format: Format = KeyFormat.hex,
    keyspace: KeyspaceName = None,
    wait: Annotated[
        str, typer.Option("--wait", help="RawKV: how long ranges that differ are compared again, such as 10s.")
    ] = "10s",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The changefeed's folder, where its checkpoint is found.")
    ] = None,
    ca: Ca = "",
    cert: Cert = "",
    key: KeyFile = "",
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    time_zone: Annotated[
        str, typer.Option("--time-zone", help="The zone of TIMESTAMP values in files, as given to tidemill run.")
    ] = "UTC",
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, max=10_000, help="Show at most this many differing rows per table.")
    ] = 100,
    output: Annotated[Output, typer.Option("--output", help="How to print what was found.")] = Output.text,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Compare the downstream with the upstream at a ts, while both are written to.

    Prints the rows that differ, and for MySQL the SQL that would fix them. Ends with 0 where all is equal, with 1
    where something differs, with 2 where it was asked for something impossible.

    Keys of RawKV are compared as they are now, by the checksums of their stores.

    Example: tidemill verify --pd 127.0.0.1:2379 --sink-uri mysql://root@127.0.0.1:3306/ --data-dir tidemill-data
    """
    configure_log(log_level)
    settings = config_of(config)
    sink_uri = sink_uri_of(sink_uri)
    security = security_of(ca, cert, key, settings)
    options = read_sink_uri(
        sink_uri, sink_parameters(settings, sink_uri.partition("://")[0].lower()) if config is not None else None
    )
    keys = keys_of(sink_uri, start_key, end_key, key_format, keyspace, from_file=settings.keys)
    if keys is not None:
        _refuse_for_keys({"--at": at, "--table": table, "--data-dir": data_dir})
        _verify_keys(Cluster(pd, security), options, keys, parse_seconds(wait), output)
        return
    names = [read_name(text) for text in table or ()]
    progress = DataDirProgress.open(data_dir) if data_dir is not None else None
    side, ts = _chosen(options, parse_ts(at, "--at"), progress, zone_of(time_zone))
    zone = zone_of(time_zone) if isinstance(options, SinkConfig) else "UTC"
    given = CheckOptions(pd, zone=zone, most_rows=max_rows, config=settings)
    master, conf = spark_master_of(spark_master), spark_conf_of(spark_conf)
    with stopping.current().on_abandon(end_spark), ScanClient(pd, security) as client:
        chosen = chosen_tables(client, ts, names, TableFilter(settings))
        if not chosen.tables:
            raise UsageError(f"there is no table to check at {show(ts)}. Check filter.rules, or name one by --table.")
        from tidemill.spark.session import borrow_session
        from tidemill.spark.verify_job import runner

        lease = borrow_session(master, conf=conf)
        try:
            live = progress if at is None else None
            run = runner(lease.session(), loopbacks(place_of(sink_uri), pd))
            report = Check(client, side, run, given, live).check(chosen.tables, ts)
            report.left_out = chosen.left_out
        finally:
            lease.release()
    _print(report, output)
    if not report.is_equal:
        raise typer.Exit(1)


def _refuse_for_keys(given: dict[str, object]) -> None:
    for option, value in given.items():
        if value:
            raise UsageError(
                f"{option} is for tables, and keys of RawKV are compared as they are now: they cannot be read as of a "
                "ts. Take it out."
            )


def _verify_keys(source: Cluster, options: SinkOptions, keys: KeyRange, wait_seconds: float, output: Output) -> None:
    if not isinstance(options, TikvOptions):
        raise UsageError(
            f"keys of RawKV are compared with those of another TiKV, and {options.safe_uri} is none. Give tikv://pd:2379."
        )
    if keys.api is KeyApi.txn:
        raise UsageError("keys of transactions cannot be compared by checksums of stores. Compare those of RawKV.")
    target = Cluster(options.pd, options.security)
    report = compare_keys(source, target, keys, options.keyspace, wait_seconds)
    _print(report, output)
    if not report.is_equal:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class DataDirProgress:
    """The changefeed's, as its folder tells it."""

    folder: DataDir

    @classmethod
    def open(cls, path: Path) -> "DataDirProgress":
        folder = DataDir(path)
        if folder.load() is None:
            raise UsageError(
                f"data-dir {path} holds no changefeed. Give the --data-dir of tidemill run, or the ts by --at."
            )
        return cls(folder)

    def checkpoint_ts(self) -> Ts:
        return self._state().checkpoint_ts

    def changefeed_id(self) -> str:
        return self._state().changefeed_id or self.folder.former_name

    def _state(self) -> ChangefeedState:
        state = self.folder.load()
        assert isinstance(state, ChangefeedState)
        return state

    def is_running(self) -> bool:
        """Whether somebody holds the folder. Looking takes the lock for a moment."""
        probe = DataDir(self.folder.path)
        try:
            probe.acquire()
        except DataDirError:
            return True
        probe.release()
        return False


def _chosen(options: SinkOptions, at: Ts | None, progress: DataDirProgress | None, zone: str) -> tuple[Side, Ts]:
    """The downstream, and the ts at which it is compared."""
    match options:
        case MysqlOptions():
            return _mysql(MysqlDownstream(options), at, progress)
        case LakeOptions():
            lake = LakeSide(options)
            return lake, _complete(at, lake.checkpoint_ts)
        case SinkConfig(protocol=RawJson()):
            raise UsageError(
                f"files of {RawJson.name} cannot be compared: they hold changes of keys, and what was there before a "
                "changefeed began is not among them. Compare with another TiKV."
            )
        case SinkConfig(scheme=Scheme.FILE):
            files = FileSide(options, zone)
            return files, files.at(_complete(at, files.checkpoint_ts))
    raise UsageError(
        f"there is nothing to check at {options.safe_uri}: what went there is not kept. Give a MySQL, a lake or files."
    )


def _mysql(downstream: MysqlDownstream, at: Ts | None, progress: DataDirProgress | None) -> tuple[Side, Ts]:
    point = downstream.sync_point(progress.changefeed_id() if progress is not None else None)
    if point is not None and point.secondary_ts and at in (None, point.primary_ts):
        return MysqlSide(downstream, point.secondary_ts), point.primary_ts
    if at is not None:
        return MysqlSide(downstream), at
    if progress is None:
        raise UsageError(
            "which ts is to be checked? Give the changefeed's --data-dir, whose checkpoint is taken, or a ts by --at "
            "at which the downstream stands still. A TiDB downstream with sync points needs neither."
        )
    return MysqlSide(downstream), progress.checkpoint_ts()


def _complete(at: Ts | None, checkpoint_ts: Ts) -> Ts:
    if at is not None and at > checkpoint_ts:
        raise UsageError(
            f"the downstream is complete up to {show(checkpoint_ts)} only, and --at {show(at)} is later. "
            "Wait for the changefeed, or give an earlier ts."
        )
    return checkpoint_ts if at is None else at


def _print(report: Report | KeyReport, output: Output) -> None:
    if output is Output.json:
        typer.echo(orjson.dumps(report.document()).decode())
        return
    for line in report.lines():
        typer.echo(line)
