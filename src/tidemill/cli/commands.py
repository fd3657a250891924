"""All commands as one application."""

import sys

import typer

from tidemill.cli import demo, fault, run, upstream, verify, warm
from tidemill.errors import TidemillError

app = typer.Typer(
    name="tidemill",
    help="Change data capture for TiDB and TiKV on Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("upstream")(upstream.upstream)
app.command("run")(run.run)
app.command("verify")(verify.verify)
app.command("demo")(demo.demo)
app.command("warm")(warm.warm)
app.add_typer(fault.fault, name="fault")


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from tidemill import __version__

        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def run_app() -> None:
    """Run the command that the arguments name. Raises SystemExit."""
    try:
        app()
    except TidemillError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
