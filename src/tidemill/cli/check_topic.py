"""``tidemill check-topic``: whether a topic keeps what its protocol promises."""

from dataclasses import replace
from typing import Annotated

import typer

from tidemill.cli import stopping
from tidemill.cli.options import Output, configure_log, sink_uri_of
from tidemill.consumer.check_topic import check_topic as checked
from tidemill.consumer.report import Report
from tidemill.consumer.topic import parse_topic

_SHOWN = 10  # violations, of all that are listed in JSON


def check_topic(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic: kafka://broker:9092/topic?protocol=open-protocol. @FILE reads it from a file, so that no "
            "password is on the command line."
        ),
    ],
    keys_move: Annotated[
        bool,
        typer.Option(
            "--keys-move", help="The topic is dispatched by ts, so changes of a row may be in several partitions."
        ),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", help="How many partitions are used. Default: as many as the topic has.", min=1),
    ] = None,
    output: Annotated[Output, typer.Option("--output", help="How to print the report.")] = Output.text,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Read a topic from its beginning to its present end, and report every promise of the protocol that it breaks.

    Ends with 0 where there is none, with 1 where there is.

    Example: tidemill check-topic 'kafka://127.0.0.1:9092/shop?protocol=open-protocol'
    """
    configure_log(log_level)
    kafka = parse_topic(sink_uri_of(topic))
    stop = stopping.current()
    report = checked(
        replace(kafka, changefeed="check-topic"),
        keys_stay=not keys_move,
        partitions=partitions,
        should_stop=stop.is_set,
    )
    typer.echo(report.as_json() if output is Output.json else _text(report))
    if not report.is_ok:
        raise typer.Exit(1)


def _text(report: Report) -> str:
    lines = [
        f"{report.rows:,} rows in {len(report.partitions)} partitions, {report.duplicates:,} of them copies; "
        f"{report.ddls} DDLs, {report.resolved:,} resolved-ts, {report.admin} admin events."
    ]
    if report.unverifiable:
        lines.append(f"{report.unverifiable:,} rows are too old for the checker to know whether they are copies.")
    if report.is_ok:
        return "\n".join([*lines, "The topic keeps what its protocol promises."])
    lines += [f"Broken {count:,} times: {rule}." for rule, count in report.counts.items()]
    lines += [
        f"  partition {each.partition}, offset {each.offset}, ts {each.ts}: {each.what}"
        for each in report.violations[:_SHOWN]
    ]
    return "\n".join(lines)
