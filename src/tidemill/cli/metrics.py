"""``tidemill metrics``: what captures measure, as a list, a Grafana board and alert rules."""

import typer

from tidemill.api.board import board as grafana_board
from tidemill.api.board import rules
from tidemill.api.metrics import METRICS
from tidemill.cli.options import Output
from tidemill.cli.remote.options import OutputFlag
from tidemill.cli.remote.show import print_json, print_table

metrics = typer.Typer(
    help="What captures measure: a list, a Grafana board, alert rules.", no_args_is_help=True, rich_markup_mode=None
)


@metrics.command("list")
def list_metrics(output: OutputFlag = Output.text) -> None:
    """List the metrics that a capture gives at /metrics.

    Example: tidemill metrics list
    """
    if output is Output.json:
        print_json([{"name": m.name, "kind": m.kind.value, "labels": m.labels, "help": m.help} for m in METRICS])
        return
    rows = ([m.name, m.kind.value, ", ".join(m.labels), m.help] for m in METRICS)
    print_table(["METRIC", "KIND", "LABELS", "MEANING"], rows, "There is none.")


@metrics.command()
def board() -> None:
    """Print the Grafana board, as JSON to be imported.

    Example: tidemill metrics board
    """
    typer.echo(grafana_board())


@metrics.command()
def alerts() -> None:
    """Print the alert rules, as YAML for Prometheus' rule_files.

    Example: tidemill metrics alerts
    """
    typer.echo(rules(), nl=False)
