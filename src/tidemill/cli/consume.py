"""``tidemill consume``: a topic of Kafka into a sink, in the foreground."""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import orjson
import typer

from tidemill.cli import stopping
from tidemill.cli.options import (
    Output,
    ReadyFile,
    SparkConf,
    SparkMaster,
    configure_log,
    name_of,
    parse_ts,
    sink_uri_of,
    spark_conf_of,
    spark_master_of,
    told,
    zone_of,
)
from tidemill.clock import SYSTEM_CLOCK
from tidemill.consumer.alignment import Consistency
from tidemill.consumer.consume import Consume, ConsumeOptions, ConsumerStatus
from tidemill.consumer.running import STANDING_BY, Member, open_consumer
from tidemill.errors import EngineError, StoppedError
from tidemill.model.ts import Ts, show

_PLAIN_PERIOD_SECONDS = 5.0
_MIB = 1 << 20


class Mode(StrEnum):
    transaction = "transaction"
    row = "row"


def consume(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic: kafka://broker:9092/topic?protocol=open-protocol. @FILE reads it from a file, so that no "
            "password is on the command line."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Where to write: mysql://user@host:3306/, file:///folder?protocol=canal-json, iceberg:///folder, or "
            "any other sink but kafka://. @FILE reads it.",
        ),
    ],
    consistency: Annotated[
        Mode,
        typer.Option(
            "--consistency",
            help="transaction: all partitions together, no transaction is ever seen in part. row: each partition as "
            "soon as it is resolved.",
        ),
    ] = Mode.transaction,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Folder of the consumer's progress, from which it resumes.")
    ] = Path("tidemill-consumer"),
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Name of a group of processes, each with a data-dir of its own: one of them does the work, and "
            "another takes over when it dies. Their progress is in topic tidemill-group-NAME then. Default: alone.",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", help="How many partitions are used. Default: as many as the topic has.", min=1),
    ] = None,
    target_ts: Annotated[
        str | None,
        typer.Option("--target-ts", help="End once everything up to this ts is written. Default: run until stopped."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The consumer's name among Spark's jobs.")] = "default",
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    time_zone: Annotated[
        str, typer.Option("--time-zone", help="The zone in which TIMESTAMP values are in the messages.")
    ] = "UTC",
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", help="Write JSON here once the topic is being read, or the group is joined."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", help="How to print the closing summary.")] = Output.text,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Read a topic that Tidemill or TiCDC has written, and write its rows and DDLs to a sink, in the foreground.

    Resumes from its data-dir, or where its group is; ends with 0 once all up to --target-ts is written, on Ctrl-C and
    on SIGTERM.

    Example: tidemill consume 'kafka://127.0.0.1:9092/shop?protocol=open-protocol' --to mysql://root@127.0.0.1:3306/
    """
    configure_log(log_level)
    options = ConsumeOptions(
        kafka_uri=sink_uri_of(topic),
        sink_uri=sink_uri_of(to),
        data_dir=data_dir,
        consistency=Consistency(consistency.value),
        partitions=partitions,
        name=name_of(name),
        zone=zone_of(time_zone),
        group=None if group is None else name_of(group, "--group"),
        spark_master=spark_master_of(spark_master),
        spark_conf=spark_conf_of(spark_conf),
    )
    waiting, end_ts = ReadyFile(ready_file), parse_ts(target_ts, "--target-ts")
    began, stop = SYSTEM_CLOCK.monotonic(), stopping.current()
    feed = open_consumer(options, lambda text: told().print(text, highlight=False, soft_wrap=True))
    with stop.graceful(), stop.on_abandon(_end_spark):
        finished = _run(feed, stop, end_ts, lambda: waiting.write({"pid": os.getpid(), "data_dir": str(data_dir)}))
    _summary(feed.last, finished, SYSTEM_CLOCK.monotonic() - began, output)


def _run(feed: Consume | Member, stop: stopping.Stop, end_ts: Ts | None, on_ready: Callable[[], None]) -> bool:
    """Until all up to ``end_ts`` is written (True), or somebody stops it."""
    line, finished = told(), False
    shown_at = SYSTEM_CLOCK.monotonic()
    try:
        feed.start(stop.is_set)
        on_ready()
        while not (finished or stop.is_set()):
            feed.poll()
            finished = end_ts is not None and feed.is_at(end_ts)
            if SYSTEM_CLOCK.monotonic() - shown_at >= _PLAIN_PERIOD_SECONDS:
                shown_at = SYSTEM_CLOCK.monotonic()
                line.print(_text(feed.status()), highlight=False, soft_wrap=True)
        feed.stop()
        with stop.at_hand():
            feed.drain()
    except StoppedError:
        return False
    except EngineError:
        if not stop.is_set():
            raise
    finally:
        feed.close()
    return finished


def _text(now: ConsumerStatus) -> str:
    if now.stage == STANDING_BY:
        return STANDING_BY
    return (
        f"{now.stage}: {now.rows:,} rows, {now.ddls} DDLs, {now.staged_rows:,} staged ({now.staged_bytes / _MIB:,.0f} "
        f"MiB), written up to {show(now.applied_ts)}"
    )


def _summary(now: ConsumerStatus, finished: bool, seconds: float, output: Output) -> None:
    document = {
        "finished": finished,
        "applied_ts": now.applied_ts,
        "rows": now.rows,
        "ddls": now.ddls,
        "seconds": round(seconds, 3),
    }
    if output is Output.json:
        typer.echo(orjson.dumps(document).decode())
        return
    word = "Reached the target" if finished else "Stopped"
    typer.echo(f"{word} at {show(now.applied_ts)}: {now.rows:,} rows and {now.ddls} DDLs, {seconds:.1f} s.")


def _end_spark() -> None:
    if "tidemill.spark.session" in sys.modules:
        from tidemill.spark.jvm import kill_all

        kill_all()
