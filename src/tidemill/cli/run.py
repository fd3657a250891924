"""``tidemill run``: a changefeed in the foreground."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.live import Live
from rich.text import Text

from tidemill.capture.changefeed import Changefeed
from tidemill.capture.metadata import DEFAULT_NAME
from tidemill.capture.options import RunOptions, Status, status_at_rest
from tidemill.capture.running import end_spark, run_changefeed
from tidemill.cli import stopping
from tidemill.cli.keys import (
    DEFAULT_SAFE_INTERVAL,
    Api,
    EndKey,
    Format,
    KeyPattern,
    KeyPrefix,
    KeyspaceName,
    SafeInterval,
    SpanCount,
    StartKey,
    ValuePattern,
    keys_of,
)
from tidemill.cli.options import (
    SINK_URI_VARIABLE,
    Ca,
    Cert,
    KeyFile,
    Output,
    ReadyFile,
    SparkConf,
    SparkMaster,
    config_of,
    configure_log,
    name_of,
    parse_ts,
    security_of,
    sink_uri_of,
    spark_conf_of,
    spark_master_of,
    told,
    zone_of,
)
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UsageError
from tidemill.model.keys import DEFAULT_SPAN_COUNT, KeyApi
from tidemill.model.keytext import KeyFormat
from tidemill.model.ts import show
from tidemill.model.words import counted, lasting

_PLAIN_PERIOD_SECONDS = 5.0
_MIB = 1 << 20


def run(
    pd: Annotated[str, typer.Option("--pd", help="PD's addresses, comma separated: 127.0.0.1:2379.")],
    sink_uri: Annotated[
        str,
        typer.Option(
            "--sink-uri",
            help="Where to write: mysql://user@host:3306/, file:///data/out?protocol=canal-json, iceberg:///warehouse, "
            "delta:///lake, tikv://pd:2379, blackhole://. @FILE reads it from a file, so that no password is on the "
            "command line.",
            envvar=SINK_URI_VARIABLE,
        ),
    ],
    start_ts: Annotated[
        str | None,
        typer.Option(
            "--start-ts",
            help="Changes after this moment are captured: a time, a TSO, or -15m. Default: now.",
        ),
    ] = None,
    target_ts: Annotated[
        str | None,
        typer.Option("--target-ts", help="End once everything up to this ts is durable. Default: run until stopped."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The changefeed's TOML file, in TiCDC's spelling: filters and more.")
    ] = None,
    initial_scan: Annotated[
        bool,
        typer.Option(
            "--initial-scan", help="First copy all rows as of --start-ts, then capture changes from there on."
        ),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Copy all rows as of --start-ts, and end: --initial-scan without changes.")
    ] = False,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_format: Format = KeyFormat.hex,
    keyspace: KeyspaceName = None,
    safe_interval: SafeInterval = DEFAULT_SAFE_INTERVAL,
    span_count: SpanCount = DEFAULT_SPAN_COUNT,
    kv_api: Api = KeyApi.raw,
    key_prefix: KeyPrefix = None,
    key_pattern: KeyPattern = "",
    value_pattern: ValuePattern = "",
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Folder of the changefeed's progress, from which it resumes.")
    ] = Path("tidemill-data"),
    changefeed_id: Annotated[
        str,
        typer.Option("--changefeed-id", help="The changefeed's name, in log lines and among Spark's jobs."),
    ] = DEFAULT_NAME,
    ca: Ca = "",
    cert: Cert = "",
    key: KeyFile = "",
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    time_zone: Annotated[
        str, typer.Option("--time-zone", help="The zone in which TIMESTAMP values are written.")
    ] = "UTC",
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="Write JSON here once changes are being captured.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", help="How to print the closing summary.")] = Output.text,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Capture the changes of a cluster and write them downstream, in the foreground.

    Resumes from its data-dir, ends with 0 once all up to --target-ts is durable, and on Ctrl-C or SIGTERM after the
    batch at hand.

    With --start-key, --end-key or --keyspace, or a sink of scheme tikv, keys are captured in place of tables.

    Example: tidemill run --pd 127.0.0.1:2379 --sink-uri mysql://root@127.0.0.1:3306/ --initial-scan
    """
    configure_log(log_level)
    settings = config_of(config)
    sink_uri = sink_uri_of(sink_uri)
    options = RunOptions(
        pd=pd,
        sink_uri=sink_uri,
        data_dir=data_dir,
        name=name_of(changefeed_id),
        start_ts=parse_ts(start_ts, "--start-ts"),
        target_ts=parse_ts(target_ts, "--target-ts"),
        spark_master=spark_master_of(spark_master),
        spark_conf=spark_conf_of(spark_conf),
        zone=zone_of(time_zone),
        config=settings,
        security=security_of(ca, cert, key, settings),
        initial_copy=initial_scan or once,
        ends_at_start=once,
        keys=keys_of(
            sink_uri,
            start_key,
            end_key,
            key_format,
            keyspace,
            safe_interval,
            span_count,
            kv_api,
            key_prefix,
            key_pattern,
            value_pattern,
            settings.keys,
        ),
    )
    if options.start_ts is not None and options.target_ts is not None and options.target_ts < options.start_ts:
        raise UsageError(
            f"--target-ts {show(options.target_ts)} lies before --start-ts {show(options.start_ts)}. "
            "Swap them, or leave one out."
        )
    if once and options.target_ts is not None:
        raise UsageError("--once ends at --start-ts, so it takes no --target-ts. Leave one of them out.")
    if once and options.keys is not None:
        raise UsageError(
            "--once copies tables as of a ts, and keys are read as they are. Use --initial-scan and --target-ts."
        )
    waiting = ReadyFile(ready_file)
    began = SYSTEM_CLOCK.monotonic()

    def ready(feed: Changefeed) -> None:
        checkpoint_ts = feed.owner.owned.checkpoint_ts
        document = {"pid": os.getpid(), "checkpoint_ts": checkpoint_ts, "data_dir": str(feed.data_dir)}
        waiting.write(document)

    stop = stopping.current()
    latest: Status | None = None

    def tick(now: Status) -> None:
        nonlocal latest
        latest = now
        line.show(now)

    def give_up() -> None:
        end_spark()
        line.__exit__()
        _summary(latest or status_at_rest(options), False, SYSTEM_CLOCK.monotonic() - began, output)

    with ProgressLine() as line, stop.graceful(), stop.on_abandon(give_up):
        finished, last = run_changefeed(options, stop.is_set, ready, tick, stop.at_hand)
    _summary(last, finished, SYSTEM_CLOCK.monotonic() - began, output)


class ProgressLine:
    """Live on a terminal, a plain line every few seconds elsewhere. Always on stderr."""

    def __init__(self) -> None:
        self._console = told()
        self._live = Live(console=self._console, refresh_per_second=4, transient=True) if sys.stderr.isatty() else None
        self._began = SYSTEM_CLOCK.monotonic()
        self._last = (self._began, 0)
        self._rate = 0.0

    def __enter__(self) -> "ProgressLine":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, now: Status) -> None:
        at, rows = self._last
        elapsed = SYSTEM_CLOCK.monotonic() - at
        if elapsed >= (1.0 if self._live else _PLAIN_PERIOD_SECONDS):
            self._rate = (now.totals.rows - rows) / elapsed
            self._last = (at + elapsed, now.totals.rows)
            if not self._live:
                self._console.print(self._text(now), highlight=False, soft_wrap=True)
        if self._live:
            self._live.update(Text(self._text(now)))

    def _text(self, now: Status) -> str:
        if not now.checkpoint_ts:
            return f"{now.stage}: {lasting(SYSTEM_CLOCK.monotonic() - self._began)}"
        waiting = f", {now.pending_rows:,} more buffered" if now.pending_rows else ""
        if now.disk_bytes:
            waiting += f" ({now.disk_bytes / _MIB:,.0f} MiB of {now.disk_quota / _MIB:,.0f} on disk)"
        return (
            f"{now.stage}: {counted(now.totals.rows, 'row')} written, {self._rate:,.0f} rows/s{waiting}, "
            f"checkpoint {show(now.checkpoint_ts)}, lag {lasting(now.lag_seconds)},{_parts(now)}{_latency(now)} "
            f"{counted(now.totals.ddls, 'DDL')}, {counted(now.regions, 'region')}{_aside(now)}"
        )


def _summary(now: Status, finished: bool, seconds: float, output: Output) -> None:
    document = {
        "finished": finished,
        "checkpoint_ts": now.checkpoint_ts,
        "pulled_rows": now.pulled_rows,
        "rows": now.totals.rows,
        "bytes": now.totals.bytes,
        "batches": now.totals.batches,
        "ddls": now.totals.ddls,
        "undecodable": now.totals.undecodable,
        "left_out": now.left_out,
        "most_disk_bytes": now.most_disk_bytes,
        "disk_quota": now.disk_quota,
        "lag": asdict(now.lag) if now.lag is not None else None,
        "latency_p50": now.latency_p50,
        "latency_p99": now.latency_p99,
        "seconds": round(seconds, 3),
    }
    if output is Output.json:
        typer.echo(orjson.dumps(document).decode())
        return
    if not now.checkpoint_ts:
        typer.echo(f"Stopped before it had started, {lasting(seconds)}.")
        return
    if now.left_out:
        typer.echo(f"Not captured, since they have no key: {', '.join(now.left_out)}. Give them a key.")
    word = "Reached the target" if finished else "Stopped"
    typer.echo(
        f"{word} at {show(now.checkpoint_ts)}: {counted(now.totals.rows, 'row')} and "
        f"{counted(now.totals.ddls, 'DDL')} in {counted(now.totals.batches, 'batch', 'batches')}, "
        f"{counted(now.totals.bytes, 'byte')}, {lasting(seconds)}{_aside(now)}."
    )


def _latency(now: Status) -> str:
    if now.latency_p50 is None or now.latency_p99 is None:
        return ""
    return f" commit to durable {lasting(now.latency_p50)} (p99 {lasting(now.latency_p99)}),"


def _parts(now: Status) -> str:
    if now.lag is None:
        return ""
    upstream, sorter, sink = map(lasting, (now.lag.upstream, now.lag.sorter, now.lag.sink))
    return f" of it upstream {upstream}, sorter {sorter}, sink {sink},"


def _aside(now: Status) -> str:
    return f", {counted(now.totals.undecodable, 'row')} put aside" if now.totals.undecodable else ""
